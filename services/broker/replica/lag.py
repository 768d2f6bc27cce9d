"""How long ago a log reached which position: by it a replica's lag is told in time, not only in bytes."""

from bisect import bisect_right

_MARK_INTERVAL_MS = 20
_MARKS_MAX = 3000


class PositionTimes:
    """Remembers, every 20 ms, how far a log was. Of what is older than its last 3,000 marks it knows only that."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._times_ms: list[int] = []

    def note(self, position: int, now_ms: int) -> None:
        """The log reaches to `position` now."""
        times_ms = self._times_ms
        if times_ms and (now_ms - times_ms[-1] < _MARK_INTERVAL_MS or position <= self._positions[-1]):
            return
        if len(times_ms) >= _MARKS_MAX:
            del times_ms[: _MARKS_MAX // 2], self._positions[: _MARKS_MAX // 2]
        times_ms.append(now_ms)
        self._positions.append(position)

    def behind_ms(self, position: int, end_position: int, now_ms: int) -> int:
        """For how long there has been something behind `position`, in a log that reaches to `end_position` now."""
        if position >= end_position or not self._times_ms:
            return 0
        index = min(bisect_right(self._positions, position), len(self._times_ms) - 1)
        return max(0, now_ms - self._times_ms[index])
