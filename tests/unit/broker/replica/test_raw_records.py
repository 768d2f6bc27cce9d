"""Raw records: the quick ways must say what the slow one says."""

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.log import record
from popwheel_broker.log.raw_records import checked_records, whole_bytes, whole_length
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_common.errors import CorruptDataError, UnknownFormatError

records = st.lists(
    st.builds(
        Record,
        st.sampled_from(RecordKind),
        st.sampled_from(["t", "topic-ü", "%RETRY%g_t"]),
        st.integers(0, 7),
        st.binary(max_size=50),
        st.binary(max_size=20),
        st.integers(0, 2**64 - 1),
        st.integers(0, 9),
        st.binary(max_size=10),
    ),
    min_size=1,
    max_size=8,
)


def encoded(each: list[Record], position: int) -> tuple[bytes, list[StoredRecord]]:
    data = b""
    for offset, one in enumerate(each):
        data += b"".join(record.encode(one, position + len(data), 3, 1_000, offset)[1])
    slow: list[StoredRecord] = []
    while sum(one.length for one in slow) < len(data):
        at = sum(one.length for one in slow)
        slow.append(record.decode(data, at, position + at))
    return data, slow


@given(records, st.integers(0, 2**40))
def test_checked_records_are_the_decoded_ones_without_contents_of_messages(each: list[Record], position: int) -> None:
    data, slow = encoded(each, position)
    expected = [
        one._replace(payload=b"", system_properties=b"") if one.kind in (RecordKind.MESSAGE, RecordKind.TIMER) else one
        for one in slow
    ]
    assert checked_records(position, data) == expected
    assert whole_bytes(position, data) is data


@given(records, st.data())
def test_a_changed_bit_is_found_out(each: list[Record], data: st.DataObject) -> None:
    good, slow = encoded(each, 640)
    changed = bytearray(good)
    at = data.draw(st.integers(0, len(good) - 1))
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((CorruptDataError, UnknownFormatError)):
        checked_records(640, bytes(changed))
    before = max([one.position + one.length for one in slow if one.position + one.length <= 640 + at], default=640)
    if before == 640:
        with pytest.raises(CorruptDataError, match="no whole and good record at 640"):
            whole_length(640, bytes(changed))
    else:
        assert whole_length(640, bytes(changed)) == before - 640


@given(records, st.data())
def test_a_cut_off_one_ends_what_is_whole(each: list[Record], data: st.DataObject) -> None:
    good, slow = encoded(each, 64)
    length = data.draw(st.integers(slow[0].length, len(good)))
    ends = [one.position + one.length - 64 for one in slow]
    assert whole_length(64, good[:length]) == max(end for end in ends if end <= length)
    if length not in ends:
        with pytest.raises(CorruptDataError):
            checked_records(64, good[:length])


def test_records_of_another_place_or_release_are_refused() -> None:
    good, _ = encoded([Record(RecordKind.MESSAGE, "t", 0, b"x")], 64)
    with pytest.raises(CorruptDataError, match="written for position 64"):
        checked_records(65, good)
    with pytest.raises(CorruptDataError):
        whole_length(65, good)
    with pytest.raises(CorruptDataError):
        whole_length(64, b"")
    later = bytearray(good)
    later[9] = 2
    later[4:8] = google_crc32c.value(bytes(later[8:])).to_bytes(4, "big")
    with pytest.raises(UnknownFormatError, match="version 2"):
        checked_records(64, bytes(later))
