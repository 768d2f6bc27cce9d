"""Removal of replicas and broker groups that are gone for good; only an operator may ask for it."""

from collections.abc import Iterable

import structlog

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.broker_groups.broker_group import GroupState, unknown_group
from popwheel_controller.broker_groups.cost import Cost
from popwheel_controller.broker_groups.failure_detector import Liveness
from popwheel_controller.broker_groups.metrics import GroupMetrics
from popwheel_controller.broker_groups.overseer import Overseer
from popwheel_controller.broker_groups.roles import Roles

_logger = structlog.get_logger()


class Decommission:
    """Removes replicas and groups from the state and the metrics of the controller.

    Args:
        overseer: watches over the groups.
        roles: the masters and slaves.
        metrics: of groups.
    """

    def __init__(self, overseer: Overseer, roles: Roles, metrics: GroupMetrics) -> None:
        self._overseer = overseer
        self._roles = roles
        self._metrics = metrics

    async def of_replica(self, group: str, number: int, *, dry_run: bool = False) -> GroupState:
        """Remove a replica outside the sync-state set; return the group. A replica that returns counts as a new one.

        Args:
            group: its name.
            number: the replica's.
            dry_run: only return the group as it would be.

        Raises:
            StatusError: NOT_FOUND for a group or replica that is not known; PRECONDITION_FAILED if the replica lives or
                may live, or is of the sync-state set.
        """

        def decide(now: GroupState | None) -> GroupState:
            if now is None:
                raise unknown_group(group)
            if number not in now.replicas:
                raise StatusError(Code.NOT_FOUND, f"{group} has no replica {number}; it has {_list(now.replicas)}")
            self._check_absent(group, (number,))
            if number in now.sync_state_set:
                raise StatusError(
                    Code.PRECONDITION_FAILED,
                    f"replica {number} of {group} is of the sync-state set: it may have messages that nobody else has. "
                    "If it is gone for good, have another one lead first (elect-unclean), or forget the whole group",
                )
            return now.without_replica(number)

        if dry_run:
            return decide(self._overseer.groups.states.get(group))
        state = await self._overseer.groups.change(group, decide, removes=True)
        assert state is not None, "the decision was of a known group"
        self._overseer.replicas.forget((group, number))
        self._overseer.check_soon(group)
        _logger.warning("replica forgotten", group=group, replica=number, left=sorted(state.replicas))
        return state

    def cost_of_group(self, group: str) -> Cost:
        """Return the possible cost of removing a whole group.

        Raises:
            StatusError: NOT_FOUND for a group that is not known; PRECONDITION_FAILED if one of its replicas lives or
                may live.
        """
        state = self._overseer.groups.states.get(group)
        if state is None:
            raise unknown_group(group)
        return self._cost(state, {*state.replicas, *self._overseer.replica_views(group)})

    async def of_group(self, group: str, word: str) -> None:
        """Remove a whole group from routes and status.

        Args:
            group: its name.
            word: the operator's confirmation.

        Raises:
            StatusError: NOT_FOUND for a group that is not known; PRECONDITION_FAILED if one of its replicas lives or
                may live; BAD_REQUEST for a wrong word, with the cost and the right word.
        """
        gone: set[int] = set()

        def check(now: GroupState) -> None:
            gone.update(now.replicas, self._overseer.replica_views(group))
            cost = self._cost(now, gone)
            if word != cost.word:
                raise StatusError(
                    Code.BAD_REQUEST, f'{cost.sentence}. If it is gone for good, say so with the word "{cost.word}"'
                )

        await self._overseer.groups.delete(group, check)
        for number in gone:
            self._overseer.replicas.forget((group, number))
        self._roles.forget(group)
        self._metrics.forget(group)
        self._overseer.check_soon(group)  # notify proxies that may still route to it
        _logger.warning("broker group forgotten", group=group)

    def _cost(self, now: GroupState, gone: Iterable[int]) -> Cost:
        self._check_absent(now.name, gone)
        return Cost(
            sorted(now.replicas),
            f"{now.name} is the broker group of replica {_list(now.replicas)}, whose folders hold its messages. "
            "Nothing of these is deleted, but who of them has every acknowledged message is known here only: "
            "should some of them come back, the group is made anew from what they have, and messages may be "
            "lost or come again",
            f"forget-all-of-{now.name}",
        )

    def _check_absent(self, group: str, numbers: Iterable[int]) -> None:
        """Check that none of these replicas lives, or may live."""
        views = self._overseer.replica_views(group)
        there = {n for n in numbers if n in views and views[n].liveness is not Liveness.DEAD}
        if not there:
            return
        unsure = {n for n in there if views[n].liveness is Liveness.UNSURE}
        raise StatusError(
            Code.PRECONDITION_FAILED,
            f"replica {_list(unsure)} of {group} may live: it has been away for too short a time to be given up; ask "
            "again in some seconds"
            if unsure == there
            else f"replica {_list(there - unsure)} of {group} lives; stop it first",
        )


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
