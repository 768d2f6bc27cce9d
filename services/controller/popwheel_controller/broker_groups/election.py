"""Election of a master (pure): of the candidates, the one with the most complete log.

A group that the store knows takes its master from the sync-state set. One that it does not know, because it is new or
because the store has lost it, is made anew from what its replicas say of themselves.
"""

from collections.abc import Mapping

from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_controller.broker_groups.broker_group import GroupState, ReplicaRecord

Reports = Mapping[int, ReplicaReport]
"""Last reports of the living replicas of one group, by number."""


def most_complete(reports: Reports) -> int | None:
    """Return the replica with the highest epoch, then the longest log, then the lowest number; None without reports."""
    if not reports:
        return None
    return min(reports, key=lambda number: (-reports[number].last_epoch, -reports[number].end_position, number))


def elect(state: GroupState, reports: Reports) -> int | None:
    """The next master, from the living members of the sync-state set; None if there is none.

    A wiped member is none, and one that is about to stop is not chosen. A suspect one may lack what was acknowledged,
    and what others have may have grown since they said so: so it is chosen only when all of the set are there and all
    are in doubt. Whoever has everything has said so since it started then, and nobody is chosen who said less.
    """
    may = candidates(state, reports)
    certain = {number: report for number, report in may.items() if not report.suspect}
    if certain:
        return most_complete(certain)
    return most_complete(may) if may.keys() == state.sync_state_set else None


def candidates(state: GroupState, reports: Reports) -> dict[int, ReplicaReport]:
    """Return the members of the sync-state set that still have their data, and do not leave."""
    return {
        number: report
        for number, report in reports.items()
        if number in state.sync_state_set and not state.is_wiped(number, report.identity) and not report.leaving
    }


def found(name: str, reports: Reports) -> GroupState | None:
    """The state of a group that the store does not know; None as long as it is not known who may lead.

    Its version is the highest that any replica has seen.

    If no replica holds anything, the group is new. Otherwise the store has lost it (or it is of a release without
    replicas): then all members of the latest sync-state set that anybody has seen have to be there, because the set may
    have become smaller since, and only its last members know. An empty log is never taken for a member's.
    A suspect one is chosen only if all members are.
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
    assert master is not None, "nobody of those that hold something is the most complete"
    epoch = max(max(report.epoch, report.last_epoch) for report in holders.values()) + 1
    return _state(name, version, epoch, master, reports)


def alone(report: ReplicaReport) -> GroupState:
    """A group that the store does not know, made of one replica, whatever others may have: by an operator's word."""
    epoch = max(report.epoch, report.last_epoch) + 1
    return _state(report.group, report.version, epoch, report.replica, {report.replica: report})


def latest_set(reports: Reports) -> frozenset[int]:
    """The sync-state set of the highest version that any of these has seen; empty if none has."""
    version = max((report.version for report in reports.values()), default=0)
    return frozenset(
        number
        for report in reports.values()
        if version and report.version == version
        for number in report.sync_state_set
    )


def missing_members(reports: Reports) -> frozenset[int]:
    """Return the replicas that must report before a group that the store does not know can get a master."""
    holders = {number for number, report in reports.items() if _holds_something(report)}
    return latest_set(reports) - holders


def record_of(report: ReplicaReport) -> ReplicaRecord:
    """Return the record that is stored of a replica with this report."""
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
