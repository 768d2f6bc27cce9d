"""Reads the numbers that texts are, exactly: each comparison of two of them has the answer that it has on paper."""

import re
from decimal import Decimal
from functools import lru_cache

from popwheel_common.filter.node import Number

NUMBER_LENGTH_MAX = 64
"""Characters of a number. A longer text is none: a message may carry thousands, and each filter would read them."""

_WHOLE = re.compile(r"[+-]?[0-9]++")
_FRACTION = re.compile(r"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]{1,9})?")
_REMEMBERED_MAX = 4096


class NotComparableError(Exception):
    """A property is to be compared with a number and is none."""


def number_of(text: str) -> Number:
    """Return the number that a text is.

    Raises:
        NotComparableError: it is none.
    """
    if len(text) > NUMBER_LENGTH_MAX:
        raise NotComparableError(f"{text[:NUMBER_LENGTH_MAX]}...")
    return _number(text)


@lru_cache(maxsize=_REMEMBERED_MAX)
def _number(text: str) -> Number:
    """Remembered, as filters compare the same property many times."""
    if _WHOLE.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        return Decimal(text)
    raise NotComparableError(text)
