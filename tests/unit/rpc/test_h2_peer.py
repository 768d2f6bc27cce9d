"""python-hyper's h2 as the other side, in memory: its client against our server, and our client against its server."""

from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from popwheel_rpc.http2.connection import Connection
from popwheel_rpc.http2.events import (
    DataReceived,
    Event,
    GoingAway,
    PingAcknowledged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamFlushed,
    StreamReset,
)
from popwheel_rpc.http2.frames import ErrorCode
from popwheel_rpc.limits import Limits
from tests.unit.rpc.peers import ANSWER, REQUEST, TRAILERS

FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("x-mq-client-id", "a@b"),
]


@dataclass
class Pair:
    """Our connection and h2's, joined.

    Args:
        client: whether ours is the client.
        limits: ours.
    """

    client: bool
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.ours = Connection(self.limits, client=self.client)
        config = h2.config.H2Configuration(client_side=not self.client, header_encoding="utf-8")
        self.theirs = h2.connection.H2Connection(config)
        self.our_events: list[Event] = []
        self.their_events: list[h2.events.Event] = []
        self.ours.start()
        self.theirs.initiate_connection()
        self.exchange()
        self.our_events.clear()
        self.their_events.clear()

    def exchange(self) -> None:
        """Carry bytes to and fro until both are silent."""
        while True:
            to_theirs = self.ours.outbox.take()
            to_ours = self.theirs.data_to_send()
            if not to_theirs and not to_ours:
                return
            self.their_events += self.theirs.receive_data(to_theirs)
            self.our_events += self.ours.receive(to_ours, 0.0)

    def ours_of(self, kind: type) -> list[Any]:
        """Our events of one kind."""
        return [event for event in self.our_events if isinstance(event, kind)]

    def theirs_of(self, kind: type) -> list[Any]:
        """h2's events of one kind."""
        return [event for event in self.their_events if isinstance(event, kind)]


def test_a_call_of_their_client() -> None:
    pair = Pair(client=False)
    for stream_id in (1, 3, 5):
        pair.theirs.send_headers(stream_id, FIELDS)
        pair.theirs.send_data(stream_id, b"hello", end_stream=True)
        pair.exchange()
        pair.ours.release(stream_id, 5)
        pair.ours.respond(stream_id, ANSWER, b"world", TRAILERS)
        pair.exchange()
    heads = pair.ours_of(RequestReceived)
    assert [head.head.metadata for head in heads] == [{"x-mq-client-id": "a@b"}] * 3
    assert heads[1].head is heads[2].head, "a block that is known is not read again"
    assert [event.data for event in pair.ours_of(DataReceived)] == [b"hello"] * 3
    assert [event.data for event in pair.theirs_of(h2.events.DataReceived)] == [b"world"] * 3
    assert [list(event.headers) for event in pair.theirs_of(h2.events.TrailersReceived)] == [[("grpc-status", "0")]] * 3
    assert not pair.ours.streams


def test_a_call_of_ours() -> None:
    pair = Pair(client=True)
    stream_id = pair.ours.open_stream(REQUEST, end=False)
    pair.ours.send_data(stream_id, b"hello", end=True)
    pair.exchange()
    (request,) = pair.theirs_of(h2.events.RequestReceived)
    assert (":path", "/t.T/Echo") in list(request.headers)
    pair.theirs.send_headers(stream_id, [(":status", "103")])
    pair.theirs.send_headers(stream_id, [(":status", "200"), ("content-type", "application/grpc")])
    pair.theirs.send_data(stream_id, b"world", pad_length=7)
    pair.theirs.send_headers(stream_id, [("grpc-status", "0"), ("x", "y")], end_stream=True)
    pair.exchange()
    head, trailers = pair.ours_of(ResponseReceived)
    assert (head.head.status, head.ended) == (200, False)
    assert (trailers.head.fields, trailers.ended) == ({"grpc-status": "0", "x": "y"}, True)
    assert [event.data for event in pair.ours_of(DataReceived)] == [b"world"]
    assert not pair.ours.streams


@pytest.mark.parametrize("client", [True, False])
def test_more_data_than_any_window(client: bool) -> None:
    pair = Pair(client=client, limits=Limits(stream_window_bytes=70_000, connection_window_bytes=100_000))
    size = 1_000_000
    if client:
        stream_id = pair.ours.open_stream(REQUEST, end=False)
    else:
        stream_id = 1
        pair.theirs.send_headers(stream_id, FIELDS, end_stream=True)
        pair.exchange()
        pair.ours.send_headers(stream_id, ANSWER)
    assert not pair.ours.send_data(stream_id, bytes(size), end=True)
    pair.exchange()
    while size and (arrived := pair.theirs_of(h2.events.DataReceived)):
        for event in arrived:
            pair.theirs.acknowledge_received_data(event.flow_controlled_length, stream_id)
            size -= len(event.data)
        pair.their_events = [event for event in pair.their_events if not isinstance(event, h2.events.DataReceived)]
        pair.exchange()
    assert size == 0
    assert pair.ours_of(StreamFlushed) == [StreamFlushed(stream_id)]


def test_their_data_is_delayed_until_ours_is_released() -> None:
    pair = Pair(client=False, limits=Limits(stream_window_bytes=50_000))
    pair.theirs.send_headers(1, FIELDS)
    pair.exchange()
    left = 500_000
    while left:
        room = min(pair.theirs.local_flow_control_window(1), 16_384, left)
        if room:
            pair.theirs.send_data(1, bytes(room))
            left -= room
            pair.exchange()
            continue
        held = sum(len(event.data) for event in pair.ours_of(DataReceived))
        assert held == pair.ours.buffered_bytes <= 50_000
        pair.our_events.clear()
        pair.ours.release(1, held)
        pair.exchange()


def test_resets_pings_trailers_and_goodbyes() -> None:
    pair = Pair(client=False)
    for stream_id in (1, 3, 5):
        pair.theirs.send_headers(stream_id, FIELDS)
    pair.theirs.reset_stream(1, error_code=8)
    pair.theirs.send_headers(3, [("x", "y")], end_stream=True)
    pair.exchange()
    assert pair.ours_of(StreamReset)[0].code is ErrorCode.CANCEL
    assert pair.ours_of(StreamEnded) == [StreamEnded(3)]
    pair.ours.reset(5, ErrorCode.REFUSED_STREAM)
    pair.ours.ping(b"are you?")
    pair.exchange()
    pair.ours.refuse_streams()  # h2 hears nothing after the first GOAWAY, so no two steps here
    pair.exchange()
    assert pair.theirs_of(h2.events.StreamReset)[0].error_code == 7
    assert pair.ours_of(PingAcknowledged) == [PingAcknowledged(b"are you?")]
    assert [event.last_stream_id for event in pair.theirs_of(h2.events.ConnectionTerminated)] == [5]
    theirs = Pair(client=True)
    theirs.theirs.close_connection(error_code=11, additional_data=b"too_many_pings")
    theirs.exchange()
    assert theirs.ours_of(GoingAway) == [GoingAway(0, ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")]
    assert not theirs.ours.can_open_stream


def test_their_limit_of_streams_is_kept() -> None:
    pair = Pair(client=True)
    pair.theirs.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1})
    pair.exchange()
    assert pair.ours.can_open_stream
    pair.ours.open_stream(REQUEST, end=True)
    assert not pair.ours.can_open_stream
