"""Channel to the leader of several controllers.

One leads, the others refuse (`NotLeadingError`). A unary call tries them in turn until one serves it; when a stream
ends, the next one goes to another controller (`follow`, `registration`). Calls to controllers are idempotent,
and several may have executed one: the error of a call covers all tries (`failure_of`).
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
    """Return the addresses in an option that names one controller or several, separated by commas.

    Raises:
        ValueError: there is none, one of them twice, or too many.
    """
    addresses = [part.strip() for part in text.split(",")]
    if not all(addresses) or len(set(addresses)) < len(addresses) or len(addresses) > CONTROLLERS_MAX:
        raise ValueError(f"not one address or up to {CONTROLLERS_MAX}, each once, separated by commas: {text!r}")
    return addresses


class ControllerChannel:
    """`Channel` to the leading controller.

    Args:
        channels: one to each controller.
        clock: divides a call's time among the controllers.
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
        """Call a unary method of the leader (see `popwheel_rpc.service.Channel`).

        Raises:
            NotProcessedError: no controller was reached, so none has executed it.
            RpcError: at least one may have executed it, whatever the others answered.
            StatusError: the leader refused it; or none leads.
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
                if not _may_ask_next(error):
                    break
                self._pass_by(number)
            else:
                self._leader = number
                return answer
        raise failure_of(failures)

    def open(
        self, method: Method[Request, Response], *, metadata: Mapping[str, str] | None = None
    ) -> ClientStream[Response, Request]:
        """Begin a streaming call to the leader, as far as it is known."""
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
    """Stream whose end makes the next one go to another controller, unless the caller cancelled it."""

    def __init__(self, stream: ClientStream[Response, Request], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended
        self._given_up = False

    async def receive(self) -> Response | None:
        """Return the next message; None after a successful end."""
        try:
            message = await self._stream.receive()
        except (StatusError, RpcError) as error:
            if _may_ask_next(error):
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

    If one of the controllers may have executed it, though its answer was lost, no answer of another can undo that: the
    call may be done. Else a refusal counts more than an unreachable controller, and the last refusal most: it is the
    leader's, if any.

    Args:
        failures: of the tries, at least one, in their order.
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


def _may_ask_next(error: StatusError | RpcError) -> bool:
    """Return whether another controller may be asked, as this one does not lead, or is unreachable.

    A controller that aborts a call refuses with HA_NOT_AVAILABLE, too, and so does one of an earlier release that does
    not lead: so that code proves nothing, but calls to controllers are idempotent.
    """
    if isinstance(error, StatusError):
        return error.code == Code.HA_NOT_AVAILABLE
    return error.status in _AWAY
