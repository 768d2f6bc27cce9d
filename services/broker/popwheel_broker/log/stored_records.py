"""The records that entries of queues, or positions, lead to: read from the commit log, and checked."""

from collections.abc import Sequence

from popwheel_broker.log import record
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.consume_queue import ConsumeQueue, Entry
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.log.record_block import Places, Sought, Spans, are_sound, stretches
from popwheel_common.cold_reads import NotInMemory, Range
from popwheel_common.errors import CorruptDataError

_READ_GAP_BYTES = 16 * 1024
"""Longest gap between two records that is read with them, in bytes: that costs less than another read."""


class StoredRecords:
    """Reader of records. It raises `NotInMemory` for what is not in memory, for `ColdReads.run`.

    Args:
        log: where they are.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def read(self, entry: Entry) -> StoredRecord:
        """Return the record of an entry.

        Raises:
            CorruptDataError: it is damaged (S7).
            ValueError: the log does not contain it any more.
        """
        try:
            return record.decode(self._log.read(entry.position, entry.length), 0, entry.position)
        except CorruptDataError:
            self._log.record_damage(entry.position)
            raise

    def read_many(self, entries: Sequence[Entry]) -> list[StoredRecord]:
        """Return the records of entries; adjacent ones are read at once. Raises as `read` does."""
        found: list[StoredRecord] = []
        missing: list[Range] = []
        for run in _runs(entries):
            start = run[0].position
            span = run[-1].position + run[-1].length - start
            try:
                data = self._log.read(start, span)
            except NotInMemory as cold:
                missing += cold.ranges  # all that are missing are fetched at once
                continue
            if len(data) == span:
                try:
                    found += [record.decode(data, entry.position - start, entry.position) for entry in run]
                except CorruptDataError:
                    for entry in run:
                        self.read(entry)  # says which it is
                    raise
            else:  # a segment ends on the way
                found += [self.read(entry) for entry in run]
        if missing:
            raise NotInMemory(missing)
        return found

    def read_checked(self, queue: ConsumeQueue, offsets: Sequence[int], entries: Sequence[Entry]) -> list[StoredRecord]:
        """Return the records of entries of a queue, each checked: a damaged entry may lead elsewhere.

        Args:
            queue: whose entries they are.
            offsets: of each entry.
            entries: as they were read, of messages that are in the log.

        Raises:
            CorruptDataError: a record, or an entry, is damaged (S7).
        """
        try:
            records = self.read_many(entries)
        except ValueError as error:
            raise CorruptDataError(
                f"an entry of consume queue {queue.topic}/{queue.queue_id} leads out of the log: {error}"
            ) from error
        assert len(offsets) == len(records), "not every entry has its offset"
        for index, found in enumerate(records):
            check_place(queue, offsets[index], found)
        return records

    def read_block(self, queue: ConsumeQueue, places: Places) -> list[bytes]:
        """The records of messages of a queue as they are in the log, one after another, each checked as `read_checked`
        does. Raises as that does.
        """
        try:
            read = places.spans(_READ_GAP_BYTES)
            data = self._read_spans(read)
            if len(data) != read.bytes:  # a segment ends within one of them
                read = places.spans(-1)
                data = self._read_spans(read)
            if are_sound(data, read.begins, places, queue):
                return stretches(data, read.begins, places.lengths)
        except ValueError:
            pass  # an entry leads out of the log
        self.read_checked(queue, places.offsets.tolist(), places.entries())  # says which it is, and what is wrong
        raise CorruptDataError(f"an entry of consume queue {queue.topic}/{queue.queue_id} says a wrong length")

    def read_sought(self, queue: ConsumeQueue, places: Places, sought: Sought, found_max: int) -> list[StoredRecord]:
        """Return some records of messages of a queue; others are checked and not decoded. Raises as `read_checked`.

        Args:
            queue: whose records they are.
            places: where they stand; at least one.
            sought: which.
            found_max: limit of the records; the first are returned.
        """
        data = b"".join(self.read_block(queue, places))
        return [record.decode(data, begin, position) for begin, position in sought.of(data, places)[:found_max]]

    def _read_spans(self, spans: Spans) -> bytes:
        found: list[bytes] = []
        missing: list[Range] = []
        for position, length in zip(spans.positions, spans.lengths, strict=True):
            try:
                found.append(self._log.read(position, length))
            except NotInMemory as cold:
                missing += cold.ranges  # all that are missing are fetched at once
        if missing:
            raise NotInMemory(missing)
        return b"".join(found)

    def position_of(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return where the record of an offset stands in the log; None if there is none. Raises as `read_checked`."""
        entries = queue.read(offset, 1)
        return self.read_checked(queue, (offset,), entries)[0].position if entries else None

    def offset_at(self, queue: ConsumeQueue, timestamp_ms: int) -> int:
        """Offset of the first record that was stored at or after a time; the queue's end if there is none. Raises as
        `read_checked`.
        """
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.read_checked(queue, (middle,), queue.read(middle, 1))[0].store_time_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def first_store_time_ms(self, position: int) -> int | None:
        """Return when the record that begins at `position` was stored; None if it is damaged."""
        try:
            return self.record_at(position).store_time_ms
        except CorruptDataError:
            self._log.record_damage(position)
            return None

    def record_at(self, position: int) -> StoredRecord:
        """Return the record that begins at `position`, which is in the log.

        Raises:
            CorruptDataError: none does, or it is damaged; the caller knows which, and records damage.
        """
        length = record.length_at(self._log.read(position, record.HEADER_BYTES), 0)
        if length > record.RECORD_BYTES_MAX:
            raise CorruptDataError(f"the record at {position} cannot be as long as it says")
        return record.decode(self._log.read(position, length), 0, position)

    def stored_at_ms(self, position: int) -> int | None:
        """Return when the record at `position` was stored, by its header alone; None if none is there (any more)."""
        if not self._log.start_position <= position < self._log.end_position:
            return None
        return record.stored_ms_of(self._log.read(position, record.HEADER_BYTES))


def _runs(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries parted where their records stand too far from one another to be read at once."""
    runs: list[list[Entry]] = []
    run: list[Entry] = []
    end = -1
    for entry in entries:
        position, length, _ = entry
        if not run or not 0 <= position - end <= _READ_GAP_BYTES:
            run = []
            runs.append(run)
        run.append(entry)
        end = position + length
    return runs


def check_place(queue: ConsumeQueue, offset: int, stored: StoredRecord) -> None:
    """Find out whether an entry of a queue led to the record of another place, as one does that is of another log.

    Raises:
        CorruptDataError: it did.
    """
    if stored.queue_offset != offset or stored.queue_id != queue.queue_id or stored.topic != queue.topic:
        raise CorruptDataError(
            f"entry {offset} of consume queue {queue.topic}/{queue.queue_id} leads to the record at {stored.position}, "
            f"which is {stored.topic}/{stored.queue_id} offset {stored.queue_offset}; remove the index files "
            "(queueindex) and start again, they are made anew from the commit log"
        )
