"""HTTP/2 connection that makes gRPC calls with as little work per call as Python allows.

The load generator shares its machine with the server it measures, so each microsecond here is one the server cannot
have. Hence no tasks, no futures, no events: a call is a function to be called back. It plays a well-behaved client of
a well-behaved server; what it does not know (padding, push, windows smaller than one request) is an error, not a case.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Self, cast

from bench.headers import NOBODY, RequestHeaders
from popwheel_common.contract.credentials import Credentials
from popwheel_rpc.http2 import frames, hpack
from popwheel_rpc.limits import WINDOW_DEFAULT

Done = Callable[[list[bytes], str], None]
"""Called once when a call ends, with the data that came in, and what went wrong ("" if nothing did)."""

_HEADER = struct.Struct(">IBI")
_RECEIVE_WINDOW_BYTES = 2**30
_TOP_UP_BYTES = 2**24
_HEADER_LIST_BYTES_MAX = 65_536
_CONNECT_TIMEOUT_S = 5.0


class ConnectionFailedError(Exception):
    """The server could not be reached, or went away."""


class LoadConnection(asyncio.Protocol):
    """A connection with a client id of its own; made by `connect`.

    Args:
        headers: what goes before each request.
    """

    def __init__(self, headers: RequestHeaders) -> None:
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, tuple[Done, list[bytes], Callable[[bytes], None] | None]] = {}
        self._queued: deque[tuple[bytes, bytes, Done]] = deque()
        self._out: list[bytes] = []
        self._partial = b""
        self._next_stream_id = 1
        self._window = WINDOW_DEFAULT
        self._frame_bytes_max = frames.FRAME_BYTES_DEFAULT
        self._taken_bytes = 0
        self._receiving = False
        self._flush_planned = False
        self._decoder = hpack.Decoder(_HEADER_LIST_BYTES_MAX)
        self._known: dict[bytes, str] = {}
        self._known_generation = 0

    @classmethod
    async def connect(cls, address: str, client_id: str, credentials: Credentials = NOBODY) -> Self:
        """Connect, and wait for the server's settings.

        Args:
            address: `host:port`, plain text.
            client_id: the value of x-mq-client-id.
            credentials: by which each call shows who makes it.

        Raises:
            ConnectionFailedError: nobody is there, or no HTTP/2 is spoken.
        """
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: cls(RequestHeaders(address, client_id, credentials)), host, int(port)
                )
                await connection._ready
        except (OSError, TimeoutError) as error:
            raise ConnectionFailedError(f"no connection to {address}: {error}") from error
        return connection

    def close(self) -> None:
        """Close; calls under way end with an error."""
        if self._transport is not None:
            self._transport.abort()

    # Calls

    def call(self, path: bytes, message: bytes, done: Done) -> None:
        """Make a call with one message; waits (in order) while the server's window is used up.

        Args:
            path: `/service/method`.
            message: with gRPC's five bytes before it.
            done: called when the call has ended.
        """
        if self._queued or self._window < len(message):
            self._queued.append((path, message, done))
        else:
            self._begin(path, message, done)

    def _begin(self, path: bytes, message: bytes, done: Done) -> None:
        stream_id = self._open(path, done, None)
        size = len(message)
        self._window -= size
        out = self._out
        most = self._frame_bytes_max
        if size <= most:
            out += (_HEADER.pack(size << 8, frames.END_STREAM, stream_id), message)
            return
        for at in range(0, size, most):
            piece = message[at : at + most]
            flags = frames.END_STREAM if at + most >= size else 0
            out += (_HEADER.pack(len(piece) << 8, flags, stream_id), piece)

    def open(self, path: bytes, message: bytes, on_data: Callable[[bytes], None], done: Done) -> None:
        """Begin a stream that stays open, such as Telemetry, with one message of ours.

        Args:
            path, message, done: as in `call`.
            on_data: called with what comes in, as it comes in.
        """
        stream_id = self._open(path, done, on_data)
        self._window -= len(message)
        self._out += (_HEADER.pack(len(message) << 8, 0, stream_id), message)

    def _open(self, path: bytes, done: Done, on_data: Callable[[bytes], None] | None) -> int:
        if self._transport is None:
            raise ConnectionFailedError("the connection is closed")
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        self._calls[stream_id] = (done, [], on_data)
        block = self._headers.block(path)
        self._out += (_HEADER.pack(len(block) << 8 | frames.HEADERS, frames.END_HEADERS, stream_id), block)
        if not (self._receiving or self._flush_planned):
            self._flush_planned = True
            self._loop.call_soon(self._flush)
        return stream_id

    def _flush(self) -> None:
        self._flush_planned = False
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # What the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._out += (
            frames.PREFACE,
            frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: _RECEIVE_WINDOW_BYTES}),
            frames.window_update(0, _RECEIVE_WINDOW_BYTES),
        )
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._ready.done():
            self._ready.set_exception(ConnectionResetError(f"the connection was lost: {exc}"))
        self._fail_all(f"connection lost: {exc}")

    def _fail_all(self, error: str) -> None:
        calls, self._calls = self._calls, {}
        queued, self._queued = self._queued, deque()
        for done, parts, _ in calls.values():
            done(parts, error)
        for _, _, done in queued:
            done([], error)

    def data_received(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        self._receiving = True
        at = 0
        end = len(data)
        calls = self._calls
        while end - at >= frames.HEADER_BYTES:
            size_and_kind, flags, stream_id = _HEADER.unpack_from(data, at)
            start = at + frames.HEADER_BYTES
            after = start + (size_and_kind >> 8)
            if after > end:
                break
            kind = size_and_kind & 0xFF
            at = after
            if kind == frames.DATA:
                self._taken_bytes += after - start
                call = calls.get(stream_id)
                if call is not None:
                    if call[2] is None:
                        call[1].append(data[start:after])
                    else:
                        call[2](data[start:after])
            elif kind == frames.HEADERS:
                error = self._meaning(data[start:after], flags)
                if flags & frames.END_STREAM or error:
                    call = calls.pop(stream_id, None)
                    if call is not None:
                        call[0](call[1], error)
            else:
                self._control(kind, flags, stream_id, data[start:after])
        self._partial = data[at:]
        if self._taken_bytes >= _TOP_UP_BYTES:
            self._out.append(frames.window_update(0, self._taken_bytes))
            self._taken_bytes = 0
        self._receiving = False
        if self._out:
            self._flush()

    def _meaning(self, block: bytes, flags: int) -> str:
        """Return what is wrong with the headers or trailers of an answer; "" if nothing is."""
        if not flags & frames.END_HEADERS or flags & (frames.PADDED | frames.PRIORITY_FLAG):
            raise NotImplementedError("headers in several frames, padded or with a priority")
        known = self._known.get(block)
        if known is not None:
            return known
        fields = dict(self._decoder.decode(block))
        status = fields.get(b"grpc-status", b"0")
        meaning = ""
        if fields.get(b":status", b"200") != b"200":
            meaning = f"HTTP status {fields[b':status'].decode()}"
        elif status != b"0":
            meaning = f"gRPC status {status.decode()}: {fields.get(b'grpc-message', b'').decode()}"
        # A block that changes the table, or stands before one that does, means something else the next time.
        if self._decoder.generation != self._known_generation:
            self._known_generation = self._decoder.generation
            self._known.clear()
        else:
            self._known[block] = meaning
        return meaning

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            if not stream_id:
                self._window += int.from_bytes(payload, "big")
                self._release()
        elif kind == frames.SETTINGS:
            if not flags & frames.ACK:
                self._apply(dict(frames.read_settings(payload)))
        elif kind == frames.PING:
            if not flags & frames.ACK:
                self._out.append(frames.ping(payload, ack=True))
        elif kind == frames.RST_STREAM:
            call = self._calls.pop(stream_id, None)
            if call is not None:
                call[0](call[1], f"stream reset with code {int.from_bytes(payload, 'big')}")
        elif kind == frames.GOAWAY:
            self._fail_all(f"the server goes away: {payload[8:].decode(errors='replace')}")
            self.close()

    def _apply(self, settings: dict[int, int]) -> None:
        self._frame_bytes_max = settings.get(frames.SETTING_MAX_FRAME_SIZE, self._frame_bytes_max)
        if settings.get(frames.SETTING_HEADER_TABLE_SIZE, hpack.TABLE_SIZE_DEFAULT) < hpack.TABLE_SIZE_DEFAULT:
            raise NotImplementedError("a server with a small header table")
        self._out.append(frames.SETTINGS_ACK)
        if not self._ready.done():
            self._ready.set_result(None)

    def _release(self) -> None:
        while self._queued and self._window >= len(self._queued[0][1]):
            self._begin(*self._queued.popleft())
