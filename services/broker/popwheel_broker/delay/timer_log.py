"""The timer log: units of 52 bytes, chained backwards by slot of the wheel, in files named by their first position.

Positions continue from one file to the next. A file's end is a blank unit, so that no unit spans two files
(`popwheel_broker.delay.unit`). All of it can be rebuilt from the commit log.
"""

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from popwheel_broker.delay import unit
from popwheel_broker.delay.unit import BLANK_BYTES, UNIT_BYTES, UNIT_DTYPE, Unit, UnitFields
from popwheel_common.disk import Disk, File
from popwheel_common.errors import CorruptDataError

_SUFFIX = ".timerlog"
_SLOT_FIELD = Unit._fields.index("slot_ms")
_TAIL_BYTES = 256 * 1024
_SCAN_BYTES = 8 * 1024 * 1024 // UNIT_BYTES * UNIT_BYTES
_WINDOW_BYTES_MIN = 40 * UNIT_BYTES
_WINDOW_BYTES_MAX = 2500 * UNIT_BYTES
_BYTES_PER_UNIT_MAX = 64 * UNIT_BYTES
"""Limit of bytes read for one unit: that many are still cheaper than another read."""


class TimerLog:
    """Appends units, follows their chains and reads all of them in bulk.

    A log with files is to be scanned and cut before anything is appended: units behind the first damaged one are not
    valid.

    Args:
        disk: where its files are.
        folder: their folder; it is made if necessary.
        file_bytes: length of a file.
    """

    def __init__(self, disk: Disk, folder: Path, file_bytes: int) -> None:
        if file_bytes < UNIT_BYTES + BLANK_BYTES:
            raise ValueError(f"a file of the timer log takes {UNIT_BYTES + BLANK_BYTES} bytes at the least")
        self._disk = disk
        self._folder = folder
        self._file_bytes = file_bytes
        disk.make_folder(folder)
        self._starts: list[int] = []
        self._files: list[File] = []
        for name in disk.list(folder):
            if name.endswith(_SUFFIX):
                self._starts.append(int(name.removesuffix(_SUFFIX)))
                self._files.append(disk.open(folder / name))
        self._latest_slots = [0] * len(self._starts)
        """Latest slot of each file's units, once they were scanned."""
        self._tail = bytearray()
        self._written = self._starts[-1] + self._files[-1].size() if self._files else 0
        self._cut: list[File] = []
        self._last_place = -1
        self._is_cut = not self._files
        self._file_ended = False
        self.end_position = self._written
        self.flushed_position = self.start_position
        self.valid_end = self.start_position
        self.names_changed = bool(self._files)
        """True if names of files came or went.

        The caller that syncs the folder sets it to False before, and to True again if that fails. At first it is True
        for names that a process made which died before it synced them.
        """

    @property
    def start_position(self) -> int:
        """Position of the oldest unit in its files."""
        return self._starts[0] if self._starts else self._written

    @property
    def next_position(self) -> int:
        """Position of the next unit."""
        if not self._files or self._file_ended or self.end_position <= self._last_place:
            return self.end_position
        return self.end_position + self._blank_bytes

    def append(self, each: UnitFields) -> int:
        """Add a unit. It can be read at once, and is on disk later.

        Returns:
            Its position in this log.

        Raises:
            OSError: the units before it could not be written; it was not added.
        """
        if self.end_position > self._last_place or len(self._tail) >= _TAIL_BYTES:
            self._make_room()
        self._tail += unit.encode(*each)
        if each[_SLOT_FIELD] > self._latest_slots[-1]:
            self._latest_slots[-1] = each[_SLOT_FIELD]
        place = self.end_position
        self.end_position = place + UNIT_BYTES
        return place

    def undo_append(self) -> None:
        """Remove the unit that was appended last; only right after it was."""
        del self._tail[-UNIT_BYTES:]
        self.end_position -= UNIT_BYTES

    @property
    def _room(self) -> int:
        """Limit of a unit's distance from a file's start."""
        return self._file_bytes - UNIT_BYTES - BLANK_BYTES

    @property
    def _blank_bytes(self) -> int:
        return max(BLANK_BYTES, self._starts[-1] + self._file_bytes - self.end_position)

    def _make_room(self) -> None:
        """Write the tail, and begin a file if the last one is full or there is none."""
        if not self._is_cut:
            raise ValueError("the timer log was not cut since it was opened; nothing may be appended before that")
        if self._files and not self._file_ended:
            if self.end_position <= self._last_place:
                self._write_tail(b"")
                return
            self._write_tail(unit.encode_blank(self._blank_bytes))
            self._file_ended = True
        self._files.append(self._disk.open(self._folder / f"{self.end_position:020d}{_SUFFIX}"))
        self._starts.append(self.end_position)
        self._latest_slots.append(0)
        self._last_place = self.end_position + self._room
        self._file_ended = False
        self.names_changed = True

    def _write_tail(self, blank: bytes) -> None:
        if self._tail or blank:
            self._files[-1].write(self._written - self._starts[-1], [bytes(self._tail), blank])
            self._written += len(self._tail) + len(blank)
            self.end_position = self._written
            self._tail.clear()

    def write(self) -> list[File]:
        """Write the part that is in memory only.

        Returns:
            The files that the caller is to sync, and not to close; then the folder, if `names_changed`; then it calls
                `synced` with the present `end_position`.

        Raises:
            OSError: nothing is lost: all is in memory still.
        """
        self._write_tail(b"")
        ends = [*self._starts[1:], self.end_position][: len(self._files)]
        return [
            file
            for file, end in zip(self._files, ends, strict=True)
            if end > self.flushed_position or file in self._cut
        ]

    def synced(self, position: int) -> None:
        """Record that all before `position` is on the device: after a sync, or by a checkpoint."""
        self.flushed_position = max(self.flushed_position, min(position, self._written))
        self._cut.clear()

    def read_chain(self, position: int, count: int) -> tuple[list[tuple[int, Unit]], int]:
        """Follow a chain backwards.

        Args:
            position: of the first unit; -1 returns nothing.
            count: how many units to read at the most.

        Returns:
            Position and unit of each, newest first; and where the chain continues, -1 at its end.

        Raises:
            CorruptDataError: a unit is damaged, missing, or follows itself.
        """
        found: list[tuple[int, Unit]] = []
        data, data_start, window = b"", 0, _WINDOW_BYTES_MIN
        used = 0
        while position >= 0 and len(found) < count:
            if not data_start <= position < data_start + len(data):
                dense = used * _BYTES_PER_UNIT_MAX >= len(data)
                window = min(window * 2, _WINDOW_BYTES_MAX) if dense else max(window // 2, _WINDOW_BYTES_MIN)
                data_start, data = self._window(position, window)
                used = 0
            each = unit.decode(data, position - data_start)
            if each.previous >= position:
                raise CorruptDataError(f"the unit at {position} of the timer log follows itself")
            found.append((position, each))
            position = each.previous
            used += 1
        return found, position

    def _window(self, position: int, length: int) -> tuple[int, bytes]:
        """Return the unit at a position and the bytes before it in its file, `length` bytes at the most."""
        index = bisect_right(self._starts, position) - 1
        if index < 0:
            raise CorruptDataError(
                f"position {position} is not in the timer log, which begins at {self.start_position}"
            )
        start = max(self._starts[index], position + UNIT_BYTES - length)
        return start, self._read(index, start, position + UNIT_BYTES - start)

    def _read(self, index: int, position: int, length: int) -> bytes:
        """Return bytes of one file, or of its future content."""
        written = min(length, self._written - position)
        data = self._files[index].read(position - self._starts[index], written) if written > 0 else b""
        if written < length and index + 1 == len(self._files):
            begin = max(0, position - self._written)
            data += self._tail[begin : begin + length - max(0, written)]
        return data

    def scan(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]]:
        """Yield all units from the oldest to the first that is not whole, in chunks of 8 MiB: recovery reads them in
        bulk.

        Afterwards `valid_end` is where the first damaged one stands, or where the log ends. A missing file ends it,
        too: a power loss can leave such a hole where nothing was synced. The position known to be synced distinguishes
        a torn tail from damage.

        Yields:
            Positions, and units as `unit.COLUMNS_DTYPE`.
        """
        self.valid_end = self.start_position
        for index in range(len(self._starts)):
            end = self._starts[index + 1] if index + 1 < len(self._starts) else self.end_position
            blank = 0
            while self.valid_end < end:
                data = self._read(index, self.valid_end, min(_SCAN_BYTES, end - self.valid_end))
                units = np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_BYTES)
                valid = unit.valid_units(units)
                count = len(units) if valid.all() else int(valid.argmin())
                begin, self.valid_end = self.valid_end, self.valid_end + count * UNIT_BYTES
                if count:
                    found = unit.columns(units[:count])
                    self._latest_slots[index] = max(self._latest_slots[index], int(found["slot_ms"].max()))
                    yield np.arange(begin, self.valid_end, UNIT_BYTES, dtype=np.int64), found
                if count * UNIT_BYTES < _SCAN_BYTES:
                    blank = unit.blank_size(data, count * UNIT_BYTES)
                    break
            if index + 1 < len(self._starts):
                if not blank or self.valid_end + blank != end:
                    return
                self.valid_end = end

    def cut(self, position: int) -> None:
        """Drop everything from `position` on, which is where a unit begins or `valid_end`.

        It is to be synced (see `write`) before more is appended: else after a power loss the part that was cut off may
        reappear behind newer units.

        Raises:
            ValueError: the log does not reach so far.
        """
        if position > self.end_position:
            raise ValueError(f"the timer log ends at {self.end_position}, it cannot be cut at {position}")
        self._write_tail(b"")
        while self._starts and self._starts[-1] > position:
            self._drop(len(self._starts) - 1)
        self._last_place = -1
        if self._files:
            file, length = self._files[-1], position - self._starts[-1]
            if file.size() != length:
                file.truncate(length)
                if file not in self._cut:
                    self._cut.append(file)
            self._last_place = self._starts[-1] + self._room
        self._file_ended &= position == self.end_position
        self._is_cut = True
        self.end_position = self._written = position
        self.flushed_position = min(self.flushed_position, position)

    @property
    def is_empty(self) -> bool:
        """True if it has no file."""
        return not self._files

    def reset(self, position: int) -> None:
        """Drop everything and begin again at `position`."""
        while self._starts:
            self._drop(len(self._starts) - 1)
        self._tail.clear()
        self._last_place = -1
        self._file_ended = False
        self._is_cut = True
        self.end_position = self._written = self.flushed_position = self.valid_end = position

    def delete_before(self, position: int) -> int:
        """Remove the oldest file if it ends at or before `position` and is synced; return how many were removed.

        One at a time, and the next one only after the folder was synced: after a power loss removed files may reappear,
        and of two just the older one, which would leave a hole between it and the rest.
        """
        if len(self._starts) < 2 or self._starts[1] > min(position, self.flushed_position) or self.names_changed:
            return 0
        self._drop(0)
        return 1

    def delete_done(self, slot_ms: int) -> int:
        """Delete the oldest file, as `delete_before`, if all its units are in slots before `slot_ms`."""
        if len(self._starts) < 2 or self._latest_slots[0] >= slot_ms:
            return 0
        return self.delete_before(self._starts[1])

    def _drop(self, index: int) -> None:
        start, file = self._starts.pop(index), self._files.pop(index)
        self._latest_slots.pop(index)
        if file in self._cut:
            self._cut.remove(file)
        file.close()
        self._disk.remove(self._folder / f"{start:020d}{_SUFFIX}")
        self.names_changed = True

    def close(self) -> None:
        """Close the files; nothing is written or synced."""
        for file in self._files:
            file.close()
