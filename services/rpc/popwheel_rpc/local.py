"""Calls within one process: a `Channel` straight into a `Service`. Messages pass by reference, nothing is encoded.

To a caller it is like a socket: refusals are `StatusError`, anything else is `RpcError`; a handler is cancelled
when its caller cancels, closes the channel or runs out of time; a stream makes its sender wait for a slow reader.
"""

import asyncio
from asyncio import CancelledError
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import structlog

from popwheel_common.clock import Clock, SystemClock
from popwheel_common.errors import StatusError
from popwheel_rpc.deadline_timer import DeadlineTimer
from popwheel_rpc.limits import Limits
from popwheel_rpc.service import Call, ClientStream, Method, Service, StreamClosedError, routes_of
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

Request = TypeVar("Request")
Response = TypeVar("Response")
Message = TypeVar("Message")

log = structlog.get_logger()


class LocalChannel:
    """Calls the handlers of services in this process and loop.

    A unary handler runs in the caller's own task; a stream's handler has a task of its own. Deadlines are right to ten
    milliseconds.

    Args:
        services: one service or several.
        peer: what handlers see as `Call.peer`.
        limits: of these only `stream_messages_max` counts here.
        clock: the machine's if not given.
    """

    def __init__(
        self,
        services: Service | Sequence[Service],
        peer: str = "local",
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._routes = routes_of(services)
        self._peer = peer
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadlines = DeadlineTimer(self._clock)
        self._calls: dict[_LocalCall, None] = {}
        self._streams: dict[LocalStream[Any, Any], None] = {}

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """Call a unary method (see `popwheel_rpc.service.Channel`)."""
        handler = self._handler(method, streaming=False)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        running = _LocalCall(asyncio.current_task(self._loop))
        deadline: float | None = None
        if timeout_s is not None:
            deadline = self._clock.monotonic() + timeout_s
            deadline_step = self._deadlines.watch(deadline, running)
        self._calls[running] = None
        call = Call(method.path, metadata or {}, deadline, self._peer)
        try:
            return await handler(call, request)  # type: ignore[no-any-return]
        except (StatusError, RpcError):
            raise
        except CancelledError:
            raise running.cancelled_with() from None
        except Exception as error:  # noqa: BLE001 - logged, and returned to the caller
            raise _failed(call, error) from None
        finally:
            del self._calls[running]
            if deadline is not None:
                self._deadlines.forget(deadline_step, running)
            running.finish()

    def open(
        self, method: Method[Request, Response], *, metadata: Mapping[str, str] | None = None
    ) -> ClientStream[Response, Request]:
        """Begin a streaming call; its handler starts in the loop's next turn."""
        handler = self._handler(method, streaming=True)
        call = Call(method.path, metadata or {}, None, self._peer)
        stream: LocalStream[Response, Request] = LocalStream(call, self._limits.stream_messages_max, self._ended)
        self._streams[stream] = None
        stream.start(handler)
        return stream

    async def close(self) -> None:
        """End every call; later ones fail with UNAVAILABLE."""
        self._closed = True
        for running in list(self._calls):
            running.end(RpcError(GrpcStatus.UNAVAILABLE, "the channel was closed"))
        self._deadlines.close()
        tasks = [stream.task for stream in self._streams if stream.task is not None]
        for stream in list(self._streams):
            stream.close(RpcError(GrpcStatus.UNAVAILABLE, "the channel was closed"))
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, stream: "LocalStream[Any, Any]") -> None:
        self._streams.pop(stream, None)

    def _handler(self, method: Method[Any, Any], *, streaming: bool) -> Callable[[Call, Any], Awaitable[Any]]:
        if self._closed:
            raise NotProcessedError("the channel is closed")
        route = self._routes.get(method.path)
        if route is None or route[2] is not streaming:
            raise RpcError(GrpcStatus.UNIMPLEMENTED, f"there is no method {method.path} here")
        return route[1]


class _LocalCall:
    """A unary call in flight, which may be ended while the caller waits.

    It ends as with `asyncio.timeout`: the caller's task is cancelled, and the exception that leaves the handler is
    turned into an error, unless the task was also cancelled by others.

    Args:
        task: the caller's; None if it has none, then the call ends only by itself.
    """

    __slots__ = ("_cancelled_before", "_error", "_task")

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self._task = task
        self._cancelled_before = 0 if task is None else task.cancelling()
        self._error: RpcError | None = None

    def end(self, error: RpcError) -> None:
        """End it with an error."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    def expired(self) -> None:
        """End the call as its deadline has passed."""
        self.end(RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed"))

    def cancelled_with(self) -> CancelledError | RpcError:
        """Return the caller's error for a cancellation raised by the handler."""
        ours = 0 if self._error is None else 1
        if self._task is not None and self._task.cancelling() > self._cancelled_before + ours:
            return CancelledError()
        return self._error or RpcError(GrpcStatus.CANCELLED, "the call was cancelled by its handler")

    def finish(self) -> None:
        """Finish the call: undo our own cancellation of the caller's task."""
        if self._error is not None and self._task is not None:
            self._task.uncancel()


class _Pipe(Generic[Message]):
    """Direction of a stream: its messages, and its end."""

    def __init__(self, messages_max: int) -> None:
        self._messages: deque[Message] = deque()
        self._messages_max = messages_max
        self._waiters: list[asyncio.Future[None]] = []
        self.ended = False
        self.broken = False
        self.take: Callable[[Message], bool] | None = None
        """Takes messages as they are put, ahead of readers; one that it leaves is queued."""

    def end(self) -> None:
        """End the messages; queued ones can still be read."""
        self.ended = True
        self._wake()

    def break_off(self) -> None:
        """Drop the queued messages: the reader or the writer is gone."""
        self.broken = True
        self._messages.clear()
        self._wake()

    async def put(self, messages: Sequence[Message]) -> bool:
        """Add messages once there is room; False if the reader is gone."""
        while not self.broken and len(self._messages) >= self._messages_max:
            await self._wait()
        if self.broken:
            return False
        for message in messages:
            if self._messages or self.take is None or not self.take(message):
                self._messages.append(message)
            if self.broken:
                return False
        self._wake()
        return True

    async def get(self) -> Message | None:
        """Return the next message; None when there are no more."""
        while not self._messages:
            if self.ended or self.broken:
                return None
            await self._wait()
        message = self._messages.popleft()
        self._wake()
        return message

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class LocalStream(Generic[Response, Request]):
    """Caller's end of a streaming call (`ClientStream`); the handler has the other end.

    Args:
        call: what is called.
        messages_max: how many messages wait in each direction before their sender does.
        ended: called when the handler has ended.
    """

    def __init__(
        self, call: Call, messages_max: int, ended: Callable[["LocalStream[Response, Request]"], None]
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._call = call
        self._requests: _Pipe[Request] = _Pipe(messages_max)
        self._responses: _Pipe[Response] = _Pipe(messages_max)
        self._ended = ended
        self._error: StatusError | RpcError | None = None

    def start(self, handler: Callable[[Call, Any], Awaitable[None]]) -> None:
        """Run the handler at the other end."""
        self.task = asyncio.get_running_loop().create_task(self._run(handler))

    async def _run(self, handler: Callable[[Call, Any], Awaitable[None]]) -> None:
        try:
            await handler(self._call, _HandlerEnd(self._requests, self._responses))
        except (StatusError, RpcError) as error:
            self._fail(error)
        except (CancelledError, StreamClosedError):
            # Whoever cancelled it has said why before; else it was the handler itself.
            self._fail(RpcError(GrpcStatus.CANCELLED, "the call was cancelled by its handler"))
        except Exception as raised:  # noqa: BLE001 - logged, and returned to the caller
            self._fail(_failed(self._call, raised))
        finally:
            self._responses.end()
            self._requests.break_off()
            self._ended(self)

    def _fail(self, error: StatusError | RpcError) -> None:
        if self._error is None:
            self._error = error

    async def receive(self) -> Response | None:
        """The handler's next message; None when it has ended well, else the error it ended with is raised."""
        message = await self._responses.get()
        if message is None and self._error is not None:
            raise self._error.with_traceback(None)
        return message

    def take_at_once(self, take: Callable[[Response], bool]) -> None:
        """Have later messages taken within the handler's `send`, which saves turns of the loop.

        Args:
            take: returns whether it has taken a message; what it leaves comes to `receive`. An error ends the call.
        """

        def take_or_end(message: Response) -> bool:
            try:
                return take(message)
            except Exception as error:  # noqa: BLE001 - logged, and returned to the caller
                self.close(_failed(self._call, error))
                return True

        self._responses.take = take_or_end

    async def send(self, messages: Sequence[Request]) -> None:
        """Send messages to the handler; `StreamClosedError` when it has ended."""
        if self._requests.ended or not await self._requests.put(messages):
            raise StreamClosedError("the call is over")

    async def end(self) -> None:
        """Half-close: no more messages will be sent."""
        self._requests.end()

    def cancel(self) -> None:
        """Cancel the call."""
        self.close(RpcError(GrpcStatus.CANCELLED, "the call was cancelled by its caller"))

    def close(self, error: RpcError) -> None:
        """End the call with an error, if it has not ended."""
        if self.task is not None and not self.task.done() and not self._responses.ended:
            self._fail(error)
            self._responses.break_off()
            self._requests.break_off()
            self.task.cancel()
            if self.task.cancelling() == 1:
                # A task that never ran does not reach the end of `_run`.
                self.task.add_done_callback(lambda _: self._ended(self))


class _HandlerEnd(Generic[Request, Response]):
    """The `Stream` of a handler."""

    def __init__(self, requests: _Pipe[Request], responses: _Pipe[Response]) -> None:
        self._requests = requests
        self._responses = responses

    async def receive(self) -> Request | None:
        message = await self._requests.get()
        if message is None and self._requests.broken:
            raise StreamClosedError("the caller has cancelled the call or gone away")
        return message

    async def send(self, messages: Sequence[Response]) -> None:
        if not await self._responses.put(messages):
            raise StreamClosedError("the caller has cancelled the call or gone away")


def _failed(call: Call, error: Exception) -> RpcError:
    log.error("handler failed", path=call.path, peer=call.peer, exc_info=error)
    return RpcError(GrpcStatus.INTERNAL, "the handler failed; its server's log says why")
