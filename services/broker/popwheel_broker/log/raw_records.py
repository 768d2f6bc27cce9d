"""Records as bytes, as they go from replica to replica: where each ends, and whether it is good (S7).

What is received is decoded once, for the check and for the fold: a slave's work on each message is what bounds how
fast a master may take sends. Contents of messages are not copied for it.
"""

import struct

from google_crc32c import value

from popwheel_broker.log.record import (
    HEADER,
    HEADER_BYTES,
    RECORD_BYTES_MAX,
    RecordKind,
    StoredRecord,
    decode,
    topic_name,
)
from popwheel_common.contract.record_block import MAGIC, VERSION
from popwheel_common.errors import CorruptDataError

_BEGINNING = struct.Struct(">IIBxxxQ")
"""Length, checksum, magic and position."""

_BULKY = frozenset((int(RecordKind.MESSAGE), int(RecordKind.TIMER)))


def whole_length(position: int, data: bytes) -> int:
    """Return how many bytes at the beginning of `data` are whole, valid records;

    `data` stands at `position` of the log.

    A damaged one ends them.

    Raises:
        CorruptDataError: the first is not whole, is damaged or belongs elsewhere.
    """
    offset, end = 0, len(data)
    unpack = _BEGINNING.unpack_from
    while end - offset >= HEADER_BYTES:
        length, checksum, magic, written_position = unpack(data, offset)
        behind = offset + length
        if (
            magic != MAGIC
            or not HEADER_BYTES <= length <= RECORD_BYTES_MAX
            or behind > end
            or written_position != position + offset
            or value(data[offset + 8 : behind]) != checksum
        ):
            break
        offset = behind
    if offset == 0:
        raise CorruptDataError(f"there is no whole and good record at {position}")
    return offset


def whole_bytes(position: int, data: bytes) -> bytes:
    """Return the bytes that `whole_length` counts; raises as it does."""
    length = whole_length(position, data)
    return data if length == len(data) else data[:length]


def checked_records(position: int, data: bytes) -> list[StoredRecord]:
    """Read and check records that follow one another, for the fold.

    Of messages and timers, which are most of a log, `payload` and `system_properties` are left out: no fold looks at
    them.

    Raises:
        CorruptDataError: one is damaged, not whole, or belongs elsewhere.
        UnknownFormatError: one is of a version that this release does not know.
    """
    found: list[StoredRecord] = []
    offset, end = 0, len(data)
    unpack, new = HEADER.unpack_from, tuple.__new__
    while offset < end:
        if end - offset < HEADER_BYTES:
            raise CorruptDataError(f"the record at {position + offset} ends within its header")
        (
            length,
            checksum,
            magic,
            version,
            kind,
            _flags,
            written_position,
            epoch,
            stored_ms,
            queue_id,
            queue_offset,
            tag_hash,
            attempts,
            topic_length,
            origin_length,
            _system_length,
            _reserved,
        ) = unpack(data, offset)
        behind = offset + length
        if (
            kind not in _BULKY
            or magic != MAGIC
            or version != VERSION
            or not HEADER_BYTES <= length <= RECORD_BYTES_MAX
            or behind > end
            or written_position != position + offset
            or value(data[offset + 8 : behind]) != checksum
        ):
            each = decode(data, offset, position + offset)  # also says what is wrong with it
        else:
            topic_start = offset + HEADER_BYTES
            origin_start = topic_start + topic_length
            # As `StoredRecord(...)`, whose way through Python takes thrice as long.
            each = new(
                StoredRecord,
                (
                    kind,
                    topic_name(data[topic_start:origin_start]),
                    queue_id,
                    b"",
                    b"",
                    tag_hash,
                    attempts,
                    data[origin_start : origin_start + origin_length] if origin_length else b"",
                    written_position,
                    length,
                    epoch,
                    stored_ms,
                    queue_offset,
                    None,
                ),
            )
        found.append(each)
        offset += each.length
    return found


def bare_records(position: int, data: bytes) -> list[StoredRecord]:
    """Return records with their ends and writers only. For those that `checked_records` fails for.

    Raises:
        CorruptDataError: one is damaged, not whole, or belongs elsewhere.
    """
    if whole_length(position, data) != len(data):
        raise CorruptDataError(f"the records from {position} on are not all whole and good")
    found: list[StoredRecord] = []
    offset = 0
    while offset < len(data):
        length, _, _, _, kind, _, written_position, epoch, *_ = HEADER.unpack_from(data, offset)
        found.append(StoredRecord(kind, "", 0, b"", b"", 0, 0, b"", written_position, length, epoch, 0, 0))
        offset += length
    return found
