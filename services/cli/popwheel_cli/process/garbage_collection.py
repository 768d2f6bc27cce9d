"""Schedule of Python's cycle collector: small steps, and full collections only while the process is idle.

Objects are freed by their reference counts; the collector is for cycles, which are rare (decision 0022).
"""

import gc
from collections.abc import Callable

from popwheel_common.clock import Clock

_YOUNG_MAX = 10_000
_YOUNG_BEFORE_MIDDLE = 3
_NEVER = 1 << 30
_IDLE_SHARE = 0.05
"""Share of a core: a process that uses less has next to no waiting callers."""
_WHEN_IDLE_S = 600.0
_AT_LATEST_S = 3600.0


class GarbageCollection:
    """Schedule of full collections, each of which may take half a second.

    Args:
        clock: the time.
        cpu_s: what the process has used of its cores.
        has_work: whether anything has outlived younger passes since the last one over all.
    """

    def __init__(
        self,
        clock: Clock,
        cpu_s: Callable[[], float],
        has_work: Callable[[], bool] = lambda: gc.get_count()[2] > 0,
    ) -> None:
        self._clock = clock
        self._cpu_s = cpu_s
        self._has_work = has_work
        self._polled_s = self._collected_s = clock.monotonic()
        self._used_s = cpu_s()

    @staticmethod
    def freeze_loaded() -> None:
        """Exclude the objects that are there, and let only younger ones be collected automatically.

        To be called before anything is served, as the collector may rest until then (`quick_load`), and once more when
        all is loaded. What that has left in cycles, some 900 objects, stays: callers wait by then, and a pass over all
        would hold them up for 36 to 140 ms. With fewer young passes a send costs 42 us of CPU, without both 48 us.
        """
        gc.freeze()
        gc.set_threshold(_YOUNG_MAX, _YOUNG_BEFORE_MIDDLE, _NEVER)
        gc.enable()

    def collect_if_due(self) -> None:
        """Collect all objects if it is time; called every few seconds."""
        if self.is_due():
            gc.collect()

    def is_due(self) -> bool:
        """Return whether to collect all objects now; called at each check."""
        now_s, used_s = self._clock.monotonic(), self._cpu_s()
        is_idle = used_s - self._used_s < _IDLE_SHARE * (now_s - self._polled_s)
        self._polled_s, self._used_s = now_s, used_s
        since_s = now_s - self._collected_s
        if since_s < (_WHEN_IDLE_S if is_idle else _AT_LATEST_S) or not self._has_work():
            return False
        self._collected_s = now_s
        return True
