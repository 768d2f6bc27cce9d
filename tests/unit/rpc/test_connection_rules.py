"""RFC 9113, rule by rule: what a server's connection does when its client breaks one."""

import pytest

from popwheel_rpc.http2 import frames, hpack
from popwheel_rpc.http2.connection import Connection
from popwheel_rpc.http2.events import (
    ConnectionFailed,
    DataReceived,
    RequestReceived,
    RequestTooLarge,
    StreamFlushed,
    StreamReset,
)
from popwheel_rpc.http2.frames import ErrorCode
from popwheel_rpc.limits import Limits
from tests.unit.rpc.peers import ANSWER, REQUEST, START, TRAILERS, Served, block, data, headers, split

PROTOCOL = ErrorCode.PROTOCOL_ERROR
SIZE = ErrorCode.FRAME_SIZE_ERROR
FLOW = ErrorCode.FLOW_CONTROL_ERROR
CLOSED = ErrorCode.STREAM_CLOSED


def frame(kind: int, stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return frames.frame(kind, flags, stream_id, payload)


@pytest.mark.parametrize(
    ("sent", "code", "rule"),
    [
        (frame(frames.DATA, 0, b"x"), PROTOCOL, "6.1 DATA on stream 0"),
        (frame(frames.DATA, 1, b"x"), PROTOCOL, "5.1 DATA on an idle stream"),
        (frame(frames.HEADERS, 0, REQUEST, 4), PROTOCOL, "6.2 HEADERS on stream 0"),
        (frame(frames.HEADERS, 2, REQUEST, 4), PROTOCOL, "5.1.1 an even stream"),
        (frame(frames.HEADERS, 1, b"\xff\xff\xff\xff\xff\xff", 4), ErrorCode.COMPRESSION_ERROR, "4.3"),
        (frame(frames.HEADERS, 1, b"\x09" + REQUEST[:4], 4 | 8), PROTOCOL, "6.2 padding too long"),
        (frame(frames.HEADERS, 1, b"", 4 | 8), PROTOCOL, "6.2 no padding length"),
        (frame(frames.HEADERS, 1, b"abc", 4 | 0x20), SIZE, "6.2 no room for the priority"),
        (frame(frames.HEADERS, 1, REQUEST) + frame(frames.PING, 0, bytes(8)), PROTOCOL, "6.2 PING in a block"),
        (frame(frames.HEADERS, 1, REQUEST) + frame(frames.CONTINUATION, 3, b"", 4), PROTOCOL, "6.10 other stream"),
        (frame(frames.HEADERS, 1, REQUEST) + frame(0xBB, 1, b""), PROTOCOL, "5.5 unknown frame in a block"),
        (frame(frames.CONTINUATION, 1, b"", 4), PROTOCOL, "6.10 CONTINUATION alone"),
        (frame(frames.PRIORITY, 0, bytes(5)), PROTOCOL, "6.3 PRIORITY on stream 0"),
        (frame(frames.RST_STREAM, 0, bytes(4)), PROTOCOL, "6.4 RST_STREAM on stream 0"),
        (frame(frames.RST_STREAM, 1, bytes(4)), PROTOCOL, "6.4 RST_STREAM on an idle stream"),
        (frame(frames.RST_STREAM, 1, bytes(3)), SIZE, "6.4 RST_STREAM of three bytes"),
        (frame(frames.SETTINGS, 1, b""), PROTOCOL, "6.5 SETTINGS on a stream"),
        (frame(frames.SETTINGS, 0, bytes(5)), SIZE, "6.5 SETTINGS of five bytes"),
        (frame(frames.SETTINGS, 0, bytes(6), 1), SIZE, "6.5 an ack with settings"),
        (frames.settings({2: 2}), PROTOCOL, "6.5.2 ENABLE_PUSH 2"),
        (frames.settings({4: 2**31}), FLOW, "6.5.2 a window beyond 2^31 - 1"),
        (frames.settings({5: 16_383}), PROTOCOL, "6.5.2 frames too small"),
        (frames.settings({5: 2**24}), PROTOCOL, "6.5.2 frames too big"),
        (frame(frames.PUSH_PROMISE, 1, bytes(4), 4), PROTOCOL, "8.4 a client that pushes"),
        (frame(frames.PING, 1, bytes(8)), PROTOCOL, "6.7 PING on a stream"),
        (frame(frames.PING, 0, bytes(7)), SIZE, "6.7 PING of seven bytes"),
        (frame(frames.GOAWAY, 1, bytes(8)), PROTOCOL, "6.8 GOAWAY on a stream"),
        (frame(frames.GOAWAY, 0, bytes(7)), SIZE, "6.8 GOAWAY of seven bytes"),
        (frame(frames.WINDOW_UPDATE, 0, bytes(4)), PROTOCOL, "6.9 the connection's window opened by 0"),
        (frame(frames.WINDOW_UPDATE, 0, bytes(3)), SIZE, "6.9 WINDOW_UPDATE of three bytes"),
        (frames.window_update(1, 1), PROTOCOL, "5.1 WINDOW_UPDATE on an idle stream"),
        (frames.window_update(0, 2**31 - 1), FLOW, "6.9.1 the connection's window too wide"),
        (frames.FRAME_HEADER.pack(16_385 << 8, 0, 1), SIZE, "4.2 a frame too long, refused by its header"),
    ],
)
def test_rules_that_cost_the_connection(sent: bytes, code: ErrorCode, rule: str) -> None:
    served = Served()
    served.receive(sent)
    assert served.connection_error() is code, rule
    assert served.receive(frames.ping(bytes(8), ack=False)) == []
    assert served.sent() == []


@pytest.mark.parametrize(
    ("sent", "code", "rule"),
    [
        (headers(1, block(_path="")), PROTOCOL, "8.3.1 no :path"),
        (headers(1, block(_method="")), PROTOCOL, "8.3.1 no :method"),
        (headers(1, block(_scheme="")), PROTOCOL, "8.3.1 no :scheme"),
        (headers(1, block() + hpack.encode([(b":path", b"/")])), PROTOCOL, "8.3 :path twice, and behind others"),
        (headers(1, hpack.encode([(b":status", b"200")]) + REQUEST), PROTOCOL, "8.3 :status in a request"),
        (headers(1, block(Upper="x")), PROTOCOL, "8.2.1 an upper-case name"),
        (headers(1, block(x="a\nb")), PROTOCOL, "8.2.1 a line end in a value"),
        (headers(1, block(x=" a")), PROTOCOL, "8.2.1 a blank before a value"),
        (headers(1, block(connection="close")), PROTOCOL, "8.2.2 connection"),
        (headers(1, block(te="gzip")), PROTOCOL, "8.2.2 te"),
        (headers(1, block(content_length="x")), PROTOCOL, "8.1.1 content-length is no number"),
        (headers(1, block(content_length="3"), end=True), PROTOCOL, "8.1.1 content-length without data"),
        (headers(1, block(content_length="3")) + data(1, b"ab", end=True), PROTOCOL, "8.1.1 too little data"),
        (headers(1, block(content_length="1")) + data(1, b"ab"), PROTOCOL, "8.1.1 too much data"),
        (headers(1, REQUEST) + headers(1, TRAILERS), PROTOCOL, "8.1 trailers that do not end"),
        (headers(1, REQUEST) + headers(1, block(), end=True), PROTOCOL, "8.1 pseudo-headers in trailers"),
        (frame(frames.HEADERS, 1, bytes((0, 0, 0, 1, 0)) + REQUEST, 4 | 0x20), PROTOCOL, "a stream on itself"),
        (frame(frames.PRIORITY, 1, bytes((0, 0, 0, 1, 0))), PROTOCOL, "a stream on itself"),
        (frame(frames.PRIORITY, 1, bytes(4)), SIZE, "6.3 PRIORITY of four bytes"),
        (headers(1, REQUEST) + frame(frames.WINDOW_UPDATE, 1, bytes(4)), PROTOCOL, "6.9 opened by 0"),
        (headers(1, REQUEST) + frames.window_update(1, 2**31 - 1), FLOW, "6.9.1 too wide"),
        (headers(1, REQUEST, end=True) + data(1, b"x"), CLOSED, "5.1 DATA after the end"),
        (headers(1, REQUEST, end=True) + headers(1, TRAILERS, end=True), CLOSED, "5.1 HEADERS after the end"),
        (headers(1, REQUEST) + frame(3, 1, bytes(4)) + data(1, b"x"), CLOSED, "5.1 DATA after a reset"),
        (headers(1, REQUEST) + frame(3, 1, bytes(4)) + headers(1, TRAILERS), CLOSED, "5.1 HEADERS after a reset"),
    ],
)
def test_rules_that_cost_the_stream(sent: bytes, code: ErrorCode, rule: str) -> None:
    served = Served()
    served.receive(sent)
    assert served.stream_error(1) is code, rule
    served.receive(headers(3, REQUEST, end=True))
    assert isinstance(served.events[-1], RequestReceived), "the connection goes on"


def test_frames_on_streams_that_have_ended() -> None:
    for late in (data(1, b"x"), headers(1, TRAILERS)):
        served = Served()
        served.open(end=True)
        served.connection.respond(1, ANSWER, b"", TRAILERS)
        served.receive(frames.window_update(1, 5), frame(frames.RST_STREAM, 1, bytes(4)))
        assert served.connection_error() is None
        served.receive(late)
        assert served.connection_error() is CLOSED


def test_frames_on_a_stream_that_we_have_reset_are_passed_over() -> None:
    served = Served()
    served.open()
    served.connection.reset(1, ErrorCode.CANCEL)
    assert served.stream_error(1) is ErrorCode.CANCEL
    assert served.receive(data(1, b"x"), headers(1, TRAILERS, end=True), frames.window_update(1, 1)) == []
    assert served.connection.buffered_bytes == 0


def test_stream_numbers_grow() -> None:
    served = Served()
    served.open(5)
    served.receive(headers(3, REQUEST))
    assert served.connection_error() is PROTOCOL


def test_the_preface_may_come_byte_by_byte_and_settings_come_first() -> None:
    other = Connection(Limits(), client=False)
    for byte in START:
        assert not other.failed
        other.receive(bytes((byte,)), 0.0)
    assert not other.failed
    for wrong in (b"GET / HTTP/1.1\r\n\r\n", frames.PREFACE + frames.ping(bytes(8), ack=False)):
        other = Connection(Limits(), client=False)
        other.receive(wrong, 0.0)
        assert other.failed


def test_padding_and_priority_are_taken_off() -> None:
    served = Served()
    served.receive(
        frame(frames.HEADERS, 1, b"\x03" + bytes((0, 0, 0, 9, 200)) + REQUEST + bytes(3), 4 | 8 | 0x20),
        frame(frames.DATA, 1, b"\x02hello\0\0", 8 | 1),
    )
    assert served.events[-1] == DataReceived(1, b"hello", True)
    assert served.connection.buffered_bytes == 5


def test_a_block_in_pieces() -> None:
    served = Served()
    served.receive(
        frame(frames.HEADERS, 1, REQUEST[:3], 1),
        frame(frames.CONTINUATION, 1, b""),
        frame(frames.CONTINUATION, 1, REQUEST[3:], 4),
    )
    (event,) = served.events
    assert isinstance(event, RequestReceived)
    assert event.ended
    assert event.head.path == "/t.T/Echo"


def test_unknown_frames_settings_and_flags_mean_nothing() -> None:
    served = Served()
    served.receive(frame(0xBB, 7, b"?"), frames.settings({99: 1}), frame(frames.PING, 0, bytes(8), 0xFE))
    assert [sent.kind for sent in served.sent()] == [frames.SETTINGS, frames.PING]


def test_data_waits_for_both_windows() -> None:
    served = Served()
    served.receive(frames.settings({4: 10}))
    served.open(end=True)
    served.sent()
    served.connection.respond(1, ANSWER, b"x" * 30, TRAILERS)
    assert [len(sent.payload) for sent in served.sent() if sent.kind == frames.DATA] == [10]
    served.receive(frames.settings({4: 15}))  # windows of open streams move along
    assert [len(sent.payload) for sent in served.sent() if sent.kind == frames.DATA] == [5]
    served.receive(frames.settings({4: 1}))  # and may fall below zero
    served.receive(frames.window_update(1, 14))
    assert served.sent()[1:] == []
    assert served.receive(frames.window_update(1, 15)) == [StreamFlushed(1)]
    kinds = [(sent.kind, len(sent.payload), sent.flags & 1) for sent in served.sent()]
    assert kinds == [(frames.DATA, 15, 0), (frames.HEADERS, len(TRAILERS), 1)]
    assert served.connection.outbox.queued_bytes == 0
    assert not served.connection.streams


@pytest.mark.parametrize(("wanted", "longest"), [(16_384, 16_384), (30_000, 30_000), (2**24 - 1, 2**16)])
def test_frames_are_as_long_as_the_other_side_takes_but_others_need_not_wait_long(wanted: int, longest: int) -> None:
    served = Served()
    served.receive(frames.settings({4: 2**20, 5: wanted}), frames.window_update(0, 2**20))
    served.open(end=True)
    served.sent()
    body = bytes(range(256)) * 600
    served.connection.respond(1, ANSWER, body, TRAILERS)
    payloads = [sent.payload for sent in served.sent() if sent.kind == frames.DATA]
    assert b"".join(payloads) == body
    assert max(map(len, payloads)) == longest


def test_a_client_takes_longer_frames_and_says_so() -> None:
    client = Connection(Limits(), client=True)
    client.start()
    (said,) = (sent for sent in split(client.outbox.take()[len(frames.PREFACE) :]) if sent.kind == frames.SETTINGS)
    longest = dict(frames.read_settings(said.payload))[frames.SETTING_MAX_FRAME_SIZE]
    client.open_stream(REQUEST, end=True)
    start = frames.settings({}) + headers(1, ANSWER)
    assert DataReceived(1, bytes(longest), False) in client.receive(start + data(1, bytes(longest)), 0.0)
    (failed,) = client.receive(frames.FRAME_HEADER.pack(longest + 1 << 8, 0, 1), 0.0)
    assert isinstance(failed, ConnectionFailed)
    assert failed.code is SIZE


def test_a_client_that_changes_the_header_table_with_each_request_is_asked_to_do_without_one() -> None:
    served = Served()
    entries = [b"\x40\x01a\x02%02d" % number for number in range(12)]
    for number, entry in enumerate(entries[:8]):
        served.receive(headers(2 * number + 1, REQUEST + entry, end=True))
    served.receive(frame(frames.SETTINGS, 0, b"", frames.ACK))
    assert not [sent for sent in served.sent() if sent.kind == frames.SETTINGS]
    for number in (8, 9):
        served.receive(headers(2 * number + 1, REQUEST + entries[number], end=True))
    (asked,) = (sent for sent in served.sent() if sent.kind == frames.SETTINGS)
    assert dict(frames.read_settings(asked.payload)) == {frames.SETTING_HEADER_TABLE_SIZE: 0}
    served.receive(headers(21, b"\x3f\x45" + REQUEST, end=True))  # it may not have read that yet
    served.receive(frame(frames.SETTINGS, 0, b"", frames.ACK))
    served.receive(headers(23, REQUEST + b"\xbe", end=True))  # one that keeps what is in its table
    served.receive(headers(25, hpack.NO_TABLE + REQUEST + entries[10], end=True))
    served.receive(headers(27, REQUEST + entries[10], end=True))
    requests = [event for event in served.events if isinstance(event, RequestReceived)]
    assert [event.stream_id for event in requests] == list(range(1, 29, 2))
    assert [event.head.metadata.get("a") for event in requests[10:]] == [None, "09", "10", "10"]
    served.receive(headers(29, b"\x21" + REQUEST, end=True))
    failed = served.events[-1]
    assert isinstance(failed, ConnectionFailed)
    assert failed.code is ErrorCode.COMPRESSION_ERROR


def test_a_client_whose_table_stays_as_it_is_keeps_it() -> None:
    served = Served()
    served.receive(headers(1, REQUEST + b"\x40\x01a\x01v", end=True))
    for number in range(1, 100):
        served.receive(headers(2 * number + 1, REQUEST + b"\xbe" + b"\x00\x02id\x02%02d" % number, end=True))
        served.connection.respond(2 * number + 1, ANSWER, b"", TRAILERS)
    assert not [sent for sent in served.sent() if sent.kind == frames.SETTINGS]


def test_settings_are_acknowledged_before_what_they_let_go() -> None:
    served = Served()
    served.receive(frames.settings({4: 10}))
    served.open(end=True)
    served.sent()
    served.connection.respond(1, ANSWER, b"x" * 30, TRAILERS)
    served.sent()
    served.receive(frames.settings({4: 15}))
    assert [sent.kind for sent in served.sent()] == [frames.SETTINGS, frames.DATA]


def test_the_connections_window_is_shared_by_turns() -> None:
    served = Served()
    served.receive(frames.settings({4: 100_000}))
    for stream_id in (1, 3):
        served.open(stream_id, end=True)
        served.connection.respond(stream_id, ANSWER, b"x" * 65_535, TRAILERS)
    assert sum(len(sent.payload) for sent in served.sent() if sent.kind == frames.DATA) == 65_535
    assert served.connection.outbox.queued_bytes == 65_535
    assert served.receive(frames.window_update(0, 65_535)) == [StreamFlushed(3)]
    assert served.connection.outbox.queued_bytes == 0


def test_a_settings_change_that_makes_a_window_too_wide() -> None:
    served = Served()
    served.open()
    served.receive(frames.window_update(1, 2**31 - 1 - 65_535))
    served.receive(frames.settings({4: 65_536}))
    assert served.connection_error() is FLOW


def test_windows_open_as_data_is_consumed() -> None:
    served = Served(Limits(stream_window_bytes=1000, connection_window_bytes=65_535))
    served.open()
    served.receive(data(1, bytes(1000)))
    assert served.sent() == [], "nothing was consumed yet"
    served.connection.release(1, 400)
    assert served.sent() == [], "less than half of the window"
    served.connection.release(1, 600)
    (update,) = served.sent()
    assert (update.kind, update.stream_id, update.payload) == (frames.WINDOW_UPDATE, 1, (1000).to_bytes(4, "big"))
    served.receive(data(1, bytes(1001)))
    assert served.stream_error(1) is FLOW
    assert served.connection.buffered_bytes == 0


def test_one_slow_stream_does_not_hold_up_the_connection() -> None:
    served = Served(
        Limits(stream_window_bytes=40_000, connection_window_bytes=65_535, receive_buffer_bytes_max=200_000)
    )
    for stream_id in (1, 3, 5):
        served.open(stream_id)
        served.receive(data(stream_id, bytes(16_384)), data(stream_id, bytes(16_384)))
    assert served.connection_error() is None
    assert served.connection.buffered_bytes == 6 * 16_384


def test_more_than_the_connections_window() -> None:
    served = Served(
        Limits(
            stream_window_bytes=500_000,
            connection_window_bytes=65_535,
            receive_buffer_bytes_max=131_070,
            message_bytes_max=0,
        )
    )
    served.open()
    for _ in range(5):
        served.receive(data(1, bytes(16_384)))
    assert not served.connection.failed
    for _ in range(3):
        served.receive(data(1, bytes(16_384)))
    assert served.connection_error() is FLOW


@pytest.mark.parametrize(
    "impossible",
    [
        {"connection_window_bytes": 65_534},
        {"connection_window_bytes": 2**31},
        {"stream_window_bytes": 0},
    ],
)
def test_impossible_limits(impossible: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(impossible))):
        Limits(**impossible)


def test_the_smallest_window_needs_no_update() -> None:
    connection = Connection(Limits(connection_window_bytes=65_535), client=False)
    connection.start()
    assert connection.outbox.take()[3] == frames.SETTINGS
    assert not connection.outbox


def test_too_many_streams_are_refused_and_handlers_count() -> None:
    served = Served(Limits(concurrent_streams_max=2))
    served.connection.lingering = 1
    served.open(1)
    served.open(3)
    assert served.stream_error(3) is ErrorCode.REFUSED_STREAM
    served.connection.lingering = 0
    served.open(5)
    assert isinstance(served.events[-1], RequestReceived)


def test_headers_beyond_the_limit_can_be_answered() -> None:
    served = Served(Limits(header_list_bytes_max=300))
    served.receive(headers(1, block(x="y" * 300), end=True), headers(3, REQUEST, end=True))
    assert isinstance(served.events[0], RequestTooLarge)
    assert isinstance(served.events[1], RequestReceived)


def test_going_away_takes_two_steps() -> None:
    served = Served()
    served.open(1)
    served.connection.go_away()
    first, ping = served.sent()
    assert first.payload[:4] == (2**31 - 1).to_bytes(4, "big")
    served.open(3)  # was on its way
    assert isinstance(served.events[-1], RequestReceived)
    served.receive(frame(frames.PING, 0, ping.payload, frames.ACK))
    (second,) = served.sent()
    assert second.payload[:4] == (3).to_bytes(4, "big")
    served.open(5)
    assert served.stream_error(5) is ErrorCode.REFUSED_STREAM
    served.connection.respond(3, ANSWER, b"", TRAILERS)
    assert served.sent() != []


def test_an_answer_before_the_end_of_the_request_resets_the_rest() -> None:
    served = Served()
    served.open()
    served.connection.respond(1, ANSWER, b"", TRAILERS)
    assert served.stream_error(1) is ErrorCode.NO_ERROR


def test_a_reset_says_why() -> None:
    served = Served()
    served.open()
    (event,) = served.receive(frame(frames.RST_STREAM, 1, (8).to_bytes(4, "big")))
    assert isinstance(event, StreamReset)
    assert event.code is ErrorCode.CANCEL
    served.open(3)
    (event,) = served.receive(frame(frames.RST_STREAM, 3, (999).to_bytes(4, "big")))
    assert isinstance(event, StreamReset)
    assert event.code is ErrorCode.INTERNAL_ERROR, "a code that nobody knows"


RST = frames.rst_stream
FLOODS = {
    "resets_max": lambda n: headers(2 * n + 1, REQUEST) + RST(2 * n + 1, ErrorCode.CANCEL),
    "pings_max": lambda n: frames.ping(bytes(8), ack=False),
    "settings_max": lambda n: frames.settings({}),
    "priorities_max": lambda n: frame(frames.PRIORITY, 1, bytes((0, 0, 0, 9, 1))),
    "window_updates_max": lambda n: frames.window_update(0, 1),
    "empty_frames_max": lambda n: (headers(1, REQUEST) if not n else b"") + data(1, b""),
}


@pytest.mark.parametrize("limit", FLOODS)
def test_floods(limit: str) -> None:
    served = Served(Limits(**{limit: 10}))
    for number in range(10):
        served.receive(FLOODS[limit](number))
        if number == 5:
            assert not served.connection.failed
    served.receive(FLOODS[limit](10), FLOODS[limit](11))
    (failed,) = [event for event in served.events if isinstance(event, ConnectionFailed)]
    assert failed.limit == limit
    patient = Served(Limits(**{limit: 10}))
    for number in range(30):
        patient.receive(FLOODS[limit](number), now=number * 2.0)
    assert not patient.connection.failed


def test_a_flood_of_continuations() -> None:
    served = Served()
    served.receive(frame(frames.HEADERS, 1, REQUEST))
    for _ in range(17):
        served.receive(frame(frames.CONTINUATION, 1, b""))
    assert served.connection_error() is ErrorCode.ENHANCE_YOUR_CALM
    served = Served()
    served.receive(frame(frames.HEADERS, 1, REQUEST))
    for _ in range(5):
        served.receive(frame(frames.CONTINUATION, 1, bytes(16_000)))
    assert served.connection_error() is ErrorCode.ENHANCE_YOUR_CALM
