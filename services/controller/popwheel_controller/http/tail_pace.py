"""Rate limit of a tail, and the number of skipped messages (pure)."""

from typing import Final

RATE_MAX: Final = 50
"""Messages per second."""
_PART: Final = 0.99


class TailPace:
    """Rate limiter of a tail.

    Args:
        rate: messages a second.
        now_s: when it begins.
    """

    def __init__(self, rate: int, now_s: float) -> None:
        self._rate = rate
        self._room = float(rate)
        self._at_s = now_s
        self._skipped = 0

    def room(self, now_s: float) -> int:
        """Return how many messages may be shown now: at most those of one second."""
        # Fractions are carried over: else late polls would lose them each time.
        self._room = min(self._rate + _PART, self._room + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        return int(self._room)

    def polled(self, shown: int, skipped: int) -> None:
        """Record a poll: messages shown, and messages skipped."""
        self._room -= shown
        self._skipped += skipped

    def take_skipped(self) -> int:
        """Return the number of messages skipped since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped
