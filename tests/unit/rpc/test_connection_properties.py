"""Whatever comes, in whatever pieces: the same events for the same bytes, and never an exception."""

from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_rpc.http2 import frames
from popwheel_rpc.http2.connection import Connection
from popwheel_rpc.http2.events import Event
from popwheel_rpc.limits import Limits
from tests.unit.rpc.peers import ANSWER, REQUEST, START, TRAILERS, block, headers

SMALL = Limits(
    concurrent_streams_max=4,
    connection_window_bytes=65_535,
    stream_window_bytes=5_000,
    receive_buffer_bytes_max=131_070,
    message_bytes_max=10_000,
    header_list_bytes_max=2_000,
)

stream_ids = st.sampled_from([0, 1, 1, 1, 3, 3, 5, 7, 2])
kinds = st.integers(0, 11)
payloads = st.binary(max_size=40) | st.sampled_from([REQUEST, ANSWER, TRAILERS, block(x="y" * 90), bytes(4), bytes(8)])
flags = st.sampled_from([0, 1, 4, 5, 8, 0x0D, 0x20, 0x2D, 255])
any_frame = st.builds(frames.frame, kinds, flags, stream_ids, payloads)
good_frame = st.one_of(
    st.builds(lambda n, end: headers(n, REQUEST, end=end), st.sampled_from([1, 3, 5, 7, 9]), st.booleans()),
    st.builds(lambda n, size: frames.frame(0, 0, n, bytes(size)), st.sampled_from([1, 3, 5]), st.integers(0, 3000)),
    st.builds(frames.window_update, st.sampled_from([0, 1, 3]), st.integers(1, 100_000)),
    st.builds(lambda size: frames.settings({4: size}), st.integers(0, 70_000)),
    st.just(frames.ping(b"12345678", ack=False)),
    st.builds(frames.rst_stream, st.sampled_from([1, 3]), st.just(frames.ErrorCode.CANCEL)),
)
scripts = st.lists(good_frame | any_frame, max_size=25).map(b"".join)


def run(pieces: list[bytes], *, client: bool = False) -> tuple[list[Event], bytes]:
    """The events and the bytes to be sent after these pieces."""
    connection = Connection(SMALL, client=client)
    connection.start()
    if client:
        connection.open_stream(REQUEST, end=False)
        connection.open_stream(REQUEST, end=True)
    events = []
    for piece in pieces:
        events += connection.receive(piece, 0.0)
    held = connection.buffered_bytes
    assert 0 <= held <= SMALL.buffered_bytes_max + SMALL.connection_window_bytes
    assert connection.outbox.queued_bytes == 0
    return events, connection.outbox.take()


@given(scripts, st.lists(st.integers(0, 2_000), max_size=30))
def test_any_split_gives_the_same_events(script: bytes, cuts: list[int]) -> None:
    data = START + script
    pieces = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        pieces.append(data[at:cut])
        at = max(at, cut)
    assert run(pieces) == run([data])


@given(scripts)
def test_byte_by_byte(script: bytes) -> None:
    data = START + script[:600]
    assert run([bytes((byte,)) for byte in data]) == run([data])


@given(scripts, st.booleans())
@settings(max_examples=200)
def test_frames_in_any_order(script: bytes, client: bool) -> None:
    run([frames.settings({}) + script if client else START + script], client=client)


@given(st.binary(max_size=300), st.booleans(), st.booleans())
@settings(max_examples=200)
def test_garbage(noise: bytes, started: bool, client: bool) -> None:
    start = frames.settings({}) if client else START
    run([start + noise if started else noise], client=client)


@given(scripts, st.lists(st.tuples(st.integers(0, 4), st.sampled_from([1, 3, 5]), st.integers(0, 9_000)), max_size=12))
def test_an_owner_that_answers_at_any_time(script: bytes, actions: list[tuple[int, int, int]]) -> None:
    connection = Connection(SMALL, client=False)
    connection.start()
    data = START + script
    step = max(1, len(data) // (len(actions) + 1))
    for number, (action, stream_id, size) in enumerate(actions):
        connection.receive(data[number * step : (number + 1) * step], 0.0)
        stream = connection.streams.get(stream_id)
        if stream is None or stream.local_ended or stream.queue is not None:
            continue
        if action == 0:
            connection.respond(stream_id, ANSWER, bytes(size), TRAILERS)
        elif action == 1:
            connection.send_data(stream_id, bytes(size))
        elif action == 2:
            connection.send_data(stream_id, bytes(size), trailers=TRAILERS)
        elif action == 3:
            connection.reset(stream_id, frames.ErrorCode.CANCEL)
        else:
            connection.go_away()
    queued = sum(sum(map(len, stream.queue or ())) for stream in connection.streams.values())
    assert connection.outbox.queued_bytes == queued
