"""A clock that stands still until it is asked to go on, and a loop that lives by it: no test waits for time to pass."""

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from popwheel_common.clock import Uptime

Result = TypeVar("Result")

_START_MS = 1_800_000_000_000


class ManualClock:
    """A `popwheel_common.clock.Clock`.

    Args:
        start_ms: what wall and steady clock show at first, in milliseconds since 1970.
    """

    def __init__(self, start_ms: int = _START_MS) -> None:
        self._start_ms = start_ms
        self._passed_us = 0
        self._wall_offset_ms = 0
        self.boot = "boot"
        self.up_ms = 0
        """How long the machine had been up at first."""

    def advance(self, milliseconds: float) -> None:
        """Let time pass, to the microsecond, for all three clocks."""
        if milliseconds < 0:
            raise ValueError(f"time passes forward only, not by {milliseconds} ms; set_wall_ms sets one clock back")
        self._passed_us += round(milliseconds * 1000)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock, forward or back, as an operator or NTP does; the others do not see it."""
        self._wall_offset_ms += wall_ms - self.wall_ms()

    def wall_ms(self) -> int:
        return self.steady_ms() + self._wall_offset_ms

    def steady_ms(self) -> int:
        return self._start_ms + self._passed_us // 1000

    def monotonic(self) -> float:
        return self._passed_us / 1_000_000

    def uptime(self) -> Uptime:
        return Uptime(self.boot, self.up_ms + self._passed_us // 1000)


class StalledError(Exception):
    """Every task of a virtual loop waits for something that no timer will bring."""


class _JumpingSelector(selectors.SelectSelector):
    """Lets the clock jump instead of waiting."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise StalledError("nothing can happen any more: no task is ready and no timer is set")
            if timeout > 0:
                # Rounded up: a timer that is looked at a moment early is not due and would be waited for again.
                self._clock.advance(timeout * 1000 + 0.001)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only while everybody waits, and then at once.

    Threads are no part of it: what an executor does takes no virtual time and is not waited for.

    Args:
        clock: moved on by it; `loop.time()` is its monotonic clock.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_JumpingSelector(clock))
        self._manual_clock = clock
        self.failures: list[Mapping[str, Any]] = []
        """What tasks and callbacks raised that nobody asked for."""
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self._manual_clock.monotonic()


def run_virtually(clock: ManualClock, work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end in virtual time.

    Raises:
        StalledError: it waits for ever.
        AssertionError: a task or callback that nobody waited for has failed.
    """
    loop = VirtualLoop(clock)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(work)
    assert not loop.failures, loop.failures
    return result
