"""A client in memory: its bytes go straight into a `ServerConnection`; what that writes is read as frames."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from popwheel_rpc.http2 import frames, grpc_messages, hpack
from popwheel_rpc.http2.grpc_messages import MessageReader
from popwheel_rpc.limits import WINDOW_DEFAULT
from popwheel_rpc.server.server import Server
from popwheel_rpc.server.server_connection import ServerConnection

_WINDOW = 2**31 - 1
_CHUNK_BYTES = 64 * 1024
_ANSWER_BYTES_MAX = 64 * 2**20


class BrokenAnswerError(AssertionError):
    """The server has sent something that no server may send; the text says what."""


class MemoryTransport(asyncio.Transport):
    """The server's end of a socket that does not exist.

    Args:
        connection: told when it is closed.
        sent: called with what the server writes.
    """

    def __init__(self, connection: ServerConnection, sent: Any) -> None:
        super().__init__()
        self._connection = connection
        self._sent = sent
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All is taken at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        if not self.closed:
            self._sent(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.close()


@dataclass
class Answer:
    """How a call ended.

    Args:
        messages: of the answer, as bytes.
        trailers: headers and trailers together.
        reset: the code of RST_STREAM, if it came before the end.
    """

    messages: list[bytes] = field(default_factory=list)
    trailers: dict[str, str] = field(default_factory=dict)
    reset: int | None = None

    @property
    def grpc_status(self) -> int | None:
        """The gRPC status; None if there is none."""
        text = self.trailers.get("grpc-status", "")
        return int(text) if text.isdigit() else None

    @property
    def grpc_message(self) -> str:
        """Its sentence."""
        return grpc_messages.unquote_message(self.trailers.get("grpc-message", ""))


@dataclass
class _Waiting:
    answer: Answer
    reader: MessageReader
    done: asyncio.Future[Answer]


class MemoryClient:
    """One connection to a server, without a socket. It reads every frame that it gets, and minds what it must not get.

    Args:
        server: need not listen.
        settings: what the client says first.
    """

    def __init__(self, server: Server, settings: Mapping[int, int] | None = None) -> None:
        self.connection = ServerConnection(server)
        self._transport = MemoryTransport(self.connection, self._received)
        self._rest = b""
        self._decoder = hpack.Decoder(2**20)
        self._waiting: dict[int, _Waiting] = {}
        self._next_stream = 1
        self._goaway: bytes | None = None
        self.connection.connection_made(self._transport)
        given = {frames.SETTING_INITIAL_WINDOW_SIZE: _WINDOW} if settings is None else settings
        self._start = frames.PREFACE + frames.settings(dict(given))
        self._start += frames.window_update(0, _WINDOW - WINDOW_DEFAULT)

    @property
    def closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._transport.closed

    @property
    def goaway(self) -> tuple[int, str] | None:
        """Code and text of the last GOAWAY."""
        if self._goaway is None:
            return None
        return int.from_bytes(self._goaway[4:8], "big"), self._goaway[8:].decode("utf-8", "replace")

    async def begin(self) -> None:
        """Shake hands."""
        await self.feed(self._start)

    async def feed(self, data: bytes) -> None:
        """Give the server bytes, as a socket would: in pieces of a bounded size, in callbacks, none after its end."""
        loop = asyncio.get_running_loop()
        for at in range(0, len(data), _CHUNK_BYTES):
            fed = loop.create_future()
            loop.call_soon(self._feed, data[at : at + _CHUNK_BYTES], fed)
            await fed

    def _feed(self, data: bytes, fed: asyncio.Future[None]) -> None:
        try:
            if not self.closed:
                self.connection.data_received(data)
        except Exception as error:  # noqa: BLE001 - raised again where the bytes came from
            fed.set_exception(error)
        else:
            fed.set_result(None)

    def close(self) -> None:
        """Vanish."""
        self._transport.close()

    async def open(self, path: str, metadata: Mapping[str, str], timeout: bytes = b"") -> int:
        """Send the headers of a call; its stream's number."""
        stream_id = self._next_stream
        self._next_stream += 2
        fields = [
            *((b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"fuzz")),
            *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
        ]
        if timeout:
            fields.append((b"grpc-timeout", timeout))
        fields += [(name.encode(), value.encode("latin-1", "replace")) for name, value in metadata.items()]
        done = asyncio.get_running_loop().create_future()
        self._waiting[stream_id] = _Waiting(Answer(), MessageReader(_ANSWER_BYTES_MAX), done)
        await self.feed(frames.headers(stream_id, hpack.encode(fields), 0, frames.FRAME_BYTES_DEFAULT))
        return stream_id

    async def send(self, stream_id: int, message: bytes, *, end: bool = True) -> None:
        """Send one message on a stream."""
        data = grpc_messages.frame_message(message)
        for at in range(0, len(data), frames.FRAME_BYTES_DEFAULT):
            piece = data[at : at + frames.FRAME_BYTES_DEFAULT]
            last = end and at + len(piece) == len(data)
            await self.feed(frames.frame(frames.DATA, frames.END_STREAM if last else 0, stream_id, piece))

    async def cancel(self, stream_id: int) -> None:
        """Give a call up."""
        waiting = self._waiting.pop(stream_id, None)
        if waiting is not None:
            waiting.done.cancel()
            await self.feed(frames.rst_stream(stream_id, frames.ErrorCode.CANCEL))

    async def answer(self, stream_id: int) -> Answer:
        """The answer, when it has come."""
        waiting = self._waiting.get(stream_id)
        if waiting is None:
            raise BrokenAnswerError(f"nothing is under way on stream {stream_id}")
        try:
            return await waiting.done
        finally:
            self._waiting.pop(stream_id, None)

    async def call(self, path: str, message: bytes, metadata: Mapping[str, str], timeout: bytes = b"") -> Answer:
        """A whole call with one message."""
        stream_id = await self.open(path, metadata, timeout)
        await self.send(stream_id, message)
        return await self.answer(stream_id)

    # What the server says

    def _received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= frames.HEADER_BYTES:
            length, flags, stream_id = frames.FRAME_HEADER.unpack_from(data, at)
            end = at + frames.HEADER_BYTES + (length >> 8)
            if end > len(data):
                break
            self._frame(length & 0xFF, flags, stream_id, data[at + frames.HEADER_BYTES : end])
            at = end
        self._rest = data[at:]

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind > frames.CONTINUATION or kind == frames.PUSH_PROMISE:
            raise BrokenAnswerError(f"a frame of kind {kind}")
        if kind == frames.GOAWAY:
            self._goaway = payload
            return
        waiting = self._waiting.get(stream_id)
        if kind == frames.HEADERS:
            fields = self._decoder.decode(payload)
            if waiting is not None:
                waiting.answer.trailers.update((name.decode(), value.decode("latin-1")) for name, value in fields)
        elif kind == frames.DATA and waiting is not None:
            waiting.answer.messages += waiting.reader.feed(payload)
        elif kind == frames.RST_STREAM and waiting is not None:
            waiting.answer.reset = int.from_bytes(payload, "big")
        else:
            return
        if waiting is None or waiting.done.done():
            return
        if kind == frames.RST_STREAM or flags & frames.END_STREAM:
            waiting.done.set_result(waiting.answer)

    async def gone(self) -> None:
        """Let the connection's end be noticed; calls that wait for an answer get one without a status."""
        self.close()
        for _ in range(3):
            await asyncio.sleep(0)
        for waiting in self._waiting.values():
            if not waiting.done.done():
                waiting.done.set_result(waiting.answer)
        self._waiting.clear()
