"""Units of the timer log: what is written is read, singly and in bulk alike, and damage is found (DESIGN 5, S7)."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.delay import unit
from popwheel_broker.delay.unit import UNIT_BYTES, UNIT_DTYPE, Unit, UnitFlag, hash_topic
from popwheel_common.errors import CorruptDataError

EXAMPLE = Unit(
    previous=5200,
    flags=UnitFlag.TIMER | UnitFlag.ROLL,
    write_time_ms=1_700_000_000_123,
    due_ms=1_700_000_300_456,
    slot_ms=1_700_000_100_000,
    position=987_654_321,
    length=1234,
    topic_hash=hash_topic("orders"),
)


@st.composite
def units(draw: st.DrawFn) -> Unit:
    write_time_ms = draw(st.integers(0, 1 << 42))
    return Unit(
        previous=draw(st.integers(-1, (1 << 63) - 1)),
        flags=draw(st.integers(0, 7)),
        write_time_ms=write_time_ms,
        due_ms=write_time_ms + draw(st.integers(0, (1 << 32) - 1)),
        slot_ms=(write_time_ms // 1000 + draw(st.integers(-(1 << 31), (1 << 31) - 1))) * 1000,
        position=draw(st.integers(0, (1 << 63) - 1)),
        length=draw(st.integers(0, (1 << 32) - 1)),
        topic_hash=draw(st.integers(0, (1 << 32) - 1)),
    )


@given(st.lists(units(), min_size=1, max_size=20))
def test_what_is_written_is_read_singly_and_in_bulk(written: list[Unit]) -> None:
    data = b"".join(unit.encode(*each) for each in written)
    assert len(data) == len(written) * UNIT_BYTES
    assert [unit.decode(data, index * UNIT_BYTES) for index in range(len(written))] == written
    array = np.frombuffer(data, UNIT_DTYPE)
    assert unit.valid_units(array).all()
    assert [Unit(*each) for each in unit.columns(array).tolist()] == written


@given(units())
def test_every_flipped_bit_is_found(written: Unit) -> None:
    good = unit.encode(*written)
    number = int.from_bytes(good, "big")
    copies = [(number ^ 1 << bit).to_bytes(UNIT_BYTES, "big") for bit in range(UNIT_BYTES * 8)]
    assert not unit.valid_units(np.frombuffer(b"".join(copies), UNIT_DTYPE)).any()
    for copy in copies:
        with pytest.raises(CorruptDataError):
            unit.decode(copy, 0)


@given(units(), st.integers(1, (1 << 31) - 1), st.integers(0, 48 * 8 - 1))
def test_changes_of_neighbouring_bits_are_found(written: Unit, change: int, shift: int) -> None:
    checked = int.from_bytes(unit.encode(*written), "big")
    changed = (checked ^ (change << shift) % (1 << 48 * 8) << 32).to_bytes(UNIT_BYTES, "big")
    with pytest.raises(CorruptDataError):
        unit.decode(changed, 0)


@given(data=st.binary(min_size=UNIT_BYTES, max_size=UNIT_BYTES), sealed=st.booleans())
def test_singly_and_in_bulk_the_same_is_found_bad(data: bytes, sealed: bool) -> None:
    if sealed:  # with a right checksum it is for the other fields to tell
        data = data[:48] + (int.from_bytes(data[:48], "big") % 4_294_967_291).to_bytes(4, "big")
    try:
        unit.decode(data, 0)
    except CorruptDataError:
        whole = False
    else:
        whole = True
    assert unit.valid_units(np.frombuffer(data, UNIT_DTYPE)).tolist() == [whole]


@pytest.mark.parametrize(
    ("field", "value"),
    [(slice(0, 4), 51), (slice(4, 12), (1 << 64) - 2), (slice(12, 16), 0x50570200), (slice(12, 16), 0x50570108)],
    ids=["size", "previous", "version", "unknown flag"],
)
def test_what_is_no_unit_is_notified_though_its_checksum_is_right(field: slice, value: int) -> None:
    data = bytearray(unit.encode(*EXAMPLE))
    data[field] = value.to_bytes(field.stop - field.start, "big")
    data[48:] = (int.from_bytes(data[:48], "big") % 4_294_967_291).to_bytes(4, "big")
    with pytest.raises(CorruptDataError):
        unit.decode(bytes(data), 0)
    assert not unit.valid_units(np.frombuffer(bytes(data), UNIT_DTYPE)).any()


def test_the_bytes_are_those_of_the_design() -> None:
    """Whoever changes them changes the version."""
    assert unit.encode(*EXAMPLE) == struct.pack(
        ">IqIqIqIIiI",
        *(52, 5200, 0x50570103, 1_700_000_000_123, 300_333, 987_654_321, 1234, hash_topic("orders"), 100, 2771031811),
    )
    assert hash_topic("orders") == 4166083772


def test_zeros_and_cut_off_units_are_none() -> None:
    good = unit.encode(*EXAMPLE)
    for data in (bytes(UNIT_BYTES), b"\xff" * UNIT_BYTES, good[:-1], b""):
        with pytest.raises(CorruptDataError):
            unit.decode(data, 0)
    assert not unit.valid_units(np.zeros(3, UNIT_DTYPE)).any()
    assert unit.valid_units(np.zeros(0, UNIT_DTYPE)).tolist() == []


def test_one_bad_unit_among_good_ones_is_pointed_out() -> None:
    data = bytearray(unit.encode(*EXAMPLE) * 5)
    data[2 * UNIT_BYTES + 30] ^= 4
    assert unit.valid_units(np.frombuffer(bytes(data), UNIT_DTYPE)).tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("size", [16, 17, 52, 67])
def test_a_blank_unit_says_what_is_left(size: int) -> None:
    blank = unit.encode_blank(size)
    assert len(blank) == size
    assert unit.blank_size(b"x" + blank, 1) == size
    assert unit.blank_size(blank[:15], 0) == 0
    if size >= UNIT_BYTES:
        with pytest.raises(CorruptDataError):
            unit.decode(blank, 0)


def test_units_and_zeros_are_not_blank() -> None:
    assert unit.blank_size(unit.encode(*EXAMPLE), 0) == 0
    assert unit.blank_size(bytes(52), 0) == 0


@pytest.mark.parametrize("due_ms", [EXAMPLE.write_time_ms - 1, EXAMPLE.write_time_ms + (1 << 32)])
def test_what_the_format_cannot_say_is_refused(due_ms: int) -> None:
    with pytest.raises(struct.error):
        unit.encode(*EXAMPLE._replace(due_ms=due_ms))
