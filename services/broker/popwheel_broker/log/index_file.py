"""An index file: the entries of all queues for the records of one range of the commit log. Written once, then read.

It is a row of pages of 4 KiB: CRC-32C 4 bytes of the rest, then 4092 bytes of the contents, the last page filled up
with zeros. The contents, all big-endian:

- header: magic `PWQI`, version 2 bytes, number of rows 4, number of entries 8, the range's begin and end 8 each;
- one row for each queue, sorted by its key: key 16 bytes, offset of its first entry 8, number of entries 4, number of
  entries in the file before them 8;
- the entries (`consume_queue`), those of a queue together and in their order.

A queue's key is a hash of its topic and number: rows are found without a table of names, and no two queues share one.
Files are named `<begin>-<end>.index`. One has its name only when it is on the device as a whole; until then it ends in
`.new`, and a start removes it.
"""

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from google_crc32c import value

from popwheel_common.disk import Disk, File
from popwheel_common.errors import CorruptDataError, UnknownFormatError

ENTRY_BYTES = 20
SUFFIX = ".index"
NEW_SUFFIX = ".new"
_PAGE_BYTES = 4096
_CHECKSUM = struct.Struct(">I")
_IN_PAGE = _PAGE_BYTES - _CHECKSUM.size
_HEADER = struct.Struct(">4sHIQQQ")
_MAGIC = b"PWQI"
_VERSION = 1
_ROW = struct.Struct(">16sQIQ")
_KEY_BYTES = 16
_ROWS_READ = _IN_PAGE // _ROW.size
_ROWS_AT_ONCE = 256
_PAGES_AT_ONCE = 256
_GUESSES = 4
ABSENT_MAX = 64
"""Keys that a file remembers not to have: some 8 KB a file at the most. Others are looked for again."""


class Row(NamedTuple):
    """Row of a file: its entries of a queue.

    Args:
        key: the queue's.
        first: offset of its first entry.
        size: how many.
        place: how many entries stand before them.
    """

    key: bytes
    first: int
    size: int
    place: int


class Run(NamedTuple):
    """Entries of a queue that follow one another.

    Args:
        key: the queue's.
        first: offset of the first one.
        entries: their bytes.
    """

    key: bytes
    first: int
    entries: bytes | bytearray


def key_of(topic: str, queue_id: int) -> bytes:
    """Return the key of a queue in files."""
    return blake2b(topic.encode() + queue_id.to_bytes(4, "big"), digest_size=_KEY_BYTES).digest()


class IndexFile:
    """An index file; it is open only while it is read.

    Args:
        disk: where it is.
        path: its name.
        begin, end: the range of the commit log.
        rows, entries: how many.
    """

    def __init__(self, disk: Disk, path: Path, begin: int, end: int, rows: int, entries: int) -> None:
        self._disk = disk
        self.path = path
        self.begin = begin
        self.end = end
        self.rows = rows
        self.entries = entries
        self.is_damaged = False
        """True if a page was found damaged."""
        self._absent: set[bytes] = set()
        """Keys of some queues that have no row here. Who looks for a queue through many files, on a slow device, may
        have to give up before the end; the next one need not look into the same files again.
        """

    @staticmethod
    def load(disk: Disk, path: Path) -> "IndexFile | None":
        """Return an existing file; None if it is short or its beginning is damaged.

        Raises:
            UnknownFormatError: it was written by a newer release.
        """
        begin, _, end = path.name.removesuffix(SUFFIX).partition("-")
        found = IndexFile(disk, path, int(begin), int(end), 0, 0)
        file = disk.open(path)
        try:
            header = found._read(file, 0, _HEADER.size)
            magic, version, found.rows, found.entries, *positions = _HEADER.unpack(header)
            if magic != _MAGIC or positions != [found.begin, found.end] or file.size() != found._pages * _PAGE_BYTES:
                return None
        except CorruptDataError:
            return None
        finally:
            file.close()
        if version != _VERSION:
            raise UnknownFormatError(
                f"the index file {path.name} has format version {version}, this release knows {_VERSION}"
            )
        return found

    @property
    def _pages(self) -> int:
        return -(-(self._entries_at + self.entries * ENTRY_BYTES) // _IN_PAGE)

    @property
    def _entries_at(self) -> int:
        return _HEADER.size + self.rows * _ROW.size

    @property
    def absent(self) -> int:
        """Number of keys that it remembers not to have."""
        return len(self._absent)

    def find(self, key: bytes) -> Row | None:
        """Return the row of a queue; None if there is none. Raises as `read`."""
        if key in self._absent:
            return None
        row = self._find(key)
        if row is None and len(self._absent) < ABSENT_MAX:
            self._absent.add(key)
        return row

    def _find(self, key: bytes) -> Row | None:
        wanted = int.from_bytes(key[:8], "big")
        low, high = 0, self.rows
        low_key, high_key = 0, 1 << 64
        guesses = 0
        file = self._disk.open(self.path)
        try:
            while low < high:
                guesses += 1
                guess = (low + high) // 2
                if guesses <= _GUESSES and low_key < high_key:  # keys are spread evenly, unless somebody chose names
                    guess = low + (wanted - low_key) * (high - low) // (high_key - low_key)
                start = max(low, min(guess, high - 1) - _ROWS_READ // 2)
                stop = min(high, start + _ROWS_READ)
                rows = self._read(file, _HEADER.size + start * _ROW.size, (stop - start) * _ROW.size)
                first, last = rows[:_KEY_BYTES], rows[-_ROW.size :][:_KEY_BYTES]
                if key < first:
                    high, high_key = start, int.from_bytes(first[:8], "big")
                elif key > last:
                    low, low_key = stop, int.from_bytes(last[:8], "big")
                else:
                    return _row_in(rows, key)
        finally:
            file.close()
        return None

    def read(self, place: int, count: int) -> bytes:
        """Entries from a place on.

        Raises:
            CorruptDataError: they are damaged (S7).
        """
        file = self._disk.open(self.path)
        try:
            return self._read(file, self._entries_at + place * ENTRY_BYTES, count * ENTRY_BYTES)
        finally:
            file.close()

    def runs(self) -> Iterator[Run]:
        """Yield all runs, queue by queue. Raises as `read`."""
        for start in range(0, self.rows, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, self.rows - start)
            file = self._disk.open(self.path)
            try:
                data = self._read(file, _HEADER.size + start * _ROW.size, count * _ROW.size)
                rows = [Row(*each) for each in _ROW.iter_unpack(data)]
                place = rows[0].place
                size = (rows[-1].place + rows[-1].size - place) * ENTRY_BYTES
                entries = self._read(file, self._entries_at + place * ENTRY_BYTES, size)
            finally:
                file.close()
            for row in rows:
                at = (row.place - place) * ENTRY_BYTES
                yield Run(row.key, row.first, entries[at : at + row.size * ENTRY_BYTES])

    @property
    def parts(self) -> int:
        """Number of parts for `load`."""
        return -(-self._pages // _PAGES_AT_ONCE)

    def read_part(self, part: int) -> None:
        """Have a part of the file in memory."""
        file = self._disk.open(self.path)
        try:
            file.read(part * _PAGES_AT_ONCE * _PAGE_BYTES, _PAGES_AT_ONCE * _PAGE_BYTES)
        finally:
            file.close()

    def _read(self, file: File, offset: int, length: int) -> bytes:
        """Bytes of the contents, checked."""
        first, last = offset // _IN_PAGE, (offset + length - 1) // _IN_PAGE
        data = file.read(first * _PAGE_BYTES, (last - first + 1) * _PAGE_BYTES)
        parts: list[bytes] = []
        for at in range(0, (last - first + 1) * _PAGE_BYTES, _PAGE_BYTES):
            part = data[at + _CHECKSUM.size : at + _PAGE_BYTES]
            if len(part) != _IN_PAGE or _CHECKSUM.unpack_from(data, at) != (value(part),):
                self.is_damaged = True
                raise CorruptDataError(
                    f"the index file {self.path.name} is damaged at byte {first * _PAGE_BYTES + at}; remove it and "
                    "start again, it is made anew from the commit log"
                )
            parts.append(part)
        skipped = offset - first * _IN_PAGE
        contents = parts[0] if len(parts) == 1 else b"".join(parts)
        return contents[skipped : skipped + length]


def _row_in(rows: bytes, key: bytes) -> Row | None:
    """Return the row of a key among rows; None if there is none. It is found without looking at each."""
    at = rows.find(key)
    while at >= 0 and at % _ROW.size:  # those bytes stand somewhere within a row
        at = rows.find(key, at + 1)
    return None if at < 0 else Row(*_ROW.unpack_from(rows, at))


class NewIndexFile:
    """A file to be written; it is to be synced then, and to be given its name.

    Args:
        disk, folder: where.
        begin, end: the range of the commit log.
        runs: sorted by key and offset. Of a queue's runs those count that follow one another up to the last one: what
            is before a gap is of a topic that was deleted.
    """

    def __init__(self, disk: Disk, folder: Path, begin: int, end: int, runs: Iterable[Run]) -> None:
        self._disk = disk
        self._runs = runs
        self.made = IndexFile(disk, folder / f"{begin:020d}-{end:020d}{SUFFIX}{NEW_SUFFIX}", begin, end, 0, 0)
        """It, once all steps are done."""

    def steps(self) -> Iterator[None]:
        """Write it, a millisecond or so at a time.

        Raises:
            OSError: the device refused; nothing counts.
        """
        made = self.made
        contents, entries = bytearray(_HEADER.size), bytearray()
        for key, first, data in _joined(self._runs):
            contents += _ROW.pack(key, first, len(data) // ENTRY_BYTES, len(entries) // ENTRY_BYTES)
            entries += data
            made.rows += 1
            if made.rows % _ROWS_AT_ONCE == 0:
                yield
        made.entries = len(entries) // ENTRY_BYTES
        _HEADER.pack_into(contents, 0, _MAGIC, _VERSION, made.rows, made.entries, made.begin, made.end)
        contents += entries
        del entries
        yield
        for start in range(0, len(contents), _PAGES_AT_ONCE * _IN_PAGE):
            file = self._disk.open(made.path)  # each time: whoever gives up between two steps has nothing to close
            try:
                if not start:
                    file.truncate(0)
                pages = _pages(contents[start : start + _PAGES_AT_ONCE * _IN_PAGE])
                file.write(start // _IN_PAGE * _PAGE_BYTES, pages)
            finally:
                file.close()
            yield


def _pages(contents: bytearray) -> list[bytes]:
    buffers: list[bytes] = []
    for start in range(0, len(contents), _IN_PAGE):
        part = bytes(contents[start : start + _IN_PAGE]).ljust(_IN_PAGE, b"\0")
        buffers += (_CHECKSUM.pack(value(part)), part)
    return buffers


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Merge adjacent runs of a queue."""
    merged: Run | None = None
    for run in runs:
        if merged is None or run.key != merged.key:
            if merged is not None:
                yield merged
            merged = run
        elif run.first == merged.first + len(merged.entries) // ENTRY_BYTES:
            merged = Run(merged.key, merged.first, merged.entries + run.entries)
        else:
            merged = run
    if merged is not None:
        yield merged
