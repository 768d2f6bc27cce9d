"""Checks at the brokers before a change of a topic or group."""

from collections.abc import Sequence
from typing import Final

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import DescribeUseRequest, DescribeUseResponse
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.http.inquiry import Inquiry
from popwheel_rpc.methods import DESCRIBE_USE

_STOP_FIRST: Final = "stop its consumers, wait until nothing is in flight or waits for a retry, and ask again"


class UseChecks:
    """Checks whether topics and groups are in use.

    Args:
        inquiry: asks brokers.
    """

    def __init__(self, inquiry: Inquiry) -> None:
        self._inquiry = inquiry

    async def refusal(self, state: ClusterState, update: ClusterUpdate) -> StatusError | None:
        """Return why a change can't be made now; None if it can.

        Args:
            state: the cluster that the change is decided on.
            update: the change.
        """
        (error,) = await self.refusals(((state, update),))
        return error

    async def refusals(self, changes: Sequence[tuple[ClusterState, ClusterUpdate]]) -> list[StatusError | None]:
        """Return the same for several changes, each decided on what the one before has made."""
        asked = _Asked(self._inquiry)
        return [await asked.refusal(state, update) for state, update in changes]


class _Asked:
    """Answers of brokers for several changes. A silent broker is waited for once."""

    def __init__(self, inquiry: Inquiry) -> None:
        self._inquiry = inquiry
        self._silent = ""
        self._rooms: dict[str, int] | None = None
        self._added = 0

    async def refusal(self, state: ClusterState, update: ClusterUpdate) -> StatusError | None:
        try:
            for group in update.groups:
                before = state.groups.get(group.name)
                if before is not None and before.fifo != group.fifo:
                    await self._check_is_idle(state, group.name)
            for topic in update.topics:
                known = state.topics.get(topic.name)
                if known is not None and topic.queues > known.queues:
                    await self._check_room(topic.queues - known.queues)
        except StatusError as error:
            return error.with_traceback(None)
        return None

    async def _check_is_idle(self, state: ClusterState, group: str) -> None:
        """Refuse another order while messages are in flight or wait for a retry: they follow the old order. Clients
        read the order when they start, so they must be stopped, too.
        """
        self._silent = self._silent or min(state.away, default="")
        used: Sequence[DescribeUseResponse] = ()
        if not self._silent:
            answers = await self._inquiry.of_all(DESCRIBE_USE, DescribeUseRequest(group=group))
            used = [*answers.given.values()]
            self._silent = next((each.broker for each in answers.unanswered), "")
        if self._silent:
            raise StatusError(
                Code.HA_NOT_AVAILABLE,
                f"without the broker {self._silent} it is not known whether the group {group} is in use, so its order "
                "stays; ask again when all brokers are there",
            )
        in_flight, retries = sum(each.in_flight for each in used), sum(each.retries for each in used)
        polling = max((each.polling_proxies for each in used), default=0)
        if polling or in_flight or retries:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"the group {group} is in use, so its order can't change now: {in_flight} messages are in flight, "
                f"{retries} wait for a retry, clients poll at {polling} proxies; {_STOP_FIRST}",
            )

    async def _check_room(self, more: int) -> None:
        """Refuse more queues than a broker has room for, as sends to them would fail; skip unavailable brokers."""
        if self._rooms is None:
            answers = await self._inquiry.of_all(DESCRIBE_USE, DescribeUseRequest())
            self._rooms = {broker: answer.queues_room for broker, answer in answers.given.items()}
        for broker, room in self._rooms.items():
            if room < self._added + more:
                raise StatusError(
                    Code.TOO_MANY_REQUESTS,
                    f"the broker {broker} has room for {max(0, room - self._added)} queues more, not for {more}: raise "
                    "broker.log.queues_max, or delete topics",
                )
        self._added += more
