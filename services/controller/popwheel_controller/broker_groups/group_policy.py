"""Rules for the next state of a broker group, given the reports of its replicas (pure).

`next_state` is called after each report, and after each missing one. It depends on the current situation, not on
events, so nothing is lost if two events coincide or if its change could not be stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ReplicaReport
from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState
from popwheel_controller.broker_groups.election import Reports, candidates, elect, found, missing_members, record_of
from popwheel_controller.broker_groups.failure_detector import Liveness
from popwheel_controller.broker_groups.roles import GroupRoles, ReplicaPlace


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """Current view of one replica.

    Args:
        liveness: of its process.
        report: the latest one; None before the first.
        earlier_epoch: the latest epoch that an earlier process of it may have led (`find_earlier_epoch`); None if this
            one led when it registered.
        is_unreachable: whether it was to be elected a short time ago and did not answer at its address.
    """

    liveness: Liveness
    report: ReplicaReport | None = None
    earlier_epoch: int | None = None
    is_unreachable: bool = False


_NOT_SEEN = ObservedReplica(Liveness.DEAD)

ReplicaViews = Mapping[int, ObservedReplica]
"""Views of one group's replicas, by number; a missing replica is dead."""


def next_state(name: str, state: GroupState | None, views: ReplicaViews) -> GroupState | None:
    """Return the group's next state; None for no change.

    Args:
        name: of the group.
        state: the stored one; None if there is none.
        views: of its replicas.
    """
    reports = _living(views)
    if state is None:
        return found(name, reports)
    strange = strangers(state, reports)
    if strange and state.sync_state_set <= strange:
        return _made_anew(state, reports, strange)
    known = {number: report for number, report in reports.items() if number not in strange}
    after = state
    for number in sorted(known):
        after = after.with_replica(record_of(known[number]))
    if has_no_master(after, views):
        may = {number: report for number, report in known.items() if not views[number].is_unreachable}
        # A restarted master may have lost records that its device had reported as safe, without a sign of it. So any
        # other member comes first, whatever its log length. But if the master acknowledges alone, others may have less.
        first = known.get(after.master)
        acks_alone = first is not None and first.acks_alone
        best = None if acks_alone else elect(after, {n: report for n, report in may.items() if n != after.master})
        if best is None and not _others_may_connect(after, views):
            best = elect(after, may)
        if best is not None:
            after = after.elected(best)
    return None if after == state else after


def strangers(state: GroupState, reports: Reports) -> frozenset[int]:
    """Return the replicas that have seen states which were never stored here.

    These are states of another cluster's group, or from before the store was restored to an older state. Such replicas
    are kept out, for their logs would win every election.
    """
    return frozenset(
        number
        for number, report in reports.items()
        if report.version > state.version or report.epoch > state.epoch or report.last_epoch > state.epoch
    )


def route(name: str, state: GroupState | None, views: ReplicaViews) -> BrokerInfo | None:
    """Return the group's route for proxies; None if none of the replicas present could become its master."""
    if state is None:
        return None
    if state.master != NO_MASTER and not has_no_master(state, views):
        return BrokerInfo(name=name, address=state.replicas[state.master].address, epoch=state.epoch)
    members = {number: views.get(number, _NOT_SEEN) for number in state.sync_state_set}
    one_is_dead = any(seen.liveness is Liveness.DEAD for seen in members.values())
    for number, seen in members.items():
        waits = one_is_dead and seen.report is not None and seen.report.suspect
        if seen.liveness is not Liveness.DEAD and not waits and _may_return(state, number, seen):
            return BrokerInfo(name=name, epoch=state.epoch)
    return None


def roles_of(state: GroupState, views: ReplicaViews) -> GroupRoles:
    """Return the living replicas and their roles."""
    living = {
        number: ReplicaPlace(number, seen.report.address)
        for number, seen in sorted(views.items())
        if seen.report is not None and number in state.replicas and seen.liveness is not Liveness.DEAD
    }
    master = living.pop(state.master, None)
    if has_no_master(state, views):
        master = None  # it has restarted, and the new process does not lead
    return GroupRoles(state.name, state.epoch, master, tuple(living.values()))


def find_earlier_epoch(state: GroupState | None, report: ReplicaReport) -> int | None:
    """Return the latest epoch that an earlier process of a replica may have led; None if this process leads.

    Records that the earlier process had received but not synced may be gone. So that epoch must end: else other records
    of the same epoch would take their positions.
    """
    if report.leading:
        return None
    return max(0 if state is None else state.epoch, report.epoch, report.last_epoch)


def may_receive_state(state: GroupState | None, number: int, report: ReplicaReport, earlier_epoch: int | None) -> bool:
    """Return whether a replica is sent the group's current state.

    A replica that must stay out gets nothing. A restarted master gets nothing before the next epoch: it would lead the
    old one again, in which others may have records that it has lost.
    """
    if state is None or strangers(state, {number: report}) or state.is_wiped(number, report.identity):
        return False
    return state.master != number or not _epoch_is_over(earlier_epoch, state)


def trouble(state: GroupState | None, views: ReplicaViews) -> str:
    """Return why the group has no living master, in a sentence for an operator; empty if it has one."""
    reports = {n: seen.report for n, seen in views.items() if seen.liveness is not Liveness.DEAD and seen.report}
    if state is None:
        missing = missing_members(reports)
        return (
            f"the store does not know this group; {_replicas(missing)}, of the latest sync-state set, must come first"
            if missing
            else ""
        )
    strange = strangers(state, reports)
    if strange:
        return (
            f"{_replicas(strange)} must stay out: it has seen epochs or versions that this store does not know "
            "(another cluster's folder, or a store that was set back)"
        )
    if not has_no_master(state, views):
        return ""
    if why := election_delay(state, views):
        return why
    if vain := [n for n in sorted(reports) if views[n].is_unreachable]:
        return f"{_replicas(vain)} has registered, but does not answer at its address: the controller must reach it"
    wiped = [n for n, report in sorted(reports.items()) if state.is_wiped(n, report.identity)]
    if state.sync_state_set <= frozenset(wiped):
        return (
            f"{_replicas(wiped)} came with an empty volume and nobody else has every acknowledged message; bring the "
            "old volume back, or choose a master by an unclean election"
        )
    away = [n for n in sorted(state.sync_state_set) if n not in reports]
    return f"waits for {_replicas(away)}: nobody else has every acknowledged message" if away else ""


def election_delay(state: GroupState, views: ReplicaViews) -> str:
    """Return why a suspect replica delays an election, in a sentence for an operator; empty if none does."""
    may = candidates(state, _living(views))
    if not may or not has_no_master(state, views) or elect(state, may) is not None:
        return ""
    return (
        f"{_replicas(sorted(may))} had to cut off the end of the log at a start when not every other replica could be "
        f"asked for it, and may lack acknowledged messages: waits for {_replicas(state.sync_state_set - may.keys())}"
    )


def _living(views: ReplicaViews) -> dict[int, ReplicaReport]:
    return {
        number: seen.report
        for number, seen in views.items()
        if seen.liveness is Liveness.LIVING and seen.report is not None
    }


def _made_anew(state: GroupState, reports: Reports, strange: frozenset[int]) -> GroupState | None:
    """Rebuild the state after a restore of an older store: all members have advanced beyond it."""
    ahead = {number: reports[number] for number in strange if not state.is_wiped(number, reports[number].identity)}
    anew = found(state.name, ahead)
    if anew is None:
        return None
    replicas = {**state.replicas, **anew.replicas}
    return GroupState(anew.name, anew.version, anew.epoch, anew.master, anew.sync_state_set, replicas)


def has_no_master(state: GroupState, views: ReplicaViews) -> bool:
    """Return whether the group has no master, by the current views."""
    if state.master == NO_MASTER:
        return True
    seen = views.get(state.master, _NOT_SEEN)
    return seen.liveness is Liveness.DEAD or _epoch_is_over(seen.earlier_epoch, state)


def _others_may_connect(state: GroupState, views: ReplicaViews) -> bool:
    """Return whether other members of the set may still connect.

    They have not connected since this controller began to lead, and are not dead yet.
    """
    others = (views.get(number, _NOT_SEEN) for number in state.sync_state_set - {state.master})
    return any(seen.liveness is Liveness.UNSURE and seen.report is None and not seen.is_unreachable for seen in others)


def _epoch_is_over(epoch: int | None, state: GroupState) -> bool:
    return epoch is not None and epoch >= state.epoch


def _may_return(state: GroupState, number: int, seen: ObservedReplica) -> bool:
    return seen.report is None or not (state.is_wiped(number, seen.report.identity) or seen.report.leaving)


def _replicas(numbers: "frozenset[int] | list[int]") -> str:
    shown = ", ".join(map(str, sorted(numbers)))
    return f"replica {shown}" if len(numbers) == 1 else f"replicas {shown}"
