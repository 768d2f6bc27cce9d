"""A consume queue: for each message of one queue of a topic, its position in the commit log.

Entries of 20 bytes (position 8, length 4, tag hash 8). Recent entries are in memory; entries that a checkpoint covers
are in files that the queues share (`queue_index`). There may be a million queues, so an idle one is little more than
its name and two offsets.
"""

import struct
from typing import ClassVar, Final, NamedTuple, Protocol

from popwheel_broker.log.index_file import ENTRY_BYTES, IndexFile, Row
from popwheel_common.errors import CorruptDataError

_ENTRY: Final = struct.Struct(">QIQ")
_UNKNOWN: Final = -1
_EMPTY: Final = 1 << 63


class Entry(NamedTuple):
    """Entry with the place of one message.

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
    """Return the entries that `packed_entry` made."""
    # As `Entry._make(...)`, whose way through Python takes twice as long.
    return [tuple.__new__(Entry, fields) for fields in _ENTRY.iter_unpack(entries)]


class EntryFiles(Protocol):
    """Files of the entries that are not in memory."""

    log_start: int
    """Position of the commit log before which all is gone."""

    def read(self, queue: "ConsumeQueue", offset: int, count: int) -> bytes:
        """Entries of a queue from an offset on, all of which are in files.

        Raises:
            CorruptDataError: they are damaged or missing (S7).
        """

    def first_at_or_after(self, queue: "ConsumeQueue", position: int) -> tuple[int, int] | None:
        """Offset and position of the first entry of a queue in files whose record stands at or after `position`; None
        if there is none. Raises as `read`.
        """


class ConsumeQueue:
    """The entries of one queue.

    Args:
        files: where those are that are not in memory.
        topic: its topic.
        queue_id: its number.
        begin_offset: of the first message that it will have.
    """

    is_lite: ClassVar[bool] = False
    """True for the queue of a lite topic."""

    __slots__ = (
        "_files",
        "_first_position",
        "_min_offset",
        "_window",
        "begin_offset",
        "max_offset",
        "queue_id",
        "spot",
        "topic",
    )

    def __init__(self, files: EntryFiles, topic: str, queue_id: int, begin_offset: int = 0) -> None:
        self._files = files
        self.topic = topic
        self.queue_id = queue_id
        self.begin_offset = self._min_offset = begin_offset
        """Offset of the first message that it ever had, or will have."""
        self.max_offset = begin_offset
        """The offset that the next message will have."""
        self._first_position = _EMPTY
        self._window: bytearray | None = None
        self.spot: tuple[IndexFile, Row] | None = None
        """Place where the files were read last."""

    @property
    def min_offset(self) -> int:
        """Offset of the oldest message that is still stored.

        It is found when asked for, so retention need not check each queue; what cannot be read for damage counts as
        stored.
        """
        if self._first_position < self._files.log_start:
            try:
                self._min_offset, self._first_position = self._first(self._files.log_start)
            except CorruptDataError:
                return self._min_offset
        return self._min_offset

    @property
    def known_min_offset(self) -> int:
        """Offset of `min_offset` when it was asked for last: nothing is read."""
        return self._min_offset

    @property
    def is_unused(self) -> bool:
        """True if it never had a message."""
        return self.max_offset == self.begin_offset

    def extend(self, entries: bytes | bytearray) -> None:
        """Add entries that were put together by `packed_entry`."""
        assert entries and len(entries) % ENTRY_BYTES == 0, "entries are not whole"
        if self._window is None:
            self._window = bytearray(entries)
        else:
            last = _position_at(self._window, len(self._window) - ENTRY_BYTES)
            assert _position_at(entries, 0) > last, "a queue goes back in the log"
            self._window += entries
        if self._first_position == _EMPTY:
            self._first_position = _position_at(entries, 0)
        self.max_offset += len(entries) // ENTRY_BYTES

    def read(self, offset: int, count: int) -> list[Entry]:
        """Read up to `count` entries from `offset` on, as many as there are, without those below `min_offset`.

        Raises:
            CorruptDataError: they are damaged or missing (S7).
        """
        return unpacked_entries(self.read_packed(offset, count))

    def read_packed(self, offset: int, count: int) -> bytes:
        """Return the bytes of what `read` gives. Raises as it does."""
        offset = max(offset, self.min_offset)
        count = min(count, self.max_offset - offset)
        if count <= 0:
            return b""
        base = self._base
        data = b""
        if offset < base:
            data = self._files.read(self, offset, min(count, base - offset))
            count -= base - offset
            offset = base
        if count > 0 and self._window is not None:
            start = (offset - base) * ENTRY_BYTES
            data += self._window[start : start + count * ENTRY_BYTES]
        return data

    def first_at_or_after(self, position: int) -> int:
        """Return the offset of the first entry whose record is at or after `position` of the commit log.

        It is the queue's end if there is none. Raises as `read`.
        """
        return self._first(max(position, self._files.log_start))[0]

    def _first(self, position: int) -> tuple[int, int]:
        """Offset and position of the first entry at or after a position."""
        window = self._window or b""
        if not window or _position_at(window, 0) >= position:
            found = self._files.first_at_or_after(self, position) if self._base > self.begin_offset else None
            if found is not None:
                return found
        low = self._in_window(position)
        if low == len(window):
            return self.max_offset, _EMPTY
        return self._base + low // ENTRY_BYTES, _position_at(window, low)

    def between(self, begin: int, end: int) -> tuple[int, bytes]:
        """Return the entries in memory for a range of the commit log, and the offset of the first of them."""
        low, high = self._in_window(begin), self._in_window(end)
        return self._base + low // ENTRY_BYTES, bytes((self._window or b"")[low:high])

    def next_offset_before(self, end: int) -> int:
        """Return its next offset when the log ended at a position; it may not have been trimmed to a later one."""
        if self._window is None or _position_at(self._window, len(self._window) - ENTRY_BYTES) < end:
            return self.max_offset
        return self._base + self._in_window(end) // ENTRY_BYTES

    def trim(self, end: int, kept: int) -> None:
        """Drop entries of files from memory: those before a position of the commit log, except the last `kept`."""
        surplus = self._in_window(end) - kept * ENTRY_BYTES
        if self._window is not None and surplus > 0:
            del self._window[:surplus]
            if not self._window:
                self._window = None

    def restore(self, begin_offset: int, max_offset: int) -> None:
        """Take up what a checkpoint says of it: its entries are in files."""
        self.begin_offset = self._min_offset = begin_offset
        self.max_offset = max_offset
        self._first_position = _UNKNOWN if max_offset > begin_offset else _EMPTY

    def begin_at(self, offset: int) -> None:
        """Let an empty queue begin at an offset, where the commit log holds nothing older of it any more."""
        self.restore(offset, offset)

    @property
    def _base(self) -> int:
        """Offset of the first entry in memory."""
        return self.max_offset if self._window is None else self.max_offset - len(self._window) // ENTRY_BYTES

    def _in_window(self, position: int) -> int:
        """Return where in the window the first entry at or after a position begins."""
        window = self._window or b""
        low, high = 0, len(window) // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            if _position_at(window, middle * ENTRY_BYTES) < position:
                low = middle + 1
            else:
                high = middle
        return low * ENTRY_BYTES


class LiteQueue(ConsumeQueue):
    """The only queue of a lite topic."""

    is_lite = True

    __slots__ = ("last_ms",)

    def __init__(self, files: EntryFiles, topic: str, queue_id: int, begin_offset: int = 0) -> None:
        super().__init__(files, topic, queue_id, begin_offset)
        self.last_ms = 0
        """Wall-clock time of its last message, or a moment later; 0 if it was not read since the start."""


def _position_at(entries: bytes | bytearray, at: int) -> int:
    return int.from_bytes(entries[at : at + 8], "big")
