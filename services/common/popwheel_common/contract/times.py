"""Times that messages carry, as `google.protobuf.Timestamp` has them."""

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

SECONDS_MIN: Final = -62_135_596_800
"""The first second of the year 1."""
SECONDS_MAX: Final = 253_402_300_799
"""The last second of the year 9999."""
NANOS_PER_S: Final = 1_000_000_000
_NANOS_PER_MS: Final = 1_000_000
_MS_PER_S: Final = 1_000


def is_time(timestamp: Timestamp) -> bool:
    """Return whether a calendar has this time: any number may stand in a message."""
    return SECONDS_MIN <= timestamp.seconds <= SECONDS_MAX and 0 <= timestamp.nanos < NANOS_PER_S


def milliseconds(timestamp: Timestamp) -> int:
    """Return a time since the epoch, in whole milliseconds; of one that `is_time`."""
    return timestamp.seconds * _MS_PER_S + timestamp.nanos // _NANOS_PER_MS
