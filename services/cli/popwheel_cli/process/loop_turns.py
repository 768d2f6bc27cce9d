"""Duration of the turns of the loop: a long turn delays all calls of the process.

uvloop has no hook for turns. So a ticker sees how late it is called. What it is late by counts only as far as the
loop's thread was busy meanwhile. So a machine that has no core for the process makes no turn long.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_common.clock import Clock, thread_cpu_s

TICK_S: Final = 0.02
"""Interval of the ticker. A turn is measured as up to this much shorter than it was."""
_SHOWN_S = 60.0
_MOST = 0.99


class TurnTimes:
    """The turns of the last minute (pure)."""

    def __init__(self) -> None:
        self._turns: deque[tuple[float, float]] = deque()

    def record(self, now_s: float, late_s: float, busy_s: float) -> None:
        """Record a call of the ticker.

        Args:
            now_s: monotonic time, in seconds.
            late_s: by how much the call was late.
            busy_s: CPU time of the loop's thread since the call before.
        """
        self._turns.append((now_s, max(0.0, min(late_s, busy_s))))
        self._forget(now_s)

    def quantile(self, now_s: float, share: float) -> float:
        """Return a quantile of the turns, in seconds; 1 for the longest."""
        self._forget(now_s)
        lengths = sorted(length_s for _, length_s in self._turns)
        return lengths[min(len(lengths) - 1, int(share * len(lengths)))] if lengths else 0.0

    def _forget(self, now_s: float) -> None:
        while self._turns and self._turns[0][0] < now_s - _SHOWN_S:
            self._turns.popleft()


class LoopTurns(Collector):
    """Measures the turns of the running loop.

    Args:
        registry: where they are shown.
        clock: the time.
        cpu_s: CPU time of the calling thread, in seconds.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock, cpu_s: Callable[[], float] = thread_cpu_s) -> None:
        self._clock = clock
        self._cpu_s = cpu_s
        self._times = TurnTimes()
        self._due_s = 0.0
        self._used_s = 0.0
        registry.register(self)

    def start(self) -> None:
        """Begin to tick."""
        self._used_s = self._cpu_s()
        self._tick_later()

    def collect(self) -> Iterator[Metric]:
        """Yield the durations of turns."""
        now_s = self._clock.monotonic()
        yield GaugeMetricFamily(
            "popwheel_loop_turn_p99_seconds",
            "99th percentile of the turns of the loop within the last minute, in seconds of CPU time.",
            value=self._times.quantile(now_s, _MOST),
        )
        yield GaugeMetricFamily(
            "popwheel_loop_turn_max_seconds",
            "Longest turn of the loop within the last minute, in seconds of CPU time.",
            value=self._times.quantile(now_s, 1.0),
        )

    def _tick_later(self) -> None:
        self._due_s = self._clock.monotonic() + TICK_S
        asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now_s, used_s = self._clock.monotonic(), self._cpu_s()
        self._times.record(now_s, now_s - self._due_s, used_s - self._used_s)
        self._used_s = used_s
        self._tick_later()
