"""The receiving half of flow control (RFC 9113, 5.2): what the other side may still send, and when it may send more."""


class ReceiveWindow:
    """One window, of a stream or of a connection.

    Args:
        size: bytes that may be under way or held at a time.
        held_max: bytes that may be held before the window begins to shrink below `size`.
    """

    __slots__ = ("_held_max", "_size", "available", "held")

    def __init__(self, size: int, held_max: int) -> None:
        self.available = size
        self.held = 0
        self._size = size
        self._held_max = held_max

    def take(self, count: int) -> bool:
        """Note that `count` bytes came in and are held; False if the other side was not allowed to send as many."""
        self.available -= count
        self.held += count
        return self.available >= 0

    @property
    def is_low(self) -> bool:
        """Whether it is worth asking for an increment."""
        return self.available * 2 <= self._size

    def increment(self) -> int:
        """By how much to open the window now; 0 as long as that is less than half of it."""
        room = self._held_max - self.held
        missing = (self._size if room > self._size else room) - self.available
        if missing * 2 < self._size:
            return 0
        self.available += missing
        return missing
