"""The commit log: append-only segment files, each named by the position of its first byte.

Positions run on from one segment to the next. No record spans two segments. A segment may have zeros behind its last
record (`CommitLog._fill_ahead`).
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import structlog

from popwheel_broker.log import record
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.log.refusals import WriterStoppedError
from popwheel_common.disk import Disk, File, to_its_end
from popwheel_common.errors import CorruptDataError

_log = structlog.get_logger()

_SCAN_BYTES: Final = 4 * 1024 * 1024
_SUFFIX: Final = ".log"
_DAMAGED_MAX: Final = 1024
_QUICK_BYTES_MAX: Final = 256 * 1024
"""Limit of bytes that the event loop syncs to the device itself."""
_LONE_BYTES_MAX: Final = 16 * 1024
"""Limit of bytes of a sync that few callers wait for."""
_FILLED_BYTES: Final = 256 * 1024
"""Zeros that are written ahead of such callers' records at one time."""
_SYNC_FAILED: Final = "sync-failed"
"""A file of this name says that a sync has failed: the system shows bytes as written that the device may not have, and
no later sync would bring them there (the pages count as clean). It need not be synced itself: it has to outlast the
process, and a power loss that takes it takes those bytes, too."""
_SYNCS_WORK: Final = "syncs-work"
"""Its name before, beside the folder: to rename a file takes no space, and no file more that is open."""


class CommitLog:
    """Writes, reads and cuts the log's segments.

    Args:
        disk: where they are.
        folder: their folder; it is made if need be.
        segment_bytes: a segment takes no further record that would make it larger than this.
    """

    def __init__(self, disk: Disk, folder: Path, segment_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        disk.make_folder(folder)
        self._starts: list[int] = []
        self._files: list[File] = []
        for name in disk.list(folder):
            if name.endswith(_SUFFIX):
                self._starts.append(int(name.removesuffix(_SUFFIX)))
                self._files.append(disk.open(folder / name))
        self._dirty: list[File] = []
        self._syncing = asyncio.Lock()
        """Lock of a sync: what another has begun to sync is not on the device yet."""
        self._on_the_way: Sequence[File] = ()
        """Files that are synced at this moment, so that they must not be closed."""
        self._names_changed = False
        self._removal_unsynced = False
        self._says_failed, self._says_works = folder / _SYNC_FAILED, folder.parent / _SYNCS_WORK
        self._sync_failed = disk.exists(self._says_failed)
        if not self._sync_failed and not disk.exists(self._says_works):
            disk.open(self._says_works).close()
        self.damaged: set[int] = set()
        """Positions of damaged records, to be repaired."""
        self.fills_ahead = False
        """True for a log whose appends wait for syncs (`_fill_ahead`)."""
        self.stopped: str | None = None
        self._filled_position = self._starts[-1] + self._files[-1].size() if self._files else 0
        """Position before which the log is not filled ahead again; after a start, where the last file ends."""
        self.end_position = self._find_end()
        self.synced_position = self.start_position

    @property
    def start_position(self) -> int:
        """Position of the oldest byte that is still stored."""
        return self._starts[0] if self._starts else 0

    @property
    def needs_sync(self) -> bool:
        """True if a power loss could still take something away, or bring a removed segment back."""
        return self.synced_position < self.end_position or self._names_changed

    @property
    def segment_count(self) -> int:
        """Number of segment files."""
        return len(self._starts)

    def segments(self) -> list[tuple[int, int]]:
        """Start and end position of each segment, oldest first."""
        return list(pairwise([*self._starts, self.end_position]))

    def append(self, lengths: Sequence[int], buffers: Sequence[bytes]) -> None:
        """Write encoded records at the end.

        Args:
            lengths: of each record, in bytes.
            buffers: two for each record, its bytes.

        Raises:
            OSError: nothing was appended; the write was rolled back.
            WriterStoppedError: no more may be appended, since this call (then its outcome is unknown) or an earlier
                one, because a write could not be rolled back or synced.
        """
        if self.stopped is not None:
            raise WriterStoppedError(self.stopped)
        position = start = self.end_position
        written = 0
        try:
            for index, length in enumerate(lengths):
                if not self._files or position - self._starts[-1] + length > self._segment_bytes:
                    self._write(start, buffers[2 * written : 2 * index])
                    written, start = index, position
                    if not self._files or position != self._starts[-1]:
                        self._add_segment(position)
                position += length
            self._write(start, buffers[2 * written :])
        except OSError:
            self._roll_back()
            raise
        self.end_position = position

    def append_raw(self, lengths: Sequence[int], data: bytes) -> None:
        """Write records at the end that another replica has encoded.

        Args:
            lengths: of each record, in bytes.
            data: the records, one after another.

        Raises:
            OSError, WriterStoppedError: as `append` does; nothing was appended.
        """
        if self.stopped is not None:
            raise WriterStoppedError(self.stopped)
        position = start = self.end_position
        base = start
        try:
            for length in lengths:
                if not self._files or position - self._starts[-1] + length > self._segment_bytes:
                    self._write_one(start, data, start - base, position - base)
                    start = position
                    if not self._files or position != self._starts[-1]:
                        self._add_segment(position)
                position += length
            self._write_one(start, data, start - base, position - base)
        except OSError:
            self._roll_back()
            raise
        self.end_position = position

    def _write_one(self, position: int, data: bytes, begin: int, end: int) -> None:
        if begin < end:
            self._write(position, [data if end - begin == len(data) else data[begin:end]])

    async def mend(self, position: int, data: bytes) -> None:
        """Write in place of damaged bytes, or of what a segment has lost at its end, and bring that to the device.

        Raises:
            ValueError: the log does not contain the position.
            OSError: the device refused. After a failed sync, see `sync`: the segment may have lost other bytes besides
                the mended ones, and no later sync would report it.
        """
        index = bisect_right(self._starts, position) - 1
        ends = [*self._starts[1:], self.end_position]
        if index < 0 or position + len(data) > ends[index]:
            raise ValueError(f"{len(data)} bytes at {position} do not lie within one segment of the commit log")
        file = self._files[index]
        file.write(position - self._starts[index], [data])
        await to_its_end(self._sync_mended(file))

    async def _sync_mended(self, file: File) -> None:
        async with self._syncing:
            if file in self._files:  # else it was deleted or cut off since
                await self._sync_files([file], names=False)

    @property
    def at_rest(self) -> asyncio.Lock:
        """Lock for a cut or a reset of the log by others: nothing is synced meanwhile.

        A sync would close a file under the device, and count the records in place of the old ones as synced.
        """
        return self._syncing

    def reset(self, position: int) -> None:
        """Drop all, and continue at `position`, while the log is `at_rest`; durable after the next `sync`."""
        for start, file in zip(reversed(self._starts), reversed(self._files), strict=True):
            file.close()
            self._disk.remove(self._folder / f"{start:020d}{_SUFFIX}")
        self._starts, self._files, self._dirty = [], [], []
        self._filled_position = 0
        self._add_segment(position)
        self._removal_unsynced = False
        self.end_position = self.synced_position = position

    def stop_writing(self, reason: str) -> None:
        """Refuse all further writes."""
        self.stopped = reason

    def _write(self, position: int, buffers: Sequence[bytes]) -> None:
        if buffers:
            file = self._files[-1]
            if file not in self._dirty:
                self._dirty.append(file)
            file.write(position - self._starts[-1], buffers)

    def _fill_ahead(self, synced_bytes: int) -> None:
        """Write zeros behind the end if the last sync brought little to the device.

        A sync that makes a file longer writes its length, too, which takes a device about as long as the records. Many
        callers share that, few do not. The next sync brings the zeros to the device.

        Args:
            synced_bytes: what the last sync brought.
        """
        is_filled = self.end_position < self._filled_position
        if not self.fills_ahead or is_filled or not 0 < synced_bytes <= _LONE_BYTES_MAX:
            return
        offset = self.end_position - self._starts[-1]
        room = min(_FILLED_BYTES, self._segment_bytes - offset)
        if room > 0:
            try:
                self._write(self.end_position, [bytes(room)])
            except OSError as error:  # zeros behind the end do no harm, and the next append meets the error itself
                _log.warning("the commit log could not be filled ahead, syncs take longer", error=str(error))
            self._filled_position = self.end_position + room

    def _find_end(self) -> int:
        """Return where the last record ends that its segment has before zeros; where the file ends, if there are none
        or a record before them is damaged.
        """
        if not self._files:
            return 0
        start, file = self._starts[-1], self._files[-1]
        size = file.size()
        offset = 0 if file.read(max(0, size - 1), 1) == b"\0" else size
        data, begin = b"", 0
        while offset < size:
            if offset + record.HEADER_BYTES > begin + len(data):
                data, begin = file.read(offset, _SCAN_BYTES), offset
            length = record.length_at(data, offset - begin)
            if length == 0:
                parts = range(offset, size, _SCAN_BYTES)
                return start + (size if any(file.read(each, _SCAN_BYTES).strip(b"\0") for each in parts) else offset)
            if length < record.HEADER_BYTES:
                return start + size
            offset += length
        return start + size

    def _add_segment(self, position: int) -> None:
        self._files.append(self._disk.open(self._folder / f"{position:020d}{_SUFFIX}"))
        self._starts.append(position)
        self._names_changed = True

    def _roll_back(self) -> None:
        """Cut off the rest of a failed append, lest recovery take it for records (S2: a failure stays failed)."""
        try:
            self.cut(self.end_position)
        except OSError as error:
            self.stop_writing(f"a failed write could not be rolled back: {error}")
            raise WriterStoppedError(
                f"a failed write could not be rolled back: {error}", outcome_unknown=True
            ) from error

    def cut(self, position: int) -> None:
        """Drop everything from `position` on, while the log is `at_rest`."""
        while len(self._starts) > 1 and self._starts[-1] >= position:
            start, file = self._starts.pop(), self._files.pop()
            if file in self._dirty:
                self._dirty.remove(file)
            file.close()
            self._disk.remove(self._folder / f"{start:020d}{_SUFFIX}")
            self._names_changed = True
        if self._files:
            self._files[-1].truncate(max(0, position - self._starts[-1]))
            self._filled_position = 0
            if self._files[-1] not in self._dirty:
                self._dirty.append(self._files[-1])
        self.end_position = position
        self.synced_position = min(self.synced_position, position)

    async def sync(self) -> None:
        """Sync everything written so far to the device, and move `synced_position` there.

        Once begun it runs to its end, whoever waits: the system reports an error once, and a later sync would succeed.

        Raises:
            OSError: the device refused, now or before. What was written since the last sync may be lost whatever a
                later sync says, so nothing more may be written to this log (`stop_writing`), and none is tried.
        """
        await to_its_end(self._sync())

    def sync_quickly(self) -> bool:
        """Sync by a plain call if the device is quick, no other sync runs, and there is little to sync.

        Return whether it was done.

        Raises:
            OSError: as of `sync`.
        """
        if (
            self._syncing.locked()
            or self.stopped is not None
            or self._names_changed
            or self._sync_failed
            or len(self._dirty) != 1
            or self.end_position - self.synced_position > _QUICK_BYTES_MAX
        ):
            return False
        try:
            if not self._dirty[0].sync_quickly():
                return False
        except OSError as error:
            self._refused(error)
            raise
        self._dirty = []
        synced_bytes = self.end_position - self.synced_position
        self.synced_position = max(self.synced_position, self.end_position)
        self._fill_ahead(synced_bytes)
        return True

    async def _sync(self) -> None:
        async with self._syncing:
            target = self.end_position
            dirty, self._dirty = self._dirty, []
            names_changed, self._names_changed = self._names_changed, False
            done = False
            try:
                await self._sync_files(dirty, names_changed)
                done = True
            finally:
                if not done:
                    self._dirty += [file for file in dirty if file not in self._dirty]
                    self._names_changed |= names_changed
            self._removal_unsynced &= self._names_changed
            synced_bytes = target - self.synced_position
            self.synced_position = max(self.synced_position, target)
            if self._sync_failed:
                self._sync_failed = False
                self._disk.replace(self._says_failed, self._says_works)
            self._fill_ahead(synced_bytes)

    async def _sync_files(self, files: Sequence[File], names: bool) -> None:
        """Sync some files, and the names of all if need be. An error ends the writing."""
        if self.stopped is not None:
            raise OSError(self.stopped)
        self._on_the_way = files
        try:
            for file in files:
                await file.sync()
            if names:
                await self._disk.sync_folder(self._folder)
        except OSError as error:
            self._refused(error)
            raise
        finally:
            self._on_the_way = ()

    def _refused(self, error: OSError) -> None:
        """Stop writing after a failed sync."""
        self.stop_writing(f"the commit log could not be synced: {error}")
        if not self._sync_failed:
            self._sync_failed = True
            self._disk.replace(self._says_works, self._says_failed)

    def read(self, position: int, length: int) -> bytes:
        """Return bytes from `position` on, up to `length` and up to the segment's end.

        Raises:
            ValueError: the log does not contain the position (any more).
        """
        index = bisect_right(self._starts, position) - 1
        if index < 0:
            raise ValueError(f"position {position} is not in the commit log, which begins at {self.start_position}")
        behind = self._starts[index + 1] if index + 1 < len(self._starts) else self.end_position
        return self._files[index].read(position - self._starts[index], max(0, min(length, behind - position)))

    def scan(
        self, position: int, synced_position: int, may_cut: Callable[[int], bool] = lambda position: True
    ) -> Iterator[StoredRecord]:
        """Read record after record from `position` to the end, as recovery does.

        A bad record at or after `synced_position` is a torn tail: the scan ends there and the log is cut off. When
        the scan has ended, all that was read is waiting for the next `sync`.

        Args:
            position: where a record begins.
            synced_position: up to here everything is known to have been on the device.
            may_cut: whether a tail that begins at a position may go. It may be more than torn: what was synced since
                the last checkpoint, and has rotted.

        Raises:
            CorruptDataError: a record before `synced_position`, or one that may not be cut off, is damaged or missing;
                nothing is cut.
            UnknownFormatError: a record was written by a newer release; nothing is cut.
        """
        if self.end_position == self._filled_position:  # a record before zeros was damaged, and may be mended
            self.end_position = self._find_end()
        self.synced_position = min(synced_position, self.end_position)
        chunk = _SCAN_BYTES
        while position < self.end_position:
            segment_end = self._segment_end(position)
            data = self.read(position, min(chunk, segment_end - position))
            more = position + len(data) < segment_end
            offset = 0
            while offset < len(data) or not data:
                length = record.length_at(data, offset)
                whole_header = len(data) - offset >= record.HEADER_BYTES
                if more and (not whole_header or len(data) - offset < length <= record.RECORD_BYTES_MAX):
                    chunk = max(_SCAN_BYTES, length)
                    break
                try:
                    found = record.decode(data, offset, position + offset)
                except CorruptDataError as error:
                    if position + offset < synced_position:
                        self.record_damage(position + offset)
                        raise CorruptDataError(
                            f"{error}, though the log was known to be good up to {synced_position}; nothing was "
                            "changed: restore the segment file from a replica or a backup"
                        ) from error
                    if not may_cut(position + offset):
                        self.record_damage(position + offset)
                        raise
                    self.cut(position + offset)
                    break
                if self._sync_failed and position + offset >= self.synced_position:
                    self._write_again(position + offset, data[offset : offset + found.length])
                yield found
                offset += found.length
            position += offset
        if self.end_position < synced_position:
            raise CorruptDataError(
                f"the commit log ends at {self.end_position}, though it was known to be good up to {synced_position}; "
                "restore its segment files from a replica or a backup"
            )
        self._dirty = [
            file
            for (_, end), file in zip(self.segments(), self._files, strict=True)
            if end > self.synced_position or file in self._dirty
        ]
        # Names that a process made which died before it synced them.
        self._names_changed = True

    def records(self, position: int, end: int, bytes_at_once: int = _SCAN_BYTES) -> Iterator[StoredRecord]:
        """Read record after record from `position` on, which begins one, as far as they begin before `end`.

        Raises:
            CorruptDataError: one is damaged.
        """
        while position < min(end, self.end_position):
            segment_end = self._segment_end(position)
            data = self.read(position, min(bytes_at_once, segment_end - position))
            length = record.length_at(data, 0)
            if length > len(data):
                data = self.read(position, min(length, segment_end - position))
            offset = 0
            while position + offset < end and (
                not offset or record.HEADER_BYTES <= record.length_at(data, offset) <= len(data) - offset
            ):
                try:
                    found = record.decode(data, offset, position + offset)
                except CorruptDataError:
                    self.record_damage(position + offset)
                    raise
                yield found
                offset += found.length
            position += offset

    def record_damage(self, position: int) -> None:
        """Record that a record was found damaged."""
        if len(self.damaged) < _DAMAGED_MAX:
            self.damaged.add(position)

    def _write_again(self, position: int, data: bytes) -> None:
        """Make what is read dirty again, so that the next sync brings it to the device."""
        index = bisect_right(self._starts, position) - 1
        self._files[index].write(position - self._starts[index], [data])

    def check_contiguous(self, synced_position: int) -> None:
        """Find out whether a segment is missing or short below `synced_position`.

        Raises:
            CorruptDataError: one is.
        """
        for index in range(len(self._starts) - 1):
            end = self._starts[index] + self._files[index].size()
            if end < min(self._starts[index + 1], synced_position):
                raise CorruptDataError(
                    f"the commit log has a hole from {end} to {self._starts[index + 1]}; "
                    "restore the missing segment files from a replica or a backup"
                )

    def _segment_end(self, position: int) -> int:
        index = bisect_right(self._starts, position) - 1
        if index + 1 == len(self._starts):
            return self.end_position
        return min(self._starts[index + 1], self._starts[index] + self._files[index].size())

    def removable_before(self, position: int) -> int:
        """Return where the log would begin if all segments that end at or before `position` were removed."""
        return max([self.start_position, *(start for start in self._starts if start <= position)])

    def remove_before(self, position: int) -> int:
        """Remove the oldest segment if it ends at or before `position` and is not the last one; how many went. It
        stays for now if it is being synced.

        One at a time, and the next one only after a sync: a power loss may bring removed files back, and of two just
        the older one, which would leave a hole between it and the rest.
        """
        if len(self._starts) < 2 or self._starts[1] > position or self._removal_unsynced:
            return 0
        if self._files[0] in self._on_the_way:
            return 0
        start, file = self._starts.pop(0), self._files.pop(0)
        if file in self._dirty:
            self._dirty.remove(file)
        file.close()
        self._disk.remove(self._folder / f"{start:020d}{_SUFFIX}")
        self._names_changed = self._removal_unsynced = True
        return 1

    def close(self) -> None:
        """Close the files; nothing is synced."""
        for file in self._files:
            file.close()
