"""What one slave is sent next: how much may be under way to it, and what waits to go together. Pure."""

from services.broker.replica.options import ReplicationOptions


class SendWindow:
    """Positions of one slave.

    While nothing is under way, whatever is there goes at once. While something is, less than `coalesce_bytes` waits for
    the slave's word, so that under load many small appends are one piece, as many as come within one way there and
    back. At most `window_bytes` are under way, and one record more.

    Args:
        position: where the slave's log goes on.
        options: settings.
    """

    __slots__ = ("_chunk_bytes", "_coalesce_bytes", "_window_bytes", "received_position", "sent_position")

    def __init__(self, position: int, options: ReplicationOptions) -> None:
        self._chunk_bytes = options.chunk_bytes
        self._coalesce_bytes = options.coalesce_bytes
        self._window_bytes = options.window_bytes
        self.sent_position = position
        self.received_position = position

    @property
    def under_way(self) -> int:
        """Bytes that were sent, and that the slave has not spoken of."""
        return self.sent_position - self.received_position

    @property
    def is_full(self) -> bool:
        """Whether nothing may be sent until the slave has spoken."""
        return self.under_way >= self._window_bytes

    def room(self, end_position: int) -> int:
        """How many bytes to send now to a slave of a log that reaches to `end_position`; 0: none."""
        waiting = end_position - self.sent_position
        if waiting <= 0:
            return 0
        under_way = self.sent_position - self.received_position
        if under_way:
            if waiting < self._coalesce_bytes:
                return 0
            waiting = min(waiting, self._window_bytes - under_way)
        return max(0, min(waiting, self._chunk_bytes))

    def sent(self, position: int) -> None:
        """Everything before `position` was sent."""
        self.sent_position = position

    def received(self, position: int) -> None:
        """The slave says that it has everything before `position`."""
        self.received_position = max(self.received_position, min(position, self.sent_position))
