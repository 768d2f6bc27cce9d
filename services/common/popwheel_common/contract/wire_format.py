"""Protobuf's wire format, as far as it is read and written by hand where decoding a message would cost too much."""

from typing import Final

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5


def varint(value: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    if value < _SMALL:
        return _VARINTS[value]
    return _varint(value)


def _varint(value: int) -> bytes:
    packed = shift = 0
    while value >= 0x80:
        packed |= (value & 0x7F | 0x80) << shift
        shift += 8
        value >>= 7
    return (packed | value << shift).to_bytes(shift // 8 + 1, "little")


_SMALL: Final = 2048
_VARINTS: Final = [_varint(number) for number in range(_SMALL)]
"""Varints made in advance: most numbers in a message are small."""


def field(number: int, inside: bytes) -> bytes:
    """Return a length-delimited field with a number below 16, such as a sub-message."""
    return bytes((number << 3 | LENGTH_DELIMITED,)) + varint(len(inside)) + inside


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read a number of at most 64 bits that lies before `end`.

    Returns:
        The number, and the position behind it.

    Raises:
        StatusError: BAD_REQUEST, if there is none.
    """
    if position + 1 < end:  # the usual sizes, at half the price
        byte = data[position]
        if byte < 0x80:
            return byte, position + 1
        following = data[position + 1]
        if following < 0x80:
            return byte & 0x7F | following << 7, position + 2
    value = 0
    shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, position
        shift += 7
    raise garbled()


def skip(data: bytes, wire_type: int, position: int, end: int) -> int:
    """Return the position behind a field's value that begins at `position` and must not reach beyond `end`.

    Raises:
        StatusError: BAD_REQUEST, if the value is cut off or of a kind that protobuf 3 does not write (groups).
    """
    if wire_type == VARINT:
        return read_varint(data, position, end)[1]
    if wire_type == LENGTH_DELIMITED:
        length, position = read_varint(data, position, end)
        position += length
    elif wire_type == FIXED64:
        position += 8
    elif wire_type == FIXED32:
        position += 4
    else:
        raise garbled()
    if position > end:
        raise garbled()
    return position


def garbled() -> StatusError:
    """Return the refusal of bytes that are not the protobuf message they should be."""
    return StatusError(
        Code.BAD_REQUEST, "the request is not a well-formed protobuf message; nothing of it was stored or changed"
    )
