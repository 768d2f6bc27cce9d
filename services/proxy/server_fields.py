"""System properties that only the server may set: dropped from what senders say, so that none reaches a consumer."""

from collections.abc import Callable
from typing import Any

from services.common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from services.common.wire import read_varint, skip

_OPTIONAL = (
    "receipt_handle",
    "delivery_attempt",
    "invisible_duration",
    "queue_offset",
    "store_timestamp",
    "dead_letter_queue",
)
_NUMBERS = frozenset(SystemProperties.DESCRIPTOR.fields_by_name[name].number for name in (*_OPTIONAL, "store_host"))
"""Without `queue_id`: every client sets it, and every delivery overwrites it."""


def has_server_fields(properties: SystemProperties) -> bool:
    """Whether a sender has set a field that is the server's."""
    has: Callable[[Any], bool] = properties.HasField
    return properties.store_host != "" or any(map(has, _OPTIONAL))


def without_server_fields(system_properties: bytes) -> bytes:
    """A sender's encoded system properties without the server's fields; all others stay byte for byte.

    Raises:
        StatusError: BAD_REQUEST, if they are not well-formed.
    """
    kept: list[bytes] = []
    position, end = 0, len(system_properties)
    while position < end:
        start = position
        tag, position = read_varint(system_properties, position, end)
        position = skip(system_properties, tag & 7, position, end)
        if tag >> 3 not in _NUMBERS:
            kept.append(system_properties[start:position])
    return b"".join(kept)
