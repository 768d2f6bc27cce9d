"""The latest changes of each broker group, as an operator reads them after a failover."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from popwheel_common.clock import Clock
from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState

STEPS_MAX: Final = 100
"""Of each group; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One change.

    Args:
        time_ms: when it was stored, or found stored.
        version, epoch, master, sync_state_set: after it.
        what: became different, in a few words each.
    """

    time_ms: int
    version: int
    epoch: int
    master: int
    sync_state_set: frozenset[int]
    what: tuple[str, ...]


@dataclass(slots=True)
class GroupFilm:
    """The latest changes of one group.

    Args:
        steps: the oldest first.
        dropped: how many older ones are not there any more.
    """

    steps: deque[GroupStep] = field(default_factory=deque)
    dropped: int = 0


def differences(old: GroupState | None, new: GroupState) -> tuple[str, ...]:
    """Say what became different of a group (pure)."""
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
            found.append(f"replica {number} came back without what it held")
        elif after.address != known.address:
            found.append(f"replica {number} is at {after.address}")
    return tuple(found) or ("nothing that is decided here",)


class GroupHistory:
    """Takes in changes of all groups, from the moment on at which this controller leads.

    Args:
        groups_max: of so many groups, those that have changed last.
        clock: the time.
    """

    def __init__(self, groups_max: int, clock: Clock) -> None:
        self._groups_max = groups_max
        self._clock = clock
        self._films: dict[str, GroupFilm] = {}
        self.since_ms = clock.wall_ms()
        """Since when changes are known."""

    def changed(self, old: GroupState | None, new: GroupState) -> None:
        """Note a change: a listener for `GroupKeeper.subscribe`."""
        film = self._films.pop(new.name, None) or GroupFilm()
        self._films[new.name] = film
        if len(self._films) > self._groups_max:
            del self._films[next(iter(self._films))]
        now_ms, what = self._clock.wall_ms(), differences(old, new)
        film.steps.append(GroupStep(now_ms, new.version, new.epoch, new.master, new.sync_state_set, what))
        if len(film.steps) > STEPS_MAX:
            film.steps.popleft()
            film.dropped += 1

    def of(self, group: str) -> GroupFilm:
        """The changes of a group."""
        return self._films.get(group) or GroupFilm()

    def begin(self) -> None:
        """Know nothing: this controller leads from now on."""
        self._films.clear()
        self.since_ms = self._clock.wall_ms()
