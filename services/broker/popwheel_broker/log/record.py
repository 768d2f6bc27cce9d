"""Format of one record of the commit log, and its bytes.

A record: a header of 60 bytes, the topic, the origin, the system properties, the payload. All numbers are big-endian.

| field | bytes | meaning |
| --- | --- | --- |
| length | 4 | of the whole record |
| checksum | 4 | CRC-32C of all that follows it |
| magic, version | 1 + 1 | 0xA7, 1 |
| kind, flags | 1 + 1 | `RecordKind`; no flags yet |
| position | 8 | where in the log it stands: a record in the wrong place is found out |
| epoch | 4 | of the master that wrote it |
| store time | 8 | milliseconds since 1970, wall clock |
| queue id | 2 | of its topic |
| queue offset | 8 | in that queue |
| tag hash | 8 | of the message's tag, 0 for none |
| attempts | 2 | how often it was delivered before |
| topic, origin lengths | 1 + 1 | |
| system length | 4 | |
| reserved | 2 | 0 |
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from google_crc32c import extend, value

from popwheel_common.contract.put import MessageRun
from popwheel_common.contract.record_block import MAGIC, SKIPPED_KIND, VERSION
from popwheel_common.errors import CorruptDataError, UnknownFormatError

HEADER: Final = struct.Struct(">IIBBBBQIQHQQHBBIH")
_CHECKED: Final = struct.Struct(">BBBBQIQHQQHBBIH")
_LENGTH_AND_CHECKSUM: Final = struct.Struct(">II")
HEADER_BYTES: Final = HEADER.size
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024


class RecordKind(IntEnum):
    """Kind of a record."""

    MESSAGE = 1
    DELIVERY = 2
    """A pop: which messages are hidden from which group until when (`popwheel_broker.consume.delivery`)."""
    ACK = 3
    """Acknowledgement of messages of a delivery."""
    RENEWAL = 4
    """New invisible duration of messages of a delivery."""
    FORGET_TOPIC = 5
    """Deletion of a topic: what its queues hold is void."""
    FORGET_GROUP = 6
    """The group has no progress and holds no messages: it was deleted."""
    OFFSET = 7
    """A group's offset in a queue was set by hand."""
    NAMES = 8
    """Topics and groups with their ids by the controllers; an id distinguishes one from an earlier one of its name."""
    TIMER = 9
    """A message that is delivered later (`popwheel_broker.log.timer_record`)."""
    RECALL = 10
    """A delayed message is not to be delivered."""
    QUARANTINE = 11
    """A poison message, with a copy of it (`popwheel_broker.consume.quarantine_entry`)."""
    QUARANTINE_END = 12
    """A poison message is done: retried or dropped."""
    COPY = 13
    """A message that an open delivery needs, though its segment should go (`popwheel_broker.consume.relocation`)."""
    PROGRESS = 14
    """Offsets of groups that have passed messages without a delivery (`popwheel_broker.consume.progress_record`)."""
    HALF = 20
    """A message that is delivered if its transaction is committed (`popwheel_broker.transactions.half`)."""
    HALF_CHECK = 21
    """The senders of a half message are asked how its transaction ended."""
    HALF_END = 22
    """A transaction ended without a message."""
    SKIPPED = SKIPPED_KIND
    """A message stood here that was damaged, and an operator had it skipped (`replication.record_skip`)."""


@dataclass(slots=True)
class Record:
    """A record, before its place in the log is known.

    Args:
        kind: what it says.
        topic: its topic's name.
        queue_id: queue of that topic.
        payload: a message without its system properties, or the body of another kind.
        system_properties: inside of the message's system properties.
        tag_hash: see `hash_tag`.
        attempts: how often the message was delivered before.
        origin: names the entry that this record takes the place of (`consume.delivery.Origin`, 10 bytes, or the
            timer of `timer_record.fired_origin`, 8 bytes, or a half message, 9 bytes), so that the log itself shows
            that it is done; for a timer or a half message, where it goes; for an ACK, who asked for it
            (`consume.delivery.encode_call`); empty for none.
        decoded: what its payload says, for the state that follows it: that need not decode it. None: it decodes it.
    """

    kind: RecordKind
    topic: str
    queue_id: int
    payload: bytes
    system_properties: bytes = b""
    tag_hash: int = 0
    attempts: int = 0
    origin: bytes = b""
    decoded: Any = None


class StoredRecord(NamedTuple):
    """A record as it was read from the log; `decoded` as in `Record`, of one that was appended just now."""

    kind: int
    topic: str
    queue_id: int
    payload: bytes
    system_properties: bytes
    tag_hash: int
    attempts: int
    origin: bytes
    position: int
    length: int
    epoch: int
    store_time_ms: int
    queue_offset: int
    decoded: Any = None


def stored(
    record: Record, position: int, length: int, epoch: int, store_time_ms: int, queue_offset: int
) -> StoredRecord:
    """Return the record as it is read from its place in the log."""
    # As `StoredRecord(...)`, whose way through Python takes thrice as long.
    return tuple.__new__(
        StoredRecord,
        (
            record.kind,
            record.topic,
            record.queue_id,
            record.payload,
            record.system_properties,
            record.tag_hash,
            record.attempts,
            record.origin,
            position,
            length,
            epoch,
            store_time_ms,
            queue_offset,
            record.decoded,
        ),
    )


@lru_cache(maxsize=4096)
def hash_tag(tag: str) -> int:
    """Return a tag's 64 bits in consume queues and filters; 0 stands for no tag."""
    if not tag:
        return 0
    return int.from_bytes(blake2b(tag.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") or 1


def encode(
    record: Record, position: int, epoch: int, store_time_ms: int, queue_offset: int
) -> tuple[int, tuple[bytes, bytes]]:
    """Return the record's length and its bytes, as two buffers to write in turn; the payload is not copied.

    Args:
        record: what is to be written.
        position: where in the log it will stand.
        epoch: the writing master's.
        store_time_ms: wall clock.
        queue_offset: its place in its queue.

    Raises:
        ValueError: it is longer than the format can say.
    """
    topic, origin, system_properties, payload = (
        record.topic.encode(),
        record.origin,
        record.system_properties,
        record.payload,
    )
    length = HEADER_BYTES + len(topic) + len(origin) + len(system_properties) + len(payload)
    if length > RECORD_BYTES_MAX:
        raise ValueError(f"a record of {length} bytes; the log takes {RECORD_BYTES_MAX} at the most")
    header = _CHECKED.pack(
        MAGIC,
        VERSION,
        record.kind,
        0,
        position,
        epoch,
        store_time_ms,
        record.queue_id,
        queue_offset,
        record.tag_hash,
        record.attempts,
        len(topic),
        len(origin),
        len(system_properties),
        0,
    )
    checked = b"".join((header, topic, origin, system_properties))
    checksum = extend(value(checked), payload)
    return length, (_LENGTH_AND_CHECKSUM.pack(length, checksum) + checked, payload)


def encode_run(
    run: MessageRun,
    tag_hashes: Sequence[int],
    position: int,
    epoch: int,
    store_time_ms: int,
    queue_offset: int,
) -> tuple[list[int], list[bytes]]:
    """Encode each message of a run as `encode` does; return their lengths, and two buffers for each.

    Args:
        run: what is to be written.
        tag_hashes: one for each message, see `hash_tag`.
        position: where in the log the first will stand.
        epoch: the writing master's.
        store_time_ms: wall clock.
        queue_offset: of the first.

    Raises:
        ValueError: one is longer than the format can say.
    """
    topic = (run.stored_topic if run.lite_topic else run.topic).encode()
    topic_length, queue_id, kind = len(topic), run.queue_id, int(RecordKind.MESSAGE)
    lengths: list[int] = []
    buffers: list[bytes] = []
    assert len(run.payloads) == len(run.system_properties) == len(tag_hashes), "the columns differ in length"
    for index, payload in enumerate(run.payloads):
        system_properties = run.system_properties[index]
        system_length = len(system_properties)
        length = HEADER_BYTES + topic_length + system_length + len(payload)
        if length > RECORD_BYTES_MAX:
            raise ValueError(f"a record of {length} bytes; the log takes {RECORD_BYTES_MAX} at the most")
        checked = (
            _CHECKED.pack(
                MAGIC,
                VERSION,
                kind,
                0,
                position,
                epoch,
                store_time_ms,
                queue_id,
                queue_offset,
                tag_hashes[index],
                0,
                topic_length,
                0,
                system_length,
                0,
            )
            + topic
            + system_properties
        )
        lengths.append(length)
        buffers.append(_LENGTH_AND_CHECKSUM.pack(length, extend(value(checked), payload)) + checked)
        buffers.append(payload)
        position += length
        queue_offset += 1
    return lengths, buffers


def length_at(data: bytes, offset: int) -> int:
    """Return the length field of the record at `offset`; 0 if there are too few bytes."""
    if len(data) - offset < HEADER_BYTES:
        return 0
    return int.from_bytes(data[offset : offset + 4], "big")


def stored_ms_of(header: bytes) -> int | None:
    """Return when a record was stored, by its unchecked header; None if it is no header."""
    if len(header) < HEADER_BYTES or header[_LENGTH_AND_CHECKSUM.size] != MAGIC:
        return None
    return int(HEADER.unpack_from(header)[8])


def decode(data: bytes, offset: int, position: int) -> StoredRecord:
    """Read and check the record at `offset` of `data`, which is said to stand at `position` of the log.

    Raises:
        CorruptDataError: it is not whole, its checksum is wrong or it belongs elsewhere (S7).
        UnknownFormatError: it is whole, but of a version that this release does not know.
    """
    if len(data) - offset < HEADER_BYTES:
        raise CorruptDataError(f"the record at {position} ends within its header")
    # Declared, as compiled code calls Python to compare, add or slice by numbers of no declared type.
    length: int
    checksum: int
    magic: int
    version: int
    written_position: int
    topic_length: int
    origin_length: int
    system_length: int
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
        system_length,
        _reserved,
    ) = HEADER.unpack_from(data, offset)
    end = offset + length
    if magic != MAGIC or length < HEADER_BYTES or length > RECORD_BYTES_MAX or end > len(data):
        raise CorruptDataError(f"there is no whole record at {position}")
    if value(data[offset + 8 : end]) != checksum:
        raise CorruptDataError(f"the record at {position} has a wrong checksum")
    if written_position != position:
        raise CorruptDataError(f"the record at {position} was written for position {written_position}")
    if version != VERSION:
        raise UnknownFormatError(f"the record at {position} has format version {version}, this release knows {VERSION}")
    topic_start = offset + HEADER_BYTES
    origin_start = topic_start + topic_length
    system_start = origin_start + origin_length
    payload_start = system_start + system_length
    # As `StoredRecord(...)`, whose way through Python takes thrice as long.
    return tuple.__new__(
        StoredRecord,
        (
            kind,
            topic_name(data[topic_start:origin_start]),
            queue_id,
            data[payload_start:end],
            data[system_start:payload_start],
            tag_hash,
            attempts,
            data[origin_start:system_start],
            position,
            length,
            epoch,
            stored_ms,
            queue_offset,
            None,
        ),
    )


@lru_cache(maxsize=8192)
def topic_name(data: bytes) -> str:
    return data.decode(errors="backslashreplace")  # a record with a good checksum can always be read
