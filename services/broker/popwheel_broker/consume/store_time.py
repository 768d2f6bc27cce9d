"""Time at which a message was first stored. It stays with the message when a retry or a copy replaces its record."""

from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from popwheel_broker.log.record import StoredRecord
from popwheel_common.contract.send_id import without_send_id
from popwheel_common.contract.wire_format import varint
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties

_STORE_TIMESTAMP_TAG: Final = b"\x4a"
_SECONDS_TAG: Final = b"\x08"
_NANOS_TAG: Final = b"\x10"


@lru_cache(maxsize=1024)
def store_timestamp(store_time_ms: int) -> bytes:
    """Return the field of SystemProperties, made once for the many messages that are stored within a millisecond."""
    seconds, milliseconds = divmod(store_time_ms, 1000)
    timestamp = _SECONDS_TAG + varint(seconds) + _NANOS_TAG + varint(milliseconds * 1_000_000)
    return _STORE_TIMESTAMP_TAG + varint(len(timestamp)) + timestamp


def first_stored_ms(stored: StoredRecord) -> int:
    """Return when a message was first stored, in milliseconds since 1970."""
    earlier_ms = _earlier_ms(stored)
    return stored.store_time_ms if earlier_ms is None else earlier_ms


def with_first_stored(stored: StoredRecord) -> bytes:
    """Return the system properties for a record that replaces this one: they say when the message was first stored."""
    properties = stored.system_properties
    if _earlier_ms(stored) is not None:
        return properties
    visible = without_send_id(properties)
    return visible + store_timestamp(stored.store_time_ms) + properties[len(visible) :]


def _earlier_ms(stored: StoredRecord) -> int | None:
    """Return what the system properties say. Senders can't say it: proxies remove the field."""
    if _STORE_TIMESTAMP_TAG not in stored.system_properties:
        return None
    try:
        own = SystemProperties.FromString(stored.system_properties)
    except DecodeError:
        return None
    return own.store_timestamp.ToMilliseconds() if own.HasField("store_timestamp") else None
