"""Expiry of the log's oldest segments, and what has to be moved before they are deleted."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from popwheel_broker.consume.delivery import REVIVE_QUEUES, Delivery
from popwheel_broker.consume.pop_context import PopContext
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.consume.relocation import Relocation
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.retention import SegmentAges, delete_before
from popwheel_broker.options import RetentionOptions
from popwheel_common.clock import Clock
from popwheel_common.disk import DiskUsage


class NeedsRecords(Protocol):
    """State that needs records of the log."""

    def needed_from(self) -> int | None:
        """Return the least position that is needed; None if none is. Raises CorruptDataError: it is unknown."""


class Expiry:
    """Decides on the end of records; deletes nothing.

    Args:
        context: the log, and open deliveries, which need messages.
        relocation: moves messages of open deliveries.
        needs: other state that needs records: delayed messages, open transactions, poison messages without a copy.
        options: how long records are stored.
        wall_clock: the time.
        usage: how full the disk is.
    """

    def __init__(
        self,
        context: PopContext,
        relocation: Relocation,
        needs: Sequence[NeedsRecords],
        options: RetentionOptions,
        wall_clock: Clock,
        usage: Callable[[], DiskUsage],
    ) -> None:
        self._store = context.store
        self._table = context.state.table
        self._topics = context.topics
        self._quarantine = context.quarantine
        self._relocation = relocation
        self._needs = needs
        self._options = options
        self._clock = wall_clock
        self._usage = usage
        self._ages = SegmentAges(context.store, self._failed)

    def expired_before(self) -> int:
        """Return the position before which segments are past their time, and not needed any more.

        Raises:
            CorruptDataError: as `needed_from` does.
        """
        return self._past_time(self.needed_from(), disk_is_short=self._disk_is_short())

    def to_relocate(self) -> deque[Delivery]:
        """Return the open deliveries that pin segments which are past their time, to be moved (`Relocation`).

        Where the disk is short, and the oldest segment is to be deleted before its time, only if that frees half of it:
        else one segment would be written for each that is deleted.

        Raises:
            CorruptDataError: a queue, or a record that it leads to, is damaged, so it is unknown.
        """
        start, relocation, topic = self._store.log.start_position, self._relocation, self._topics.revive
        not_moved = min(self._needed(), default=None)
        position = self._past_time(not_moved, disk_is_short=False)
        if position > start:
            return relocation.standing_before(position, topic)
        position = self._past_time(not_moved, disk_is_short=self._disk_is_short())
        if position <= start:
            return deque()
        found = relocation.standing_before(position, topic)
        return found if 2 * relocation.open_bytes(found) <= position - start else deque()

    def needed_from(self) -> int | None:
        """Return the least position that an open delivery needs, of its message or its own record, or other state
        needs.

        Raises:
            CorruptDataError: a queue, or a record that it leads to, is damaged, so it is unknown.
        """
        positions = self._needed()
        first = self._table.first_position()
        positions += [] if first is None else [first]
        topic = self._topics.revive
        for number in range(REVIVE_QUEUES):
            queue = self._store.queue(topic, number)
            if queue is not None:
                positions += self._position_of(queue, self._table.oldest_offset(number, queue.max_offset))
        return min(positions, default=None)

    def _needed(self) -> list[int]:
        """Return the least positions needed by state that can't be moved."""
        return [position for each in self._needs if (position := each.needed_from()) is not None]

    def _position_of(self, queue: ConsumeQueue, offset: int) -> list[int]:
        """Return where the record of an offset stands.

        For a record that always fails, return the log's start, so that nothing is deleted.
        """
        try:
            with RECORD_STEP:
                position = self._store.records.position_of(queue, offset)
                return [] if position is None else [position]
        except RecordFaultError as fault:
            start = self._store.log.start_position
            self._failed(start, fault)
            return [start]

    def _failed(self, position: int, fault: RecordFaultError) -> None:
        self._quarantine.record(Step.RETENTION, position, "", 0, 0, fault)

    def _past_time(self, needed_from: int | None, *, disk_is_short: bool) -> int:
        # The more careful of both clocks: a wall clock that is set forward deletes nothing before its time.
        now_ms = min(self._clock.wall_ms(), self._clock.steady_ms())
        return delete_before(self._ages.all(), now_ms, self._options.hours, disk_is_short, needed_from)

    def _disk_is_short(self) -> bool:
        return self._usage().used_share > self._options.disk_used_share_max
