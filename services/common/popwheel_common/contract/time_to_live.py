"""Time to live of a message: a user property, which topics obey that say what becomes of expired messages."""

from collections.abc import Mapping
from typing import Final

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

PROPERTY: Final = "TTL_MS"
"""User property with the time to live in milliseconds, from the time at which the message came into its topic."""

DELIVER: Final = "deliver"
DROP: Final = "drop"
DEAD_LETTER: Final = "dead_letter"
_DIGITS_MAX: Final = 15
"""Digits of some thirty thousand years, far below what a 64-bit number holds."""


def time_to_live_ms(text: str) -> int | None:
    """Return the time to live that a property says; None if it is no number of milliseconds from 1 on."""
    is_number = len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) or None if is_number else None


def check_time_to_live(user_properties: Mapping[str, str]) -> None:
    """Refuse a time to live that is none.

    Raises:
        StatusError: ILLEGAL_MESSAGE_PROPERTY_KEY.
    """
    text = user_properties.get(PROPERTY)
    if text is not None and time_to_live_ms(text) is None:
        raise StatusError(
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
            f"the property {PROPERTY} is {text[:64]!r}; it must be a whole number of milliseconds from 1 on",
        )
