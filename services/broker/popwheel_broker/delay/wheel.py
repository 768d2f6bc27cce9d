"""The timer wheel: for each second, where the chain of its units in the timer log begins and ends (DESIGN 5).

It is in memory, in columns that numpy handles in bulk. Its file, slots of 32 bytes (time 8, first 8, last 8, count 4,
magic 4; big-endian; an empty slot is zeros), is for comparing: recovery rebuilds the wheel from the timer log.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from popwheel_common.disk import File

SLOTS_DEFAULT = 2 * 7 * 24 * 3600
SLOT_BYTES = 32
_BLOCK_SLOTS = 4096 // SLOT_BYTES
_BLOCKS_PER_WRITE = 256
_MAGIC = 0x50575301
_SLOT_DTYPE = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">u4")])
_NEAR_SLOTS = 4
_SEARCH_SLOTS = 16384
_ONE = np.int32(1)
"""The number 1 of the column's own type: with another `np.add.at` takes forty times as long."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The chain of one second.

    Args:
        first: position of its oldest unit in the timer log.
        last: of its newest, where reading begins.
        count: number of units.
    """

    first: int
    last: int
    count: int


class TimerWheel:
    """Slots that the seconds share in turn: a slot has the units of one second at a time.

    Args:
        slots: their number.
        precision_ms: what one slot spans. Slot times are multiples of it, and not negative.
    """

    def __init__(self, slots: int = SLOTS_DEFAULT, precision_ms: int = 1000) -> None:
        self.slots = slots
        self._precision_ms = precision_ms
        # Zeros take no memory until something is written to them.
        self._times = np.zeros(slots, dtype=np.int64)
        self._firsts = np.zeros(slots, dtype=np.int64)
        self._lasts = np.zeros(slots, dtype=np.int64)
        self._counts = np.zeros(slots, dtype=np.int32)
        # The same memory, for single slots: thrice as fast as through numpy.
        self._time = self._times.data
        self._first = self._firsts.data
        self._last = self._lasts.data
        self._count = self._counts.data
        self._dirty = bytearray(-(-slots // _BLOCK_SLOTS))
        self._file_known = False
        self.occupied_total = 0
        self.units_total = 0

    @property
    def span_ms(self) -> int:
        """Time that all slots together span."""
        return self.slots * self._precision_ms

    def add(self, slot_ms: int, position: int) -> int:
        """Chain a unit into its slot.

        Args:
            slot_ms: the slot's time.
            position: of the unit in the timer log.

        Returns:
            Position of the unit before it in the slot, -1 for none.

        Raises:
            ValueError: the slot has units of another time.
        """
        assert slot_ms >= 0 and not slot_ms % self._precision_ms, "not the time of a slot"
        index = slot_ms // self._precision_ms % self.slots
        count = self._count[index]
        if count:
            if self._time[index] != slot_ms:
                raise ValueError(f"the slot of {slot_ms} has units of {self._time[index]}")
            previous: int = self._last[index]
            assert previous < position, "the chain of a slot goes back in the timer log"
        else:
            previous = -1
            self._time[index] = slot_ms
            self._first[index] = position
            self.occupied_total += 1
        self._last[index] = position
        self._count[index] = count + 1
        self._dirty[index // _BLOCK_SLOTS] = 1
        self.units_total += 1
        return previous

    def last(self, slot_ms: int) -> int:
        """Return what `add` would return."""
        index = slot_ms // self._precision_ms % self.slots
        if self._count[index] and self._time[index] == slot_ms:
            return self._last[index]
        return -1

    def holds(self, slot_ms: int) -> bool:
        """Return whether there are units of this time."""
        index = slot_ms // self._precision_ms % self.slots
        return self._count[index] > 0 and self._time[index] == slot_ms

    def slot(self, slot_ms: int) -> Slot | None:
        """Return the chain of a time, None if it has no units."""
        index = slot_ms // self._precision_ms % self.slots
        if self._count[index] and self._time[index] == slot_ms:
            return Slot(self._first[index], self._last[index], self._count[index])
        return None

    def clear(self, slot_ms: int) -> None:
        """Forget the units of a time, which are finished.

        A unit that is added to this time afterwards begins a chain of its own, and a wheel rebuilt from the timer log
        has both, of which `previous` leads only through the newer: clear no slot that may get more.
        """
        if self.holds(slot_ms):
            index = slot_ms // self._precision_ms % self.slots
            self.units_total -= self._count[index]
            self.occupied_total -= 1
            assert self.units_total >= 0 and self.occupied_total >= 0, "more units are gone than there were"
            self._time[index] = self._first[index] = self._last[index] = self._count[index] = 0
            self._dirty[index // _BLOCK_SLOTS] = 1

    def clear_all(self) -> None:
        """Forget all units."""
        for column in (self._times, self._firsts, self._lasts, self._counts):
            column.fill(0)
        self._dirty[:] = bytes(len(self._dirty))
        self._file_known = False
        self.occupied_total = self.units_total = 0

    def next_occupied(self, from_ms: int, before_ms: int) -> int | None:
        """Return the earliest slot time that has units, of those from `from_ms` on and before `before_ms`."""
        if not self.occupied_total:
            return None
        precision = self._precision_ms
        at = -(-from_ms // precision) * precision
        near = min(before_ms, at + _NEAR_SLOTS * precision)
        while at < near:
            if self.holds(at):
                return at
            at += precision
        # Within one turn of the wheel, slots stand in the order of their times.
        turn_ms = at + self.span_ms
        while at < min(before_ms, turn_ms):
            begin = at // precision % self.slots
            length = min(_SEARCH_SLOTS, self.slots - begin, -(-(min(before_ms, turn_ms) - at) // precision))
            occupied = np.flatnonzero(self._counts[begin : begin + length])
            if len(occupied):
                right = self._times[begin + occupied] == at + occupied * precision
                if right.any():
                    return at + int(occupied[right.argmax()]) * precision
            at += length * precision
        if at >= before_ms:
            return None
        times = self._times[(self._counts > 0) & (self._times >= at) & (self._times < before_ms)]
        return int(times.min()) if len(times) else None

    def oldest_position(self) -> int:
        """Position in the timer log of the oldest unit of all slots, -1 if there is none.

        Units stand there in the order of their records in the commit log: its record is the oldest that is needed, too.
        """
        return int(self._firsts[self._counts > 0].min()) if self.occupied_total else -1

    def rebuild(self, slot_ms: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> None:
        """Add many units at once; the result is that of `add` for each.

        If two times want the same slot, the later one has it: its units could be added only after the earlier time was
        cleared.

        Args:
            slot_ms: slot time of each unit.
            positions: of the units in the timer log, ascending and beyond those that were added before.
        """
        slot_ms = np.ascontiguousarray(slot_ms)
        indices = slot_ms // self._precision_ms % self.slots
        before = np.where(self._counts[indices] > 0, self._times[indices], -1)
        np.maximum.at(self._times, indices, slot_ms)
        after = self._times[indices]
        gone = (before >= 0) & (before != after)
        if gone.any():
            self._counts[indices[gone]] = 0
        right = slot_ms == after
        if not right.all():
            indices, positions = indices[right], positions[right]
        fresh = self._counts[indices] == 0
        self._firsts[indices[fresh][::-1]] = positions[fresh][::-1]
        self._lasts[indices] = positions
        np.add.at(self._counts, indices, _ONE)
        np.frombuffer(self._dirty, np.uint8)[indices // _BLOCK_SLOTS] = 1
        self.occupied_total = int(np.count_nonzero(self._counts))
        self.units_total = int(self._counts.sum(dtype=np.int64))

    def write(self, file: File) -> None:
        """Write the blocks that have changed since the last time; the caller syncs. At first the file begins empty.

        Raises:
            OSError: some or none were written; those that were not are written the next time.
        """
        if not self._file_known:
            file.truncate(0)
            file.truncate(self.slots * SLOT_BYTES)
            self._file_known = True
        block = self._dirty.find(1)
        while block >= 0:
            end = block + 1
            while end < len(self._dirty) and self._dirty[end] and end - block < _BLOCKS_PER_WRITE:
                end += 1
            begin = block * _BLOCK_SLOTS
            file.write(begin * SLOT_BYTES, [self._encoded(begin, min(end * _BLOCK_SLOTS, self.slots))])
            self._dirty[block:end] = bytes(end - block)
            block = self._dirty.find(1, end)

    def _encoded(self, begin: int, end: int) -> bytes:
        slots = np.zeros(end - begin, dtype=_SLOT_DTYPE)
        slots["count"] = self._counts[begin:end]
        slots["time"] = self._times[begin:end]
        slots["first"] = self._firsts[begin:end]
        slots["last"] = self._lasts[begin:end]
        slots["magic"] = np.where(slots["count"] > 0, _MAGIC, 0)
        return slots.tobytes()

    def read(self, file: File) -> bool:
        """Replace the wheel by a file's content; return False, and leave it empty, if the file is not whole."""
        self.clear_all()
        data = file.read(0, self.slots * SLOT_BYTES)
        if len(data) != self.slots * SLOT_BYTES:
            return False
        slots = np.frombuffer(data, _SLOT_DTYPE)
        occupied = slots["count"] > 0
        stored = slots[occupied]
        whole = (
            not (np.frombuffer(data, np.uint8).reshape(-1, SLOT_BYTES)[~occupied]).any()
            and bool((stored["magic"] == _MAGIC).all())
            and bool((stored["time"] // self._precision_ms % self.slots == np.flatnonzero(occupied)).all())
            and bool((stored["first"] <= stored["last"]).all())
        )
        if whole:
            self._times[:], self._firsts[:], self._lasts[:] = slots["time"], slots["first"], slots["last"]
            self._counts[:] = slots["count"]
            self._file_known = True
            self.occupied_total = len(stored)
            self.units_total = int(stored["count"].sum(dtype=np.int64))
        return whole
