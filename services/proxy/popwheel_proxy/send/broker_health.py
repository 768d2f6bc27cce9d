"""Health of brokers: those that sends avoid, and when they are tried again (pure).

The idea is that of RocketMQ's latency fault tolerance: the longer a broker took, the longer it is avoided. Its
pauses for 0.55 s and more are the same; the rest differs. A broker is slow by its moving latency, not by one send,
and compared with the other brokers, as others that are as slow are no better choice. A failure counts by
the time it took, not as ten seconds. The pause doubles when the trouble lasts. And no broker returns untested when its
pause is over: one send probes it, and a good answer brings it back.

    SOUND ──slow, failing, overdue──> AVOIDED for a pause ──pause over──> one send probes it ──good──> SOUND
                                         ^                                     │
                                         └──────── twice the pause ────────bad─┘
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from math import inf

SLOW_FROM_S = 0.1
"""Latency below which no broker is slow: a busy device, or a pause of this process, may well take it."""
SLOW_FACTOR = 3.0
"""Ratio of a slow broker's latency to that of the others."""
PAUSES_S = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0), (0.0, 1.0))
"""(from this latency on, first pause): from 0.55 s on as in RocketMQ 5's `MQFaultStrategy`, which
avoids a broker for nothing less; the shorter pause below is our own."""
PAUSE_MAX_S = 60.0
"""Longest time without a probe for which a broker is avoided, however often it was."""
FORGIVEN_AFTER_S = 60.0
"""A broker that was sound for this long starts over with a short pause."""
PROBE_EVERY_S = 1.0
"""A probe without an answer, as its client has gone, is followed by another after this."""

_PUTS_KNOWN = 8  # a latency is the mean of as many at first, then moves by 1/8 of each: one Put of 0.8 s is forgiven
_STRIKES_MAX = 10


class Trouble(IntEnum):
    """Trouble of a broker, from the least to the worst."""

    NONE = 0
    SLOW = 1
    FAILING = 2
    """Broker not reached, or not able to store."""
    HANGING = 3
    """Broker without an answer."""
    AWAY = 4
    """Broker without a master: nothing is sent there, and no other trouble is known before it has one."""


class Change(Enum):
    """Change that a report caused."""

    NONE = auto()
    AVOIDED = auto()
    """The broker was sound and is avoided now."""
    STILL_BAD = auto()
    """A Put to an avoided broker failed."""
    BACK = auto()
    """A Put to an avoided broker succeeded: it is sound again."""


@dataclass(slots=True, eq=False)
class BrokerState:
    """State of one broker.

    Args:
        name: its name.
        latency_s: moving latency of its Puts.
        puts: how many are in it; it is not slow before there are some.
        trouble: the reason for avoiding it.
        since: when that was last found out: Puts that began earlier show nothing new.
        probe_at: when the next send may probe it.
        strikes: how often it was found bad, until it is forgiven.
        back_at: when it was last found sound after trouble.
        master_since: when its master came: Puts that began earlier went to another.
    """

    name: str
    latency_s: float = 0.0
    puts: int = 0
    trouble: Trouble = Trouble.NONE
    since: float = 0.0
    probe_at: float = inf
    strikes: int = 0
    back_at: float = -inf
    master_since: float = -inf


class BrokerHealth:
    """Health of the brokers of the view (`retain`), by the outcomes of Puts; chooses the broker of the next send.

    Attributes:
        sound: names of the brokers that are not avoided.
        avoided: number of those that are.
    """

    def __init__(self) -> None:
        self._brokers: dict[str, BrokerState] = {}
        self._probe_at = inf
        self.sound: tuple[str, ...] = ()
        self.avoided = 0

    def retain(self, names: Iterable[str]) -> None:
        """Set the current brokers; one that left and came back begins anew."""
        known = self._brokers
        self._brokers = {name: known.get(name) or BrokerState(name) for name in names}
        self._refresh()

    def master_changed(self, name: str, now: float, *, led: bool) -> None:
        """Record another master of a broker group, which counts as sound, or none."""
        if name in self._brokers:
            self._brokers[name] = BrokerState(name, trouble=Trouble.NONE if led else Trouble.AWAY, master_since=now)
            self._refresh()

    def state(self, name: str) -> BrokerState | None:
        """Return the state of a broker, if it is known."""
        return self._brokers.get(name)

    def choose(self, turn: int, past: Collection[str], now: float) -> tuple[str, int] | None:
        """Choose the broker of a send: an avoided one whose probe is due, the healthy ones in turn, or the least bad.

        Args:
            turn: number of earlier sends of the topic.
            past: brokers that this send has tried; they are tried again only if there is no other, and it is no probe.
            now: seconds of the monotonic clock.

        Returns:
            The broker, and how often it had its turn, for the turn of its queues; None if there is none with a master.
        """
        if self._probe_at <= now and not past:
            return self._probe(now).name, turn
        sound = self.sound
        if past:
            sound = tuple(name for name in sound if name not in past)
        if sound:
            return sound[turn % len(sound)], turn // len(sound)
        there = [state for state in self._brokers.values() if state.trouble is not Trouble.AWAY]
        left = [state for state in there if state.name not in past] or there
        least_bad = min(left, key=_badness, default=None)
        return None if least_bad is None else (least_bad.name, turn)

    def answers_better(self, name: str) -> bool:
        """Return whether another broker is known to answer, while this one hangs."""
        return any(state.trouble <= Trouble.SLOW and state.name != name for state in self._brokers.values())

    def answered(self, name: str, began: float, now: float) -> Change:
        """Record the success of a Put that began then."""
        state = self._brokers.get(name)
        if state is None or began < state.master_since:
            return Change.NONE
        latency_s = now - began
        if state.trouble:
            if began < state.since:
                return Change.NONE
            if self._is_slow(state, latency_s):
                return self._strike(state, Trouble.SLOW, latency_s, now)
            state.trouble, state.probe_at = Trouble.NONE, inf
            state.latency_s, state.puts, state.back_at = latency_s, 1, now
            self._refresh()
            return Change.BACK
        if state.puts < _PUTS_KNOWN:
            state.puts += 1
        state.latency_s += (latency_s - state.latency_s) / state.puts
        if state.latency_s >= SLOW_FROM_S and state.puts == _PUTS_KNOWN and self._is_slow(state, state.latency_s):
            return self._strike(state, Trouble.SLOW, state.latency_s, now)
        return Change.NONE

    def failed(self, name: str, began: float, now: float) -> Change:
        """Record the failure of a Put that began then: not delivered, not answered in time, or not stored."""
        return self._bad(name, Trouble.FAILING, began, now)

    def overdue(self, name: str, began: float, now: float) -> Change:
        """Record that a Put that began then is overdue; may be called repeatedly for one Put."""
        return self._bad(name, Trouble.HANGING, began, now)

    def _bad(self, name: str, trouble: Trouble, began: float, now: float) -> Change:
        state = self._brokers.get(name)
        if state is None or began < state.master_since:
            return Change.NONE
        if not state.trouble or began >= state.since:
            return self._strike(state, trouble, now - began, now)
        # The same Put, or an earlier one: no reason for a longer pause, but none for an early probe either.
        state.trouble = max(state.trouble, trouble)
        state.probe_at = max(state.probe_at, now + _pause_s(now - began))
        self._refresh()
        return Change.NONE

    def _strike(self, state: BrokerState, trouble: Trouble, latency_s: float, now: float) -> Change:
        """Avoid a broker, for longer each time."""
        change = Change.STILL_BAD if state.trouble else Change.AVOIDED
        if not state.trouble and now - state.back_at > FORGIVEN_AFTER_S:
            state.strikes = 0
        pause_s = min(_pause_s(latency_s) * 2**state.strikes, PAUSE_MAX_S)
        state.strikes = min(state.strikes + 1, _STRIKES_MAX)
        state.trouble, state.since, state.probe_at = trouble, now, now + pause_s
        self._refresh()
        return change

    def _is_slow(self, state: BrokerState, latency_s: float) -> bool:
        """Return whether a latency is long, also against the known ones of other healthy brokers.

        Without a known one it is not.
        """
        if latency_s < SLOW_FROM_S:
            return False
        others = sorted(
            other.latency_s
            for other in self._brokers.values()
            if other is not state and other.puts and not other.trouble
        )
        return bool(others) and latency_s >= SLOW_FACTOR * others[(len(others) - 1) // 2]

    def _probe(self, now: float) -> BrokerState:
        """Return the broker whose probe has been due for longest."""
        state = min(self._brokers.values(), key=lambda one: one.probe_at)
        state.probe_at = now + PROBE_EVERY_S
        self._refresh()
        return state

    def _refresh(self) -> None:
        self.sound = tuple(name for name, state in self._brokers.items() if not state.trouble)
        self.avoided = len(self._brokers) - len(self.sound)
        self._probe_at = min((state.probe_at for state in self._brokers.values()), default=inf)


def _badness(state: BrokerState) -> tuple[int, float, float]:
    return (state.trouble, state.latency_s, state.probe_at)


def _pause_s(latency_s: float) -> float:
    """Return how long a broker with this latency is avoided at first."""
    return next(pause_s for from_s, pause_s in PAUSES_S if latency_s >= from_s or not from_s)
