"""Memory of all connections of a server, and which of them must free some when it is too much (invariant M1)."""

from collections.abc import Collection
from typing import Final, Protocol

from popwheel_rpc.limits import Limits

RECEIVED: Final = "receive_total_bytes_max"
"""Name of the limit of what was received and is not finished."""

UNSENT: Final = "send_total_bytes_max"
"""Name of the limit of what readers have not taken."""


class Holder(Protocol):
    """A connection."""

    @property
    def received_total(self) -> int:
        """Bytes that it holds of requests that are not finished."""

    @property
    def unsent_total(self) -> int:
        """Bytes that its client has not taken."""

    @property
    def stalled(self) -> bool:
        """True if its client reads nothing at all."""

    def shed(self, count: int) -> int:
        """Cancel unfinished requests, the largest first, until `count` bytes are free; return how many are free now."""

    def abort_for(self, limit: str) -> None:
        """Close at once, because of a limit."""


class Totals:
    """Two sums over the connections of a server, kept by the connections themselves.

    Each adds to the sums what has changed for it since it last did, after it has read or written. What falls in between
    may be counted late, so that a sum may be too high for a while: before anybody has to give way it is taken anew.

    Past a limit an eighth of it is made free in one go: looking through all connections must not be had for a byte.

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
        """Free memory of unfinished requests: the connections with most of it lose calls."""
        held = [(connection.received_total, connection) for connection in self._connections]
        self.received_bytes = sum(size for size, _ in held)
        if self.received_bytes <= self.received_bytes_max:
            return
        excess = self.received_bytes - self.received_bytes_max * 7 // 8
        held.sort(key=lambda each: each[0], reverse=True)
        for _, connection in held:
            if excess <= 0:
                break
            excess -= connection.shed(excess)
        self.received_bytes = sum(connection.received_total for connection in self._connections)

    def relieve_unsent(self) -> None:
        """Free memory that waits for readers: those who read nothing go first, then those for whom most waits."""
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
