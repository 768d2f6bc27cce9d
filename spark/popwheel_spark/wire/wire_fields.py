"""Fields of many protobuf messages at once: the first of all, then the second of all, by numpy (pure).

The number of steps is that of the message with most fields, however many messages there are.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from popwheel_common.contract.record_block import Numbers
from popwheel_common.contract.wire_format import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT

Data = npt.NDArray[np.uint8]

_SIZES = np.zeros(8, np.int64)
_SIZES[[FIXED32, FIXED64]] = 4, 8
_KNOWN = np.zeros(8, bool)
_KNOWN[[VARINT, FIXED64, LENGTH_DELIMITED, FIXED32]] = True


class Fields(NamedTuple):
    """Fields of messages that have one number, in the order in which they lie in the data.

    Args:
        message: the place of each one's message among all messages.
        begin: where its value begins; behind its length, if it has one.
        end: where its value ends.
        value: of a number.
    """

    message: Numbers
    begin: Numbers
    end: Numbers
    value: Numbers

    def at(self, picks: npt.NDArray[Any]) -> "Fields":
        """Return some of the fields: by places, or by a mask."""
        return Fields(*(column[picks] for column in self))

    def last(self, messages: int) -> Numbers:
        """Return for each of some messages the place of its last value here, or -1 if it has none.

        The last value counts.
        """
        places = np.full(messages, -1)
        places[self.message] = np.arange(len(self.message))
        return places


NO_FIELDS: Final = Fields(*[np.empty(0, np.int64)] * 4)


class FieldsByNumber(NamedTuple):
    """Fields of messages by number. Most messages of a producer have the same fields in the same order, so most steps
    from field to field find one number.

    Args:
        alike: with their number, those of one step each that found no other.
        numbers: of each of the rest.
        rest: all others.
    """

    alike: list[tuple[int, Fields]]
    numbers: Numbers
    rest: Fields

    def of(self, number: int) -> Fields:
        """Return the fields of one number."""
        found = [fields for each, fields in self.alike if each == number]
        if len(self.numbers):
            found.append(self.rest.at(np.flatnonzero(self.numbers == number)))
        if not found:
            return NO_FIELDS
        fields = found[0] if len(found) == 1 else _joined(found)
        if np.any(fields.begin[1:] < fields.begin[:-1]):
            return fields.at(np.argsort(fields.begin, kind="stable"))
        return fields


def _joined(found: Iterable[Fields]) -> Fields:
    return Fields(*map(np.concatenate, zip(*found, strict=True)))


def fields_within(data: Data, outer: Fields) -> FieldsByNumber:
    """Return the fields of nested messages, as fields of the outer messages."""
    found = read_fields(data, outer.begin, outer.end)
    alike = [(number, each._replace(message=outer.message[each.message])) for number, each in found.alike]
    return found._replace(alike=alike, rest=found.rest._replace(message=outer.message[found.rest.message]))


def read_fields(data: Data, begins: Numbers, ends: Numbers) -> FieldsByNumber:
    """Return the fields of messages.

    Args:
        data: holds them.
        begins: where each begins; these rise.
        ends: where each ends.

    Raises:
        ValueError: one is not well-formed.
    """
    message = np.arange(len(begins))
    at, stop = begins, ends
    alike: list[tuple[int, Fields]] = []
    numbers, rest = [message[:0]], [NO_FIELDS]
    while True:
        live = at < stop
        if not live.all():
            message, at, stop = message[live], at[live], stop[live]
        if not len(message):
            return FieldsByNumber(alike, np.concatenate(numbers), _joined(rest))
        key, at = _varints(data, at)
        value, behind = _varints(data, at)
        first = int(key[0])
        is_alike = bool((key == first).all())
        if is_alike and first & 7 == LENGTH_DELIMITED:
            at, end = behind, behind + value
        else:
            at, end = _any_value(key & 7, at, value, behind)
        if (end < at).any() or (end > stop).any():
            raise _garbled()
        fields = Fields(message, at, end, value)
        if is_alike:
            alike.append((first >> 3, fields))
        else:
            numbers.append(key >> 3)
            rest.append(fields)
        at = end


def _any_value(kind: Numbers, at: Numbers, value: Numbers, behind: Numbers) -> tuple[Numbers, Numbers]:
    """Return where values of several wire types begin and end, if their data was read as a number."""
    if not _KNOWN[kind].all():
        raise _garbled()
    has_length = kind == LENGTH_DELIMITED
    begin = np.where(has_length, behind, at)
    end = np.where(kind == VARINT, behind, begin + np.where(has_length, value, _SIZES[kind]))
    return begin, end


def _garbled() -> ValueError:
    return ValueError("a stored message is not well-formed")


def _varints(data: Data, at: Numbers) -> tuple[Numbers, Numbers]:
    """Return numbers of variable length, and the places behind them."""
    byte = data.take(at, mode="clip")
    values = byte.astype(np.int64)
    behind = at + 1
    (longer,) = (byte > 0x7F).nonzero()
    shift = 0
    while len(longer) and shift < 63:
        shift += 7
        byte = data.take(behind[longer], mode="clip")
        values[longer] += (byte.astype(np.int64) - 1) << shift  # without the continuation bit
        behind[longer] += 1
        longer = longer[byte > 0x7F]
    return values, behind
