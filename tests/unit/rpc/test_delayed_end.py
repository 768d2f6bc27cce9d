"""When a caller that has not said anything yet is told how its call ended."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.http2 import frames
from popwheel_rpc.http2.grpc_messages import frame_message
from popwheel_rpc.server import delayed_end
from popwheel_rpc.server.delayed_end import PATIENCE_S, DelayedEnd
from popwheel_rpc.server.server import Server
from popwheel_rpc.server.server_connection import ServerConnection
from popwheel_rpc.service import RAW, Call, Method, Service, Stream
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.manual_clock import ManualClock
from tests.unit.rpc.peers import START, Frame, block, data, headers, split
from tests.unit.rpc.sockets import Observer, Socket

REFUSE = Method("t.T", "Refuse", RAW, RAW)
SENTENCE = b"not this one"


class Caller:
    """Calls a server whose only handler refuses, at once or when it is let."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.allowed = asyncio.Event()
        self.allowed.set()
        service = Service()
        service.stream(REFUSE, self._refuse)
        self.server = Server(service, observer=Observer(), clock=self.clock)
        self.connection = ServerConnection(self.server)
        self.socket = Socket(self.connection, reads=False)
        self.connection.connection_made(self.socket)
        self.connection.data_received(START)
        self.socket.take()

    async def _refuse(self, call: Call, stream: Stream[bytes, bytes]) -> None:
        await self.allowed.wait()
        raise StatusError(Code.ILLEGAL_TOPIC, SENTENCE.decode())

    async def send(self, *sent: bytes) -> list[Frame]:
        """One read of the server's; what it wrote."""
        asyncio.get_running_loop().call_soon(self.connection.data_received, b"".join(sent))
        return await self.said()

    async def said(self) -> list[Frame]:
        """What the server writes now."""
        for _ in range(6):
            await asyncio.sleep(0)
        return split(self.socket.take())

    def waiting(self) -> list[DelayedEnd]:
        """Ends that wait."""
        return [call for call in self.connection._calls.values() if isinstance(call, DelayedEnd)]


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    made = Caller()
    yield made
    made.connection.abort()
    await asyncio.sleep(0)
    assert made.server.delayed_ends == 0
    assert not made.connection.busy
    made.server.deadlines.close()


def call(stream_id: int, path: str = REFUSE.path, *, end: bool = False) -> bytes:
    return headers(stream_id, block(_path=path, content_type="application/grpc"), end=end)


def reported(said: list[Frame]) -> list[tuple[int, int]]:
    """The end of an answer as it stands in frames: kinds and streams, without what opens windows."""
    return [(frame.kind, frame.stream_id) for frame in said if frame.kind in (frames.HEADERS, frames.RST_STREAM)]


HEADERS, RST_STREAM = (frames.HEADERS, 1), (frames.RST_STREAM, 1)


async def test_the_end_waits_for_the_first_message(caller: Caller) -> None:
    assert reported(await caller.send(call(1))) == [HEADERS]
    message = frame_message(b"x" * 100)
    assert reported(await caller.send(data(1, message[:3]))) == []
    assert reported(await caller.send(data(1, message[3:50]))) == []
    said = await caller.send(data(1, message[50:]))
    assert reported(said) == [HEADERS, RST_STREAM]
    assert SENTENCE in said[0].payload
    assert said[-1].payload == bytes(4), "NO_ERROR"


async def test_what_came_before_the_handler_ended_is_part_of_the_message(caller: Caller) -> None:
    caller.allowed.clear()
    message = frame_message(b"x" * 100)
    await caller.send(call(1), data(1, message[:60]))
    caller.allowed.set()
    assert reported(await caller.said()) == []
    assert reported(await caller.send(data(1, message[60:]))) == [HEADERS, RST_STREAM]


async def test_who_has_spoken_is_notified_at_once(caller: Caller) -> None:
    caller.allowed.clear()
    await caller.send(call(1), data(1, frame_message(b"x")))
    caller.allowed.set()
    assert reported(await caller.said()) == [HEADERS, RST_STREAM]
    assert reported(await caller.send(call(3), data(3, frame_message(b"x")))) == [(1, 3), (1, 3), (3, 3)]


async def test_who_has_no_more_to_say_is_notified_at_once(caller: Caller) -> None:
    assert reported(await caller.send(call(1, end=True))) == [HEADERS, HEADERS]
    assert reported(await caller.send(call(3))) == [(frames.HEADERS, 3)]
    assert reported(await caller.send(data(3, b"", end=True))) == [(frames.HEADERS, 3)]
    assert reported(await caller.send(call(5, "/no.Such/Method", end=True))) == [(frames.HEADERS, 5)]


async def test_a_path_that_nobody_serves_is_refused_in_the_same_way(caller: Caller) -> None:
    assert reported(await caller.send(call(1, "/no.Such/Method"))) == []
    said = await caller.send(data(1, frame_message(b"x")))
    assert reported(said) == [HEADERS, RST_STREAM]
    assert b"there is no method /no.Such/Method here" in said[0].payload


async def test_who_says_nothing_is_notified_in_a_moment(caller: Caller) -> None:
    await caller.send(call(1))
    (waiting,) = caller.waiting()
    waiting.expired()
    assert reported(await caller.said()) == [HEADERS, RST_STREAM]
    caller.allowed.clear()
    await caller.send(call(3))
    caller.clock.advance(PATIENCE_S * 1000 + 1)
    caller.allowed.set()
    assert reported(await caller.said()) == [(frames.HEADERS, 3), (frames.RST_STREAM, 3)], "it had its time"


async def test_no_more_ends_wait_than_allowed(caller: Caller) -> None:
    caller.server.delayed_ends = delayed_end.DELAYED_ENDS_MAX
    assert reported(await caller.send(call(1))) == [HEADERS, HEADERS, RST_STREAM]
    assert caller.waiting() == []
    caller.server.delayed_ends = 0


async def test_who_cancels_or_is_let_go_needs_no_end(caller: Caller) -> None:
    await caller.send(call(1), call(3))
    assert reported(await caller.send(frames.rst_stream(1, frames.ErrorCode.CANCEL))) == []
    assert len(caller.waiting()) == 1
    caller.connection.end_calls(RpcError(GrpcStatus.UNAVAILABLE, "the server is shutting down"))
    assert caller.waiting() == []


async def test_messages_that_wait_for_a_window_come_before_the_end(caller: Caller) -> None:
    service = Service()
    service.stream(REFUSE, _answer)
    caller.server.routes.update(Server(service).routes)
    await caller.send(frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: 10}), call(1))
    said = await caller.send(data(1, frame_message(b"x")))
    assert reported(said) == []
    said = await caller.send(frames.window_update(1, 100))
    assert [frame.kind for frame in said] == [frames.DATA, frames.HEADERS, frames.RST_STREAM]


async def _answer(call: Call, stream: Stream[bytes, bytes]) -> None:
    # Not held up by the window, as a handler that is asked to stop while it sends.
    sending = asyncio.ensure_future(stream.send([b"y" * 50]))
    await asyncio.sleep(0)
    sending.cancel()
