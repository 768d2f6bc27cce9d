"""A consume queue: for each message of one queue of a topic, where it stands in the commit log.

Entries of 20 bytes (position 8, length 4, tag hash 8). The newest are held in memory; all are in segment files that a
checkpoint writes and that recovery can make again from the commit log (S6).
"""

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from services.common.disk import Disk, File
from services.common.errors import CorruptDataError

ENTRY_BYTES = 20
_ENTRY = struct.Struct(">QIQ")
_SUFFIX = ".queue"


class Entry(NamedTuple):
    """Where one message stands.

    Args:
        position: in the commit log.
        length: of its record, in bytes.
        tag_hash: `record.hash_tag` of its tag.
    """

    position: int
    length: int
    tag_hash: int


packed_entry = _ENTRY.pack
"""The bytes of an entry: of its position, length and tag hash."""


def unpacked_entries(entries: bytes | bytearray) -> list[Entry]:
    """What `packed_entry` made."""
    return [Entry._make(fields) for fields in _ENTRY.iter_unpack(entries)]


class ConsumeQueue:
    """The entries of one queue.

    Args:
        disk: where its files are.
        folder: its own folder, made at the first flush.
        topic: its topic.
        queue_id: its number.
        entries_per_file: how many entries one file takes.
        entries_in_memory: how many flushed entries stay in memory at the most.
    """

    __slots__ = (
        "_base",
        "_disk",
        "_entries_in_memory",
        "_entries_per_file",
        "_flushed",
        "_folder",
        "_folder_made",
        "_window",
        "begin_offset",
        "min_offset",
        "queue_id",
        "topic",
    )

    def __init__(
        self, disk: Disk, folder: Path, topic: str, queue_id: int, entries_per_file: int, entries_in_memory: int
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._folder_made = False
        self.topic = topic
        self.queue_id = queue_id
        self._entries_per_file = entries_per_file
        self._entries_in_memory = entries_in_memory
        self._window = bytearray()
        self._base = 0
        self._flushed = 0
        self.min_offset = 0
        self.begin_offset = 0
        """Of the first message that it ever had."""

    @property
    def max_offset(self) -> int:
        """The offset that the next message will have."""
        return self._base + len(self._window) // ENTRY_BYTES

    @property
    def has_unflushed(self) -> bool:
        """Whether entries are in memory only."""
        return self._flushed < self.max_offset

    def extend(self, entries: bytes | bytearray) -> None:
        """Add entries that were put together by `packed_entry`."""
        self._window += entries

    def read(self, offset: int, count: int) -> list[Entry]:
        """`count` entries from `offset` on, fewer only where the queue ends; those below `min_offset` are not given."""
        offset = max(offset, self.min_offset)
        count = min(count, self.max_offset - offset)
        if count <= 0:
            return []
        in_files = min(count, max(0, self._base - offset))
        start = (offset + in_files - self._base) * ENTRY_BYTES
        data = bytes(self._window[start : start + (count - in_files) * ENTRY_BYTES])
        return unpacked_entries(self._read_files(offset, in_files) + data if in_files else data)

    def first_at_or_after(self, position: int) -> int:
        """Offset of the first entry whose record stands at or after `position` of the commit log."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.read(middle, 1)[0].position < position:
                low = middle + 1
            else:
                high = middle
        return low

    def flush(self) -> list[File]:
        """Write what is in memory only to the files; the files written to, for the caller to sync and close."""
        if not self.has_unflushed:
            return []
        if not self._folder_made:
            self._disk.make_folder(self._folder)
            self._folder_made = True
        files: list[File] = []
        offset, end = self._flushed, self.max_offset
        while offset < end:
            file_start = offset - offset % self._entries_per_file
            upto = min(end, file_start + self._entries_per_file)
            file = self._disk.open(self._path(file_start))
            files.append(file)
            data = bytes(self._window[(offset - self._base) * ENTRY_BYTES : (upto - self._base) * ENTRY_BYTES])
            try:
                file.write((offset - file_start) * ENTRY_BYTES, [data])
            except OSError:
                for each in files:
                    each.close()
                raise
            offset = upto
        self._flushed = end
        surplus = end - self._base - self._entries_in_memory
        if surplus > 0:
            del self._window[: surplus * ENTRY_BYTES]
            self._base += surplus
        return files

    def has_files_for(self, min_offset: int, max_offset: int) -> bool:
        """Whether there are files for the entries between two offsets, as long as they must be; nothing is changed."""
        starts = self._file_starts()
        first = min_offset - min_offset % self._entries_per_file if min_offset < max_offset else max_offset
        for file_start in range(first, max_offset, self._entries_per_file):
            wanted = (min(max_offset, file_start + self._entries_per_file) - file_start) * ENTRY_BYTES
            if file_start not in starts or self._file_size(file_start) < wanted:
                return False
        return True

    def load(self, min_offset: int, max_offset: int) -> bool:
        """Take up the entries that a checkpoint has seen written and cut off what was written after it.

        Args:
            min_offset: lowest offset still held.
            max_offset: the offset after the last one that the checkpoint covers.

        Returns:
            False if files are missing or short: then it is empty and is to be made again from the commit log.
        """
        self._window.clear()
        self._base = self._flushed = max_offset
        self.min_offset = self.begin_offset = min_offset
        starts = self._file_starts()
        self._folder_made = bool(starts)
        # One that holds nothing needs no file: it may never have had one.
        first = min_offset - min_offset % self._entries_per_file if min_offset < max_offset else max_offset
        for file_start in range(first, max_offset, self._entries_per_file):
            wanted = (min(max_offset, file_start + self._entries_per_file) - file_start) * ENTRY_BYTES
            if file_start not in starts or not self._cut_file(file_start, wanted):
                self._base = self._flushed = self.min_offset = self.begin_offset = 0
                return False
        for file_start in starts:
            if file_start >= max_offset:
                self._disk.remove(self._path(file_start))
        return True

    def begin_at(self, offset: int) -> None:
        """Let an empty queue begin at an offset, where the commit log holds nothing older of it any more."""
        self._base = self._flushed = self.min_offset = self.begin_offset = offset

    def forget_before(self, offset: int) -> None:
        """Let the entries below `offset` go, and the files that hold no others."""
        self.min_offset = max(self.min_offset, offset)
        starts = self._file_starts() if self._folder_made else []
        for start, following in itertools.pairwise(starts):
            if following <= self.min_offset:
                self._disk.remove(self._path(start))

    def _file_size(self, file_start: int) -> int:
        file = self._disk.open(self._path(file_start))
        try:
            return file.size()
        finally:
            file.close()

    def _cut_file(self, file_start: int, length: int) -> bool:
        file = self._disk.open(self._path(file_start))
        try:
            size = file.size()
            if size > length:
                file.truncate(length)
            return size >= length
        finally:
            file.close()

    def _read_files(self, offset: int, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0:
            file_start = offset - offset % self._entries_per_file
            part = min(count, file_start + self._entries_per_file - offset)
            file = self._disk.open(self._path(file_start))
            try:
                parts.append(file.read((offset - file_start) * ENTRY_BYTES, part * ENTRY_BYTES))
            finally:
                file.close()
            if len(parts[-1]) != part * ENTRY_BYTES:
                raise CorruptDataError(f"consume queue {self.topic}/{self.queue_id} has a short file {file_start}")
            offset += part
            count -= part
        return b"".join(parts)

    def _file_starts(self) -> list[int]:
        names: Iterator[str] = (name for name in self._disk.list(self._folder) if name.endswith(_SUFFIX))
        return [int(name.removesuffix(_SUFFIX)) for name in names]

    def _path(self, file_start: int) -> Path:
        return self._folder / f"{file_start:020d}{_SUFFIX}"
