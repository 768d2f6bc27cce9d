"""Rate limit of a tail, and the number of skipped messages (pure)."""

from typing import Final

RATE_MAX: Final = 50
"""Messages a second."""
_PART: Final = 0.99


class TailPace:
    """Pace of a tail: a limit of messages a second.

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
        # A part of a message is kept beyond that: else a look that comes late would lose it again and again.
        self._room = min(self._rate + _PART, self._room + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        return int(self._room)

    def looked(self, shown: int, skipped: int) -> None:
        """A look has shown some, and passed others over."""
        self._room -= shown
        self._skipped += skipped

    def take_skipped(self) -> int:
        """Return the number of messages skipped since the last call."""
        skipped, self._skipped = self._skipped, 0
        return skipped
