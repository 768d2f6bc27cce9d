"""Stream of a connection and its window, and the memory of those that are closed (RFC 9113, 5.1 and 5.2)."""

from collections import deque
from enum import Enum, auto

_REMEMBERED = 1024


class ReceiveWindow:
    """Window of what the other side may still send on a stream or a connection, and when it is opened further.

    Args:
        size: bytes that may be under way or in memory at a time.
        buffered_max: bytes that may be in memory before the window begins to shrink below `size`.
    """

    __slots__ = ("_buffered_max", "_size", "available", "buffered")

    def __init__(self, size: int, buffered_max: int) -> None:
        self.available = size
        self.buffered = 0
        self._size = size
        self._buffered_max = buffered_max

    def take(self, count: int) -> bool:
        """Count `count` bytes that came in and are retained; return False if the other side exceeded the window."""
        self.available -= count
        self.buffered += count
        return self.available >= 0

    @property
    def is_low(self) -> bool:
        """True if an increment is worth sending."""
        return self.available * 2 <= self._size

    def increment(self) -> int:
        """Return the increment to send now; 0 as long as it is less than half of the window."""
        room = self._buffered_max - self.buffered
        missing = (self._size if room > self._size else room) - self.available
        if missing * 2 < self._size:
            return 0
        self.available += missing
        return missing


class Stream:
    """State of a stream that is open or half-closed.

    Args:
        stream_id: its number.
        send_window: what may be sent on it, by the other side's settings.
        receive_window_bytes: what the other side may send on it.
    """

    __slots__ = (
        "content_length",
        "headers_received",
        "local_ended",
        "queue",
        "queued_end",
        "queued_trailers",
        "received_bytes",
        "receiving",
        "remote_ended",
        "send_window",
        "stream_id",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window_bytes: int) -> None:
        self.stream_id = stream_id
        self.send_window = send_window
        self.receiving = ReceiveWindow(receive_window_bytes, receive_window_bytes)
        self.remote_ended = False
        self.local_ended = False
        self.headers_received = False
        self.content_length: int | None = None
        self.received_bytes = 0
        # What waits for a window: runs of bytes, then perhaps trailers. None while nothing waits.
        self.queue: deque[memoryview] | None = None
        self.queued_trailers: bytes | None = None
        self.queued_end = False


class Closure(Enum):
    """Reason of a stream's end; it decides how a late frame on it is treated."""

    ENDED = auto()
    RESET_HERE = auto()
    RESET_THERE = auto()


class ClosedStreams:
    """Remembers how the last one or two thousand streams ended."""

    __slots__ = ("_older", "_recent")

    def __init__(self) -> None:
        self._recent: dict[int, Closure] = {}
        self._older: dict[int, Closure] = {}

    def add(self, stream_id: int, closure: Closure) -> None:
        """Record that a stream is over."""
        self._recent[stream_id] = closure
        if len(self._recent) >= _REMEMBERED:
            self._older = self._recent
            self._recent = {}

    def get(self, stream_id: int) -> Closure | None:
        """Return how a stream ended; None if that is forgotten or it never began."""
        return self._recent.get(stream_id) or self._older.get(stream_id)
