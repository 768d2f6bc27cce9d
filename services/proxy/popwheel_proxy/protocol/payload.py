"""Cuts the messages of a SendMessageRequest out of its bytes, without decoding or rewriting what the broker stores.

DESIGN 4, "Payload": a message is stored as two runs of its own bytes, all fields but `system_properties`, and the
inside of `system_properties`. Only the small parts are decoded, to be checked: names, user properties and system
properties; so no message is stored that a consumer's protobuf library would later refuse to read.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from popwheel_common.contract.put import PutKind
from popwheel_common.contract.wire_format import LENGTH_DELIMITED, garbled, read_varint, skip
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, SystemProperties
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.plain_properties import PlainProperties, plain_properties

_SYSTEM_PROPERTIES: Final = 3
_BODY: Final = 4
_MESSAGES_TAG: Final = 1 << 3 | LENGTH_DELIMITED
_TOPIC_TAG: Final = 1 << 3 | LENGTH_DELIMITED
_USER_PROPERTIES_TAG: Final = 2 << 3 | LENGTH_DELIMITED
_SYSTEM_PROPERTIES_TAG: Final = _SYSTEM_PROPERTIES << 3 | LENGTH_DELIMITED
_BODY_TAG: Final = _BODY << 3 | LENGTH_DELIMITED
_BODY_START_BYTES_MAX: Final = 6
"""Tag and length of a body are stored as they came, and many protobuf libraries read no length of more than 5 bytes: no
consumer would get past such a message.
"""
_FIELDS_MAX: Final = 4096
"""Limit of a message's fields, and of a request's other fields: millions of empty ones take seconds to read."""
_FIELDS_OF_ALL_MAX: Final = 32_768
"""Limit of the fields of all unusual messages of a request together: to read them takes 5 ms."""
_USUAL_FIELDS_MAX: Final = 256
"""Limit of the fields before the system properties of a usual message."""
_HEAD_CACHED_BYTES: Final = 256
_NO_KEYS: Final[tuple[str, ...]] = ()
_NOW: Final = PutKind.NOW


class ClientMessage:
    """A message as its client sent it.

    Args:
        payload: all of its fields but `system_properties`, byte for byte.
        system_properties: the inside of its `system_properties`, byte for byte (of several fields: one after another,
            which protobuf reads as their merge).
        head: the decoded message without body and system properties: its topic and user properties. Messages with the
            same share it, so it must not be changed.
        body: its body, a view into the request.
        head_bytes: size of the encoded head, an upper bound for that of the user properties.

    Attributes:
        kind: how it goes into the log, once it was checked.
        time_ms: of a delayed or half message, as in `MessageRun.times_ms`.
        plain: its system properties, if they are those of nearly all messages; else they are in `properties`.
        message_id: empty if absent.
        tag: None if absent.
        keys: all of them.
        priority: of a message to a topic of type PRIORITY; -1 for all others.
        send_queue: its message group or lite topic, whose sends go one after another; empty if it has none.
        lite_topic: the lite topic that it is for; empty if it is for none.

    Raises:
        StatusError: BAD_REQUEST, if the system properties are not well-formed.
    """

    __slots__ = (
        "_properties",
        "body",
        "head",
        "head_bytes",
        "keys",
        "kind",
        "lite_topic",
        "message_id",
        "payload",
        "plain",
        "priority",
        "send_queue",
        "system_properties",
        "tag",
        "time_ms",
    )

    def __init__(
        self,
        payload: bytes,
        system_properties: bytes,
        head: Message,
        body: memoryview,
        head_bytes: int,
    ) -> None:
        self.payload = payload
        self.system_properties = system_properties
        self.head = head
        self.body = body
        self.head_bytes = head_bytes
        self.kind = _NOW
        self.time_ms = 0
        self.priority = -1
        self.send_queue = self.lite_topic = ""
        self.plain: PlainProperties | None = plain_properties(system_properties)
        self._properties: SystemProperties | None = None
        if self.plain is not None:
            self.message_id = self.plain.message_id
            self.tag: str | None = self.plain.tag
            self.keys: Sequence[str] = self.plain.keys or _NO_KEYS
        else:
            properties = self.properties
            self.message_id = properties.message_id
            self.tag = properties.tag if properties.HasField("tag") else None
            self.keys = properties.keys

    @property
    def properties(self) -> SystemProperties:
        """Return the decoded system properties; decoded on first use, unless they are plain."""
        if self._properties is None:
            try:
                self._properties = SystemProperties.FromString(self.system_properties)
            except DecodeError:
                raise garbled() from None
        return self._properties

    def drop_fields(self, system_properties: bytes) -> None:
        """Replace the system properties by these, without the fields that only servers set."""
        self.system_properties = system_properties
        self._properties = None


def messages_of(request: bytes, messages_max: int) -> list[ClientMessage]:
    """Cut a SendMessageRequest into its messages.

    Args:
        request: its bytes.
        messages_max: limit of their number.

    Raises:
        StatusError: BAD_REQUEST, if it is not well-formed, or has too many fields; PAYLOAD_TOO_LARGE, if it has too
            many messages.
    """
    messages: list[ClientMessage] = []
    others = fields = 0
    position = 0
    end = len(request)
    view = memoryview(request)
    head = b""
    decoded_head: Message | None = None
    while position < end:
        tag, position = read_varint(request, position, end)
        if tag == _MESSAGES_TAG:
            length, position = read_varint(request, position, end)
            stop = position + length
            if stop > end:
                raise garbled()
            if len(messages) == messages_max:
                raise LimitError(
                    Code.PAYLOAD_TOO_LARGE,
                    f"the request holds more than {messages_max} messages; split it",
                    "message.batch_messages_max",
                )
            head_end = position + len(head)
            if decoded_head is None or head_end > stop or request[position:head_end] != head:
                head = _usual_head(request, position, stop)
                decoded_head = _decoded_head(head) if head else None
            message = None if decoded_head is None else _usual(request, view, position, stop, head, decoded_head)
            if message is None:
                message, count = _message(request, position, stop)
                fields += count
                if fields > _FIELDS_OF_ALL_MAX:
                    raise LimitError(
                        Code.BAD_REQUEST,
                        f"the messages of the request have more than {_FIELDS_OF_ALL_MAX} fields together; "
                        "send them in several requests",
                        "message_fields_max",
                    )
            messages.append(message)
            position = stop
        else:
            _check_tag(tag)
            others += 1
            _check_fields(others)
            position = skip(request, tag & 7, position, end)
    return messages


def _usual_head(data: bytes, position: int, end: int) -> bytes:
    """Return the topic and user properties at the start of a message, if the system properties follow; else nothing."""
    begin = position
    for _ in range(_USUAL_FIELDS_MAX):
        if position + 1 >= end or data[position] not in (_TOPIC_TAG, _USER_PROPERTIES_TAG):
            break
        length, position = read_varint(data, position + 1, end)
        position += length
    is_usual = begin < position < end and data[position] == _SYSTEM_PROPERTIES_TAG
    return data[begin:position] if is_usual else b""


def _usual(
    data: bytes, view: memoryview, position: int, end: int, head: bytes, decoded_head: Message
) -> ClientMessage | None:
    """Cut up a message that begins with a head, then has system properties, then a body, and nothing else.

    That is how nearly all messages look: a fifth of the work of `_message`.

    Args:
        data: the request.
        view: the same.
        position: where the message begins.
        end: where it ends.
        head: with which it begins.
        decoded_head: the same.

    Returns:
        None if it does not look like that.
    """
    position += len(head)
    if position + 1 >= end or data[position] != _SYSTEM_PROPERTIES_TAG:
        return None
    length, position = read_varint(data, position + 1, end)
    stop = position + length
    if stop + 1 >= end or data[stop] != _BODY_TAG:
        return None
    body_length, body_start = read_varint(data, stop + 1, end)
    if body_start + body_length != end or body_start - stop > _BODY_START_BYTES_MAX:
        return None
    return ClientMessage(head + view[stop:end], data[position:stop], decoded_head, view[body_start:end], len(head))


def _message(data: bytes, position: int, end: int) -> tuple[ClientMessage, int]:
    """Cut up the message whose fields lie from `position` to `end`; return it, and the number of its fields."""
    view = memoryview(data)  # so that a body is copied once, when the payload is put together
    kept: list[memoryview] = []  # runs of fields that belong to the payload
    head: list[bytes] = []  # the same without bodies
    inside: list[bytes] = []
    body = view[:0]
    run = position  # start of the payload run that is being read
    head_run = position
    fields = 0
    while position < end:
        fields += 1
        _check_fields(fields)
        start = position
        tag = data[position]
        if tag < 0x80:
            position += 1
        else:
            tag, position = read_varint(data, position, end)
        number = tag >> 3
        if tag & 7 != LENGTH_DELIMITED:
            _check_tag(tag)
            position = skip(data, tag & 7, position, end)
            continue
        length = data[position] if position < end else 0x80
        if length < 0x80:
            position += 1
        elif position + 1 < end and data[position + 1] < 0x80:
            length = length & 0x7F | data[position + 1] << 7
            position += 2
        else:
            length, position = read_varint(data, position, end)
        value = position
        position += length
        if position > end:
            raise garbled()
        if number == _SYSTEM_PROPERTIES:
            inside.append(data[value:position])
            if start > run:
                kept.append(view[run:start])
            if start > head_run:
                head.append(data[head_run:start])
            run = head_run = position
        elif number == _BODY:
            if value - start > _BODY_START_BYTES_MAX:
                raise garbled()
            body = view[value:position]
            if start > head_run:
                head.append(data[head_run:start])
            head_run = position
        elif number == 0 or number >= 1 << 29:
            raise garbled()
    if end > run:
        kept.append(view[run:end])
    if end > head_run:
        head.append(data[head_run:end])
    head_data = head[0] if len(head) == 1 else b"".join(head)
    system = inside[0] if len(inside) == 1 else b"".join(inside)
    return ClientMessage(b"".join(kept), system, _decoded_head(head_data), body, len(head_data)), fields


def _decoded_head(head: bytes) -> Message:
    """Return a message without body and system properties, which must not be changed."""
    try:
        return _often_sent_head(head) if len(head) <= _HEAD_CACHED_BYTES else Message.FromString(head)
    except DecodeError:
        raise garbled() from None


@lru_cache(maxsize=1024)
def _often_sent_head(head: bytes) -> Message:
    """Return the same, cached: a topic with few properties or none repeats in message after message."""
    return Message.FromString(head)


def _check_tag(tag: int) -> None:
    """Refuse field numbers that do not exist."""
    if not 0 < tag >> 3 < 1 << 29:
        raise garbled()


def _check_fields(count: int) -> None:
    if count > _FIELDS_MAX:
        raise LimitError(
            Code.BAD_REQUEST, f"a message or a request has more than {_FIELDS_MAX} fields", "message_fields_max"
        )
