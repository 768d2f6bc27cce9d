"""How many writes a socket gets: what can wait is written with what cannot, and the last answer at once."""

import asyncio
from typing import Any, cast

from popwheel_rpc.http2 import frames
from popwheel_rpc.server.server import Server
from popwheel_rpc.server.server_connection import ServerConnection
from popwheel_rpc.service import RAW, Call, Method, Service, Stream
from tests.unit.rpc.peers import REQUEST, block

HOLD = Method("t.T", "Echo", RAW, RAW)
TAKE = Method("t.T", "Take", RAW, RAW)
PING = frames.ping(b"12345678", ack=False)
PONG = frames.ping(b"12345678", ack=True)


class Socket:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


class OpenMessages:
    """A service whose answers wait for `release`, and a client's bytes to it."""

    def __init__(self) -> None:
        service = Service()
        service.unary(HOLD, self._hold)
        self.waiting: list[asyncio.Future[bytes]] = []
        self.socket = Socket()
        self.connection = ServerConnection(Server(service))
        self.connection.connection_made(cast(Any, self.socket))
        self.connection.data_received(frames.PREFACE + frames.settings({}))
        self.socket.writes.clear()

    async def _hold(self, call: Call, request: bytes) -> bytes:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]

    def receive(self, data: bytes) -> None:
        """Bytes come in, outside any task, as the loop would bring them."""
        asyncio.get_running_loop().call_soon(self.connection.data_received, data)


def call(stream_id: int) -> bytes:
    request = frames.frame(frames.DATA, frames.END_STREAM, stream_id, bytes(5))
    head = frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, REQUEST)
    return head + request


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_ping_is_answered_with_the_next_answer() -> None:
    held = OpenMessages()
    held.receive(call(1) + PING)
    await turns(2)
    assert held.socket.writes == []
    held.waiting[0].set_result(b"")
    await turns(2)
    assert len(held.socket.writes) == 1
    assert held.socket.writes[0].startswith(PONG)


async def test_a_ping_alone_is_answered_a_moment_later() -> None:
    held = OpenMessages()
    held.receive(PING)
    async with asyncio.timeout(5):
        while not held.socket.writes:
            await asyncio.sleep(0.001)
    assert held.socket.writes == [PONG]


async def test_the_last_answer_is_written_at_once_and_all_of_a_turn_in_one_write() -> None:
    held = OpenMessages()
    held.receive(call(1) + call(3) + call(5))
    await turns(2)
    for waiting in held.waiting[:2]:
        waiting.set_result(b"")
    await turns(1)
    assert held.socket.writes == [], "there may be more in this turn"
    await turns(2)
    assert len(held.socket.writes) == 1
    held.waiting[2].set_result(b"")
    await turns(1)
    assert len(held.socket.writes) == 2


async def test_of_streams_that_end_in_one_turn_the_first_is_written_at_once_and_all_others_together() -> None:
    go_on = asyncio.Event()

    async def wait(call: Call, stream: Stream[bytes, bytes]) -> None:
        await go_on.wait()
        await stream.send((b"m",))

    service, socket = Service(), Socket()
    service.stream(TAKE, wait)
    connection = ServerConnection(Server(service))
    connection.connection_made(cast(Any, socket))
    loop = asyncio.get_running_loop()
    loop.call_soon(connection.data_received, frames.PREFACE + frames.settings({}))
    head = block(_path=TAKE.path, content_type="application/grpc")
    for streams in ((1, 3, 5), (7, 9, 11)):
        for stream_id in streams:
            begin = frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, head)
            request = frames.frame(frames.DATA, frames.END_STREAM, stream_id, bytes(5))
            loop.call_soon(connection.data_received, begin + request)
        await turns(3)
        socket.writes.clear()
        go_on.set()
        await turns(4)
        first, others = socket.writes
        assert first.count(b"grpc-status") == 1, "a client waits for the end of a stream, not for its message"
        assert others.count(b"grpc-status") == 2
        go_on.clear()
    connection.connection_lost(None)


async def test_a_stream_that_came_before_what_breaks_the_connection_is_not_begun() -> None:
    """Its answer, such as messages that it popped, would count as sent."""
    begun: list[Call] = []

    async def take(call: Call, stream: Stream[bytes, bytes]) -> None:
        begun.append(call)

    service = Service()
    service.stream(TAKE, take)
    head = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block(_path=TAKE.path, content_type="application/grpc"))
    request = head + frames.frame(frames.DATA, frames.END_STREAM, 1, bytes(5))
    broken = frames.frame(frames.DATA, 0, 0, b"no stream has this number")
    for sent, count in ((request, 1), (request + broken, 0)):
        connection = ServerConnection(Server(service))
        connection.connection_made(cast(Any, Socket()))
        asyncio.get_running_loop().call_soon(connection.data_received, frames.PREFACE + frames.settings({}) + sent)
        await turns(3)
        assert len(begun) == count
        begun.clear()
        connection.connection_lost(None)
