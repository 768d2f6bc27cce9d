"""Lets what comes in bulk leave the loop to all else between its steps."""

import asyncio

from popwheel_common.clock import Clock

STEP_S = 0.001
"""A step of work in bulk should be over after this time: everybody else may have to wait for one."""
_TURNS_MAX = 4
"""Turns of the loop between two steps. From a send to its arrival it takes several; each would wait for a step."""


class Pace:
    """The pace of one kind of work in bulk: it takes half of the loop's time at the most, or less.

    Args:
        clock: the time.
        rest: the loop is left to all else for so many times as long as a step took.
    """

    def __init__(self, clock: Clock, rest: int = 1) -> None:
        self._clock = clock
        self._rest = rest

    async def let_others(self, step_s: float) -> bool:
        """Leave the loop to all else after a step; whether it has little to do.

        Where nobody has anything to do the loop rests: who comes then is served at once, and the machine's scheduler
        does not take the process for one that can wait.

        Args:
            step_s: how long the step took.
        """
        rest_s = self._rest * step_s
        began_s = self._clock.monotonic()
        for turn in range(_TURNS_MAX):
            await asyncio.sleep(0)
            if self._clock.monotonic() - began_s >= rest_s:
                return turn > 0
        await asyncio.sleep(max(0.0, rest_s - (self._clock.monotonic() - began_s)))
        return True


class Steps:
    """Leaves the loop to others where a step of work has taken long enough.

    Args:
        clock: how long a step takes.
        pace: leaves the loop.
    """

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self._clock = clock
        self._pace = pace
        self._began_s = clock.monotonic()

    async def take(self) -> None:
        """A part of the work is done."""
        step_s = self._clock.monotonic() - self._began_s
        if step_s >= STEP_S:
            await self._pace.let_others(step_s)
            self._began_s = self._clock.monotonic()
