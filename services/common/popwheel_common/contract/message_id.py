"""Ids of messages, as official clients make them: in their middle is the second in which they were made."""

import itertools
import re
from collections.abc import Iterator
from typing import Final

_ID: Final = re.compile(r"01[0-9A-Fa-f]{16}([0-9A-Fa-f]{8})[0-9A-Fa-f]{8}")
_IDS_BEGIN_MS: Final = 1_609_459_200_000
"""2021, from which on ids count seconds."""
CLOCK_SKEW_MS: Final = 600_000
"""Tolerance for wrong clocks of clients, in milliseconds."""


def message_id(now_ms: int, machine: str, number: int) -> str:
    """Return the id of a message.

    Args:
        now_ms: the time.
        machine: sixteen hexadecimal digits that no other process has.
        number: that no other message of the process has.
    """
    seconds = max(0, now_ms - _IDS_BEGIN_MS) // 1000
    return f"01{machine}{seconds:08X}{number & 0xFFFFFFFF:08X}".upper()


def message_ids(now_ms: int, machine: str) -> Iterator[str]:
    """Ids of messages that one process makes at one time; arguments as for `message_id`."""
    for number in itertools.count():  # compiled, an expression would make all of them at once
        yield message_id(now_ms, machine, number)


def made_since_ms(message_id: str) -> int | None:
    """Return the earliest time at which a message may have been stored, wall clock; None if its id does not say it."""
    made = _ID.fullmatch(message_id)
    return None if made is None else max(0, _IDS_BEGIN_MS + int(made[1], 16) * 1000 - CLOCK_SKEW_MS)
