"""Fields of many protobuf messages at once: the first of all, then the second of all, by numpy (pure).

A message by itself costs nothing here: as many steps are made as the message with the most fields has.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.common.contract.record_block import Numbers
from services.common.contract.wire_format import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT

Data = npt.NDArray[np.uint8]

_SIZES = np.zeros(8, np.int64)
_SIZES[[FIXED32, FIXED64]] = 4, 8
_KNOWN = np.zeros(8, bool)
_KNOWN[[VARINT, FIXED64, LENGTH_DELIMITED, FIXED32]] = True


class Fields(NamedTuple):
    """Fields of messages, in the order in which they lie in the data once `of` has picked those of one number.

    Args:
        message: the place of each one's message among all messages.
        number: of the field.
        begin: where its value begins; behind its length, if it has one.
        end: where its value ends.
        value: of a number.
    """

    message: Numbers
    number: Numbers
    begin: Numbers
    end: Numbers
    value: Numbers

    def of(self, number: int) -> "Fields":
        """Those of one number."""
        picks = np.flatnonzero(self.number == number)
        begins = self.begin[picks]
        if np.any(begins[1:] < begins[:-1]):
            picks = picks[np.argsort(begins, kind="stable")]
        return Fields(*(column[picks] for column in self))

    def within(self, data: Data) -> "Fields":
        """The fields of these, which are messages, as fields of the messages that they are in."""
        inner = read_fields(data, self.begin, self.end)
        return inner._replace(message=self.message[inner.message])

    def last(self, messages: int) -> Numbers:
        """For each of so many messages the place of its last one here; -1 if it has none. What comes last counts."""
        places = np.full(messages, -1)
        places[self.message] = np.arange(len(self.message))
        return places


def read_fields(data: Data, begins: Numbers, ends: Numbers) -> Fields:
    """The fields of messages.

    Args:
        data: holds them.
        begins: where each begins.
        ends: where each ends.

    Raises:
        ValueError: one is not well-formed.
    """
    message = np.arange(len(begins))
    at, stop = begins, ends
    found = [Fields(*[message[:0]] * 5)]
    while True:
        live = at < stop
        if not live.all():
            message, at, stop = message[live], at[live], stop[live]
        if not len(message):
            return Fields(*map(np.concatenate, zip(*found, strict=True)))
        key, at = _varints(data, at)
        value, behind = _varints(data, at)
        kind = key & 7
        if (kind == LENGTH_DELIMITED).all():
            at, end = behind, behind + value
        else:
            at, end = _any_value(kind, at, value, behind)
        if (end < at).any() or (end > stop).any():
            raise _garbled()
        found.append(Fields(message, key >> 3, at, end, value))
        at = end


def _any_value(kind: Numbers, at: Numbers, value: Numbers, behind: Numbers) -> tuple[Numbers, Numbers]:
    """Where values of several wire types begin and end, if what stands there was read as a number."""
    if not _KNOWN[kind].all():
        raise _garbled()
    has_length = kind == LENGTH_DELIMITED
    begin = np.where(has_length, behind, at)
    end = np.where(kind == VARINT, behind, begin + np.where(has_length, value, _SIZES[kind]))
    return begin, end


def _garbled() -> ValueError:
    return ValueError("a stored message is not well-formed")


def _varints(data: Data, at: Numbers) -> tuple[Numbers, Numbers]:
    """Numbers of variable length, and the places behind them."""
    byte = data.take(at, mode="clip")
    values = byte.astype(np.int64)
    behind = at + 1
    (longer,) = (byte > 0x7F).nonzero()
    shift = 0
    while len(longer) and shift < 63:
        shift += 7
        byte = data.take(behind[longer], mode="clip")
        values[longer] += (byte.astype(np.int64) - 1) << shift  # without the bit that said that it goes on
        behind[longer] += 1
        longer = longer[byte > 0x7F]
    return values, behind
