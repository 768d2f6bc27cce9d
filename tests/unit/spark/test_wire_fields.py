"""Fields of many protobuf messages at once are those that protobuf finds in each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract.wire_format import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT, varint
from popwheel_spark.wire.wire_fields import FieldsByNumber, read_fields

Field = tuple[int, int, bytes]
"""Number, wire type, value as it is written but for its length."""

NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 300)
FIELDS = st.tuples(st.integers(1, 2**29 - 1) | st.integers(1, 20), NUMBERS.map(varint)).map(
    lambda each: (each[0], VARINT, each[1])
)
FIELDS |= st.tuples(st.integers(1, 20), st.just(LENGTH_DELIMITED), st.binary(max_size=300))
FIELDS |= st.tuples(st.integers(1, 20), st.just(FIXED64), st.binary(min_size=8, max_size=8))
FIELDS |= st.tuples(st.integers(1, 20), st.just(FIXED32), st.binary(min_size=4, max_size=4))
MESSAGES = st.lists(st.lists(FIELDS, max_size=6), max_size=6)


def encoded(fields: list[Field]) -> bytes:
    return b"".join(
        varint(number << 3 | kind) + (varint(len(value)) if kind == LENGTH_DELIMITED else b"") + value
        for number, kind, value in fields
    )


def read(*messages: bytes, gap: bytes = b"") -> tuple[bytes, FieldsByNumber]:
    data = b"".join(gap + each for each in messages)
    lengths = np.array([len(each) for each in messages], np.int64)
    ends = np.cumsum(lengths + len(gap))
    return data, read_fields(np.frombuffer(data, np.uint8), ends - lengths, ends)


def number_of(value: bytes) -> int:
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(value))
    return number - (1 << 64) if number >> 63 else number


@given(MESSAGES, st.binary(max_size=3))
def test_all_fields_are_found(messages: list[list[Field]], gap: bytes) -> None:
    data, found = read(*map(encoded, messages), gap=gap)
    columns = [(*fields[:3], np.full(len(fields.begin), number), fields.value) for number, fields in found.alike]
    columns.append((*found.rest[:3], found.numbers, found.rest.value))
    places, begins, ends, numbers, values = map(np.concatenate, zip(*columns, strict=True))
    order = np.argsort(begins, kind="stable")
    seen = [
        (message, number, data[begin:end])
        for message, number, begin, end in zip(
            *(column[order].tolist() for column in (places, numbers, begins, ends)), strict=True
        )
    ]
    assert seen == [(place, number, value) for place, each in enumerate(messages) for number, _, value in each]
    fields = [field for each in messages for field in each]
    for (_, kind, value), number in zip(fields, values[order].tolist(), strict=True):
        assert kind != VARINT or number == number_of(value)


@given(MESSAGES)
def test_those_of_a_number_come_in_the_order_of_the_data(messages: list[list[Field]]) -> None:
    data, found = read(*map(encoded, messages))
    for wanted in {number for each in messages for number, _, _ in each} | {1}:
        fields = found.of(wanted)
        seen = [
            (place, data[begin:end]) for place, begin, end in zip(*(part.tolist() for part in fields[:3]), strict=True)
        ]
        assert seen == [
            (place, value) for place, each in enumerate(messages) for number, _, value in each if number == wanted
        ]


def test_of_several_values_the_last_counts() -> None:
    _, found = read(encoded([(1, VARINT, b"\x05"), (2, VARINT, b"\x07"), (1, VARINT, b"\x06")]), b"")
    ones = found.of(1)
    assert ones.value.tolist() == [5, 6]
    assert ones.last(2).tolist() == [1, -1]


@pytest.mark.parametrize("message", [b"\x0a\x05abc", b"\x0a", b"\x09abc", b"\x0b", b"\x0a" + b"\xff" * 9 + b"\x01"])
def test_what_is_no_message_is_an_error(message: bytes) -> None:
    with pytest.raises(ValueError, match="not well-formed"):
        read(b"\x08\x01", message)
