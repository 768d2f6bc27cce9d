"""Leadership transfers: for an operator, or because a master is about to stop; also unclean elections."""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import HandOverRequest
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_controller.broker_groups.broker_group import GroupState, unknown_group
from popwheel_controller.broker_groups.cost import Cost
from popwheel_controller.broker_groups.election import Reports, alone, elect, latest_set, most_complete, record_of
from popwheel_controller.broker_groups.failure_detector import Liveness
from popwheel_controller.broker_groups.group_policy import ReplicaViews, has_no_master, strangers
from popwheel_controller.broker_groups.metrics import GroupMetrics
from popwheel_controller.broker_groups.overseer import Overseer
from popwheel_controller.broker_groups.roles import Roles
from popwheel_rpc.methods import HAND_OVER
from popwheel_rpc.status import GrpcStatus, RpcError

_LEAVING_WAIT_S = 2.0
_LEAVING_POLL_S = 0.05

_logger = structlog.get_logger()

_SILENT = (
    "A silent master need not be dead: one that hangs or is cut off goes on acknowledging to proxies that reach it, "
    "until it learns of its successor, and those messages are lost, too. End its process first."
)


class LeadershipTransfers:
    """Requested changes of masters.

    Args:
        overseer: watches over the groups.
        roles: the masters and slaves, with channels to them.
        timeout_s: how long a master may wait for its successor to have everything.
        clock: the time.
        metrics: of groups.
    """

    def __init__(self, overseer: Overseer, roles: Roles, timeout_s: float, clock: Clock, metrics: GroupMetrics) -> None:
        self._overseer = overseer
        self._roles = roles
        self._timeout_s = timeout_s
        self._clock = clock
        self._metrics = metrics
        self._under_way: set[str] = set()
        self._leaving: set[str] = set()
        self._refused: list[Callable[[str, StatusError], None]] = []

    def subscribe(self, refused: Callable[[str, StatusError], None]) -> None:
        """Call `refused` with the group and the reason of each switchover that is refused."""
        self._refused.append(refused)

    async def switch(self, group: str, to: int | None) -> GroupState:
        """Transfer leadership to another member of the sync-state set; return the stored state of the group.

        Args:
            group: its name.
            to: the successor's number; None for the one with the most complete log.

        Raises:
            StatusError: NOT_FOUND for a group that is not known; PRECONDITION_FAILED if it cannot be done now;
                HA_NOT_AVAILABLE or PROXY_TIMEOUT if the master did not answer; then it stays the master.
        """
        if group in self._under_way:
            raise StatusError(Code.PRECONDITION_FAILED, f"{group} is changing its master already; ask again")
        self._under_way.add(group)
        try:
            state = await self._switch(self._known(group), to)
        except StatusError as error:
            self._metrics.transfers.labels("refused").inc()
            _logger.warning("leadership transfer refused", group=group, to=to, reason=error.message)
            for listener in self._refused:
                listener(group, error)
            raise
        finally:
            self._under_way.discard(group)
        self._metrics.transfers.labels("done").inc()
        return state

    async def elect_unclean(self, group: str, replica: int | None, word: str) -> GroupState:
        """Elect a living replica from outside the sync-state set, with an operator's confirmation; return the group.

        Args:
            group: its name.
            replica: its number; None for the one with the most complete log.
            word: the operator's confirmation.

        Raises:
            StatusError: NOT_FOUND for a group that is not known; PRECONDITION_FAILED if it has a master, or may have
                one, or needs no such election, or has no living replica; BAD_REQUEST for a wrong word, with the cost
                and the right word.
        """
        state, report, cost = self._unclean(group, replica)
        if word != cost.word:
            raise StatusError(Code.BAD_REQUEST, f'{cost.sentence} If you want that, say so with the word "{cost.word}"')
        chosen = report.replica

        def decide(now: GroupState | None) -> GroupState:
            if now is None:
                return alone(report)
            if state is None or (now.epoch, now.master) != (state.epoch, state.master):
                raise StatusError(Code.PRECONDITION_FAILED, f"{group} has changed meanwhile; look at it and ask again")
            return now.elected_unclean(record_of(report), max(report.epoch, report.last_epoch), report.version)

        _logger.error(
            "unclean election: acknowledged messages may be lost",
            group=group,
            master=chosen,
            sync_state_set=[] if state is None else sorted(state.sync_state_set),
            end_position=report.end_position,
            last_epoch=report.last_epoch,
        )
        self._metrics.unclean_elections.inc()
        return await self._overseer.change(group, decide, forced=True)

    def cost_of_unclean(self, group: str, replica: int | None) -> Cost:
        """Return the possible cost of `elect_unclean`; raise as that does."""
        return self._unclean(group, replica)[2]

    def _unclean(self, group: str, replica: int | None) -> tuple[GroupState | None, ReplicaReport, Cost]:
        """Return the group, the report of its next master, and the possible cost."""
        state = self._overseer.groups.states.get(group)
        views = self._overseer.replica_views(group)
        reports = {n: s.report for n, s in views.items() if s.liveness is not Liveness.DEAD and s.report is not None}
        if state is None and not reports:
            raise unknown_group(group)
        if state is not None:
            _check_need(state, reports, views)
        chosen = most_complete(reports) if replica is None else replica
        if chosen is None or chosen not in reports:
            there = _list(reports) or "none"
            raise StatusError(
                Code.PRECONDITION_FAILED, f"that replica of {group} is not there; those that are: {there}"
            )
        report = reports[chosen]
        members = latest_set(reports) if state is None else state.sync_state_set
        if report.suspect and chosen in members:
            sentence = _cost_of_a_suspect(report, members - {chosen})
        else:
            sentence = (
                f"only replica {_list(members) or '(not known which)'} of {group} has every acknowledged message. "
                f"Replica {chosen}, whose log ends at {report.end_position} of epoch {report.last_epoch}, may lack "
                "some: they would be lost for good, also when the others come back, and messages that were consumed "
                f"might come again. {_SILENT}"
            )
        return state, report, Cost([chosen], sentence, f"lose-messages-of-{group}")

    def master_leaves(self, group: str) -> None:
        """Transfer the leadership of a master that is about to stop; without a successor, let it resign."""
        if group not in self._leaving:
            self._leaving.add(group)
            self._overseer.run(self._leave(group), f"leadership-transfer-of-{group}")

    async def _leave(self, group: str) -> None:
        """Transfer to a successor; without one, wait a moment until a slave catches up, then let the master resign."""
        try:
            await self._transfer_or_resign(group)
        finally:
            self._leaving.discard(group)

    async def _transfer_or_resign(self, group: str) -> None:
        state = self._known(group)
        leaving, epoch = state.master, state.epoch
        give_up_at = self._clock.monotonic() + _LEAVING_WAIT_S
        while (self._known(group).master, self._known(group).epoch) == (leaving, epoch):
            others = [
                n for n, seen in self._overseer.replica_views(group).items() if _may_follow(n, leaving, seen.liveness)
            ]
            try:
                await self.switch(group, None)
                return
            except StatusError:
                if not others or self._clock.monotonic() >= give_up_at:
                    break
            await asyncio.sleep(_LEAVING_POLL_S)

        def decide(now: GroupState | None) -> GroupState | None:
            return now.resigned() if now is not None and (now.master, now.epoch) == (leaving, epoch) else None

        try:
            await self._overseer.groups.change(group, decide)
        except StatusError as error:
            _logger.warning("a master that leaves could not be let go", group=group, reason=error.message)
        self._overseer.check_soon(group)

    async def _switch(self, state: GroupState, to: int | None) -> GroupState:
        group, master = state.name, state.master
        roles = self._roles.groups.get(group)
        if roles is None or roles.master is None or roles.epoch != state.epoch:
            raise StatusError(Code.PRECONDITION_FAILED, f"{group} has no living master that could pass its role on")
        if to == master:
            raise StatusError(Code.PRECONDITION_FAILED, f"replica {to} is the master of {group} already")
        if to is not None and to not in state.replicas:
            raise StatusError(Code.NOT_FOUND, f"{group} has no replica {to}; it has {_list(state.replicas)}")
        views = self._overseer.replica_views(group)
        reports = {
            number: seen.report
            for number, seen in views.items()
            if number != master and seen.liveness is Liveness.LIVING and seen.report is not None
        }
        successor = elect(state, {n: report for n, report in reports.items() if to in (None, n)})
        if successor is None:
            raise StatusError(Code.PRECONDITION_FAILED, self._why_nobody(state, to, reports))
        began = self._clock.monotonic()
        request = HandOverRequest(group=group, epoch=state.epoch, to=successor)
        try:
            await self._roles.channel(group, roles.master).call(HAND_OVER, request, timeout_s=self._timeout_s)
        except RpcError as error:
            late = error.status is GrpcStatus.DEADLINE_EXCEEDED
            raise StatusError(
                Code.PROXY_TIMEOUT if late else Code.HA_NOT_AVAILABLE,
                f"the master of {group}, replica {master}, did not pass its role on: {error.message}; it goes on",
            ) from error

        def decide(now: GroupState | None) -> GroupState:
            if now is None:
                raise StatusError(
                    Code.HA_NOT_AVAILABLE,
                    f"this controller leads no more, {group} stays as it was; ask again",
                )
            if (now.epoch, now.master) != (state.epoch, master) or successor not in now.sync_state_set:
                raise StatusError(Code.PRECONDITION_FAILED, f"{group} has changed meanwhile; look at it and ask again")
            return now.elected(successor)

        after = await self._overseer.change(group, decide)
        _logger.info(
            "leadership transferred",
            group=group,
            before=master,
            master=successor,
            epoch=after.epoch,
            took_ms=round((self._clock.monotonic() - began) * 1000),
        )
        return after

    def _known(self, group: str) -> GroupState:
        state = self._overseer.groups.states.get(group)
        if state is None:
            raise unknown_group(group)
        return state

    def _why_nobody(self, state: GroupState, to: int | None, reports: Reports) -> str:
        others = sorted(state.sync_state_set - {state.master})
        suspects = [n for n in others if to in (None, n) and n in reports and reports[n].suspect]
        if suspects:
            return (
                f"replica {_list(suspects)} of {state.name} had to cut off the end of its log when it started, and has "
                "not caught up with its master yet; ask again"
            )
        if to is not None and to in state.sync_state_set:
            return f"replica {to} of {state.name} is not there now"
        if to is not None:
            return f"replica {to} of {state.name} does not have everything yet (it is not in the sync-state set)"
        if others:
            return f"of {state.name} only replica {_list(others)} could lead, and is not there now"
        return f"no other replica of {state.name} has everything, so its master must stay"


def _check_need(state: GroupState, reports: Reports, views: ReplicaViews) -> None:
    """Check that a group cannot recover by itself.

    Raises:
        StatusError: PRECONDITION_FAILED, with the master that it has, will have, or may have.
    """
    strange = strangers(state, reports)
    ours = {number: report for number, report in reports.items() if number not in strange}
    is_there = state.master in ours and not state.is_wiped(state.master, ours[state.master].identity)
    if is_there and not has_no_master(state, views):
        raise StatusError(
            Code.PRECONDITION_FAILED, f"{state.name} has a master, replica {state.master}; there is nothing to choose"
        )
    unsure = [n for n in sorted(state.sync_state_set) if n in views and views[n].liveness is Liveness.UNSURE]
    if unsure:
        raise StatusError(
            Code.PRECONDITION_FAILED,
            f"replica {_list(unsure)} of {state.name} may live and come back in a moment: it has been away for too "
            "short a time to be given up; ask again in some seconds",
        )
    clean = elect(state, ours)
    if clean is not None:
        raise StatusError(
            Code.PRECONDITION_FAILED,
            f"replica {clean} of {state.name} has every acknowledged message and will lead in a moment",
        )


def _cost_of_a_suspect(report: ReplicaReport, others: frozenset[int]) -> str:
    return (
        f"replica {report.replica} of {report.group} had to cut off the end of its log at a start when not every other "
        f"replica could be asked for it; it ends at {report.end_position} of epoch {report.last_epoch} now. Replica "
        f"{_list(others) or '(not known which)'} may have more: acknowledged messages would be lost for good, also if "
        "others come back, and messages that were consumed might come again."
    )


def _may_follow(number: int, leaving: int, liveness: Liveness) -> bool:
    return number != leaving and liveness in (Liveness.LIVING, Liveness.SILENT)


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
