"""History of each broker group, for operators after a failover."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from popwheel_common.clock import Clock
from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState

CHANGES_MAX: Final = 100
"""Limit of changes per group; the oldest is dropped."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Change of a broker group.

    Args:
        time_ms: when it was stored, or found stored.
        version, epoch, master, sync_state_set: after the change.
        what: the differences, in a few words each.
    """

    time_ms: int
    version: int
    epoch: int
    master: int
    sync_state_set: frozenset[int]
    what: tuple[str, ...]


@dataclass(slots=True)
class LatestChanges:
    """Latest changes of one group.

    Args:
        changes: the oldest first.
        dropped: number of older changes that were dropped.
    """

    changes: deque[GroupChange] = field(default_factory=deque)
    dropped: int = 0


def differences(old: GroupState | None, new: GroupState) -> tuple[str, ...]:
    """Return the differences of a group, in words (pure)."""
    if old is None:
        return ("the group is known",)
    found: list[str] = []
    if new.epoch > old.epoch:
        before = "nobody" if old.master == NO_MASTER else f"replica {old.master}"
        found.append(f"replica {new.master} is master, in epoch {new.epoch}; before it {before}")
    elif new.master != old.master:
        found.append(
            f"replica {old.master} is master no more" if new.master == NO_MASTER else f"replica {new.master} is master"
        )
    added, gone = new.sync_state_set - old.sync_state_set, old.sync_state_set - new.sync_state_set
    found += [f"replica {number} is in sync" for number in sorted(added) if number != new.master]
    found += [f"replica {number} is in sync no more" for number in sorted(gone)]
    for number in sorted(new.replicas.keys() | old.replicas.keys()):
        known, after = old.replicas.get(number), new.replicas.get(number)
        if known is None:
            found.append(f"replica {number} has joined")
        elif after is None:
            found.append(f"replica {number} is forgotten")
        elif after.identity != known.identity:
            found.append(f"replica {number} came back with an empty volume")
        elif after.address != known.address:
            found.append(f"replica {number} is at {after.address}")
    return tuple(found) or ("nothing that is decided here",)


class GroupHistory:
    """Recorder of the changes of all groups, since this controller began to lead.

    Args:
        groups_max: limit of groups; the one that changed longest ago is dropped.
        clock: the time.
    """

    def __init__(self, groups_max: int, clock: Clock) -> None:
        self._groups_max = groups_max
        self._clock = clock
        self._by_group: dict[str, LatestChanges] = {}
        self.since_ms = clock.wall_ms()
        """Time since which changes are known."""

    def changed(self, old: GroupState | None, new: GroupState) -> None:
        """Record a change: a listener for `GroupWriter.subscribe`."""
        latest = self._by_group.pop(new.name, None) or LatestChanges()
        self._by_group[new.name] = latest
        if len(self._by_group) > self._groups_max:
            del self._by_group[next(iter(self._by_group))]
        now_ms, what = self._clock.wall_ms(), differences(old, new)
        latest.changes.append(GroupChange(now_ms, new.version, new.epoch, new.master, new.sync_state_set, what))
        if len(latest.changes) > CHANGES_MAX:
            latest.changes.popleft()
            latest.dropped += 1

    def of(self, group: str) -> LatestChanges:
        """Return the changes of a group."""
        return self._by_group.get(group) or LatestChanges()

    def begin(self) -> None:
        """Clear the history: this controller leads from now on."""
        self._by_group.clear()
        self.since_ms = self._clock.wall_ms()
