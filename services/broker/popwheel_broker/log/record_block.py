"""Many records of one queue at once, for readers of whole queues: chosen, found and checked by columns (pure).

What is done for a single record is its checksum alone.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google_crc32c import value

from popwheel_broker.log.consume_queue import ConsumeQueue, Entry
from popwheel_common.contract.record_block import HEAD, MAGIC, VERSION, Numbers, heads_of, windows

_ENTRY = np.dtype([("position", ">u8"), ("length", ">u4"), ("tag_hash", ">u8")])
_CHECKED_FROM = 8
"""Offset in a record from which on it is checked: its length and its checksum come before."""


@dataclass(frozen=True, slots=True)
class Places:
    """Places of a queue's messages, in columns.

    Args:
        offsets: in the queue.
        positions: of their records in the commit log.
        lengths: of their records, in bytes.
    """

    offsets: Numbers
    positions: Numbers
    lengths: Numbers

    def entries(self) -> list[Entry]:
        """Return them as entries, whose tags are not known any more."""
        return [Entry(*place, 0) for place in zip(self.positions.tolist(), self.lengths.tolist(), strict=True)]

    def part(self, begin: int, end: int) -> "Places":
        """Return some of them, by their index."""
        return Places(self.offsets[begin:end], self.positions[begin:end], self.lengths[begin:end])

    def spans(self, gap_bytes: int) -> "Spans":
        """Return the spans to read.

        Records of one span stand no farther from one another than `gap_bytes`; with -1 each is by itself.
        """
        ends = self.positions + self.lengths
        gaps = self.positions[1:] - ends[:-1]
        firsts = np.concatenate(((0,), np.flatnonzero((gaps < 0) | (gaps > gap_bytes)) + 1))
        counts = np.diff(firsts, append=len(ends))
        positions = self.positions[firsts]
        lengths = ends[firsts + counts - 1] - positions
        bases = np.cumsum(lengths) - lengths
        return Spans(positions.tolist(), lengths.tolist(), self.positions - np.repeat(positions - bases, counts))


@dataclass(frozen=True, slots=True)
class Spans:
    """Ranges of the commit log that hold records, and may hold others between them.

    Args:
        positions: where each begins.
        lengths: of each, in bytes.
        begins: where the records begin when all ranges stand one after another.
    """

    positions: list[int]
    lengths: list[int]
    begins: Numbers

    @property
    def bytes(self) -> int:
        """Size of all of them, in bytes."""
        return sum(self.lengths)


def choose(
    entries: bytes, offset: int, wanted: Set[int] | None, messages_max: int, bytes_max: int
) -> tuple[Places, int]:
    """Choose the entries of a queue that answer a reader.

    Args:
        entries: as `packed_entry` made them.
        offset: of the first.
        wanted: hashes of tags; None: all.
        messages_max: limit of the messages.
        bytes_max: their records have no more bytes together, but for the first.

    Returns:
        Where they stand, and the offset to go on with.
    """
    columns = np.frombuffer(entries, _ENTRY)
    picks = np.arange(len(columns))
    if wanted is not None:
        picks = picks[np.isin(columns["tag_hash"], np.fromiter(wanted, np.uint64))]
    fitting = picks[:messages_max]
    lengths = columns["length"][fitting].astype(np.int64)
    count = max(1, int(np.searchsorted(np.cumsum(lengths), bytes_max, "right")))
    if count < len(fitting):
        behind = int(fitting[count])
    elif len(fitting) == messages_max:
        behind = int(fitting[-1]) + 1
    else:
        behind = len(columns)
    positions = columns["position"][fitting[:count]].astype(np.int64)
    return Places(offset + fitting[:count], positions, lengths[:count]), offset + behind


@dataclass(frozen=True, slots=True)
class Sought:
    """Records of a block that are to be decoded, by what their bytes show before it.

    Args:
        parts: bytes that a record contains, all of them; none: any record.
        kinds: records of these kinds are decoded whatever they contain.
        until_ms: records that were stored later are decoded, too: they end a search.
    """

    parts: Sequence[bytes]
    kinds: Set[int]
    until_ms: int

    def of(self, data: bytes, places: Places) -> list[tuple[int, int]]:
        """Return where those records begin in the data and in the log, in order.

        A record may be among them that holds no such bytes: where the end of one and the beginning of the next make
        them.

        Args:
            data: holds the records, each right behind the one before.
            places: where they stand in the log.
        """
        begins = np.cumsum(places.lengths) - places.lengths
        chosen = np.ones(len(begins), np.bool_)
        for part in self.parts:
            chosen &= _holders(data, begins, part)
        heads = heads_of(np.frombuffer(data, np.uint8), begins)
        chosen |= heads["store_time_ms"].astype(np.int64) > self.until_ms
        if self.kinds:
            chosen |= np.isin(heads["kind"], tuple(self.kinds))
        return list(zip(begins[chosen].tolist(), places.positions[chosen].tolist(), strict=True))


def _holders(data: bytes, begins: Numbers, part: bytes) -> npt.NDArray[np.bool_]:
    """Return which records contain some bytes."""
    found = np.zeros(len(begins), np.bool_)
    at = data.find(part)
    while at >= 0:
        index = int(np.searchsorted(begins, at, "right"))
        found[index - 1] = True
        at = data.find(part, int(begins[index])) if index < len(begins) else -1
    return found


def stretches(data: bytes, begins: Numbers, lengths: Numbers) -> list[bytes]:
    """Records alone, of bytes that may hold others between them; those that stand side by side in one piece."""
    ends = begins + lengths
    cuts = np.flatnonzero(begins[1:] != ends[:-1]) + 1
    if not len(cuts):
        return [data]
    firsts = begins[np.concatenate(((0,), cuts))].tolist()
    lasts = ends[np.concatenate((cuts, (len(ends),))) - 1].tolist()
    return [data[first:last] for first, last in zip(firsts, lasts, strict=True)]


def are_sound(data: bytes, begins: Numbers, places: Places, queue: ConsumeQueue) -> bool:
    """Return whether records are whole, of this format, and those that entries of a queue lead to.

    `StoredRecords.read_checked` finds the same record by record, with an error's sentence.

    Args:
        data: holds the records.
        begins: where each begins in it.
        places: where they stand in the log.
        queue: of which they are.
    """
    ends = begins + places.lengths
    topic = np.frombuffer(queue.topic.encode(), np.uint8)
    if len(data) != ends[-1] or places.lengths.min() < HEAD.itemsize + len(topic):
        return False
    array = np.frombuffer(data, np.uint8)
    heads = heads_of(array, begins)
    expected = (
        ("length", places.lengths),
        ("magic", MAGIC),
        ("version", VERSION),
        ("position", places.positions),
        ("queue_id", queue.queue_id),
        ("queue_offset", places.offsets),
        ("topic_length", len(topic)),
    )
    if not all(np.all(heads[name] == right) for name, right in expected):
        return False
    if not np.all(windows(array, begins + HEAD.itemsize, len(topic)) == topic):
        return False
    checked = zip((begins + _CHECKED_FROM).tolist(), ends.tolist(), strict=True)
    checksums = [value(data[begin:end]) for begin, end in checked]
    return bool(np.all(heads["checksum"] == checksums))
