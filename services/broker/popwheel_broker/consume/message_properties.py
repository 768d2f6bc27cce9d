"""A stored message's properties, as SQL92 filters see them: a partial decode that skips the body.

They have the names that RocketMQ gives them. Properties of the sender's client have names of their own (`TAGS` ...); a
user's property of such a name is not visible.
"""

from collections.abc import Callable, Set

from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_broker.log.record import StoredRecord
from popwheel_common.contract.times import is_time, milliseconds
from popwheel_common.contract.wire_format import LENGTH_DELIMITED, read_varint, skip
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message, SystemProperties

_BODY = Message.BODY_FIELD_NUMBER << 3 | LENGTH_DELIMITED
_LONG = 0x80
"""A number from here on takes more than one byte."""
_FIELDS_MAX = 256
"""More fields before the body are not parsed one by one: protobuf decodes all of it faster."""

_OF_SYSTEM: dict[str, Callable[[SystemProperties], str | None]] = {
    "TAGS": lambda own: own.tag if own.HasField("tag") else None,
    "KEYS": lambda own: " ".join(own.keys) or None,
    "UNIQ_KEY": lambda own: own.message_id,
    "__SHARDINGKEY": lambda own: own.message_group if own.HasField("message_group") else None,
    "TRACE_CONTEXT": lambda own: own.trace_context if own.HasField("trace_context") else None,
    "__BORNHOST": lambda own: own.born_host or None,
    "BORN_TIMESTAMP": lambda own: _milliseconds(own.born_timestamp) if own.HasField("born_timestamp") else None,
    "TIMER_DELIVER_MS": lambda own: (
        _milliseconds(own.delivery_timestamp) if own.HasField("delivery_timestamp") else None
    ),
}


def _milliseconds(time: Timestamp) -> str | None:
    """Return a time in milliseconds; None for one that no calendar has: proxies refuse these, but did not always."""
    return str(milliseconds(time)) if is_time(time) else None


class NamedProperties:
    """Reads some properties of messages.

    Args:
        names: which; all others are passed over.
    """

    def __init__(self, names: Set[str]) -> None:
        self._of_system = {name: _OF_SYSTEM[name] for name in names & _OF_SYSTEM.keys()}
        self._of_user = names - _OF_SYSTEM.keys()

    def of(self, stored: StoredRecord) -> dict[str, str]:
        """Return the properties that a message has, name -> text.

        Raises:
            DecodeError: it is no message.
        """
        found: dict[str, str] = {}
        if self._of_user:
            properties = Message.FromString(_without_body(stored.payload)).user_properties
            for name in self._of_user:
                text = properties.get(name)
                if text is not None:
                    found[name] = text
        if self._of_system:
            own = SystemProperties.FromString(stored.system_properties)
            for name, value_of in self._of_system.items():
                value = value_of(own)
                if value is not None:
                    found[name] = value
        return found


def _without_body(payload: bytes) -> bytes:
    """Return a message up to its body, if that comes last, as clients write it; else all of it."""
    position, end = 0, len(payload)
    try:
        for _ in range(_FIELDS_MAX):
            if position >= end:
                break
            kind = payload[position]
            if kind == _BODY:
                length, begin = read_varint(payload, position + 1, end)
                return payload[:position] if begin + length == end else payload
            if kind & 7 != LENGTH_DELIMITED or kind >= _LONG:
                break
            length = payload[position + 1]
            if length < _LONG:  # the usual sizes, in half the time
                position += 2 + length
            else:
                position = skip(payload, LENGTH_DELIMITED, position + 1, end)
    except (IndexError, StatusError):
        pass  # its decoder raises it
    return payload
