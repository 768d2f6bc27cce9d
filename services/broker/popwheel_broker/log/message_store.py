"""The message store: one commit log, and the consume queues that lead into it.

The single writer of both. A record is *appended* when `put` returns (it survives the end of the process) and
*committed* when it is as durable as the flush mode promises; only then is it in its queue and can be read (S2: nobody
gets a message that a power loss could undo). The caller makes it durable (`log.flusher`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from popwheel_broker.log import record
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.consume_queue import ConsumeQueue, Entry, LiteQueue, packed_entry, unpacked_entries
from popwheel_broker.log.fold import Folds
from popwheel_broker.log.queue_index import IndexGaps, QueueIndex, out_of_order
from popwheel_broker.log.queues import QueueChanges, QueueName, Queues
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.log.refusals import disk_refusal
from popwheel_broker.log.stored_records import StoredRecords
from popwheel_broker.options import LogOptions
from popwheel_common.clock import Clock
from popwheel_common.cold_reads import ColdReads
from popwheel_common.contract import names
from popwheel_common.contract.put import MessageRun
from popwheel_common.disk import Disk
from popwheel_common.errors import StatusError

_Pending = tuple[int, ConsumeQueue, bytes | bytearray, Sequence[int]]
"""Records appended and not committed: the log's end behind them, their queue, their entries, their tag hashes."""

_REMADE_SHARE = 4
"""A range without an index file gets one when it has this part of the entries of the largest merged file."""
_RANGES_LOGGED = 10

_log = structlog.get_logger()


@dataclass(slots=True)
class Appended:
    """Places of a batch of appended records.

    Args:
        queue_offsets: one for each record or run.
        positions: of the records in the log; empty for runs.
        end_position: of the log, after the batch.
        store_time_ms: wall clock.
    """

    queue_offsets: Sequence[int]
    positions: Sequence[int]
    end_position: int
    store_time_ms: int


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Positions of the consume queues on the device.

    Args:
        position: of the commit log; every record before it is in the index files.
        synced_position: of the commit log; everything before it was on the device when this was taken.
        epoch: of the records that are written.
        queues: first offset ever and next offset of each queue.
        offsets_from: where queues begin that are made from then on (see `Queues.offsets_from`).
        remade: the index files that are there are not to be trusted, also after a crash: all are made again.
        reached: of the commit log; what stands from `position` up to here was not committed yet, and shows all the
            same: in topics that are gone, and in queues that are new. A log that is cut off before it has no use for
            this checkpoint.
    """

    position: int = 0
    synced_position: int = 0
    epoch: int = 1
    queues: dict[str, dict[int, tuple[int, int]]] | None = None
    offsets_from: int = 0
    remade: bool = False
    reached: int = 0


def _nobody(queues: Sequence[ConsumeQueue]) -> None:
    """Do nothing: no state depends on these queues."""


class MessageStore:
    """Appends, commits, reads and deletes records.

    Args:
        disk: where the files are.
        folder: `commitlog` and `queueindex` are folders in it.
        options: sizes and limits.
        clock: for store times.
        on_arrival: called with a queue and the tag hashes, in order, of messages that have become readable.
        log: the commit log; opened from its files if not given.
        on_dropped: called with the queues of a deleted topic.
        lite_topics_max: how many lite topics there may be.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        options: LogOptions,
        clock: Clock,
        on_arrival: Callable[[ConsumeQueue, Sequence[int]], None],
        log: CommitLog | None = None,
        on_dropped: Callable[[Sequence[ConsumeQueue]], None] = _nobody,
        lite_topics_max: int = 0,
    ) -> None:
        self._disk = disk
        self._options = options
        self._clock = clock
        self._on_arrival = on_arrival
        self._uncommitted: deque[_Pending] = deque()
        self._next_offsets: dict[ConsumeQueue, int] = {}
        self._unwritten: dict[ConsumeQueue, None] = {}
        self._checkpoint_position = self._covered = 0
        self.log = CommitLog(disk, folder / "commitlog", options.segment_bytes) if log is None else log
        self.records = StoredRecords(self.log)
        """Records in it, by entries and positions."""
        self.folds = Folds()
        """State that follows each record that `put` appends."""
        self.on_append: Callable[[], None] | None = None
        """Callback after each write, if set."""
        self._on_dropped = on_dropped
        self.ended: StatusError | None = None
        """Error for further puts, once another replica leads: a call may still be under way here."""
        self.index = QueueIndex(disk, folder / "queueindex", options.index_entries_max, options.queue_entries_in_memory)
        self._gaps = IndexGaps(self.index, [], 1)
        self.queues = Queues(options.queues_max, self._make_queue, lite_topics_max)
        self.epoch = 1
        self.high_watermark = 0
        self.latest_ms: int | None = None
        """Time when the latest record was stored; None as long as none was seen."""
        self._begins_with_gap = False

    @property
    def reads(self) -> ColdReads:
        """Runs what reads here without waiting for the device, while others are served."""
        return self._disk.reads

    def put(self, records: Sequence[Record]) -> Appended:
        """Append records in their order, in one write; then the state that follows them has changed.

        Raises:
            StatusError: the disk is full, the device refused, the limit of queues is reached, the log takes no more
                writes, or another replica leads now; nothing was appended.
        """
        now_ms = self.latest_ms = self._clock.wall_ms()
        position = self.log.end_position
        lengths: list[int] = []
        buffers: list[bytes] = []
        offsets: list[int] = []
        positions: list[int] = []
        pending: list[_Pending] = []
        gone: list[str] = []
        next_offsets: dict[ConsumeQueue, int] = {}
        for each in records:
            queue = self.ensure_queue((each.topic, each.queue_id))
            offset = self._next_offset(queue, next_offsets)
            length, parts = record.encode(each, position, self.epoch, now_ms, offset)
            lengths.append(length)
            buffers += parts
            next_offsets[queue] = offset + 1
            offsets.append(offset)
            positions.append(position)
            entry = packed_entry(position, length, each.tag_hash)
            position += length
            pending.append((position, queue, entry, (each.tag_hash,)))
            if each.kind == RecordKind.FORGET_TOPIC:
                gone.append(each.payload.decode())
        self._append(lengths, buffers, pending, next_offsets)
        if gone:
            self._forget_topics(gone)
        placed = zip(records, positions, lengths, offsets, strict=True)
        for each, at, length, offset in placed:
            self.folds.appended(each, at, length, self.epoch, now_ms, offset)
        return Appended(offsets, positions, position, now_ms)

    def put_runs(self, runs: Sequence[MessageRun]) -> Appended:
        """Append runs of messages in their order, in one write; the offsets are those of the first of each run.

        Raises:
            StatusError: as `put` does; nothing was appended.
        """
        now_ms = self.latest_ms = self._clock.wall_ms()
        position = self.log.end_position
        lengths: list[int] = []
        buffers: list[bytes] = []
        offsets: list[int] = []
        pending: list[_Pending] = []
        next_offsets: dict[ConsumeQueue, int] = {}
        for run in runs:
            queue = self.ensure_queue((run.stored_topic if run.lite_topic else run.topic, run.queue_id))
            offset = self._next_offset(queue, next_offsets)
            tag_hashes = [record.hash_tag(tag) if tag else 0 for tag in run.tags]
            run_lengths, run_buffers = record.encode_run(run, tag_hashes, position, self.epoch, now_ms, offset)
            entries = bytearray()
            for index, length in enumerate(run_lengths):
                entries += packed_entry(position, length, tag_hashes[index])
                position += length
            lengths += run_lengths
            buffers += run_buffers
            next_offsets[queue] = offset + len(run_lengths)
            offsets.append(offset)
            pending.append((position, queue, entries, tag_hashes))
        self._append(lengths, buffers, pending, next_offsets)
        return Appended(offsets, (), position, now_ms)

    def _next_offset(self, queue: ConsumeQueue, next_offsets: dict[ConsumeQueue, int]) -> int:
        """Return a queue's next offset, behind appended records and those of the batch that is being built."""
        offset = next_offsets.get(queue)
        return self._next_offsets.get(queue, queue.max_offset) if offset is None else offset

    def _append(
        self,
        lengths: Sequence[int],
        buffers: Sequence[bytes],
        pending: Sequence[_Pending],
        next_offsets: dict[ConsumeQueue, int],
    ) -> None:
        if self.ended is not None:
            raise self.ended
        try:
            self.log.append(lengths, buffers)
        except OSError as error:
            raise disk_refusal(error) from error
        assert not pending or pending[-1][0] == self.log.end_position, "the log ends elsewhere than its records do"
        self._next_offsets.update(next_offsets)
        self._uncommitted.extend(pending)
        if self.on_append is not None:
            self.on_append()

    def commit(self, position: int) -> None:
        """Make the records before `position` readable, in their order."""
        uncommitted = self._uncommitted
        reached = self.high_watermark
        while uncommitted and uncommitted[0][0] <= position:
            reached, queue, entries, tag_hashes = uncommitted.popleft()
            queue.extend(entries)
            self.queues.changed(queue)
            self._on_arrival(queue, tag_hashes)
        if not uncommitted:
            self._next_offsets.clear()
            reached = max(reached, position)
        # Else a run may go on behind `position`: it becomes readable as a whole, and a checkpoint must not part it.
        assert reached >= self.high_watermark, "the committed position falls (C4)"
        self.high_watermark = reached

    def uncommitted_entries(self, queue: ConsumeQueue) -> list[Entry]:
        """Return the entries of a queue that are appended and not committed yet, in their order."""
        return [
            entry for _, each, entries, _ in self._uncommitted if each is queue for entry in unpacked_entries(entries)
        ]

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of that name; None if nothing was ever put into it."""
        return self.queues.get(topic, queue_id)

    def take_queue_changes(self) -> QueueChanges:
        """Return the queues that are new, have grown or are gone since the last call, with their changes."""
        return self.queues.take_changes(self.high_watermark)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next record put into a queue will have."""
        queue = self.queues.get(topic, queue_id)
        return self.queues.offsets_from if queue is None else self._next_offsets.get(queue, queue.max_offset)

    def _forget_topics(self, topics: Iterable[str]) -> None:
        """Drop the queues of topics, after `FORGET_TOPIC` records said so. Offsets are not used again."""
        dropped: list[ConsumeQueue] = []
        for topic in topics:
            dropped += self.queues.drop(topic, lambda queue: self._next_offsets.get(queue, queue.max_offset))
        if dropped:
            self._on_dropped(dropped)

    def delete_before(self, position: int) -> int:
        """Delete the oldest segment if it ends at or before `position`, and what leads into it; 1 if it went."""
        removed = self.log.remove_before(position)
        if removed:
            self.index.forget_before(self.log.start_position)
        return removed

    def checkpoint(self) -> StoreCheckpoint:
        """Return the committed positions, but for the queues: what to save once `write_index` has returned."""
        self._unwritten = (
            {**self._unwritten, **self.queues.take_recent()} if self._unwritten else self.queues.take_recent()
        )
        assert self.high_watermark <= self.log.end_position, "more is committed than was appended"
        self._checkpoint_position = self.high_watermark
        return StoreCheckpoint(
            self.high_watermark,
            self.log.synced_position,
            self.epoch,
            offsets_from=self.queues.offsets_from,
            reached=self._uncommitted[-1][0] if self._uncommitted else self.high_watermark,
        )

    async def write_index(self) -> None:
        """Bring the entries that the last `checkpoint` covers to the device. Raises as `QueueIndex.write`."""
        await self.index.write(self._unwritten, self._checkpoint_position)
        self._unwritten = {}

    def begin(self, checkpoint: StoreCheckpoint) -> int:
        """Load what a checkpoint covers; from where on the records are to be taken up, which may be before it.

        Raises:
            UnknownFormatError: the files are of a newer release.
        """
        self.epoch = checkpoint.epoch
        self.queues.offsets_from = checkpoint.offsets_from
        for topic, queues in (checkpoint.queues or {}).items():
            for queue_id, (begin_offset, max_offset) in queues.items():
                self.queues.restore(topic, queue_id, begin_offset, max_offset)
        self.queues.take_changes(0)  # there is nothing new in these
        if checkpoint.remade:
            self.index.drop()
        self._covered = checkpoint.position
        gaps = self.index.load(self.log.start_position, checkpoint.position)
        if gaps:
            _log.warning("index files are made again from the commit log", ranges=gaps[:_RANGES_LOGGED], of=len(gaps))
        self._gaps = IndexGaps(self.index, gaps, max(1, self._options.index_entries_max // _REMADE_SHARE))
        self._begins_with_gap = checkpoint.position < self.log.start_position
        begin = checkpoint.position if self._gaps.begin is None else self._gaps.begin
        self.high_watermark = max(begin, self.log.start_position)
        return self.high_watermark

    def take_up(self, found: StoredRecord) -> None:
        """Put a record of the log into its queue, each in turn.

        Raises:
            CorruptDataError: its offset does not continue its queue.
        """
        queue = self.queues.get(found.topic, found.queue_id)
        if found.position < self._covered:
            self._gaps.take(found, queue)
            self.high_watermark = found.position + found.length
            return
        if queue is None:
            queue = self.queues.take_up(found.topic, found.queue_id)
            queue.begin_at(found.queue_offset)
        elif found.queue_offset > queue.max_offset and (queue.is_unused or self._is_in_gap(queue)):
            queue.begin_at(found.queue_offset)  # a put that failed has made it, or the log has lost its beginning
        # A checkpoint may have a topic that was deleted and made again before all of it was committed: then messages of
        # the former topic are still here, and the record of its deletion follows.
        if found.queue_offset >= queue.begin_offset:
            if found.queue_offset != queue.max_offset:
                raise out_of_order(found, queue.max_offset)
            queue.extend(packed_entry(found.position, found.length, found.tag_hash))
            self.queues.changed(queue)
        self.high_watermark = found.position + found.length
        self.latest_ms = found.store_time_ms
        if found.kind == RecordKind.FORGET_TOPIC:
            self._forget_topics((found.payload.decode(),))

    def pass_over(self, found: StoredRecord) -> None:
        """Continue behind a record that could not be folded; it remains readable in its queue."""
        queue = self.queues.get(found.topic, found.queue_id)
        if queue is None:
            queue = self.queues.take_up(found.topic, found.queue_id)
            queue.begin_at(found.queue_offset)
        if queue.max_offset == found.queue_offset:
            queue.extend(packed_entry(found.position, found.length, found.tag_hash))
            self.queues.changed(queue)
        self.high_watermark = found.position + found.length

    def _is_in_gap(self, queue: ConsumeQueue) -> bool:
        """Return whether a retention that was ahead of the checkpoint may have deleted the next records of a queue."""
        return self._begins_with_gap and queue.min_offset == queue.max_offset

    def finish(self) -> None:
        """Move the high watermark to the end of the log, when all its records are folded."""
        self.high_watermark = self.log.end_position

    def ensure_queue(self, name: QueueName) -> ConsumeQueue:
        """Return the queue of that name, made empty if there is none.

        Raises:
            StatusError: the limit of queues is reached, or no record can hold the name.
        """
        return self.queues.ensure(*name)

    def _make_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        kind = LiteQueue if names.kind_of(topic) is names.Kind.LITE and not queue_id else ConsumeQueue
        return kind(self.index, topic, queue_id)

    def close(self) -> None:
        """Close the log; nothing is written or synced."""
        self.log.close()
