"""Times when a log reached its positions: by them a replica's lag is shown in time, not only in bytes."""

from bisect import bisect_right

_MARK_INTERVAL_MS = 20
_MARKS_MAX = 3000


class PositionTimes:
    """Remembers how far a log was when, to 20 ms. Of what is older than its last 3,000 marks it knows only that."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._times_ms: list[int] = []
        self._end_position = -1
        self._unmarked: tuple[int, int] | None = None

    def record(self, position: int, now_ms: int) -> None:
        """Record that the log reaches to `position` now."""
        if position <= self._end_position:
            return
        self._end_position = position
        times_ms = self._times_ms
        if times_ms and now_ms - times_ms[-1] < _MARK_INTERVAL_MS:
            self._unmarked = (position, now_ms)
            return
        if self._unmarked is not None:
            # Else what comes after a pause would make what came before it look new.
            self._mark(*self._unmarked)
            self._unmarked = None
        self._mark(position, now_ms)

    def _mark(self, position: int, now_ms: int) -> None:
        if len(self._times_ms) >= _MARKS_MAX:
            del self._times_ms[: _MARKS_MAX // 2], self._positions[: _MARKS_MAX // 2]
        self._times_ms.append(now_ms)
        self._positions.append(position)

    def behind_ms(self, position: int, end_position: int, now_ms: int) -> int:
        """Return for how long a record has been behind `position`, in a log that reaches to `end_position` now."""
        if position >= end_position or not self._times_ms:
            return 0
        index = min(bisect_right(self._positions, position), len(self._times_ms) - 1)
        return max(0, now_ms - self._times_ms[index])
