"""Which broker groups are waited for, and whose turn it is to try again (pure; told the time).

When a master dies, all calls to its group fail at once. If all of them were tried again every moment, the next master
would begin under a heap of calls, and this process would do nothing else. So a group that failed has a gate, and calls
to it wait there. Now and then one of them may try; the first that is answered opens the gate for all. While the group
has no master, nobody tries.

    no gate ──a call failed──> SHUT: one tries every 20 ms, then ever more rarely, to 0.1 s ──answered──> no gate
                                │ ^
                    no master   v │ another master: one may try at once
                               nobody tries ──the group leaves──> no gate, all find that it is gone

Messages that may go to any group wait at the gate `ANYWHERE`. Those that may go to one only have a gate of their own
(`for_sends`): a master with too few replicas in sync refuses sends for as long as that lasts, but does everything else,
and an ack must not wait behind them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.proxy.errors import LimitError

ANYWHERE: Final = ""
"""Where those wait who would go to any group."""
_FOR_SENDS = ":sends"  # in no name of a group is there a colon
HELD_CALLS_MAX: Final = 20_000
"""Calls parked at one time. Fixed: as many as may wait for one broker by default (`send.waiting_messages_max`), and
who wants fewer makes `failover.hold_ms` shorter."""
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of messages in parked sends. Fixed for the same reason (`send.waiting_bytes_max`)."""
PAUSE_FIRST_S: Final = 0.02
PAUSE_LONGEST_S: Final = 0.1

_IDLE_S = 1.0
"""A gate at which nobody waits any more is kept for this long, so that a call that comes back does not begin anew."""

Waiter = Callable[[], None]
"""A call that waits: called when it may try."""


def for_sends(group: str) -> str:
    """The gate of sends that may go to this group only; everything else that is asked of it waits at its name."""
    return group + _FOR_SENDS


def group_of(key: str) -> str:
    """The group that is waited for at a gate."""
    return key.removesuffix(_FOR_SENDS)


@dataclass(slots=True, eq=False)
class Gate:
    """One group that is waited for.

    Args:
        waiting: who waits, the longest waiting first.
        pause_s: how long after the next try another may follow.
        try_at: when the next may try; never, while the group has no master.
    """

    waiting: dict[Waiter, None] = field(default_factory=dict)
    pause_s: float = PAUSE_FIRST_S
    try_at: float = inf


class Gates:
    """All groups that are waited for, and how much is parked for them.

    Args:
        calls_max: calls that may be parked at one time.
        bytes_max: bytes of messages that they may hold.

    Attributes:
        calls: parked now.
        bytes: of messages in them.
    """

    def __init__(self, calls_max: int, bytes_max: int) -> None:
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._gates: dict[str, Gate] = {}
        self.calls = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        """Whether any group is waited for."""
        return bool(self._gates)

    def __contains__(self, key: str) -> bool:
        """Whether a group is waited for."""
        return key in self._gates

    @property
    def waiting(self) -> int:
        """Calls that wait now; the others that are parked are trying."""
        return sum(len(gate.waiting) for gate in self._gates.values())

    def enter(self, size: int) -> None:
        """A call is parked; `leave` must follow.

        Args:
            size: bytes of the messages that it holds.

        Raises:
            LimitError: TOO_MANY_REQUESTS.
        """
        if self.calls >= self._calls_max:
            raise _full("held_calls_max")
        if size and self.bytes and self.bytes + size > self._bytes_max:
            raise _full("held_bytes_max")
        self.calls += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        """A call is over, or given up."""
        self.calls -= 1
        self.bytes -= size

    def wait(self, key: str, waiter: Waiter, now: float, *, led: bool) -> None:
        """A call waits for a group; `stop_waiting` follows, unless it was told that it may try.

        Args:
            key: the group's name, `for_sends` of it, or `ANYWHERE`.
            waiter: the call.
            now: seconds of the monotonic clock.
            led: whether the group has a master, as far as is known.
        """
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(try_at=now + PAUSE_FIRST_S if led else inf)
        gate.waiting[waiter] = None

    def stop_waiting(self, key: str, waiter: Waiter) -> None:
        """A call waits no more."""
        gate = self._gates.get(key)
        if gate is not None:
            gate.waiting.pop(waiter, None)
            if not gate.waiting and gate.try_at == inf:
                del self._gates[key]

    def answered(self, key: str) -> None:
        """A group has answered: all who wait for it may try."""
        gate = self._gates.pop(key, None)
        if gate is not None:
            for waiter in gate.waiting:
                waiter()

    def left(self, key: str) -> None:
        """A group is gone: all who wait for it are to see to that."""
        self.answered(key)

    def master_changed(self, key: str, now: float, *, led: bool) -> None:
        """A group has another master, of which nothing bad is known yet, or none."""
        gate = self._gates.get(key)
        if gate is None:
            return
        gate.pause_s = PAUSE_FIRST_S
        gate.try_at = now if led else inf
        if not (led or gate.waiting):
            del self._gates[key]

    def next_at(self) -> float:
        """When `time_passed` is to be called; `inf` for not before something else happens."""
        return min((_look_at(gate) for gate in self._gates.values()), default=inf)

    def time_passed(self, now: float) -> None:
        """Let those try whose turn has come."""
        for key, gate in list(self._gates.items()):
            if gate.try_at > now:
                continue
            waiter = next(iter(gate.waiting), None)
            if waiter is None:
                if _look_at(gate) <= now:
                    del self._gates[key]
                continue
            del gate.waiting[waiter]
            gate.try_at = now + gate.pause_s
            gate.pause_s = min(gate.pause_s * 2, PAUSE_LONGEST_S)
            waiter()


def _look_at(gate: Gate) -> float:
    return gate.try_at if gate.waiting else gate.try_at + _IDLE_S


def _full(limit: str) -> LimitError:
    return LimitError(
        Code.TOO_MANY_REQUESTS, "too many calls wait for a broker group's next master; try again later", limit
    )
