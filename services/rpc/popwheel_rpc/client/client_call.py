"""Call at its caller, over a socket: from the request to the trailers."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from popwheel_common.errors import StatusError
from popwheel_rpc.client.client_connection import ClientCall, ClientConnection
from popwheel_rpc.http2 import grpc_messages
from popwheel_rpc.http2.grpc_messages import PREFIX_BYTES, MessageReader
from popwheel_rpc.http2.headers import ResponseHead
from popwheel_rpc.service import Method, StreamClosedError
from popwheel_rpc.status import GrpcStatus, RpcError

Request = TypeVar("Request")
Response = TypeVar("Response")


class UnaryClientCall(ClientCall):
    """A call with one message each way; `answer` is the encoded one that comes back.

    Args:
        connection: where it is made.
        deadline: in seconds of the monotonic clock, or None.
    """

    __slots__ = ("__weakref__", "_connection", "_deadline_step", "_message", "_reader", "answer", "stream_id")

    def __init__(self, connection: ClientConnection, deadline: float | None) -> None:
        self._connection = connection
        self.answer: asyncio.Future[bytes] = connection.loop.create_future()
        self.stream_id = 0
        self._message: bytes | None = None
        self._reader: MessageReader | None = None
        self._deadline_step = None if deadline is None else connection.deadlines.watch(deadline, self)

    def response(self, head: ResponseHead, *, ended: bool) -> None:
        if head.status not in (0, 200):
            self._give_up(grpc_messages.error_of_http(head.status))
        elif ended:
            self._end(head)

    def _end(self, head: ResponseHead) -> None:
        error = grpc_messages.error_of_trailers(head.fields)
        if error is not None:
            self.fail(error)
        elif self._message is None or (self._reader is not None and self._reader.partial_bytes):
            self.fail(RpcError(GrpcStatus.INTERNAL, "the answer ended before its message was whole"))
        else:
            self._finish()
            if not self.answer.done():
                self.answer.set_result(self._message)

    def data(self, data: bytes, *, ended: bool) -> None:
        self._connection.http2.release(self.stream_id, len(data))
        if ended:
            self.fail(RpcError(GrpcStatus.INTERNAL, "the answer ended without trailers"))
            return
        size = len(data) - PREFIX_BYTES
        if (
            self._message is None
            and self._reader is None
            and 0 <= size <= self._connection.limits.message_bytes_max
            and not data[0]
            and int.from_bytes(data[1:PREFIX_BYTES], "big") == size
        ):
            self._message = data[PREFIX_BYTES:]
            return
        if self._reader is None:
            self._reader = MessageReader(self._connection.limits.message_bytes_max)
        try:
            messages = self._reader.feed(data)
        except RpcError as error:
            self._give_up(error)
            return
        for message in messages:
            if self._message is not None:
                self._give_up(RpcError(GrpcStatus.INTERNAL, "more than one message from a method that answers one"))
                return
            self._message = message

    def _finish(self) -> None:
        self._connection.call_ended(self.stream_id)
        if self._deadline_step is not None:
            self._connection.deadlines.forget(self._deadline_step, self)
            self._deadline_step = None

    def fail(self, error: StatusError | RpcError) -> None:
        self._finish()
        if not self.answer.done():
            self.answer.set_exception(error)

    def _give_up(self, error: RpcError) -> None:
        self._connection.reset(self.stream_id)
        self.fail(error)

    def expired(self) -> None:
        """End the call as its deadline has passed."""
        self._deadline_step = None
        self._give_up(RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed"))

    def cancel(self) -> None:
        """Cancel the call: the caller no longer waits."""
        self._connection.reset(self.stream_id)
        self._finish()


class SocketStream(ClientCall, Generic[Response, Request]):
    """A streaming call over a socket (`ClientStream`).

    Args:
        method: what is called.
        connect: returns the connection, and opens the stream on it (`ClientConnection.open_stream`).
    """

    __slots__ = (
        "_buffered",
        "_connection",
        "_ended",
        "_error",
        "_messages",
        "_method",
        "_opening",
        "_over",
        "_reader",
        "_waiters",
        "stream_id",
    )

    def __init__(
        self,
        method: Method[Request, Response],
        connect: Callable[["SocketStream[Response, Request]"], Awaitable[ClientConnection]],
    ) -> None:
        self._method = method
        self._connection: ClientConnection | None = None
        self.stream_id = 0
        self._messages: deque[bytes] = deque()
        self._reader = MessageReader(0)
        self._buffered = 0
        self._ended = False
        self._over = False
        self._error: StatusError | RpcError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._opening: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._open(connect))

    async def _open(self, connect: Callable[["SocketStream[Response, Request]"], Awaitable[ClientConnection]]) -> None:
        try:
            await connect(self)
        except RpcError as error:
            self.fail(error)
        finally:
            self._opening = None
            self._wake()

    def opened(self, connection: ClientConnection, stream_id: int) -> None:
        """Record that the stream was opened."""
        self._connection = connection
        self.stream_id = stream_id
        self._reader = MessageReader(connection.limits.message_bytes_max)

    # Events of the connection

    def response(self, head: ResponseHead, *, ended: bool) -> None:
        if head.status not in (0, 200):
            self._give_up(grpc_messages.error_of_http(head.status))
        elif ended:
            self.fail(grpc_messages.error_of_trailers(head.fields))

    def data(self, data: bytes, *, ended: bool) -> None:
        self._buffered += len(data)
        try:
            messages = self._reader.feed(data)
        except RpcError as error:
            self._give_up(error)
            return
        self._messages.extend(messages)
        if ended:
            self.fail(RpcError(GrpcStatus.INTERNAL, "the answer ended without trailers"))
            return
        if not self._messages and self._connection is not None:
            # A message longer than the window must still be able to come in.
            self._connection.http2.collect(self.stream_id)
        self._wake()

    def fail(self, error: StatusError | RpcError | None) -> None:
        if self._over:
            return
        self._over = True
        self._error = error
        if self._connection is not None:
            self._connection.call_ended(self.stream_id)
            self._release(self._buffered - sum(len(message) + PREFIX_BYTES for message in self._messages))
        self._wake()

    def flushed(self) -> None:
        self._wake()

    def _give_up(self, error: RpcError) -> None:
        if self._connection is not None:
            self._connection.reset(self.stream_id)
        self.fail(error)

    def _release(self, count: int) -> None:
        if count and self._connection is not None:
            self._buffered -= count
            self._connection.http2.release(self.stream_id, count)
            self._connection.flush_soon()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    # Calls of the caller

    async def receive(self) -> Response | None:
        """Return the next message; None when the call has succeeded, else raise its error."""
        while not self._messages:
            if self._over:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                return None
            await self._wait()
        message = self._messages.popleft()
        self._release(len(message) + PREFIX_BYTES)
        if not self._messages and self._buffered and self._connection is not None:
            self._connection.http2.collect(self.stream_id)
        try:
            return self._method.response.decode(message)
        except (DecodeError, ValueError):
            error = RpcError(GrpcStatus.INTERNAL, f"a message is no answer of {self._method.path}")
            self._give_up(error)
            raise error from None

    async def send(self, messages: Sequence[Request]) -> None:
        """Send messages; returns when their bytes were handed to the transport."""
        connection = await self._connected()
        if self._ended:
            raise StreamClosedError("the stream was ended before")
        data = grpc_messages.frame_messages([self._method.request.encode(message) for message in messages])
        connection.http2.send_data(self.stream_id, data)
        connection.flush_soon()
        while connection.http2.is_blocked(self.stream_id) or connection.paused:
            await self._wait()
            if self._over:
                raise StreamClosedError("the call is over")

    async def end(self) -> None:
        """Half-close: no more messages will be sent."""
        if self._ended or self._over:
            return
        try:
            connection = await self._connected()
        except StreamClosedError:
            return
        self._ended = True
        connection.http2.send_data(self.stream_id, b"", end=True)
        connection.flush_soon()

    async def _connected(self) -> ClientConnection:
        while self._connection is None and not self._over:
            await self._wait()
        if self._over or self._connection is None:
            raise StreamClosedError("the call is over")
        return self._connection

    def cancel(self) -> None:
        """Cancel the call."""
        if self._opening is not None:
            self._opening.cancel()
        if not self._over:
            self._messages.clear()
            self._give_up(RpcError(GrpcStatus.CANCELLED, "the call was cancelled by its caller"))
