"""Scans a queue for the messages that a consumer asked for, a limited part at a time.

Tags are in the queue's entries. For an SQL92 filter each message is read, and checked: one that is damaged may be one
that passes, so it must not be skipped (S7).
"""

from collections.abc import Sequence
from typing import NamedTuple

from popwheel_broker.consume.sql_filter import FilterCounts, SqlFilter
from popwheel_broker.log.consume_queue import ConsumeQueue, Entry
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.log.stored_records import StoredRecords
from popwheel_common.cold_reads import ColdReads, NotInMemory
from popwheel_common.errors import CorruptDataError

_STEP_MAX = 256
"""Entries that are read at once."""

ARRIVALS_COST = 256
"""A limit in looks at entries: what arrived messages may cost that are read at once."""
ENTRY_COST, BYTES_OF_ONE = 4, 1024
"""A look at a message takes about as long as looks at four entries, and so does each KiB that is read and checked as at
one.
"""


class Found(NamedTuple):
    """Result of a scan.

    Args:
        entries: of messages that are wanted.
        offsets: of each.
        next_offset: where to go on.
        cost: of the scan, in lookups of entries.
        records: the messages, if they were read.
    """

    entries: list[Entry]
    offsets: tuple[int, ...]
    next_offset: int
    cost: int
    records: list[StoredRecord] | None = None


def scan_tags(queue: ConsumeQueue, start: int, wanted: frozenset[int], messages_max: int, entries_max: int) -> Found:
    """Look for messages of some tags, from an offset on."""
    found: list[Entry] = []
    offsets: list[int] = []
    at = start
    end = min(queue.max_offset, start + entries_max)
    while at < end:
        for entry in queue.read(at, min(_STEP_MAX, end - at)):
            if entry.tag_hash in wanted:
                found.append(entry)
                offsets.append(at)
            at += 1
            if len(found) == messages_max:
                return Found(found, tuple(offsets), at, at - start)
    return Found(found, tuple(offsets), at, at - start)


class SqlScan:
    """Search for messages that pass SQL92 filters.

    Args:
        records: reads the messages.
        reads: runs what must not wait for the device.

    Attributes:
        counts: results of scans.
        arrivals: the same of messages that had just arrived.
        cost: of all scans, in lookups of entries, reading and filters together.
    """

    def __init__(self, records: StoredRecords, reads: ColdReads) -> None:
        self._records = records
        self._reads = reads
        self.counts = FilterCounts()
        self.arrivals = FilterCounts()
        self.cost = 0

    def run(self, queue: ConsumeQueue, start: int, wanted: SqlFilter, messages_max: int, cost_max: int) -> Found:
        """Scan from an offset on.

        A poison message counts as wanted: it goes to the quarantine where it is delivered.

        Args:
            queue: the queue to scan.
            start: the first offset.
            wanted: the filter.
            messages_max: number of messages found at which the scan ends.
            cost_max: ends the scan when it has cost so much, reading and filters together; the first message is checked
                in any case.

        Raises:
            CorruptDataError: the first message is damaged.
            NotInMemory: the first ones are not in memory.
        """
        found: list[Entry] = []
        offsets: list[int] = []
        records: list[StoredRecord] | None = []
        counts = self.counts
        at, read_bytes, before = start, 0, counts.cost
        end = min(queue.max_offset, start + max(1, cost_max // ENTRY_COST))
        step = messages_max
        while at < end:
            entries: Sequence[Entry] = queue.read(at, min(step, end - at))
            assert entries, "a queue has fewer entries than it says"
            left = cost_max - _cost(at - start, read_bytes) - (counts.cost - before)
            entries = _within(entries, left) or (entries[:1] if at == start else ())
            if not entries:
                break
            try:
                looked = self._filter_messages(queue, at, entries, wanted, left)
            except (CorruptDataError, NotInMemory) as error:
                # Messages found are delivered first. A step that is not in memory is waited for, unless much was done.
                if found or at - start >= _STEP_MAX or (at > start and isinstance(error, CorruptDataError)):
                    break
                self.cost += _cost(at - start, read_bytes) + counts.cost - before
                raise
            for entry, (passes, stored) in zip(entries, looked, strict=False):  # the rest cost too much
                read_bytes += entry.length
                if passes:
                    found.append(entry)
                    offsets.append(at)
                    if stored is None:
                        records = None
                    elif records is not None:
                        records.append(stored)
                at += 1
                if len(found) == messages_max:
                    break
            if len(found) == messages_max or len(looked) < len(entries):
                break
            # As many as should have the messages still wanted: reading more takes time for nothing.
            wanting, looked_at = messages_max - len(found), at - start
            step = min(_STEP_MAX, wanting * looked_at // len(found) + 1 if found else 2 * looked_at)
        cost = _cost(at - start, read_bytes) + counts.cost - before
        self.cost += cost
        return Found(found, tuple(offsets), at, cost, records)

    def _filter_messages(
        self, queue: ConsumeQueue, start: int, entries: Sequence[Entry], wanted: SqlFilter, cost_max: int
    ) -> list[tuple[bool, StoredRecord | None]]:
        """Return for each of the first messages if it passes, and the message; None for a poison message.

        It ends at that cost; the first message is checked in any case.
        """
        looked: list[tuple[bool, StoredRecord | None]] = []
        read_bytes, before = 0, self.counts.cost
        try:
            with RECORD_STEP:
                for stored in self._records.read_checked(queue, range(start, start + len(entries)), entries):
                    read_bytes += entries[len(looked)].length
                    looked.append((wanted.passes(stored, self.counts), stored))
                    if _cost(len(looked), read_bytes) + self.counts.cost - before >= cost_max:
                        break
        except RecordFaultError:
            if len(entries) == 1:
                return [(True, None)]
            looked.clear()
            for index, entry in enumerate(entries):
                looked += self._filter_messages(queue, start + index, [entry], wanted, 0)
                if _cost(len(looked), 0) + self.counts.cost - before >= cost_max:
                    break
        return looked

    def arrived(self, queue: ConsumeQueue, start: int, count: int) -> list[StoredRecord] | None:
        """Return the first of the messages that have arrived in a queue, one at least; None if they can't be read now.
        Those that waited for long may be deleted since.
        """

        def read() -> list[StoredRecord]:
            arrived = queue.read(start, count) if start >= queue.min_offset else []
            entries = _within(arrived, ARRIVALS_COST) or arrived[:1]
            return self._records.read_checked(queue, range(start, start + len(entries)), entries)

        try:
            with RECORD_STEP:
                return self._reads.at_once(read) or None
        except (RecordFaultError, CorruptDataError, NotInMemory, OSError):
            return None

    def passing(self, records: Sequence[StoredRecord], wanted: SqlFilter) -> int:
        """Return how many messages that have arrived may pass."""
        count = 0
        for stored in records:
            try:
                with RECORD_STEP:
                    count += wanted.passes(stored, self.arrivals)
            except RecordFaultError:
                count += 1
        return count


def _cost(entries: int, read_bytes: int) -> int:
    """Return the cost of a scan, in lookups of entries."""
    return entries * ENTRY_COST + read_bytes // BYTES_OF_ONE


def _within(entries: Sequence[Entry], cost_max: int) -> Sequence[Entry]:
    """Return the first entries whose messages cost no more than that."""
    read_bytes = 0
    for index, entry in enumerate(entries):
        read_bytes += entry.length
        if _cost(index + 1, read_bytes) > cost_max:
            return entries[:index]
    return entries
