"""Reader of the usual system properties, in a fifth of the time that protobuf takes to decode and access them."""

from typing import Final

from popwheel_common.contract.times import NANOS_PER_S

_TAG: Final = 1 << 3 | 2
_KEYS: Final = 2 << 3 | 2
_MESSAGE_ID: Final = 3 << 3 | 2
_BODY_DIGEST: Final = 4 << 3 | 2
_BODY_ENCODING: Final = 5 << 3
_MESSAGE_TYPE: Final = 6 << 3
_BORN_TIMESTAMP: Final = 7 << 3 | 2
_BORN_HOST: Final = 8 << 3 | 2
_QUEUE_ID: Final = 13 << 3
_NORMAL: Final = 1
_FIRST_NUMBER: Final = 1 << 3
_SECOND_NUMBER: Final = 2 << 3
_SECOND_TEXT: Final = 2 << 3 | 2
_NUMBER_BYTES_MAX: Final = 5
_LAST_BYTE_OF_MANY_NANOS: Final = NANOS_PER_S >> 28
"""The last of five bytes, from which on a number may be more nanoseconds than a second has."""
_BYTES_MAX: Final = 1024


class PlainProperties:
    """System properties of a message that is neither delayed, nor in an order, nor of a transaction.

    Args:
        message_id: empty if absent.
        tag: None if absent.
        keys: all of them.
        message_type: NORMAL, or 0 if absent.
        body_encoding: 0 if absent.
        born_host: empty if absent.
        has_digest: whether there is a digest of the body.
        has_birth: whether the time is there at which it was born.
    """

    __slots__ = (
        "body_encoding",
        "born_host",
        "has_birth",
        "has_digest",
        "keys",
        "message_id",
        "message_type",
        "tag",
    )

    def __init__(self) -> None:
        self.message_id = ""
        self.tag: str | None = None
        self.keys: list[str] | None = None
        self.message_type = 0
        self.body_encoding = 0
        self.born_host = ""
        self.has_digest = False
        self.has_birth = False


def plain_properties(data: bytes) -> PlainProperties | None:
    """Read encoded system properties.

    Returns:
        None if protobuf has to read them: they hold something else, something twice, or out of the ordinary, such as
        text beyond ASCII, are long, or no system properties at all.
    """
    if len(data) > _BYTES_MAX:
        return None
    found = PlainProperties()
    seen = 0
    at = 0
    end = len(data)
    try:
        while at < end:
            tag = data[at]
            if tag >= 0x80 or (tag != _KEYS and seen & 1 << (tag >> 3)):
                return None
            seen |= 1 << (tag >> 3)
            value = data[at + 1]
            if value >= 0x80:
                return None
            at += 2
            if tag & 7 == 0:
                if tag == _BODY_ENCODING:
                    found.body_encoding = value
                elif tag == _MESSAGE_TYPE and value <= _NORMAL:
                    found.message_type = value
                elif tag != _QUEUE_ID:
                    return None
                continue
            start = at
            at += value
            if at > end:
                return None
            if tag == _MESSAGE_ID:
                found.message_id = data[start:at].decode("ascii")
            elif tag == _BORN_TIMESTAMP:
                if not _is_timestamp(data, start, at):
                    return None
                found.has_birth = True
            elif tag == _BORN_HOST:
                found.born_host = data[start:at].decode("ascii")
            elif tag == _BODY_DIGEST:
                if not _is_digest(data, start, at):
                    return None
                found.has_digest = True
            elif tag == _TAG:
                found.tag = data[start:at].decode("ascii")
            elif tag == _KEYS:
                if found.keys is None:
                    found.keys = []
                found.keys.append(data[start:at].decode("ascii"))
            else:
                return None
    except (IndexError, UnicodeDecodeError):
        return None
    return found


def _is_timestamp(data: bytes, at: int, end: int) -> bool:
    """Return whether a google.protobuf.Timestamp lies from `at` to `end`, in the form that all clients write.

    That is seconds, then nanoseconds.
    """
    if at < end and data[at] == _FIRST_NUMBER:
        at = _behind_number(data, at + 1, end)
    if at < end and data[at] == _SECOND_NUMBER:
        start = at + 1
        at = _behind_number(data, start, end)
        if at - start == _NUMBER_BYTES_MAX and at == end and data[at - 1] >= _LAST_BYTE_OF_MANY_NANOS:
            return _number_of_five(data, start) < NANOS_PER_S
    return at == end


def _number_of_five(data: bytes, at: int) -> int:
    """The number that five bytes are."""
    number = data[at + 4] << 28
    for index in range(4):
        number |= (data[at + index] & 0x7F) << 7 * index
    return number


def _is_digest(data: bytes, at: int, end: int) -> bool:
    """Return whether a Digest lies from `at` to `end`, as all clients write it: its type, then its text."""
    if at < end and data[at] == _FIRST_NUMBER:
        at = _behind_number(data, at + 1, end)
    if at + 1 < end and data[at] == _SECOND_TEXT:
        return at + 2 + data[at + 1] == end and data[at + 1] < 0x80 and data[at + 2 : end].isascii()
    return at == end


def _behind_number(data: bytes, at: int, end: int) -> int:
    """Return the end of the number below 2**35 that begins at `at`; beyond `end` if there is none."""
    last = min(end, at + _NUMBER_BYTES_MAX)
    while at < last:
        if data[at] < 0x80:
            return at + 1
        at += 1
    return end + 1
