"""Supervisor of child processes: decides which to start, restart, stop and kill, and when (pure).

WAITING ──its time has come──> STARTING ──ready──> READY
   ^                              │                  │
   └──── reported, back-off ───────┴─── it ended ─────┘
asked to stop: the last tier is terminated; when all of it has ended, the one before it; who takes too long is killed
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

_BACK_OFF_FIRST_S = 0.2
_BACK_OFF_MAX_S = 15.0
_PROVEN_S = 30.0


class Phase(Enum):
    """Phase of a child."""

    WAITING = auto()
    STARTING = auto()
    READY = auto()
    STOPPING = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class Start:
    """Start this child."""

    name: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Report that this child has ended, and will be started again after `wait_s` seconds."""

    name: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End all: the first start of this child failed."""

    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask this child to end well."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this child at once: it did not end well in time."""

    name: str


Effect = Start | Restart | GiveUp | Terminate | Kill


class _Child:
    def __init__(self, tier: int) -> None:
        self.tier = tier
        self.phase = Phase.WAITING
        self.was_ready = False
        self.back_off_s = _BACK_OFF_FIRST_S
        self.since = 0.0
        self.due: float | None = None


class Supervisor:
    """Supervisor of children that need one another in the order of their tiers.

    Args:
        tiers: names of the children, those that are started first and stopped last in the first tier.
        stop_s_max: how long a child may take to end well.
    """

    def __init__(self, tiers: Sequence[Sequence[str]], stop_s_max: float) -> None:
        self._children = {name: _Child(tier) for tier, names in enumerate(tiers) for name in names}
        self._stop_s_max = stop_s_max
        self._tier_stopping = len(tiers)
        self._complete = False
        self._stopping = False

    @property
    def complete(self) -> bool:
        """True once all children have been ready at one time."""
        return self._complete

    @property
    def done(self) -> bool:
        """True once it was asked to stop, and all children have ended."""
        return self._stopping and all(child.phase is Phase.ENDED for child in self._children.values())

    @property
    def wake_at(self) -> float | None:
        """Time of the next `time_passed`, in seconds of the monotonic clock; None: not before another event."""
        return min((child.due for child in self._children.values() if child.due is not None), default=None)

    def phase(self, name: str) -> Phase:
        """Return the phase of a child."""
        return self._children[name].phase

    def start(self, now: float) -> list[Effect]:
        """Start all children at once, those of the first tier first; each finds the others."""
        return [self._start(name, now) for name in self._children]

    def ready(self, name: str, now: float) -> None:
        """Record that a child is ready."""
        child = self._children[name]
        if child.phase is Phase.STARTING:
            child.phase, child.since, child.was_ready = Phase.READY, now, True
            self._complete = self._complete or all(each.phase is Phase.READY for each in self._children.values())

    def ended(self, name: str, now: float) -> list[Effect]:
        """Record that a child has ended."""
        child = self._children[name]
        child.due = None
        if self._stopping:
            child.phase = Phase.ENDED
            return self._stop_more(now)
        if not self._complete and not child.was_ready:
            child.phase = Phase.ENDED
            return [GiveUp(name)]
        if child.phase is Phase.READY and now - child.since >= _PROVEN_S:
            child.back_off_s = _BACK_OFF_FIRST_S
        wait_s, child.back_off_s = child.back_off_s, min(_BACK_OFF_MAX_S, 2 * child.back_off_s)
        child.phase, child.due = Phase.WAITING, now + wait_s
        return [Restart(name, wait_s)]

    def time_passed(self, now: float) -> list[Effect]:
        """Return the actions that are due."""
        effects: list[Effect] = []
        for name, child in self._children.items():
            if child.due is None or now < child.due:
                continue
            if child.phase is Phase.WAITING:
                effects.append(self._start(name, now))
            else:
                child.due = None
                effects.append(Kill(name))
        return effects

    def stop(self, now: float) -> list[Effect]:
        """Stop all children, tier by tier."""
        if self._stopping:
            return []
        self._stopping = True
        for child in self._children.values():
            if child.phase is Phase.WAITING:
                child.phase, child.due = Phase.ENDED, None
        return self._stop_more(now)

    def _start(self, name: str, now: float) -> Start:
        child = self._children[name]
        child.phase, child.since, child.due = Phase.STARTING, now, None
        return Start(name)

    def _stop_more(self, now: float) -> list[Effect]:
        """Terminate the next tier if the one before has ended."""
        while self._tier_stopping > 0:
            if any(
                child.tier >= self._tier_stopping and child.phase is not Phase.ENDED
                for child in self._children.values()
            ):
                return []
            self._tier_stopping -= 1
            effects: list[Effect] = []
            for name, child in self._children.items():
                if child.tier == self._tier_stopping and child.phase is not Phase.ENDED:
                    child.phase, child.due = Phase.STOPPING, now + self._stop_s_max
                    effects.append(Terminate(name))
            if effects:
                return effects
        return []
