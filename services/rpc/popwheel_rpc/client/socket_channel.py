"""Calls to another process: a `Channel` over one HTTP/2 connection, made when first needed and again when lost."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from popwheel_common.clock import Clock, SystemClock
from popwheel_common.contract.cluster_id import CLUSTER_HEADER
from popwheel_rpc.client.client_call import SocketStream, UnaryClientCall
from popwheel_rpc.client.client_connection import ClientConnection
from popwheel_rpc.deadline_timer import DeadlineTimer
from popwheel_rpc.http2 import grpc_messages, hpack
from popwheel_rpc.limits import Limits
from popwheel_rpc.service import Channel, ClientStream, Method
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

Request = TypeVar("Request")
Response = TypeVar("Response")

_BACK_OFF_FIRST_S = 0.05
_BACK_OFF_MAX_S = 5.0
_BACK_OFF_FACTOR = 1.6
_ATTEMPTS_MAX = 3
_BLOCKS_CACHED = 256


def connect(
    address: str,
    *,
    tls: Callable[[], ssl.SSLContext] | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    cluster_id: Callable[[], str] = lambda: "",
) -> Channel:
    """Return a channel to a server; the connection is made with the first call.

    While a connection can't be made, calls fail at once with UNAVAILABLE; the next attempt is made by the first call
    after a back-off of 50 ms, growing to 5 s. Both these and calls whose time is over before there is a connection fail
    with `NotProcessedError`: nothing of them was sent.

    Args:
        address: `host:port`, IPv6 as `[::1]:port`.
        tls: gives the context of the next connection; None: plain text.
        limits: what the server may do.
        clock: the machine's if not given.
        cluster_id: gives the id of the cluster that the caller belongs to, which calls name; empty while it knows of
            none.

    Raises:
        ValueError: the address is not of that form.
    """
    return SocketChannel(address, tls, limits or Limits(), clock or SystemClock(), cluster_id)


class SocketChannel:
    """Channel over a socket, as `connect` returns it; see there for the arguments."""

    def __init__(
        self,
        address: str,
        tls: Callable[[], ssl.SSLContext] | None,
        limits: Limits,
        clock: Clock,
        cluster_id: Callable[[], str] = lambda: "",
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit():
            raise ValueError(f"an address is host:port, not {address!r}")
        self._address = address
        self._host = host.removeprefix("[").removesuffix("]")
        self._port = int(port)
        self._tls = tls
        self._limits = limits
        self._clock = clock
        self._deadlines = DeadlineTimer(clock)
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._retiring: set[ClientConnection] = set()
        self._closed = False
        self._back_off_s = _BACK_OFF_FIRST_S
        self._next_attempt_at = 0.0
        self._last_failure = ""
        self._blocks: dict[str, bytes] = {}
        self._cluster_id = cluster_id
        self._named_cluster = ""
        """Cluster id in the cached header blocks."""

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """Call a unary method (see `popwheel_rpc.service.Channel`)."""
        data = grpc_messages.frame_message(method.request.encode(request))
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            connection = self._connection
            if connection is None or not connection.http2.can_open_stream:
                connection = await self._ready_until(deadline)
            call = UnaryClientCall(connection, deadline)
            call.stream_id = connection.request(call, self._block(method, deadline, metadata), data)
            try:
                answer = await call.answer
            except asyncio.CancelledError:
                call.cancel()
                raise
            except NotProcessedError:
                if attempt == _ATTEMPTS_MAX:
                    raise
                continue
            try:
                return method.response.decode(answer)
            except ValueError:
                break
        raise RpcError(GrpcStatus.INTERNAL, f"the message is no answer of {method.path}")

    def open(
        self, method: Method[Request, Response], *, metadata: Mapping[str, str] | None = None
    ) -> ClientStream[Response, Request]:
        """Begin a streaming call."""
        if self._closed:
            raise RpcError(GrpcStatus.UNAVAILABLE, "the channel is closed")

        async def begin(stream: SocketStream[Response, Request]) -> ClientConnection:
            connection = await self._ready()
            stream.opened(connection, connection.open_stream(stream, self._block(method, None, metadata)))
            return connection

        return SocketStream(method, begin)

    async def close(self) -> None:
        """End the connection and every call on it; later calls fail with UNAVAILABLE."""
        self._closed = True
        error = RpcError(GrpcStatus.UNAVAILABLE, "the channel was closed")
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        if self._connection is not None:
            self._retiring.add(self._connection)
            self._connection = None
        for connection in self._retiring:
            connection.end(error)
        self._retiring.clear()
        self._deadlines.close()

    def _block(self, method: Method[Any, Any], deadline: float | None, metadata: Mapping[str, str] | None) -> bytes:
        path = method.path
        cluster = self._cluster_id()
        if cluster != self._named_cluster:
            self._named_cluster = cluster
            self._blocks.clear()
        block = self._blocks.get(path)
        if block is None:
            fields = [
                (b":method", b"POST"),
                (b":scheme", b"http" if self._tls is None else b"https"),
                (b":path", path.encode()),
                (b":authority", self._address.encode()),
                (b"te", b"trailers"),
                (b"content-type", grpc_messages.CONTENT_TYPE),
                (b"user-agent", b"popwheel"),
            ]
            if cluster:
                fields.append((CLUSTER_HEADER.encode(), cluster.encode()))
            block = hpack.encode(fields)
            if len(self._blocks) < _BLOCKS_CACHED:
                self._blocks[path] = block
        more: list[hpack.Field] = []
        if deadline is not None:
            more.append((b"grpc-timeout", grpc_messages.format_timeout(deadline - self._clock.monotonic())))
        if metadata:
            more += [(name.encode(), value.encode("latin-1", "replace")) for name, value in metadata.items()]
        return block + hpack.encode(more) if more else block

    async def _ready_until(self, deadline: float | None) -> ClientConnection:
        if deadline is None:
            return await self._ready()
        try:
            async with asyncio.timeout(deadline - self._clock.monotonic()):
                return await self._ready()
        except TimeoutError:
            message = f"no connection to {self._address} in time"
            raise NotProcessedError(message, GrpcStatus.DEADLINE_EXCEEDED) from None

    async def _ready(self) -> ClientConnection:
        """Return a connection on which a call can be made now."""
        while True:
            if self._closed:
                raise NotProcessedError("the channel is closed")
            connection = self._connection
            if connection is None:
                await self._connect()
            elif connection.http2.can_open_stream and not connection.lost:
                return connection
            elif connection.usable:
                await connection.slot()
            else:
                self._retire(connection)

    def _retire(self, connection: ClientConnection) -> None:
        """Retire a connection: it gets no more calls; those in flight may end."""
        self._connection = None
        self._retiring = {other for other in self._retiring if not other.lost}
        if not connection.lost:
            self._retiring.add(connection)
            connection.retire()

    async def _connect(self) -> None:
        if self._connecting is None:
            if self._clock.monotonic() < self._next_attempt_at:
                raise NotProcessedError(f"no connection to {self._address}: {self._last_failure}")
            self._connecting = asyncio.get_running_loop().create_task(self._attempt())
            self._connecting.add_done_callback(self._attempted)
        # Unlike awaiting it, this does not cancel the attempt when one of its waiters gives up.
        await asyncio.wait((self._connecting,))

    async def _attempt(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        tls = None if self._tls is None else (self._tls(), self._host)
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout(self._limits.preface_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: ClientConnection(self._limits, self._clock, self._deadlines, tls), self._host, self._port
                )
                await connection.ready
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        return connection

    def _attempted(self, attempt: asyncio.Task[ClientConnection]) -> None:
        self._connecting = None
        if attempt.cancelled():
            return
        error = attempt.exception()
        if error is None:
            self._connection = attempt.result()
            self._back_off_s = _BACK_OFF_FIRST_S
            return
        self._last_failure = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
        self._next_attempt_at = self._clock.monotonic() + self._back_off_s
        self._back_off_s = min(_BACK_OFF_MAX_S, self._back_off_s * _BACK_OFF_FACTOR)
