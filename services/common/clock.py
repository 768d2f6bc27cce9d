"""Time, as it is handed to every core (DESIGN 3): no other module of the cores reads a clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """The three ways in which time is needed."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 as the machine has it now; may jump both ways."""

    def steady_ms(self) -> int:
        """Milliseconds since 1970, taken once at the start and then moved on by the monotonic clock.

        For what lasts a while (invisible durations): a clock that is set back or forward neither shortens it nor
        holds it up.
        """

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps and means nothing between processes; the one deadlines are in."""


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
