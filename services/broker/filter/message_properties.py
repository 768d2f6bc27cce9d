"""A stored message's properties, as SQL92 filters see them: a partial decode that passes over the body.

They have the names that RocketMQ gives them. What the sender's client fills in has names of its own (`TAGS` ...); a
user's property of such a name is not seen.
"""

from collections.abc import Callable, Set

from services.broker.records.record import StoredRecord
from services.common.contract.wire_format import LENGTH_DELIMITED, garbled, read_varint, skip
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Message, SystemProperties

_USER_PROPERTY = Message.USER_PROPERTIES_FIELD_NUMBER << 3 | LENGTH_DELIMITED
_NAME, _TEXT = 1 << 3 | LENGTH_DELIMITED, 2 << 3 | LENGTH_DELIMITED

_OF_SYSTEM: dict[str, Callable[[SystemProperties], str | None]] = {
    "TAGS": lambda own: own.tag if own.HasField("tag") else None,
    "KEYS": lambda own: " ".join(own.keys) or None,
    "UNIQ_KEY": lambda own: own.message_id,
    "__SHARDINGKEY": lambda own: own.message_group if own.HasField("message_group") else None,
    "TRACE_CONTEXT": lambda own: own.trace_context if own.HasField("trace_context") else None,
    "__BORNHOST": lambda own: own.born_host or None,
    "BORN_TIMESTAMP": lambda own: str(own.born_timestamp.ToMilliseconds()) if own.HasField("born_timestamp") else None,
    "TIMER_DELIVER_MS": lambda own: (
        str(own.delivery_timestamp.ToMilliseconds()) if own.HasField("delivery_timestamp") else None
    ),
}


class NamedProperties:
    """Reads some properties of messages.

    Args:
        names: which; all others are passed over.
    """

    def __init__(self, names: Set[str]) -> None:
        self._of_system = {name: _OF_SYSTEM[name] for name in names & _OF_SYSTEM.keys()}
        self._of_user = {name.encode(): name for name in names - _OF_SYSTEM.keys()}

    def of(self, stored: StoredRecord) -> dict[str, str]:
        """Name -> text of those that a message has.

        Raises:
            ValueError, DecodeError: it is no message.
        """
        try:
            found = self._read(stored.payload) if self._of_user else {}
        except StatusError as error:
            raise ValueError("the stored message is not a well-formed protobuf message") from error
        if self._of_system:
            own = SystemProperties.FromString(stored.system_properties)
            for name, value_of in self._of_system.items():
                value = value_of(own)
                if value is not None:
                    found[name] = value
        return found

    def _read(self, payload: bytes) -> dict[str, str]:
        """The user's properties; a message is a run of fields, and those of other kinds are passed over unread."""
        found: dict[str, str] = {}
        position, end, names = 0, len(payload), self._of_user
        while position < end:
            kind, position = read_varint(payload, position, end)
            if kind != _USER_PROPERTY:
                position = skip(payload, kind & 7, position, end)
                continue
            begin, position = _inside(payload, position, end)
            name, text = _pair(payload, begin, position)
            if name in names:
                found[names[name]] = text.decode(errors="replace")
        return found


def _pair(data: bytes, position: int, end: int) -> tuple[bytes, bytes]:
    """Name and text of a property; either is empty if it is left out."""
    name = text = b""
    while position < end:
        kind, position = read_varint(data, position, end)
        if kind not in (_NAME, _TEXT):
            position = skip(data, kind & 7, position, end)
            continue
        begin, position = _inside(data, position, end)
        if kind == _NAME:
            name = data[begin:position]
        else:
            text = data[begin:position]
    return name, text


def _inside(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Where what a field holds begins and ends. Raises StatusError: it goes on behind `end`."""
    length, begin = read_varint(data, position, end)
    if begin + length > end:
        raise garbled()
    return begin, begin + length
