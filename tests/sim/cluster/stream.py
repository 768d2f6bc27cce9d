"""A streaming call between two simulated processes, as each of its ends has it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from popwheel_common.errors import StatusError
from popwheel_rpc.service import Method, StreamClosedError
from popwheel_rpc.status import GrpcStatus, RpcError

Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing")
Request = TypeVar("Request")
Response = TypeVar("Response")

UNREAD_MAX = 16
"""Limit of messages on their way, or arrived and unread; then whoever sends waits."""

Failure = StatusError | RpcError


class Inbox(Generic[Incoming]):
    """What has arrived at one end and is still to be read."""

    def __init__(self) -> None:
        self._messages: deque[Incoming] = deque()
        self._changed: asyncio.Future[None] | None = None
        self.is_over = False
        self.failure: Exception | None = None

    def add(self, message: Incoming) -> None:
        """A message has arrived."""
        if not self.is_over:
            self._messages.append(message)
            self._wake()

    def end(self, failure: Exception | None = None, *, at_once: bool = False) -> None:
        """Nothing will come any more.

        Args:
            failure: why; None: the other side has said all.
            at_once: what is unread is let go.
        """
        if self.is_over:
            return
        self.is_over, self.failure = True, failure
        if at_once:
            self._messages.clear()
        self._wake()

    async def get(self) -> Incoming | None:
        """The next message; None if the other side has said all; or what went wrong is raised."""
        while not self._messages:
            if self.is_over:
                if self.failure is not None:
                    raise self.failure
                return None
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed
        return self._messages.popleft()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class Room:
    """How many more messages one end may send."""

    def __init__(self) -> None:
        self._unread = 0
        self._changed: asyncio.Future[None] | None = None
        self.is_deleted = False
        """Nobody will read any more."""

    async def take(self) -> None:
        """Wait until one more may be sent."""
        while not self.is_deleted and self._unread >= UNREAD_MAX:
            if self._changed is None or self._changed.done():
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)
        self._unread += 1

    def hand_over(self) -> None:
        """One was read."""
        self._unread -= 1
        self._wake()

    def close(self) -> None:
        """Nobody reads any more: whoever waits is not to wait."""
        self.is_deleted = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class ServerStream(Generic[Request, Response]):
    """A streaming call as its handler has it (`popwheel_rpc.service.Stream`).

    Args:
        method: of which method.
        send: takes the bytes of one answer to the caller.
        room_for_requests: of the caller; released what is read.
    """

    def __init__(
        self, method: Method[Request, Response], send: Callable[[bytes], None], room_for_requests: Room
    ) -> None:
        self.inbox: Inbox[bytes] = Inbox()
        self.room = Room()
        self.task: asyncio.Task[None] | None = None
        self._method = method
        self._send = send
        self._room_for_requests = room_for_requests

    async def receive(self) -> Request | None:
        data = await self.inbox.get()
        if data is None:
            return None
        self._room_for_requests.hand_over()
        return self._method.request.decode(data)

    async def send(self, messages: Sequence[Response]) -> None:
        for message in messages:
            await self.room.take()
            if self.room.is_deleted:
                raise _gone()
            self._send(self._method.response.encode(message))

    def break_off(self) -> None:
        """The caller has cancelled the call or gone away."""
        self.inbox.end(_gone(), at_once=True)
        self.room.close()
        if self.task is not None:
            self.task.cancel()


class ClientStream(Generic[Response, Request]):
    """A streaming call as its caller has it (`popwheel_rpc.service.ClientStream`).

    Args:
        method: of which method.
    """

    def __init__(self, method: Method[Request, Response]) -> None:
        self.method = method
        self.inbox: Inbox[bytes] = Inbox()
        self.room = Room()
        self.room_for_answers: Room | None = None
        self.transmit: Callable[..., Any] | None = None
        """Sends bytes, the end (None) or a cancellation (False) once the call is open."""
        self.opening: asyncio.Task[None] | None = None

    async def receive(self) -> Response | None:
        data = await self.inbox.get()
        if data is None:
            return None
        if self.room_for_answers is not None:
            self.room_for_answers.hand_over()
        return self.method.response.decode(data)

    async def send(self, messages: Sequence[Request]) -> None:
        await self._opened()
        for message in messages:
            await self.room.take()
            if self.transmit is None or self.inbox.is_over:
                raise StreamClosedError("the call is over")
            self.transmit(self.method.request.encode(message))

    async def end(self) -> None:
        await self._opened()
        if self.transmit is not None:
            self.transmit(None)

    def cancel(self) -> None:
        self.close(RpcError(GrpcStatus.CANCELLED, "the call was cancelled by its caller"))

    def close(self, failure: Failure) -> None:
        """Give the call up, for this reason."""
        if self.opening is not None:
            self.opening.cancel()
        if not self.inbox.is_over and self.transmit is not None:
            self.transmit(False)
        self.over(failure, at_once=True)

    def over(self, failure: Failure | None, *, at_once: bool = False) -> None:
        """The call has ended."""
        self.inbox.end(failure, at_once=at_once)
        self.transmit = None
        self.room.close()

    async def _opened(self) -> None:
        if self.opening is not None and not self.opening.done():
            await asyncio.wait((self.opening,))


def _gone() -> StreamClosedError:
    return StreamClosedError("the caller has cancelled the call or gone away")
