"""Calls to a broker group's master that survive a failover: they are retried at the next master."""

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
    """Refusal of a retry whose earlier try may have succeeded: the refusal may be a result of that success."""


class MasterCalls:
    """Makes idempotent calls: everything but Put and Pop.

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
        """Call a group's master, whichever process that is, and retry while the outcome is unknown.

        Args:
            broker: the group's name.
            method: what to call.
            request: what to ask.
            deadline: until when the client waits, in seconds of the monotonic clock; None if for ever.
            wait_s: how long the master may wait before it answers, besides what a call may take.
            retry: makes the request of a retry; its argument says whether an earlier try may have been done. The same
                request if not given.

        Returns:
            The answer, and whether an earlier try may have been done: then the changes that this one found may be its.

        Raises:
            RetryRefusedError: the master refuses it, but an earlier try may have been done.
            StatusError: the master refuses it, or is away or silent for as long as the client waits.
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
            raise _client_error(failure, broker, outcome_unknown=False)
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
        """Retry a failed call until it succeeds, is refused, or its time is over."""
        brokers, parked_calls = self._brokers, self._parked_calls
        began = parked_calls.clock.monotonic()
        outcome_unknown = False
        while True:
            fault = fault_of(failure)
            if fault is None or fault is Fault.BUSY:
                parked.served = True
                parked_calls.answered(broker)
                refusal = _client_error(failure, broker, outcome_unknown=False)
                raise RetryRefusedError(refusal.code, refusal.message) if outcome_unknown else refusal
            outcome_unknown = outcome_unknown or fault is Fault.OUTCOME_UNKNOWN
            if broker not in brokers.names:
                raise _client_error(failure, broker, outcome_unknown=outcome_unknown)
            if broker not in brokers.led:
                fault = Fault.NO_MASTER
            give_up = give_up_at(began, deadline, _ANSWER_RESERVE_S, parked_calls.hold_s, there=True)
            if not await parked_calls.wait_to_retry(broker, fault, give_up):
                raise _client_error(failure, broker, outcome_unknown=outcome_unknown)
            try:
                timeout_s = self._timeout_s + wait_s
                if deadline is not None:
                    timeout_s = max(_ANSWER_RESERVE_S, min(timeout_s, deadline - parked_calls.clock.monotonic()))
                answer = await brokers.channel(broker).call(method, request(outcome_unknown), timeout_s=timeout_s)
            except (StatusError, RpcError) as error:
                failure = error.with_traceback(None)
            else:
                parked.served = True
                parked_calls.answered(broker)
                return answer, outcome_unknown


def _client_error(failure: StatusError | RpcError, broker: str, *, outcome_unknown: bool) -> StatusError:
    """Return the client's error for a call that failed."""
    refusal = failure if isinstance(failure, StatusError) else of_rpc_error(failure, f"the broker {broker}")
    if not outcome_unknown or refusal.code == Code.PROXY_TIMEOUT:
        return refusal
    return StatusError(
        Code.PROXY_TIMEOUT, f"{refusal.message}; an earlier try had no answer, so its outcome is unknown"
    )
