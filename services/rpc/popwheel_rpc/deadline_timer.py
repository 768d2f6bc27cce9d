"""Timer that notifies items whose deadline has passed."""

import asyncio
from collections.abc import Hashable
from typing import Protocol

from popwheel_common.clock import Clock
from popwheel_rpc.deadlines import Deadlines


class Expiring(Hashable, Protocol):
    """Item with a deadline."""

    def expired(self) -> None:
        """The deadline has passed."""


class DeadlineTimer:
    """Timer of many deadlines, with one timer of the loop for all of them.

    Args:
        clock: the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadlines: Deadlines[Expiring] = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def watch(self, deadline: float, item: Expiring) -> int:
        """Notify `item` when `deadline` has passed; return what `forget` takes."""
        step = self._deadlines.add(deadline, item)
        if self._timer is None or deadline < self._timer_at:
            self._plan()
        return step

    def forget(self, step: int, item: Expiring) -> None:
        """Stop watching `item`: it was in time."""
        self._deadlines.remove(step, item)

    def close(self) -> None:
        """Stop all notifications."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        self.close()
        at = self._deadlines.next()
        if at is not None:
            self._timer_at = at
            delay_s = max(0.0, at - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for item in self._deadlines.expired(self._clock.monotonic()):
            item.expired()
        self._plan()
