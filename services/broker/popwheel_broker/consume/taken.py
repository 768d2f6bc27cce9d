"""Messages that a pop has taken of one queue, before they are delivered."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from popwheel_broker.consume.delivery import Delivery, Origin
from popwheel_broker.consume.merge_buffer import QueueProgress
from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.log.record import StoredRecord


@dataclass(slots=True)
class Budget:
    """Budget of one pop: what it may still take."""

    messages: int
    scan_entries: int
    response_bytes: int

    @property
    def is_spent(self) -> bool:
        """True if the pop has to end."""
        return self.messages <= 0 or self.scan_entries <= 0 or self.response_bytes <= 0


@dataclass(slots=True)
class Taken:
    """Messages read from one queue that are to be delivered.

    Args:
        progress: the queue, and the group's progress there.
        origin: `receipt.FROM_TOPIC` or `receipt.FROM_RETRY_TOPIC`.
        offsets: of the messages.
        records: the messages; None if one of them failed as it was read: then each is read by itself.
        start_offset, next_offset: the range that was read.
        first_position: as in `Delivery`.
        entries: of the messages in their queue; nothing for those that an earlier pop has read.
        lines, attempts, sources, copies: as in `Delivery`, for a group that consumes in order.
    """

    progress: QueueProgress
    origin: int
    offsets: tuple[int, ...] | range
    records: list[StoredRecord] | None
    start_offset: int
    next_offset: int
    first_position: int
    entries: Sequence[Entry] = ()
    lines: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    sources: tuple[Origin, ...] = ()
    copies: dict[int, int] = field(default_factory=dict)

    def shorten(self, count: int) -> None:
        """Keep the first messages only, one at least; the others count as not read."""
        self.offsets, self.entries = self.offsets[:count], self.entries[:count]
        self.records = None if self.records is None else self.records[:count]
        self.next_offset = self.offsets[-1] + 1

    def delivery(
        self, identity: int, group: str, topic: str, now_ms: int, invisible_ms: int, *, is_blocked: bool = False
    ) -> Delivery:
        """Return the delivery of these messages.

        Args:
            identity: its id.
            group, topic: of the pop.
            now_ms: when (`PopClock`).
            invisible_ms: for how long they are hidden from the others of the group.
            is_blocked: whether they are not delivered yet.
        """
        return Delivery(
            id=identity,
            group=group,
            topic=topic,
            origin=self.origin,
            queue_id=self.progress.queue.queue_id,
            start_offset=self.start_offset,
            next_offset=self.next_offset,
            pop_time_ms=now_ms,
            invisible_ms=invisible_ms,
            due_ms=now_ms + invisible_ms,
            first_position=self.first_position,
            offsets=self.offsets,
            lines=self.lines,
            attempts=self.attempts,
            sources=self.sources,
            copies=self.copies,
            is_blocked=is_blocked,
        )
