"""Format of one unit of the timer log, and its 52 bytes (DESIGN 5).

A unit has, of one TIMER or RECALL record, its position in the commit log, its due time, and the unit before it in its
slot of the wheel. All numbers are big-endian.

| field | bytes | meaning |
| --- | --- | --- |
| size | 4 | 52; of a blank unit, what is left of its file |
| previous | 8 | position in the timer log of the unit before it in its slot, -1 for none |
| magic | 4 | `PW`, format version, flags |
| write time | 8 | milliseconds since 1970, not after the due time |
| delay | 4 | milliseconds from the write time to the due time |
| position | 8 | of the record, in the commit log |
| length | 4 | of the record, in bytes |
| topic hash | 4 | `hash_topic` of the real topic |
| slot | 4 | second of its slot minus second of the write time; may be negative |
| checksum | 4 | of all before it |

The last two are the 8 reserved bytes of DESIGN 5. The checksum is the 48 bytes before it, read as one number, modulo
the largest prime below 2^32. It finds every flipped bit, and every change that stays within 31 neighbouring bits of
those 48 bytes, since a prime divides no such difference; of other damage one in four billion goes unseen. It was chosen
because numpy takes it of millions of units in 20 ns each, and Python of one in 0.3 us.
"""

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from popwheel_common.errors import CorruptDataError

_CHECKED = struct.Struct(">IqIqIqIIi")
_UNIT = struct.Struct(">IqIqIqIIiI")
_BLANK = struct.Struct(">IqI")
_PRIME = (1 << 32) - 5
_WEIGHTS = np.array([5**power for power in range(11, -1, -1)], dtype=np.uint64)
"""2^32 is 5 modulo the prime, so the n-th word from the right counts 5^n-fold; the sum stays below 2^58."""
_MAGIC = 0x50570100
_MAGIC_BLANK = 0x505701FF
_FLAGS = 7

UNIT_BYTES = _UNIT.size
CHECKED_BYTES = _CHECKED.size
BLANK_BYTES = _BLANK.size

UNIT_DTYPE = np.dtype(
    [
        ("size", ">u4"),
        ("previous", ">i8"),
        ("magic", ">u4"),
        ("write_time_ms", ">i8"),
        ("delay_ms", ">u4"),
        ("position", ">i8"),
        ("length", ">u4"),
        ("topic_hash", ">u4"),
        ("slot_after_write", ">i4"),
        ("checksum", ">u4"),
    ]
)
"""Units as they are on disk, for numpy; `columns` converts them."""

COLUMNS_DTYPE = np.dtype(
    [
        ("previous", np.int64),
        ("flags", np.uint32),
        ("write_time_ms", np.int64),
        ("due_ms", np.int64),
        ("slot_ms", np.int64),
        ("position", np.int64),
        ("length", np.uint32),
        ("topic_hash", np.uint32),
    ]
)
"""Units as `Unit` has them, for numpy."""

UnitFields = tuple[int, int, int, int, int, int, int, int]
"""A `Unit`, or a plain tuple of its fields, which takes half as long to make."""


class UnitFlag:
    """Flag of a unit. Plain numbers: an `IntFlag` takes a microsecond for each `&` and `|`."""

    TIMER: Final = 1
    ROLL: Final = 2
    """Its slot is not that of its due time but the one where it rolls."""
    DELETE: Final = 4
    """It stands for a RECALL record."""


class Unit(NamedTuple):
    """A unit of the timer log.

    Args:
        previous: position in the timer log of the unit before it in its slot, -1 for none.
        flags: `UnitFlag`s.
        write_time_ms: when it was written, wall clock, but not after `due_ms`.
        due_ms: when its message is to be delivered.
        slot_ms: the slot that it is chained into, a whole second.
        position: of its record, in the commit log.
        length: of its record, in bytes.
        topic_hash: `hash_topic` of the real topic.
    """

    previous: int
    flags: int
    write_time_ms: int
    due_ms: int
    slot_ms: int
    position: int
    length: int
    topic_hash: int


@lru_cache(maxsize=4096)
def hash_topic(name: str) -> int:
    """Return the 32 bits of a topic's name in a unit."""
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big")


def encode(
    previous: int,
    flags: int,
    write_time_ms: int,
    due_ms: int,
    slot_ms: int,
    position: int,
    length: int,
    topic_hash: int,
) -> bytes:
    """Return the bytes of a unit; the arguments are those of `Unit`, in its order.

    Raises:
        struct.error: the due time is before the write time or more than 49 days after it, or another number does not
            fit in the format.
    """
    assert previous >= -1 and 0 <= flags <= _FLAGS, "a unit that would be read as none"
    checked = _CHECKED.pack(
        UNIT_BYTES,
        previous,
        _MAGIC | flags,
        write_time_ms,
        due_ms - write_time_ms,
        position,
        length,
        topic_hash,
        slot_ms // 1000 - write_time_ms // 1000,
    )
    return checked + (int.from_bytes(checked, "big") % _PRIME).to_bytes(4, "big")


def decode(data: bytes, offset: int) -> Unit:
    """Read and check the unit at `offset` of `data`.

    Raises:
        CorruptDataError: there is no whole unit, or its checksum is wrong.
    """
    if len(data) - offset < UNIT_BYTES:
        raise CorruptDataError("a unit of the timer log is cut off")
    size, previous, magic, write_time_ms, delay_ms, position, length, topic_hash, slot, checksum = _UNIT.unpack_from(
        data, offset
    )
    if int.from_bytes(data[offset : offset + CHECKED_BYTES], "big") % _PRIME != checksum:
        raise CorruptDataError("a unit of the timer log has a wrong checksum")
    if size != UNIT_BYTES or magic & ~_FLAGS != _MAGIC or previous < -1:
        raise CorruptDataError("a unit of the timer log has an invalid header")
    # As `Unit(...)`, whose way through Python takes thrice as long.
    return tuple.__new__(
        Unit,
        (
            previous,
            magic & _FLAGS,
            write_time_ms,
            write_time_ms + delay_ms,
            (write_time_ms // 1000 + slot) * 1000,
            position,
            length,
            topic_hash,
        ),
    )


def encode_blank(size: int) -> bytes:
    """Return the blank unit that ends a file, and zeros: all of the remaining `size` bytes, 16 at the least."""
    return _BLANK.pack(size, -1, _MAGIC_BLANK) + bytes(size - BLANK_BYTES)


def blank_size(data: bytes, offset: int) -> int:
    """Return how many bytes are left of its file by the blank unit at `offset`, 0 if there is no blank unit."""
    if len(data) - offset < BLANK_BYTES:
        return 0
    size: int
    size, previous, magic = _BLANK.unpack_from(data, offset)
    return size if magic == _MAGIC_BLANK and previous == -1 and size >= BLANK_BYTES else 0


def valid_units(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return which units of an array of `UNIT_DTYPE` are whole, as `decode` has it."""
    words = np.ascontiguousarray(units).view(">u4").reshape(-1, UNIT_BYTES // 4)
    sums = words[:, :-1].astype(np.uint64) @ _WEIGHTS
    valid: npt.NDArray[np.bool_] = sums % np.uint64(_PRIME) == words[:, -1]
    valid &= units["size"] == UNIT_BYTES
    valid &= units["magic"] & np.uint32(~_FLAGS & 0xFFFFFFFF) == _MAGIC
    valid &= units["previous"] >= -1
    return valid


def columns(units: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return valid units of `UNIT_DTYPE` as `COLUMNS_DTYPE`, as `decode` has them."""
    found = np.empty(len(units), COLUMNS_DTYPE)
    for name in ("previous", "write_time_ms", "position", "length", "topic_hash"):
        found[name] = units[name]
    found["flags"] = units["magic"] & np.uint32(_FLAGS)
    found["due_ms"] = found["write_time_ms"] + units["delay_ms"]
    found["slot_ms"] = (found["write_time_ms"] // 1000 + units["slot_after_write"]) * 1000
    return found
