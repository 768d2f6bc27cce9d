"""Memory of all connections of a server, and which of them must free some past a limit (invariant M1)."""

from collections.abc import Collection
from typing import Final, Protocol

from popwheel_rpc.limits import Limits

RECEIVED: Final = "receive_total_bytes_max"
"""Name of the limit of received bytes of unfinished requests."""

UNSENT: Final = "send_total_bytes_max"
"""Name of the limit of bytes that clients have not read."""


class Holder(Protocol):
    """A connection."""

    @property
    def received_total(self) -> int:
        """Buffered bytes of its unfinished requests."""

    @property
    def unsent_total(self) -> int:
        """Bytes that its client has not read."""

    @property
    def stalled(self) -> bool:
        """True if its client reads nothing at all."""

    def shed(self, count: int) -> int:
        """Cancel unfinished requests, the largest first, until `count` bytes are free; return how many are free now."""

    def abort_for(self, limit: str) -> None:
        """Close the connection at once, because of a limit."""


class Totals:
    """Two sums over the connections of a server, updated by the connections themselves.

    Each connection adds its change since its last report, after it has read or written. A sum may be too high for a
    while, so it is computed anew before a connection must free memory.

    Past a limit an eighth of it is freed in one go, so that a single byte does not cost a scan of all connections.

    Args:
        limits: `receive_total_bytes_max` and `send_total_bytes_max` of them.
        connections: all that are open; the set itself, not a copy.
    """

    def __init__(self, limits: Limits, connections: Collection[Holder]) -> None:
        self.received_bytes = 0
        self.unsent_bytes = 0
        self.received_bytes_max = max(limits.receive_total_bytes_max, 2 * limits.message_bytes_max)
        self.unsent_bytes_max = max(limits.send_total_bytes_max, 2 * limits.message_bytes_max)
        self._connections = connections

    def relieve_received(self) -> None:
        """Free memory of unfinished requests: cancel calls of the connections with most of it."""
        by_size = [(connection.received_total, connection) for connection in self._connections]
        self.received_bytes = sum(size for size, _ in by_size)
        if self.received_bytes <= self.received_bytes_max:
            return
        excess = self.received_bytes - self.received_bytes_max * 7 // 8
        by_size.sort(key=lambda each: each[0], reverse=True)
        for _, connection in by_size:
            if excess <= 0:
                break
            excess -= connection.shed(excess)
        self.received_bytes = sum(connection.received_total for connection in self._connections)

    def relieve_unsent(self) -> None:
        """Free memory of unread answers: close stalled connections first, then those with most of it."""
        waiting = [(connection.unsent_total, connection) for connection in self._connections]
        self.unsent_bytes = sum(size for size, _ in waiting)
        if self.unsent_bytes <= self.unsent_bytes_max:
            return
        waiting.sort(key=lambda each: (each[1].stalled, each[0]), reverse=True)
        excess = self.unsent_bytes - self.unsent_bytes_max * 7 // 8
        for size, connection in waiting:
            if excess <= 0:
                break
            if size:
                excess -= size
                connection.abort_for(UNSENT)
        self.unsent_bytes = sum(connection.unsent_total for connection in self._connections)
