"""The timer checkpoint: what is saved is read, damage is told, and newer releases' files are left alone (S7)."""

import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.delay.timer_checkpoint import CHECKPOINT_BYTES, TimerCheckpoint, decode, encode
from popwheel_common.errors import CorruptDataError, UnknownFormatError

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
EXAMPLE = TimerCheckpoint(1_700_000_000_000, 5200, 100, 101, 3, 1_700_000_000_123, 17, 987_654_321, 4321)


@given(st.builds(TimerCheckpoint, *[NUMBERS] * 9))
def test_what_is_saved_is_read(checkpoint: TimerCheckpoint) -> None:
    data = encode(checkpoint)
    assert len(data) == CHECKPOINT_BYTES
    assert decode(data) == checkpoint


def test_the_bytes_stay_as_they_are() -> None:
    """Whoever changes them changes the version."""
    numbers = (1_700_000_000_000, 5200, 100, 101, 3, 1_700_000_000_123, 17, 987_654_321, 4321)
    body = b"".join(number.to_bytes(8, "big") for number in numbers) + bytes(4096 - 10 - 72)
    assert encode(EXAMPLE) == b"PWTC\0\1" + value(body).to_bytes(4, "big") + body


@given(st.integers(0, CHECKPOINT_BYTES * 8 - 1))
def test_every_flipped_bit_is_found(bit: int) -> None:
    data = bytearray(encode(EXAMPLE))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(UnknownFormatError if 32 <= bit < 48 else CorruptDataError):
        decode(bytes(data))


@pytest.mark.parametrize("length", [0, 9, 10, 74, 512, 4095, 4097])
def test_another_length_is_damage(length: int) -> None:
    with pytest.raises(CorruptDataError):
        decode(encode(EXAMPLE).ljust(4097, b"\0")[:length])


@pytest.mark.parametrize("torn", [512, 1024, 3584])
def test_a_file_of_zeros_or_torn_is_damage(torn: int) -> None:
    with pytest.raises(CorruptDataError):
        decode(bytes(CHECKPOINT_BYTES))
    with pytest.raises(CorruptDataError):
        decode(encode(EXAMPLE)[:torn] + b"\1" * (CHECKPOINT_BYTES - torn))


def test_a_newer_version_is_named() -> None:
    data = bytearray(encode(EXAMPLE))
    data[4:6] = (7).to_bytes(2, "big")
    with pytest.raises(UnknownFormatError, match="version 7, this release knows 1"):
        decode(bytes(data))
