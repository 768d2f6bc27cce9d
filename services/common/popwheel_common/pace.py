"""Lets what comes in bulk leave the loop to all else between its steps."""

import asyncio

from popwheel_common.clock import Clock

STEP_S = 0.001
"""A step of work in bulk should be over after this time: everybody else may have to wait for one."""
_TURNS_MAX = 4
"""Turns of the loop between two steps. From a send to its arrival it takes several; each would wait for a step."""


class Pace:
    """Pace of one kind of bulk work: it takes at most half of the loop's time.

    Args:
        clock: the time.
        rest: pause after a step, as a multiple of the step.
    """

    def __init__(self, clock: Clock, rest: int = 1) -> None:
        self._clock = clock
        self._rest = rest

    async def let_others(self, step_s: float) -> bool:
        """Leave the loop to other tasks after a step; return whether it has little to do.

        Without other tasks the loop is idle: a new call is served at once, and the machine's scheduler does not treat
        the process as a batch job.

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
        """Count a part of the work."""
        step_s = self._clock.monotonic() - self._began_s
        if step_s >= STEP_S:
            await self._pace.let_others(step_s)
            self._began_s = self._clock.monotonic()
