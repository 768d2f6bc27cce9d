"""Time, as it is handed to every core (DESIGN 3): no other module of the cores reads a clock."""

import time
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Uptime(NamedTuple):
    """Uptime of a machine, the same for all processes that run on it one after the other.

    Args:
        boot: names the start of the machine; empty if that is not known.
        ms: since then, on a clock that never jumps.
    """

    boot: str
    ms: int

    def since(self, earlier: "Uptime") -> int:
        """Return the milliseconds since an earlier uptime; 0 if the machine was restarted in between."""
        return max(0, self.ms - earlier.ms) if self.boot and self.boot == earlier.boot else 0


UNKNOWN_UPTIME = Uptime("", 0)


class Clock(Protocol):
    """The ways in which time is needed."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 as the machine has it now; may jump both ways."""

    def steady_ms(self) -> int:
        """Milliseconds since 1970, taken once at the start and then moved on by the monotonic clock.

        For what lasts a while (invisible durations): a clock that is set back or forward neither shortens it nor
        holds it up.
        """

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps and means nothing between processes; the one deadlines are in."""

    def uptime(self) -> Uptime:
        """Return the machine's uptime."""


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not a Linux
        return ""


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

    def uptime(self) -> Uptime:
        return Uptime(_boot(), time.monotonic_ns() // 1_000_000)


def thread_cpu_s() -> float:
    """Seconds that the calling thread has kept a core busy: they do not pass while the machine does something else."""
    return time.thread_time()
