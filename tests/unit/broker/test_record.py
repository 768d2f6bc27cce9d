"""Records of the commit log: what is written comes back, and no damage passes for a record (S7)."""

import struct
from dataclasses import replace

import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.log import record
from popwheel_broker.log.record import HEADER_BYTES, RECORD_BYTES_MAX, Record, RecordKind, StoredRecord
from popwheel_common.errors import CorruptDataError, UnknownFormatError

RECORDS = st.builds(
    Record,
    kind=st.sampled_from(RecordKind),
    topic=st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()),
    queue_id=st.integers(0, 2**16 - 1),
    payload=st.binary(max_size=300),
    system_properties=st.binary(max_size=60),
    tag_hash=st.integers(0, 2**64 - 1),
    attempts=st.integers(0, 2**16 - 1),
    origin=st.binary(max_size=12),
)
POSITIONS = st.integers(0, 2**63)
EXAMPLE = Record(RecordKind.MESSAGE, "topic", 3, b"payload", b"system", 77, 2, b"0123456789")


def encoded(each: Record, position: int = 0, epoch: int = 1, store_time_ms: int = 5, queue_offset: int = 9) -> bytes:
    length, buffers = record.encode(each, position, epoch, store_time_ms, queue_offset)
    data = b"".join(buffers)
    assert len(data) == length
    return data


def with_checksum(data: bytearray) -> bytes:
    data[4:8] = struct.pack(">I", value(bytes(data[8:])))
    return bytes(data)


@given(
    each=RECORDS,
    position=POSITIONS,
    epoch=st.integers(0, 2**32 - 1),
    store_time_ms=POSITIONS,
    queue_offset=POSITIONS,
    around=st.tuples(st.binary(max_size=20), st.binary(max_size=20)),
)
def test_what_is_written_comes_back(
    each: Record, position: int, epoch: int, store_time_ms: int, queue_offset: int, around: tuple[bytes, bytes]
) -> None:
    data = encoded(each, position, epoch, store_time_ms, queue_offset)
    before, after = around
    assert record.decode(before + data + after, len(before), position) == StoredRecord(
        kind=each.kind,
        topic=each.topic,
        queue_id=each.queue_id,
        payload=each.payload,
        system_properties=each.system_properties,
        tag_hash=each.tag_hash,
        attempts=each.attempts,
        origin=each.origin,
        position=position,
        length=len(data),
        epoch=epoch,
        store_time_ms=store_time_ms,
        queue_offset=queue_offset,
    )
    assert record.length_at(before + data, len(before)) == len(data)


@given(each=RECORDS, data=st.data())
def test_any_garbled_byte_is_found(each: Record, data: st.DataObject) -> None:
    garbled = bytearray(encoded(each))
    at = data.draw(st.integers(0, len(garbled) - 1))
    garbled[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptDataError):
        record.decode(bytes(garbled), 0, 0)


def test_every_garbled_bit_of_one_record_is_found() -> None:
    good = encoded(EXAMPLE)
    for bit in range(len(good) * 8):
        garbled = bytearray(good)
        garbled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            record.decode(bytes(garbled), 0, 0)


def test_every_cut_of_one_record_is_found() -> None:
    good = encoded(EXAMPLE)
    for length in range(len(good)):
        with pytest.raises(CorruptDataError):
            record.decode(good[:length], 0, 0)
        with pytest.raises(CorruptDataError):
            record.decode(good[:length] + bytes(len(good) - length), 0, 0)


@given(each=RECORDS, position=POSITIONS, elsewhere=POSITIONS)
def test_a_record_in_the_wrong_place_is_found(each: Record, position: int, elsewhere: int) -> None:
    if position != elsewhere:
        with pytest.raises(CorruptDataError, match=f"written for position {position}"):
            record.decode(encoded(each, position), 0, elsewhere)


@pytest.mark.parametrize("data", [b"", bytes(HEADER_BYTES), bytes(4096), b"\xff" * 4096])
def test_what_never_was_a_record_is_none(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="at 0"):
        record.decode(data, 0, 0)


def test_an_unknown_version_is_refused_and_said() -> None:
    data = bytearray(encoded(EXAMPLE))
    data[9] = 2
    with pytest.raises(UnknownFormatError, match="format version 2, this release knows 1"):
        record.decode(with_checksum(data), 0, 0)


def test_a_record_past_the_formats_limit_is_refused() -> None:
    fitting = RECORD_BYTES_MAX - HEADER_BYTES - len("topic")
    assert record.encode(Record(RecordKind.MESSAGE, "topic", 0, bytes(fitting)), 0, 1, 0, 0)[0] == RECORD_BYTES_MAX
    with pytest.raises(ValueError, match="the log takes 67108864"):
        record.encode(Record(RecordKind.MESSAGE, "topic", 0, bytes(fitting + 1)), 0, 1, 0, 0)


def test_the_payload_is_not_copied() -> None:
    _, buffers = record.encode(EXAMPLE, 0, 1, 0, 0)
    assert buffers[-1] is EXAMPLE.payload


def test_tags() -> None:
    assert record.hash_tag("") == 0
    hashes = {record.hash_tag(tag) for tag in ("a", "b", "A", "a ", "ä", "\ud800")}
    assert len(hashes) == 6
    assert 0 not in hashes
    assert record.encode(replace(EXAMPLE, tag_hash=max(hashes)), 0, 1, 0, 0)
