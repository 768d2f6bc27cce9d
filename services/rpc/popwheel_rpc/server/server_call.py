"""Call at a server, from its headers to its trailers."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from popwheel_common.errors import StatusError, forget_frames
from popwheel_rpc.http2 import grpc_messages, hpack
from popwheel_rpc.http2.events import DataReceived
from popwheel_rpc.http2.grpc_messages import PREFIX_BYTES, RESPONSE_HEADERS, TRAILERS_OK, MessageReader
from popwheel_rpc.http2.headers import RequestHead
from popwheel_rpc.server.host import Carrier
from popwheel_rpc.server.light_task import LightTask
from popwheel_rpc.service import Call, Method, StreamClosedError
from popwheel_rpc.status import GrpcStatus, RpcError

log = structlog.get_logger()

_RESPONSE_FIELDS: tuple[hpack.Field, ...] = ((b":status", b"200"), (b"content-type", grpc_messages.CONTENT_TYPE))

OPEN_CALL_BYTES = 1024
"""Memory counted for a call until its first message is whole, beside its headers: its objects."""

_WAITING_MESSAGE_BYTES = 64
"""Memory counted for a message that waits for its handler, beside its own bytes."""

_QUIET_ERRORS = (asyncio.CancelledError, StreamClosedError, StatusError, RpcError)
"""Errors that are not logged from a handler whose caller is gone."""


class ServerCall:
    """Base of both kinds of call: deadline, cancellation, and end.

    Args:
        connection: where it came in.
        stream_id: its stream there.
        head: its headers.
        method: what is called.
        handler: what answers.
        deadline: in seconds of the monotonic clock, or None.
    """

    __slots__ = (
        "_buffered",
        "_connection",
        "_deadline_step",
        "_handler",
        "_head",
        "_headers_sent",
        "_method",
        "_over",
        "_reader",
        "_started",
        "_status",
        "_task",
        "counted_bytes",
        "deadline",
        "stream_id",
    )

    def __init__(
        self,
        connection: Carrier,
        stream_id: int,
        head: RequestHead,
        method: Method[Any, Any],
        handler: Callable[[Call, Any], Any],
        deadline: float | None,
    ) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self._head = head
        self._method = method
        self._handler = handler
        self.deadline = deadline
        self._deadline_step: int | None = None
        self._reader: MessageReader | None = None
        self._task: LightTask | None = None
        self._started = 0.0
        self._headers_sent = False
        self._over = False
        # For flow control; and for the server's total, which includes headers and objects.
        self._buffered = 0
        self.counted_bytes = head.list_bytes + OPEN_CALL_BYTES
        connection.received_bytes += self.counted_bytes
        self._status = GrpcStatus.CANCELLED

    def data(self, event: DataReceived) -> None:
        """Process data of the caller."""
        raise NotImplementedError

    def ended(self) -> None:
        """Process the end of the caller's direction, without further data."""
        raise NotImplementedError

    def flushed(self) -> None:
        """Continue: all data that waited for the stream's window was sent."""

    def resumed(self) -> None:
        """Continue: the transport accepts bytes again."""

    def _run(self, argument: Any) -> None:
        """Start the handler; its result is processed in `_done`."""
        connection = self._connection
        self._started = connection.now
        connection.server.observer.call_started(self._head.path)
        call = Call(self._head.path, self._head.metadata, self.deadline, connection.peer)
        task = self._task = LightTask(connection.loop, self._handler(call, argument), self._done)
        task.start()
        if not task.ended and self.deadline is not None:
            self._deadline_step = connection.server.deadlines.watch(self.deadline, self)

    def _done(self, result: Any, error: BaseException | None) -> None:
        connection = self._connection
        # Call and task refer to each other: separated here, they need no garbage collector.
        self._task = None
        if self._over:
            # Its caller got an answer already, or is gone.
            connection.lingering_ended(self)
            if error is not None and not isinstance(error, _QUIET_ERRORS):
                self._log(error)
        else:
            if error is None:
                try:
                    self._answer(result)
                    self._status = GrpcStatus.OK
                except Exception as raised:  # noqa: BLE001 - logged and answered like any other error of a handler
                    self._answer_error(raised)
            else:
                self._answer_error(error)
            self._end()
        server = connection.server
        server.observer.call_ended(self._head.path, self._status, connection.clock.monotonic() - self._started)

    def _answer(self, result: Any) -> None:
        raise NotImplementedError

    def _answer_error(self, error: BaseException) -> None:
        if isinstance(error, StatusError | RpcError):
            self._fail(error)
        elif isinstance(error, asyncio.CancelledError):
            self._fail(RpcError(GrpcStatus.CANCELLED, "the call was cancelled by its handler"))
        else:
            self._log(error)
            self._fail(RpcError(GrpcStatus.INTERNAL, "the handler failed; its server's log says why"))
        forget_frames(error)

    def _log(self, error: BaseException) -> None:
        log.error("handler failed", path=self._head.path, peer=self._connection.peer, exc_info=error)

    def _fail(self, error: StatusError | RpcError) -> None:
        self._status = error.status if isinstance(error, RpcError) else grpc_messages.grpc_status(error.code)
        trailers = grpc_messages.trailers_of_error(error)
        connection = self._connection
        if self._headers_sent:
            self._send_trailers(hpack.encode(trailers))
        else:
            connection.http2.send_headers(self.stream_id, hpack.encode([*_RESPONSE_FIELDS, *trailers]), end=True)
        connection.flush_soon()

    def _send_trailers(self, trailers: bytes) -> None:
        self._connection.http2.send_data(self.stream_id, b"", trailers=trailers)

    def refuse(self, error: RpcError) -> None:
        """End the call with an error before its handler began, or in place of its result."""
        self._fail(error)
        self._end()
        self._cancel()

    def abandon(self) -> None:
        """Stop the handler: the caller has gone or has cancelled."""
        self._end()
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None and not self._task.ended:
            self._connection.lingering_began(self)
            self._task.cancel()

    def _end(self) -> None:
        self._over = True
        if self._deadline_step is not None:
            self._connection.server.deadlines.forget(self._deadline_step, self)
            self._deadline_step = None
        self._release()
        self._connection.call_ended(self.stream_id)

    def _count(self, buffered: int, counted: int) -> None:
        """Add bytes to this call's memory, and to the server's total."""
        self._buffered += buffered
        self.counted_bytes += counted
        self._connection.received_bytes += counted

    def _release(self) -> None:
        """Release the memory of this call."""
        connection = self._connection
        connection.received_bytes -= self.counted_bytes
        self.counted_bytes = 0
        if self._buffered:
            connection.http2.release(self.stream_id, self._buffered)
            self._buffered = 0

    def expired(self) -> None:
        """End the call as its deadline has passed."""
        if not self._over:
            self._deadline_step = None
            self.refuse(RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed"))


class UnaryCall(ServerCall):
    """A call with one message each way."""

    __slots__ = ("_message",)

    def __init__(
        self,
        connection: Carrier,
        stream_id: int,
        head: RequestHead,
        method: Method[Any, Any],
        handler: Callable[[Call, Any], Any],
        deadline: float | None,
    ) -> None:
        super().__init__(connection, stream_id, head, method, handler, deadline)
        self._message: bytes | None = None

    def data(self, event: DataReceived) -> None:
        connection = self._connection
        data = event.data
        size = len(data) - PREFIX_BYTES
        if (
            event.ended
            and self._reader is None
            and 0 <= size <= connection.limits.message_bytes_max
            and not data[0]
            and int.from_bytes(data[1:PREFIX_BYTES], "big") == size
        ):
            # The usual case: the whole message came in one frame.
            connection.http2.release(self.stream_id, len(data))
            connection.received_bytes -= self.counted_bytes
            self.counted_bytes = 0
            self._decode(data[PREFIX_BYTES:])
            return
        self._count(len(data), len(data))
        if self._reader is None:
            self._reader = MessageReader(connection.limits.message_bytes_max)
        try:
            self._take(self._reader.feed(data))
        except RpcError as error:
            if error.status is GrpcStatus.RESOURCE_EXHAUSTED:
                connection.server.observer.limit_hit("message_bytes_max")
            self.refuse(error)
            return
        if event.ended:
            self.ended()
        else:
            connection.http2.collect(self.stream_id)

    def _take(self, messages: list[bytes]) -> None:
        limits = self._connection.limits
        for message in messages:
            if self._message is not None:
                raise RpcError(GrpcStatus.INTERNAL, "more than one message for a method that takes one")
            self._message = message
        if self._connection.http2.buffered_bytes > limits.buffered_bytes_max - limits.connection_window_bytes:
            self._connection.server.observer.limit_hit("receive_buffer_bytes_max")
            raise RpcError(GrpcStatus.UNAVAILABLE, "too many unfinished messages on this connection; try again")

    def ended(self) -> None:
        message = self._message
        self._message = None
        if message is None or (self._reader is not None and self._reader.partial_bytes):
            self.refuse(RpcError(GrpcStatus.INTERNAL, "the call ended before its message was whole"))
            return
        self._release()
        self._decode(message)

    def _decode(self, message: bytes) -> None:
        try:
            request = self._method.request.decode(message)
        except (DecodeError, ValueError):
            self.refuse(RpcError(GrpcStatus.INVALID_ARGUMENT, f"the message is no request of {self._head.path}"))
            return
        self._reader = None
        self._run(request)

    def _answer(self, result: Any) -> None:
        data = grpc_messages.frame_message(self._method.response.encode(result))
        connection = self._connection
        connection.http2.respond(self.stream_id, RESPONSE_HEADERS, data, TRAILERS_OK)
        connection.answered()


class StreamCall(ServerCall):
    """A call with any number of messages each way: the `Stream` of its handler."""

    __slots__ = ("_caller_ended", "_messages", "_opening_bytes", "_receiver", "_retained_end", "_senders", "_silent")

    def __init__(
        self,
        connection: Carrier,
        stream_id: int,
        head: RequestHead,
        method: Method[Any, Any],
        handler: Callable[[Call, Any], Any],
        deadline: float | None,
    ) -> None:
        super().__init__(connection, stream_id, head, method, handler, deadline)
        self._reader = MessageReader(connection.limits.message_bytes_max)
        self._messages: deque[bytes] = deque()
        self._opening_bytes = self.counted_bytes
        # Trailers, if the caller had not sent anything when its handler ended.
        self._silent = False
        self._retained_end: bytes | None = None
        self._caller_ended = False
        self._receiver: asyncio.Future[None] | None = None
        self._senders: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """Send the response headers, which some clients wait for before all else, and start the handler; but not of a
        call that is over already.
        """
        if self._over:
            return
        self._connection.http2.send_headers(self.stream_id, RESPONSE_HEADERS)
        self._headers_sent = True
        self._connection.flush_soon()
        self._run(self)

    # Events of the connection

    def data(self, event: DataReceived) -> None:
        assert self._reader is not None
        try:
            messages = self._reader.feed(event.data)
        except RpcError as error:
            self._count(len(event.data), 0)
            if error.status is GrpcStatus.RESOURCE_EXHAUSTED:
                self._connection.server.observer.limit_hit("message_bytes_max")
            self.refuse(error)
            return
        self._count(len(event.data), len(event.data) + _WAITING_MESSAGE_BYTES * len(messages))
        self._messages.extend(messages)
        if not self._messages:
            # A message longer than the window must still be able to come in.
            self._connection.http2.collect(self.stream_id)
        if event.ended:
            self._caller_ended = True
        self._wake_receiver()

    def ended(self) -> None:
        self._caller_ended = True
        self._wake_receiver()

    def flushed(self) -> None:
        self._wake_senders()

    def resumed(self) -> None:
        if not self._connection.http2.is_blocked(self.stream_id):
            self._wake_senders()

    def _done(self, result: Any, error: BaseException | None) -> None:
        # Nothing taken, nothing waiting, and no end: the caller has not sent anything yet.
        self._silent = bool(self._opening_bytes) and not (self._messages or self._caller_ended)
        super()._done(result, error)

    def _send_trailers(self, trailers: bytes) -> None:
        if self._silent:
            self._retained_end = trailers
        else:
            super()._send_trailers(trailers)

    def _end(self) -> None:
        super()._end()
        self._messages.clear()
        self._wake_receiver()
        self._wake_senders()
        if self._retained_end is not None:
            assert self._reader is not None
            self._connection.end_later(self.stream_id, self._retained_end, self._started, self._reader.partial)

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _wake_senders(self) -> None:
        for sender in self._senders:
            if not sender.done():
                sender.set_result(None)
        self._senders.clear()

    # Calls of the handler

    async def receive(self) -> Any | None:
        """Return the caller's next message, None after the end of its direction; `StreamClosedError` if it is gone."""
        while not self._messages:
            if self._over:
                raise StreamClosedError("the caller has cancelled the call or gone away")
            if self._caller_ended:
                return None
            self._receiver = self._connection.loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        message = self._messages.popleft()
        size = len(message) + PREFIX_BYTES
        self._count(-size, -size - _WAITING_MESSAGE_BYTES - self._opening_bytes)
        self._opening_bytes = 0
        self._connection.http2.release(self.stream_id, size)
        if not self._messages and self._buffered:
            self._connection.http2.collect(self.stream_id)
        self._connection.flush_soon()
        try:
            return self._method.request.decode(message)
        except (DecodeError, ValueError):
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, f"the message is no request of {self._head.path}") from None

    async def send(self, messages: Sequence[Any]) -> None:
        """Send messages to the caller; `StreamClosedError` when it is gone."""
        connection = self._connection
        if self._over:
            raise StreamClosedError("the caller has cancelled the call or gone away")
        encode = self._method.response.encode
        data = grpc_messages.frame_messages([encode(message) for message in messages])
        written = connection.http2.send_data(self.stream_id, data)
        connection.flush_soon()
        while not written or connection.paused:
            waiter = connection.loop.create_future()
            self._senders.append(waiter)
            await waiter
            if self._over:
                raise StreamClosedError("the caller has cancelled the call or gone away")
            written = not connection.http2.is_blocked(self.stream_id)

    def _answer(self, result: Any) -> None:
        self._send_trailers(TRAILERS_OK)
        self._connection.flush_first()
