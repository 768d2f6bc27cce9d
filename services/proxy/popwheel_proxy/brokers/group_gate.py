"""Gates of broker groups that calls wait for, and the order of their retries (pure; called back when time has passed).

When a master dies, all calls to its group fail at once. If all of them were retried at short intervals, the next master
would start under a burst of calls, and this process would do nothing else. So a failed group has a gate, and calls
to it wait there. Now and then one of them may try; the first that is answered opens the gate for all. While the group
has no master, nobody tries.

    no gate ──a call failed──> SHUT: one tries every 20 ms, then ever more rarely, to 0.1 s ──answered──> no gate
                                │ ^
                    no master   v │ another master: one may try at once
                               nobody tries ──the group leaves──> no gate, all find that it is gone

Only a call itself finds out whether it would be served (docs/decisions/0037-calls-that-probe.md).

Messages that may go to any group wait at the gate `ANYWHERE`. Those that may go to one only have a gate of their own
(`for_sends`): a master with too few replicas in sync refuses sends for as long as that lasts, but does everything else,
and an ack must not wait behind them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

ANYWHERE: Final = ""
"""Key of calls that may go to any group."""
_FOR_SENDS = ":sends"  # names of groups have no colon
PAUSE_FIRST_S: Final = 0.02
PAUSE_LONGEST_S: Final = 0.1


class Timer(Protocol):
    """Timer of a callback."""

    def cancel(self) -> None:
        """Cancel the callback."""


Later = Callable[[float, Callable[[], None]], Timer]
"""Call back after a number of seconds."""
Waiter = Callable[[], None]
"""Callback of a waiting call: called when it may try."""


def for_sends(group: str) -> str:
    """Return the gate of sends that may go to this group only; other calls to it wait at its name."""
    return group + _FOR_SENDS


def group_of(key: str) -> str:
    """Return the group of a gate."""
    return key.removesuffix(_FOR_SENDS)


@dataclass(slots=True, eq=False)
class Gate:
    """Gate of one group.

    Args:
        waiting: the waiting calls, the longest waiting first.
        pause_s: how long after the next try another may follow.
        next_try: runs until the next may try; None while the group has no master.
    """

    waiting: dict[Waiter, None] = field(default_factory=dict)
    pause_s: float = PAUSE_FIRST_S
    next_try: Timer | None = None


class Gates:
    """Gates by key: a group's name, `for_sends` of it, or `ANYWHERE`.

    Args:
        later: calls back after some seconds.
    """

    def __init__(self, later: Later) -> None:
        self._later = later
        self._gates: dict[str, Gate] = {}

    def __bool__(self) -> bool:
        """Return whether calls wait for any group."""
        return bool(self._gates)

    def __contains__(self, key: str) -> bool:
        """Return whether calls wait for a group."""
        return key in self._gates

    @property
    def waiting(self) -> int:
        """Number of waiting calls; the other parked calls are trying."""
        return sum(len(gate.waiting) for gate in self._gates.values())

    def wait(self, key: str, waiter: Waiter, *, led: bool) -> None:
        """Let a call wait for a group; `stop_waiting` must follow.

        Args:
            key: the gate.
            waiter: the call.
            led: whether the group has a master, as far as is known.
        """
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate()
            if led:
                self._pause(key, gate)
        gate.waiting[waiter] = None

    def stop_waiting(self, key: str, waiter: Waiter) -> None:
        """Remove a call that waits no more, or tries."""
        gate = self._gates.get(key)
        if gate is not None:
            gate.waiting.pop(waiter, None)
            if not gate.waiting and gate.next_try is None:
                del self._gates[key]

    def open(self, key: str) -> None:
        """Open a gate: its group has answered, or is gone, so all its calls may try."""
        gate = self._gates.pop(key, None)
        if gate is not None:
            _stop(gate)
            for waiter in gate.waiting:
                waiter()

    def master_changed(self, key: str, *, led: bool) -> None:
        """Record another master of a group, which may be tried at once, or none."""
        gate = self._gates.get(key)
        if gate is not None:
            _stop(gate)
            gate.pause_s = PAUSE_FIRST_S
            if led:
                self._let_one_try(key)
            elif not gate.waiting:
                del self._gates[key]

    def close(self) -> None:
        """Stop all retries."""
        for gate in self._gates.values():
            _stop(gate)

    def _let_one_try(self, key: str) -> None:
        """Let the longest waiting call try; remove a gate at which no call has waited for a whole pause."""
        gate = self._gates[key]
        waiter = next(iter(gate.waiting), None)
        if waiter is None:
            del self._gates[key]
            return
        del gate.waiting[waiter]
        self._pause(key, gate)
        gate.pause_s = min(2 * gate.pause_s, PAUSE_LONGEST_S)
        waiter()

    def _pause(self, key: str, gate: Gate) -> None:
        gate.next_try = self._later(gate.pause_s, partial(self._let_one_try, key))


def _stop(gate: Gate) -> None:
    if gate.next_try is not None:
        gate.next_try.cancel()
        gate.next_try = None
