"""One stream of a connection, and the memory of those that are closed (RFC 9113, 5.1)."""

from collections import deque
from enum import Enum, auto

from services.rpc.http2.flow import ReceiveWindow

_REMEMBERED = 1024


class Stream:
    """What a connection knows of a stream that is open or half-closed.

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


class Closing(Enum):
    """How a stream came to its end; it decides what a late frame on it means."""

    ENDED = auto()
    RESET_HERE = auto()
    RESET_THERE = auto()


class ClosedStreams:
    """Remembers how the last one or two thousand streams ended."""

    __slots__ = ("_older", "_recent")

    def __init__(self) -> None:
        self._recent: dict[int, Closing] = {}
        self._older: dict[int, Closing] = {}

    def add(self, stream_id: int, closing: Closing) -> None:
        """Note that a stream is over."""
        self._recent[stream_id] = closing
        if len(self._recent) >= _REMEMBERED:
            self._older = self._recent
            self._recent = {}

    def get(self, stream_id: int) -> Closing | None:
        """How a stream ended; None if that is forgotten or it never began."""
        return self._recent.get(stream_id) or self._older.get(stream_id)
