"""The way to whichever of several controllers leads.

One of them leads, the others refuse (`NotLeadingError`). A unary call goes round until one takes it; when a stream
ends, the next one goes to another controller (`follow`, `registration`). What is asked of controllers may be asked
twice, and several may have done it: what a call raises covers all that were asked (`failure_of`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from popwheel_common.clock import Clock
from popwheel_common.errors import NotLeadingError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.service import Channel, ClientStream, Method, StreamClosedError
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

Request = TypeVar("Request")
Response = TypeVar("Response")

CONTROLLERS_MAX: Final = 16

_AWAY = frozenset((GrpcStatus.UNAVAILABLE, GrpcStatus.DEADLINE_EXCEEDED, GrpcStatus.CANCELLED))


def addresses_of(text: str) -> list[str]:
    """The addresses in an option that names one controller or several, separated by commas.

    Raises:
        ValueError: there is none, one of them twice, or too many.
    """
    addresses = [part.strip() for part in text.split(",")]
    if not all(addresses) or len(set(addresses)) < len(addresses) or len(addresses) > CONTROLLERS_MAX:
        raise ValueError(f"not one address or up to {CONTROLLERS_MAX}, each once, separated by commas: {text!r}")
    return addresses


class ControllerChannel:
    """A `Channel` to the controller that leads.

    Args:
        channels: one to each controller.
        clock: shares a call's time out among those that are asked.
    """

    def __init__(self, channels: Sequence[Channel], clock: Clock) -> None:
        self._channels = tuple(channels)
        self._clock = clock
        self._leader = 0

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """Call a unary method of the one that leads (see `popwheel_rpc.service.Channel`).

        Raises:
            NotProcessedError: none of them was reached: certainly nobody has looked at it.
            RpcError: one at least may have done it, whatever the others said.
            StatusError: the word of the one that leads; or that none does.
        """
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        first = self._leader
        count = len(self._channels)
        failures: list[StatusError | RpcError] = []
        for turn in range(count):
            number = (first + turn) % count
            share_s = None if deadline is None else (deadline - self._clock.monotonic()) / (count - turn)
            try:
                answer = await self._channels[number].call(method, request, timeout_s=share_s, metadata=metadata)
            except (StatusError, RpcError) as error:
                failures.append(error)
                if not _may_go_on(error):
                    break
                self._pass_by(number)
            else:
                self._leader = number
                return answer
        raise failure_of(failures)

    def open(
        self, method: Method[Request, Response], *, metadata: Mapping[str, str] | None = None
    ) -> ClientStream[Response, Request]:
        """Begin a streaming call of the one that leads, as far as is known."""
        number = self._leader
        return _Stream(self._channels[number].open(method, metadata=metadata), lambda: self._pass_by(number))

    async def close(self) -> None:
        """End all connections."""
        for channel in self._channels:
            await channel.close()

    def _pass_by(self, number: int) -> None:
        if self._leader == number:
            self._leader = (number + 1) % len(self._channels)


class _Stream(Generic[Response, Request]):
    """A stream that says when it has ended, so that the next one goes to another controller; not if it was given up."""

    def __init__(self, stream: ClientStream[Response, Request], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended
        self._given_up = False

    async def receive(self) -> Response | None:
        """The next message; None when it has ended well."""
        try:
            message = await self._stream.receive()
        except (StatusError, RpcError) as error:
            if _may_go_on(error):
                self._pass_by()
            raise
        if message is None:
            self._pass_by()
        return message

    async def send(self, messages: Sequence[Request]) -> None:
        """Send messages."""
        try:
            await self._stream.send(messages)
        except StreamClosedError:
            self._pass_by()
            raise

    async def end(self) -> None:
        """Half-close: no more messages will be sent."""
        await self._stream.end()

    def cancel(self) -> None:
        """Cancel the call."""
        self._given_up = True
        self._stream.cancel()

    def _pass_by(self) -> None:
        if not self._given_up:  # else its end says nothing of the controller
            self._ended()


def failure_of(failures: Sequence[StatusError | RpcError]) -> StatusError | RpcError:
    """Return the error of a call that failed everywhere (pure).

    If one of the controllers may have done it, though its answer was lost, nothing that another says can undo that: the
    whole call may be done. Else a word is worth more than that another is not there, and the last word most: it is the
    leader's, if any.

    Args:
        failures: of those that were asked, at least one, in their order.
    """
    for failure in failures:
        if _may_be_done(failure):
            return failure
    return next((failure for failure in reversed(failures) if isinstance(failure, StatusError)), failures[0])


def _may_be_done(failure: StatusError | RpcError) -> bool:
    """Return whether a controller may have executed the failed call: not if it said explicitly that it did not."""
    if isinstance(failure, StatusError):
        return failure.code == Code.HA_NOT_AVAILABLE and not isinstance(failure, NotLeadingError)
    return not isinstance(failure, NotProcessedError)


def _may_go_on(error: StatusError | RpcError) -> bool:
    """Return whether another controller may be asked, as this one does not lead, or is unreachable.

    One that gives up what it began refuses with HA_NOT_AVAILABLE, too, and so does one of an earlier release that does
    not lead: nothing of these is proved, and what is asked of controllers may be asked twice.
    """
    if isinstance(error, StatusError):
        return error.code == Code.HA_NOT_AVAILABLE
    return error.status in _AWAY
