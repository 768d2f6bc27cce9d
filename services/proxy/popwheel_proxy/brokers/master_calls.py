"""Calls of a broker group's master that outlive this master: they are made again at the next one."""

from collections.abc import Callable
from typing import TypeVar

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.parked_calls import ParkedCall, ParkedCalls
from popwheel_proxy.brokers.retry_policy import Fault, fault_of, give_up_at
from popwheel_proxy.protocol.errors import NoMasterError
from popwheel_proxy.protocol.statuses import of_rpc_error
from popwheel_rpc.service import Method
from popwheel_rpc.status import RpcError

Request = TypeVar("Request")
Response = TypeVar("Response")

_ANSWER_RESERVE_S = 0.1


class RetryRefusedError(StatusError):
    """A refusal of a call that may have been done by an earlier try: then it need not mean what it says."""


class MasterCalls:
    """Makes calls whose second time does no harm: everything but Put and Pop.

    Args:
        brokers: the broker groups there are.
        parked_calls: where calls wait.
        timeout_s: how long one try may take.
    """

    def __init__(self, brokers: Brokers, parked_calls: ParkedCalls, timeout_s: float) -> None:
        self._brokers = brokers
        self._parked_calls = parked_calls
        self._timeout_s = timeout_s

    async def call(
        self,
        broker: str,
        method: Method[Request, Response],
        request: Request,
        deadline: float | None,
        *,
        wait_s: float = 0.0,
        retry: Callable[[bool], Request] | None = None,
    ) -> tuple[Response, bool]:
        """Call a group's master, whichever process that is; and again if it can't be told what became of the call.

        Args:
            broker: the group's name.
            method: what to call.
            request: what to ask.
            deadline: until when the client waits, in seconds of the monotonic clock; None if for ever.
            wait_s: how long the master may wait before it answers, besides what a call may take.
            retry: what to ask when it is made again, told whether an earlier try may have been done; the same request
                if not given.

        Returns:
            The answer, and whether an earlier try may have been done: then what this one found changed may be its work.

        Raises:
            RetryRefusedError: the master refuses it, but an earlier try may have been done.
            StatusError: the master refuses it, or is not there or does not answer, for as long as the client waits.
        """
        failure: StatusError | RpcError
        if self._parked_calls.is_shut(broker):
            failure = NoMasterError(broker, known=broker in self._brokers.names)
        else:
            try:
                channel = self._brokers.channel(broker)
                return await channel.call(method, request, timeout_s=self._timeout_s + wait_s), False
            except (StatusError, RpcError) as error:
                failure = error.with_traceback(None)
        if fault_of(failure) in (None, Fault.BUSY):
            raise _told(failure, broker, in_doubt=False)
        with self._parked_calls.park() as parked:
            return await self._retry(parked, broker, method, retry or (lambda _: request), deadline, wait_s, failure)

    async def _retry(
        self,
        parked: ParkedCall,
        broker: str,
        method: Method[Request, Response],
        request: Callable[[bool], Request],
        deadline: float | None,
        wait_s: float,
        failure: StatusError | RpcError,
    ) -> tuple[Response, bool]:
        """Make a call again that failed, until it goes well or its time is over."""
        brokers, parked_calls = self._brokers, self._parked_calls
        began = parked_calls.clock.monotonic()
        in_doubt = False
        while True:
            fault = fault_of(failure)
            if fault is None or fault is Fault.BUSY:
                parked.served = True
                parked_calls.answered(broker)
                refusal = _told(failure, broker, in_doubt=False)
                raise RetryRefusedError(refusal.code, refusal.message) if in_doubt else refusal
            in_doubt = in_doubt or fault is Fault.IN_DOUBT
            if broker not in brokers.names:
                raise _told(failure, broker, in_doubt=in_doubt)
            if broker not in brokers.led:
                fault = Fault.NO_MASTER
            give_up = give_up_at(began, deadline, _ANSWER_RESERVE_S, parked_calls.hold_s, there=True)
            if not await parked_calls.turn(broker, fault, give_up):
                raise _told(failure, broker, in_doubt=in_doubt)
            try:
                timeout_s = self._timeout_s + wait_s
                if deadline is not None:
                    timeout_s = max(_ANSWER_RESERVE_S, min(timeout_s, deadline - parked_calls.clock.monotonic()))
                answer = await brokers.channel(broker).call(method, request(in_doubt), timeout_s=timeout_s)
            except (StatusError, RpcError) as error:
                failure = error.with_traceback(None)
            else:
                parked.served = True
                parked_calls.answered(broker)
                return answer, in_doubt


def _told(failure: StatusError | RpcError, broker: str, *, in_doubt: bool) -> StatusError:
    """Return the client's error for a call that failed."""
    refusal = failure if isinstance(failure, StatusError) else of_rpc_error(failure, f"the broker {broker}")
    if not in_doubt or refusal.code == Code.PROXY_TIMEOUT:
        return refusal
    return StatusError(
        Code.PROXY_TIMEOUT, f"{refusal.message}; an earlier try had no answer, so it can't be told whether it was done"
    )
