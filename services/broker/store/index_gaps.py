"""Ranges of the commit log that no index file covers, though a checkpoint does: they are made again from the log."""

from services.broker.store.consume_queue import ENTRY_BYTES, ConsumeQueue, packed_entry
from services.broker.store.index_file import Run, key_of
from services.broker.store.queue_index import Gap, QueueIndex
from services.broker.store.record import StoredRecord
from services.common.errors import CorruptDataError


class IndexGaps:
    """Takes the log's records in their order, and writes a file for each range, or more than one.

    Args:
        index: the files.
        gaps: what is missing, in order.
        entries_at_once: how many entries are held in memory at the most.
    """

    def __init__(self, index: QueueIndex, gaps: list[Gap], entries_at_once: int) -> None:
        self._index = index
        self._gaps = gaps
        self._entries_at_once = entries_at_once
        self._runs: dict[ConsumeQueue, tuple[int, bytearray]] = {}
        self._count = 0
        self._begin = self.begin

    @property
    def begin(self) -> int | None:
        """Where the first one begins; None if nothing is missing."""
        return self._gaps[0][0] if self._gaps else None

    def take(self, found: StoredRecord, queue: ConsumeQueue | None) -> None:
        """Take a record.

        Args:
            found: the record.
            queue: which has its topic and number by the checkpoint, if one has. If it began later, the record is of a
                topic that was deleted and had the same name.

        Raises:
            CorruptDataError: it does not go on with its queue.
            OSError: the device refused.
        """
        if self._begin is None or found.position < self._begin:
            return
        if queue is not None and found.queue_offset >= queue.begin_offset:
            first, entries = self._runs.setdefault(queue, (found.queue_offset, bytearray()))
            following = first + len(entries) // ENTRY_BYTES
            if found.queue_offset != following or following >= queue.max_offset:
                raise goes_not_on(found, min(following, queue.max_offset))
            entries += packed_entry(found.position, found.length, found.tag_hash)
            self._count += 1
        end = found.position + found.length
        is_whole = end >= self._gaps[0][1]
        if is_whole or self._count >= self._entries_at_once:
            runs = self._runs.items()
            self._index.add(
                self._begin,
                end,
                [Run(key_of(queue.topic, queue.queue_id), first, entries) for queue, (first, entries) in runs],
            )
            self._runs = {}
            self._count = 0
            if is_whole:
                self._gaps.pop(0)
            self._begin = self.begin if is_whole else end


def goes_not_on(found: StoredRecord, following: int) -> CorruptDataError:
    """What is said of a record that does not go on with its queue."""
    return CorruptDataError(
        f"the record at {found.position} has offset {found.queue_offset} of queue {found.topic}/{found.queue_id}, "
        f"which goes on with {following}; restore the data from a replica or a backup"
    )
