"""Election of a master (pure): of the candidates, the one with the most complete log.

A stored group takes its master from the sync-state set. A group that is not stored, because it is new or because the
store has lost it, is rebuilt from the reports of its replicas.
"""

from collections.abc import Mapping

from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_controller.broker_groups.broker_group import GroupState, ReplicaRecord

Reports = Mapping[int, ReplicaReport]
"""Latest reports of the living replicas of one group, by number."""


def most_complete(reports: Reports) -> int | None:
    """Return the replica with the highest epoch, then the longest log, then the lowest number; None without reports."""
    if not reports:
        return None
    return min(reports, key=lambda number: (-reports[number].last_epoch, -reports[number].end_position, number))


def elect(state: GroupState, reports: Reports) -> int | None:
    """Return the next master, from the living members of the sync-state set; None if there is none.

    Wiped members do not count, and one that is about to stop is not elected. A suspect one may lack acknowledged
    messages, and the logs of others may have grown since their reports. So it is elected only when all members are
    present and suspect: then each has reported since its start, and the longest log has everything.
    """
    may = candidates(state, reports)
    certain = {number: report for number, report in may.items() if not report.suspect}
    if certain:
        return most_complete(certain)
    return most_complete(may) if may.keys() == state.sync_state_set else None


def candidates(state: GroupState, reports: Reports) -> dict[int, ReplicaReport]:
    """Return the members of the sync-state set that have their data and do not leave."""
    return {
        number: report
        for number, report in reports.items()
        if number in state.sync_state_set and not state.is_wiped(number, report.identity) and not report.leaving
    }


def found(name: str, reports: Reports) -> GroupState | None:
    """Return the state of a group that is not stored; None while it is unknown which replica may lead.

    Its version is the highest that any replica has seen.

    If all logs are empty, the group is new. Otherwise the store has lost it (or it is of a release without replicas):
    then all members of the latest sync-state set that any replica has seen must be present, because the set may have
    shrunk since, and only its last members know. An empty log never counts as a member's.
    A suspect one is elected only if all members are suspect.
    """
    holders = {number: report for number, report in reports.items() if _holds_something(report)}
    if not holders:
        staying = {number: report for number, report in reports.items() if not report.leaving}
        return _state(name, 0, 1, min(staying), staying) if staying else None
    members = latest_set(holders)
    if not members <= holders.keys():
        return None
    version = max(report.version for report in holders.values())
    certain = {number: holders[number] for number in members if not holders[number].suspect}
    master = most_complete(certain or {number: holders[number] for number in members} or holders)
    assert master is not None, "no replica has the most complete log"
    epoch = max(max(report.epoch, report.last_epoch) for report in holders.values()) + 1
    return _state(name, version, epoch, master, reports)


def alone(report: ReplicaReport) -> GroupState:
    """Return a new group state of one replica, whatever others may have: an operator has confirmed the loss."""
    epoch = max(report.epoch, report.last_epoch) + 1
    return _state(report.group, report.version, epoch, report.replica, {report.replica: report})


def latest_set(reports: Reports) -> frozenset[int]:
    """Return the sync-state set of the highest version that any of these has seen; empty if none has."""
    version = max((report.version for report in reports.values()), default=0)
    return frozenset(
        number
        for report in reports.values()
        if version and report.version == version
        for number in report.sync_state_set
    )


def missing_members(reports: Reports) -> frozenset[int]:
    """Return the replicas that must report before a group that is not stored can get a master."""
    holders = {number for number, report in reports.items() if _holds_something(report)}
    return latest_set(reports) - holders


def record_of(report: ReplicaReport) -> ReplicaRecord:
    """Return the record to store of a replica with this report."""
    return ReplicaRecord(report.replica, report.address, report.identity)


def _holds_something(report: ReplicaReport) -> bool:
    return report.version > 0 or report.last_epoch > 0 or report.end_position > 0


def _state(name: str, version: int, epoch: int, master: int, reports: Reports) -> GroupState:
    return GroupState(
        name=name,
        version=version,
        epoch=epoch,
        master=master,
        sync_state_set=frozenset((master,)),
        replicas={number: record_of(report) for number, report in sorted(reports.items())},
    )
