"""Index of all queues on the device: files with entries that each cover a range of the commit log.

A checkpoint writes one file with the entries since the last one. Small neighbours are merged, so there are few
and each entry is written again only a few times. Retention removes the files whose range is gone, and looks at no queue
for that. The files follow from the log (S6): a range that has none is made again from there.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from heapq import merge
from itertools import chain, pairwise
from pathlib import Path

import structlog

from popwheel_broker.log.consume_queue import (
    ConsumeQueue,
    Entry,
    EntryFiles,
    packed_entry,
    unpacked_entries,
)
from popwheel_broker.log.index_file import ENTRY_BYTES, NEW_SUFFIX, SUFFIX, IndexFile, NewIndexFile, Row, Run, key_of
from popwheel_broker.log.record import StoredRecord
from popwheel_common.disk import Disk, to_its_end
from popwheel_common.errors import CorruptDataError

_QUEUES_AT_ONCE = 512
_BUCKETS = 256
_SIZE_RATIO = 2
_log = structlog.get_logger()

Gap = tuple[int, int]
"""A range of the commit log that no file covers."""


class QueueIndex(EntryFiles):
    """The files.

    Args:
        disk: where they are.
        folder: their folder; it is made if need be.
        entries_max: files that would hold more together are not merged.
        entries_in_memory: how many entries of a queue stay in memory though a file has them.
    """

    def __init__(self, disk: Disk, folder: Path, entries_max: int, entries_in_memory: int) -> None:
        self._disk = disk
        self._folder = folder
        self._entries_max = entries_max
        self._entries_in_memory = entries_in_memory
        disk.make_folder(folder)
        self.files: list[IndexFile] = []
        """Oldest first; none overlaps another."""
        self.end = 0
        """Position of the commit log before which all is in the files."""
        self.log_start = 0
        self._warm: Mapping[ConsumeQueue, None] = {}
        self._is_pinned = False
        """True while no file may be removed: one is read, or has no final name yet."""
        self.failed: OSError | None = None
        """Error of the device: what it has of a file that could not be synced is unknown, whatever a later sync says.

        The next process makes it again from the log.
        """

    # What is there

    def load(self, log_start: int, end: int) -> list[Gap]:
        """Take up the files for a range of the commit log, and remove all others.

        Returns:
            What of the range is to be made again.

        Raises:
            UnknownFormatError: a file was written by a newer release.
        """
        self.log_start, self.end = log_start, end
        self.files = []
        gaps: list[Gap] = []
        at = log_start
        for path in self._paths():
            begin, upto = _range_of(path)
            overlaps = bool(self.files) and begin < self.files[-1].end  # it was merged into the one before
            is_wanted = log_start < upto <= end and not overlaps
            found = IndexFile.load(self._disk, path) if is_wanted else None
            if found is None:
                self._disk.remove(path)
                continue
            if begin > at:
                gaps.append((at, begin))
            self.files.append(found)
            at = upto
        if at < end:
            gaps.append((at, end))
        return gaps

    def drop(self) -> None:
        """Remove all files, as they are of another log or not to be trusted."""
        for path in self._paths():
            self._disk.remove(path)
        self.files = []

    def _paths(self) -> list[Path]:
        """Return the paths of whole files, in the order of their ranges, the longer first; the others are removed."""
        paths = [self._folder / name for name in self._disk.list(self._folder)]
        for path in paths:
            if path.suffix == NEW_SUFFIX:
                self._disk.remove(path)
        whole = [path for path in paths if path.suffix == SUFFIX]
        return sorted(whole, key=lambda path: (_range_of(path)[0], -_range_of(path)[1]))

    # What queues read

    def read(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        parts: list[bytes] = []
        key = key_of(queue.topic, queue.queue_id)
        while count > 0:
            file, row = self._spot(queue, key, offset)
            part = min(count, row.first + row.size - offset)
            assert part > 0, "a file has no entry of its row"
            parts.append(file.read(row.place + offset - row.first, part))
            offset += part
            count -= part
        return b"".join(parts)

    def _spot(self, queue: ConsumeQueue, key: bytes, offset: int) -> tuple[IndexFile, Row]:
        """Return the file that has an entry, and its row.

        Offsets grow from file to file, so the files are halved: each look may have to wait for the device.
        """
        files, spot = self.files, queue.spot
        low, high = 0, len(files)
        guess = high - 1
        if spot is not None and spot[1].first <= offset and spot[0] in files[(at := self._place(spot[0])) : at + 1]:
            if offset < spot[1].first + spot[1].size:
                return spot
            guess = low = at + 1  # who reads on finds it in the next one, mostly
        while low < high:
            at = guess
            while (row := files[at].find(key)) is None and at + 1 < high:
                at += 1
            if row is None or offset < row.first:
                high = guess
            elif offset >= row.first + row.size:
                low = at + 1
            else:
                spot = queue.spot = (files[at], row)
                return spot
            guess = (low + high) // 2
        raise CorruptDataError(
            f"no index file has entry {offset} of queue {queue.topic}/{queue.queue_id}; remove them all "
            f"({self._folder.name}) and start again, they are made anew from the commit log"
        )

    def first_at_or_after(self, queue: ConsumeQueue, position: int) -> tuple[int, int] | None:
        key = key_of(queue.topic, queue.queue_id)
        at = max(position, self.log_start)
        for file in self.files:
            if file.end <= at:
                continue
            if file.begin > at:
                break
            at = file.end
            row = file.find(key)
            if row is None:
                continue
            low, end = max(row.first, queue.begin_offset), row.first + row.size
            high = end
            while low < high:
                middle = (low + high) // 2
                if self._entry(file, row, middle).position < position:
                    low = middle + 1
                else:
                    high = middle
            if low < end:
                return low, self._entry(file, row, low).position
        if at < self.end:
            raise CorruptDataError(f"no index file has the commit log from {at} on, or it is not made again yet")
        return None

    def _entry(self, file: IndexFile, row: Row, offset: int) -> Entry:
        return unpacked_entries(file.read(row.place + offset - row.first, 1))[0]

    # What changes it

    def add(self, begin: int, end: int, runs: Iterable[Run]) -> None:
        """Write a file for a range that was made again, at once; it is to be synced by the next `write`."""
        new = NewIndexFile(self._disk, self._folder, begin, end, sorted(runs))
        for _ in new.steps():
            pass
        self._take(new.made)

    def _take(self, made: IndexFile) -> None:
        at = self._place(made)
        self.files.insert(at, made)
        beside = self.files[max(0, at - 1) : at + 2]
        assert all(one.end <= next_one.begin for one, next_one in pairwise(beside)), "index files overlap"

    def _place(self, file: IndexFile) -> int:
        """Return the place of a file among the others, present or not."""
        return bisect_left(self.files, file.begin, key=_begin)

    async def write(self, queues: Mapping[ConsumeQueue, None], end: int) -> None:
        """Bring what stands in the commit log before `end` to the device; to be done to its end (`to_its_end`).

        Args:
            queues: all that have entries which are in no file.
            end: of the range; where a record begins.

        Raises:
            OSError: the device refused; unless it has `failed`, it may be tried again, with the same queues.
        """
        if self.failed is not None:
            raise self.failed
        if end > self.end:
            buckets: list[list[tuple[bytes, ConsumeQueue]]] = [[] for _ in range(_BUCKETS)]
            for number, queue in enumerate(queues):
                key = key_of(queue.topic, queue.queue_id)
                buckets[key[0]].append((key, queue))
                if number % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
                    await asyncio.sleep(0)
            self._take(await self._made(self.end, end, _runs(buckets, self.end, end)))
        self._is_pinned = True
        try:
            await self._name([file for file in self.files if file.path.suffix == NEW_SUFFIX])
        finally:
            self._is_pinned = False
        self.forget_before(self.log_start)
        self.end = end
        await self._trim(queues)

    async def _made(self, begin: int, end: int, runs: Iterator[Run]) -> IndexFile:
        new = NewIndexFile(self._disk, self._folder, begin, end, runs)
        try:
            for _ in new.steps():
                await asyncio.sleep(0)
        except (OSError, CorruptDataError):
            self._disk.remove(new.made.path)  # the next try is of another range: what is left of each would pile up
            raise
        return new.made

    async def _name(self, files: list[IndexFile]) -> None:
        """Bring files to the device, and give them their names then."""
        try:
            for each in files:
                file = self._disk.open(each.path)
                try:
                    await file.sync()
                finally:
                    file.close()
            for each in files:
                path = each.path.with_suffix("")
                self._disk.replace(each.path, path)
                each.path = path
            if files:
                await self._disk.sync_folder(self._folder)
        except OSError as error:
            self.failed = error
            raise

    async def _trim(self, queues: Mapping[ConsumeQueue, None]) -> None:
        """Drop from memory what the files have: some stays of a queue that has grown lately, nothing of others."""
        for number, queue in enumerate(chain(queues, self._warm)):
            queue.trim(self.end, self._entries_in_memory if queue in queues else 0)
            if number % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
        self._warm = queues

    def forget_before(self, log_start: int) -> None:
        """Remove files before the position where the commit log begins now."""
        assert log_start >= self.log_start, "the commit log begins before its beginning"
        self.log_start = log_start
        if not self._is_pinned:
            while self.files and self.files[0].end <= log_start:
                self._disk.remove(self.files.pop(0).path)

    async def merge(self, end: int) -> None:
        """Merge the newest files as long as they are small beside their neighbour.

        Args:
            end: of the commit log; the checkpoint on the device is of it: a start with an older one would have to make
                again what has become one with later entries.

        Raises:
            OSError: the device refused; nothing has changed.
        """
        files = self._mergeable(end)
        if len(files) < 2:
            return
        self._is_pinned = True
        try:
            for file in files:
                for part in range(file.parts):
                    await self._disk.reads.run(partial(file.read_part, part))  # what is merged is in memory then
            made = await self._made(files[0].begin, files[-1].end, _merged(files))
            await to_its_end(self._replace(files, made))
        except CorruptDataError as error:
            _log.error("index files cannot be merged", why=str(error))
        finally:
            self._is_pinned = False
        self.forget_before(self.log_start)

    def _mergeable(self, end: int) -> list[IndexFile]:
        found: list[IndexFile] = []
        entries = 0
        for file in reversed(self.files):
            if file.end > end:
                continue
            total = entries + file.entries
            if file.is_damaged or (found and (file.entries > _SIZE_RATIO * entries or total > self._entries_max)):
                break
            found.insert(0, file)
            entries = total
        return found

    async def _replace(self, files: list[IndexFile], made: IndexFile) -> None:
        await self._name([made])
        self.files = [file for file in self.files if file not in files]
        self._take(made)
        for file in files:
            self._disk.remove(file.path)


def _begin(file: IndexFile) -> int:
    return file.begin


def _runs(buckets: list[list[tuple[bytes, ConsumeQueue]]], begin: int, end: int) -> Iterator[Run]:
    """Yield the entries of queues for a range of the commit log, sorted."""
    for bucket in filter(None, buckets):
        runs: list[Run] = []
        for key, queue in bucket:
            first, entries = queue.between(begin, end)
            if entries:
                runs.append(Run(key, first, entries))
        runs.sort()
        yield from runs


def _merged(files: list[IndexFile]) -> Iterator[Run]:
    def aged(age: int, file: IndexFile) -> Iterator[tuple[bytes, int, Run]]:
        for run in file.runs():
            yield run.key, age, run

    for _, _, run in merge(*(aged(age, file) for age, file in enumerate(files))):
        yield run


def _range_of(path: Path) -> Gap:
    begin, _, end = path.name.removesuffix(SUFFIX).partition("-")
    return int(begin), int(end)


class IndexGaps:
    """Ranges of the log that no index file covers, though a checkpoint does: they are made again from the log.

    It takes the log's records in their order, and writes a file for each range, or more than one.

    Args:
        index: the files.
        gaps: what is missing, in order.
        entries_at_once: how many entries may be in memory.
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
        """Position where the first one begins; None if nothing is missing."""
        return self._gaps[0][0] if self._gaps else None

    def take(self, found: StoredRecord, queue: ConsumeQueue | None) -> None:
        """Take a record.

        Args:
            found: the record.
            queue: which has its topic and number by the checkpoint, if one has. If it began later, the record is of a
                topic that was deleted and had the same name.

        Raises:
            CorruptDataError: its offset does not continue its queue.
            OSError: the device refused.
        """
        if self._begin is None or found.position < self._begin:
            return
        if queue is not None and found.queue_offset >= queue.begin_offset:
            first, entries = self._runs.setdefault(queue, (found.queue_offset, bytearray()))
            following = first + len(entries) // ENTRY_BYTES
            if found.queue_offset != following or following >= queue.max_offset:
                raise out_of_order(found, min(following, queue.max_offset))
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


def out_of_order(found: StoredRecord, following: int) -> CorruptDataError:
    """Return the error for a record that is not the next of its queue."""
    return CorruptDataError(
        f"the record at {found.position} has offset {found.queue_offset} of queue {found.topic}/{found.queue_id}, "
        f"which goes on with {following}; restore the data from a replica or a backup"
    )
