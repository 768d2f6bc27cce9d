"""A block of records of one queue, as a broker hands it to readers of whole queues: byte for byte as its log has them.

A record's layout is in `popwheel_broker.log.record`. Here is what both ends share: the bytes of a block, and the
heads of its records as columns, so that nobody does anything for a single record.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from popwheel_common.contract.wire_format import LENGTH_DELIMITED, VARINT, field, read_varint, skip, varint

MAGIC: Final = 0xA7
VERSION: Final = 1
SKIPPED_KIND: Final = 30
"""Kind of a record that replaces a damaged message; readers skip it."""

HEAD: Final = np.dtype(
    [
        *(("length", ">u4"), ("checksum", ">u4"), ("magic", "u1"), ("version", "u1"), ("kind", "u1"), ("flags", "u1")),
        *(("position", ">u8"), ("epoch", ">u4"), ("store_time_ms", ">u8"), ("queue_id", ">u2")),
        *(("queue_offset", ">u8"), ("tag_hash", ">u8"), ("attempts", ">u2"), ("topic_length", "u1")),
        *(("origin_length", "u1"), ("system_length", ">u4"), ("reserved", ">u2")),
    ]
)
"""The header of a record, for numpy."""

_NEXT_OFFSET = 1
_LENGTHS = 2
_RECORDS = 3
_LENGTH = np.dtype("<u4")
_KIND_AT = 10
"""Place of the kind within a header."""
_NEXT_OFFSET_TAG = bytes((_NEXT_OFFSET << 3 | VARINT,))
_RECORDS_TAG = bytes((_RECORDS << 3 | LENGTH_DELIMITED,))

Numbers = npt.NDArray[np.int64]

NOTHING: Final[Numbers] = np.empty(0, np.int64)


class RecordBlock(NamedTuple):
    """Records of one queue, in the order of their offsets.

    Args:
        next_offset: where to go on; beyond what a filter kept back.
        data: holds the records.
        begins: where in `data` each begins.
        lengths: of each, in bytes.
    """

    next_offset: int
    data: npt.NDArray[np.uint8]
    begins: Numbers
    lengths: Numbers

    def heads(self) -> npt.NDArray[Any]:
        """Return the header of each, of the type `HEAD`."""
        return heads_of(self.data, self.begins)

    def part(self, begin: int, end: int) -> "RecordBlock":
        """Return some of the records, by their place in the block."""
        return self._replace(begins=self.begins[begin:end], lengths=self.lengths[begin:end])


NO_RECORDS: Final = RecordBlock(0, np.empty(0, np.uint8), NOTHING, NOTHING)


def joined(blocks: Sequence[RecordBlock]) -> RecordBlock:
    """Blocks that follow one another, at least one, as one. Their records are copied: a reader's work on a block costs
    more than on a few rows more.
    """
    if len(blocks) == 1:
        return blocks[0]
    sizes = np.array([len(block.data) for block in blocks])
    bases = np.cumsum(sizes) - sizes
    return RecordBlock(
        blocks[-1].next_offset,
        np.concatenate([block.data for block in blocks]),
        np.concatenate([block.begins + base for block, base in zip(blocks, bases, strict=True)]),
        np.concatenate([block.lengths for block in blocks]),
    )


def windows(data: npt.NDArray[np.uint8], begins: Numbers, size: int) -> npt.NDArray[np.uint8]:
    """Return `size` bytes from each of some places of `data`, which must contain them: an array of (places, `size`)."""
    # As numpy's sliding_window_view, which takes ten times as long: one of each byte's windows, which overlap.
    return np.ndarray((len(data) - size + 1, size), np.uint8, data, strides=(1, 1))[begins]


def heads_of(data: npt.NDArray[np.uint8], begins: Numbers) -> npt.NDArray[Any]:
    """Return the headers of the records that begin at some places of `data`, each of which has one whole."""
    if not len(begins):
        return np.empty(0, HEAD)
    return windows(data, begins, HEAD.itemsize).view(HEAD)[:, 0]


def encode_block(next_offset: int, lengths: npt.NDArray[Any], stretches: Sequence[bytes]) -> bytes:
    """Return the bytes of a `popwheel.v1.PullRecordsResponse`.

    Args:
        next_offset: where to go on.
        lengths: of all records.
        stretches: all records; where one ends and the next begins does not matter.
    """
    head = _NEXT_OFFSET_TAG + varint(next_offset)
    if not len(lengths):
        return head
    lengths_field = field(_LENGTHS, lengths.astype(_LENGTH).tobytes())
    return b"".join((head, lengths_field, _RECORDS_TAG, varint(sum(map(len, stretches))), *stretches))


def decode_block(data: bytes) -> RecordBlock:
    """Read a `popwheel.v1.PullRecordsResponse`; its records are not copied.

    Raises:
        StatusError, ValueError: it is not one.
    """
    next_offset = at = first = stop = 0
    lengths = NOTHING
    end = len(data)
    while at < end:
        tag, at = read_varint(data, at, end)
        number, begin = tag >> 3, at
        if tag & 7 == LENGTH_DELIMITED:
            _, begin = read_varint(data, at, end)
        at = skip(data, tag & 7, at, end)
        if number == _NEXT_OFFSET:
            next_offset, _ = read_varint(data, begin, end)
        elif number == _LENGTHS:
            lengths = np.frombuffer(data, _LENGTH, (at - begin) // _LENGTH.itemsize, begin).astype(np.int64)
        elif number == _RECORDS:
            first, stop = begin, at
    ends = np.cumsum(lengths)
    if stop - first != (ends[-1] if len(ends) else 0) or (len(lengths) and lengths.min() < HEAD.itemsize):
        raise ValueError("the records of a block are not as long as it says")
    block = RecordBlock(next_offset, np.frombuffer(data, np.uint8), ends - lengths + first, lengths)
    if len(lengths) and np.any(skipped := block.data[block.begins + _KIND_AT] == SKIPPED_KIND):
        return block._replace(begins=block.begins[~skipped], lengths=lengths[~skipped])
    return block
