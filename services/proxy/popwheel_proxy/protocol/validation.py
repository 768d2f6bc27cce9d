"""Validation of clients' requests: each rule with the code that the official clients expect (pure)."""

import re
from functools import lru_cache
from typing import Final

from popwheel_common.contract.names import NameTooLongError, checked_lite_topic, shown
from popwheel_common.contract.put import PutKind
from popwheel_common.contract.time_to_live import check_time_to_live
from popwheel_common.contract.times import is_time
from popwheel_common.errors import StatusError
from popwheel_common.filter import lexer, parser
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import (
    Code,
    FilterExpression,
    FilterType,
    MessageType,
    SystemProperties,
)
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType
from popwheel_proxy.options import MessageLimits, ReceiveOptions
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.payload import ClientMessage

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NOT_IN_TAGS: Final = re.compile(r"[\x00-\x1f\x7f|]")
_ALL: Final = broker.Filter(kind=broker.FilterKind.ALL)
_EXPRESSION_LENGTH_MAX: Final = 8_192
_NORMAL: Final = MessageType.NORMAL  # looked up once: enum wrappers are slow
_DELAY: Final = MessageType.DELAY
_TRANSACTION: Final = MessageType.TRANSACTION
_FIRST_CHECK_MS_MAX: Final = 3_600_000
_FIFO: Final = MessageType.FIFO
_PRIORITY: Final = MessageType.PRIORITY
_PRIORITY_TOPIC: Final = TopicType.PRIORITY
_LITE: Final = MessageType.LITE
_LITE_TOPIC: Final = TopicType.LITE
_MESSAGE_GROUP_LENGTH_MAX: Final = 64
_NANOS_PER_MS: Final = 1_000_000

ACCEPTED_TYPES: dict[int, tuple[MessageType.ValueType, ...]] = {
    TopicType.NORMAL: (MessageType.NORMAL,),
    TopicType.FIFO: (MessageType.FIFO,),
    TopicType.DELAY: (MessageType.DELAY,),
    TopicType.TRANSACTION: (MessageType.TRANSACTION,),
    # Clients that leave out a priority of 0 say that the message is an ordinary one.
    TopicType.PRIORITY: (MessageType.PRIORITY, MessageType.NORMAL),
    TopicType.MIXED: (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
    TopicType.LITE: (MessageType.LITE,),
}
"""A topic's type -> the types of the messages it takes."""

_READ_AS_LITE: Final = "consume it with a LitePushConsumer or a LiteSimpleConsumer"


def check_message(
    message: ClientMessage, topic: Topic, limits: MessageLimits, *, head_is_checked: bool = False
) -> None:
    """Check one message of a send, and set what follows from it: how it goes into the log, its send queue and priority.

    Args:
        message: the message.
        topic: its topic.
        limits: how large it may be.
        head_is_checked: whether one with the same head was found good just before.

    Raises:
        StatusError: with the code of the first rule that it breaks.
    """
    body_bytes = len(message.body)
    if body_bytes > limits.body_bytes_max:
        raise LimitError(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the body has {body_bytes} bytes, at most {limits.body_bytes_max} are taken",
            "message.body_bytes_max",
        )
    if body_bytes == 0:
        raise StatusError(Code.MESSAGE_BODY_EMPTY, "the body is empty; a message needs at least one byte")
    message_id = message.message_id
    if len(message_id) > limits.id_length_max or not _is_plain(message_id):
        raise _illegal_message_id(message_id, limits)
    # Before the tag, as tags that were found good are remembered.
    if len(message.system_properties) > limits.system_properties_bytes_max:
        raise LimitError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"keys, tag and the like have {len(message.system_properties)} bytes, at most "
            f"{limits.system_properties_bytes_max} are taken",
            "message.system_properties_bytes_max",
        )
    if message.tag is not None:
        _check_tag(message.tag)
    keys = list(message.keys)
    # All at once: a message may have thousands of short ones, and a request many messages.
    if keys and (not all(map(str.strip, keys)) or _CONTROL.search("".join(keys))):
        raise StatusError(Code.ILLEGAL_MESSAGE_KEY, "a key is blank or holds control characters")
    if not head_is_checked:
        _check_properties(message, limits)
        if topic.expired_messages:
            check_time_to_live(message.head.user_properties)
    plain = message.plain
    if plain is not None:
        # None of its fields shows it to be anything but an ordinary one.
        topic_type: int = topic.type
        _check_accepted(_NORMAL, topic, topic_type)
        message.priority = 0 if topic_type == _PRIORITY_TOPIC else -1
        return
    properties = message.properties
    if not is_time(properties.born_timestamp):
        born = properties.born_timestamp
        raise StatusError(
            Code.BAD_REQUEST,
            f"the born timestamp ({born.seconds} s, {born.nanos} ns) is not a time between the years 1 and 9999; "
            "leave it out, and it is filled in",
        )
    _check_type(message, topic)
    message.priority = properties.priority if topic.type == _PRIORITY_TOPIC else -1


def check_invisible(asked_ms: int, options: ReceiveOptions) -> int:
    """Return the invisible duration of a receive, in milliseconds.

    Raises:
        StatusError: ILLEGAL_INVISIBLE_TIME, if it is too short or too long.
    """
    if not options.invisible_ms_min <= asked_ms <= options.invisible_ms_max:
        raise LimitError(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"an invisible duration of {asked_ms} ms was asked for; it must be between {options.invisible_ms_min} "
            f"and {options.invisible_ms_max} ms",
            _passed(asked_ms, options),
        )
    return asked_ms


def check_changed_invisible(asked_ms: int, options: ReceiveOptions) -> int:
    """Return the invisible duration of a change; 0 makes the message visible at once, and no other lower limit holds.

    Raises:
        StatusError: ILLEGAL_INVISIBLE_TIME, if it is negative or too long.
    """
    if not 0 <= asked_ms <= options.invisible_ms_max:
        raise LimitError(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"an invisible duration of {asked_ms} ms was asked for; it must be between 0 and "
            f"{options.invisible_ms_max} ms",
            _passed(asked_ms, options),
        )
    return asked_ms


def _passed(asked_ms: int, options: ReceiveOptions) -> str:
    """Return the limit that a refused invisible duration exceeds."""
    return "receive.invisible_ms_max" if asked_ms > options.invisible_ms_max else "receive.invisible_ms_min"


def filter_of(expression: FilterExpression) -> broker.Filter:
    """Return the filter for brokers: everything, tags as `a || b`, or an SQL92 filter.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION.
    """
    if expression.type == FilterType.SQL:
        if len(expression.expression) > lexer.LENGTH_MAX:
            raise LimitError(
                Code.ILLEGAL_FILTER_EXPRESSION,
                f"the filter has more than {lexer.LENGTH_MAX} characters",
                "sql_filter_length_max",
            )
        parser.parse(expression.expression)  # as it is: positions in it are reported
        return broker.Filter(kind=broker.FilterKind.SQL92, expression=expression.expression)
    text = expression.expression.strip()
    if not text or text == "*":
        return _ALL
    if len(text) > _EXPRESSION_LENGTH_MAX:
        raise LimitError(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"the filter has more than {_EXPRESSION_LENGTH_MAX} characters",
            "filter_expression_length_max",
        )
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags) or _NOT_IN_TAGS.search("".join(tags)):
        raise StatusError(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"{shown(text)} is not a tag filter; write '*', 'a' or 'a || b'",
        )
    if "*" in tags:
        return _ALL
    return broker.Filter(kind=broker.FilterKind.TAG, expression=" || ".join(dict.fromkeys(tags)))


def tag_filter_of(expression: FilterExpression) -> broker.Filter:
    """Return the filter for brokers where they read by offset.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION.
    """
    if expression.type == FilterType.SQL:
        raise StatusError(
            Code.ILLEGAL_FILTER_EXPRESSION, "a pull takes tag filters only; filter by tag, or use ReceiveMessage"
        )
    return filter_of(expression)


def _illegal_message_id(message_id: str, limits: MessageLimits) -> StatusError:
    if len(message_id) > limits.id_length_max:
        return LimitError(
            Code.ILLEGAL_MESSAGE_ID,
            f"the message id has more than {limits.id_length_max} characters",
            "message.id_length_max",
        )
    return StatusError(Code.ILLEGAL_MESSAGE_ID, "the message id is blank or has control characters")


def _is_plain(text: str) -> bool:
    """Return whether a text is not blank and has no control characters."""
    # Printable texts are the rule and hold none; others may still be fine (a character that is not assigned yet).
    return text != "" and not text.isspace() and (text.isprintable() or _CONTROL.search(text) is None)


@lru_cache(maxsize=1024)
def _check_tag(tag: str) -> None:
    """Check that consumers can ask for a tag: `filter_of` has to find it in an expression."""
    if len(tag) > _EXPRESSION_LENGTH_MAX:
        raise LimitError(
            Code.ILLEGAL_MESSAGE_TAG,
            f"the tag has more than {_EXPRESSION_LENGTH_MAX} characters",
            "filter_expression_length_max",
        )
    if not tag.strip() or _NOT_IN_TAGS.search(tag):
        raise StatusError(Code.ILLEGAL_MESSAGE_TAG, "the tag is blank or holds control characters or '|'")
    if tag == "*" or tag != tag.strip():
        raise StatusError(
            Code.ILLEGAL_MESSAGE_TAG,
            f"no consumer can ask for the tag {shown(tag)}: '*' means all messages, and spaces around a tag are "
            "dropped; send it without",
        )


def _check_properties(message: ClientMessage, limits: MessageLimits) -> None:
    properties = message.head.user_properties
    count = len(properties)
    if count > limits.user_properties_max:
        raise LimitError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {count} properties, at most {limits.user_properties_max} are taken",
            "message.user_properties_max",
        )
    if not count:
        return
    for key in properties:
        if not _is_plain(key):
            raise StatusError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "a property's name is blank or holds control characters"
            )
    if message.head_bytes > limits.user_properties_bytes_max:  # only then is it worth counting exactly
        size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
        if size > limits.user_properties_bytes_max:
            raise LimitError(
                Code.MESSAGE_PROPERTIES_TOO_LARGE,
                f"names and values of the properties have {size} bytes, at most "
                f"{limits.user_properties_bytes_max} are taken",
                "message.user_properties_bytes_max",
            )


def _check_accepted(kind: int, topic: Topic, topic_type: int) -> None:
    """Check that a topic of this type takes messages of this kind."""
    accepted = ACCEPTED_TYPES.get(topic_type, ())
    if kind not in accepted:
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message is of type {_type_name(kind)}, the topic {topic.name} takes "
            f"{' and '.join(_type_name(one) for one in accepted) or 'none'}",
        )


def _check_type(message: ClientMessage, topic: Topic) -> None:
    """Check a message's type, and set what follows from it: how it goes into the log, and its send queue."""
    properties = message.properties
    shown = _shown_type(properties)
    kind = properties.message_type or shown or _NORMAL
    _check_accepted(kind, topic, topic.type)
    if kind == _DELAY:
        message.kind, message.time_ms = PutKind.AT_TIME, _due_ms(properties)
        return
    if kind == _FIFO:
        _check_message_group(properties)
        message.send_queue = properties.message_group
        return
    if kind == _LITE:
        _check_lite_topic(properties)
        message.send_queue = message.lite_topic = properties.lite_topic
        return
    if kind == _PRIORITY:
        _check_priority(properties)
        return
    if kind not in (_NORMAL, _TRANSACTION):
        raise StatusError(
            Code.UNSUPPORTED, f"messages of type {_type_name(kind)} are not supported yet; nothing was stored"
        )
    if shown is not None and not (shown == _PRIORITY and topic.type == _PRIORITY_TOPIC and properties.priority == 0):
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message is of type {_type_name(kind)} but has a property of one of type {_type_name(shown)}",
        )
    if kind == _TRANSACTION:
        message.kind, message.time_ms = PutKind.HALF, _first_check_ms(properties)


def _first_check_ms(properties: SystemProperties) -> int:
    """Return when the sender of a half message wants its first check; 0 if it leaves that to the broker.

    Raises:
        StatusError: BAD_REQUEST: not a duration of up to an hour.
    """
    asked = properties.orphaned_transaction_recovery_duration
    asked_ms = asked.seconds * 1000 + asked.nanos // _NANOS_PER_MS
    if not 0 <= asked_ms <= _FIRST_CHECK_MS_MAX:
        raise LimitError(
            Code.BAD_REQUEST,
            f"the sender is to be asked about its transaction after {asked_ms} ms; it must be between 0 and "
            f"{_FIRST_CHECK_MS_MAX} ms",
            "first_check_ms_max",
        )
    return asked_ms


def _check_message_group(properties: SystemProperties) -> None:
    """Check a message that is to keep its order.

    Raises:
        StatusError: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, ILLEGAL_MESSAGE_GROUP.
    """
    has = properties.HasField
    if not has("message_group"):
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the message is of type FIFO but has no message group"
        )
    if has("delivery_timestamp") or has("lite_topic") or has("priority"):
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "the message is of type FIFO but has a delivery timestamp, a lite topic or a priority",
        )
    message_group = properties.message_group
    if len(message_group) > _MESSAGE_GROUP_LENGTH_MAX:
        raise LimitError(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"the message group has {len(message_group)} characters, at most {_MESSAGE_GROUP_LENGTH_MAX} are taken",
            "message_group_length_max",
        )
    if not _is_plain(message_group):
        raise StatusError(Code.ILLEGAL_MESSAGE_GROUP, "the message group is blank or has control characters")


def _check_priority(properties: SystemProperties) -> None:
    """Check a message that has a priority.

    Raises:
        StatusError: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, or BAD_REQUEST for a priority below 0.
    """
    has = properties.HasField
    if not has("priority"):
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the message is of type PRIORITY but has no priority"
        )
    if has("delivery_timestamp") or has("lite_topic") or has("message_group"):
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "the message is of type PRIORITY but has a delivery timestamp, a lite topic or a message group",
        )
    if properties.priority < 0:
        raise StatusError(
            Code.BAD_REQUEST,
            f"the priority is {properties.priority}; it must be 0 or more, and the highest comes first",
        )


def _check_lite_topic(properties: SystemProperties) -> None:
    """Check a message for a lite topic.

    Raises:
        StatusError: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, ILLEGAL_LITE_TOPIC.
    """
    has = properties.HasField
    if not has("lite_topic"):
        raise StatusError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the message is of type LITE but has no lite topic")
    if has("message_group") or has("delivery_timestamp") or has("priority"):
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "the message is of type LITE but has a message group, a delivery timestamp or a priority",
        )
    check_lite_name(properties.lite_topic)


def check_lite_name(text: str) -> str:
    """Check a lite topic's name.

    Raises:
        StatusError: ILLEGAL_LITE_TOPIC.
    """
    try:
        return checked_lite_topic(text)
    except NameTooLongError as error:
        raise LimitError(error.code, error.message, "lite_topic_length_max") from error


def check_reader(topic: Topic, reads_lite: bool | None) -> None:
    """Check that consumers of lite topics receive from them, and others from all other topics.

    Args:
        topic: what a client receives from.
        reads_lite: whether it is a consumer of lite topics; None if it has not said so: then it may be either.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if reads_lite is False:
        refuse_lite(topic, "received from by an ordinary consumer")
    if reads_lite and topic.type != _LITE_TOPIC:
        raise StatusError(
            Code.BAD_REQUEST,
            f"the topic {topic.name} is not of type LITE, and this client is a consumer of lite topics; bind it to one "
            "that is, or use another consumer",
        )


def refuse_lite(topic: Topic, what: str) -> None:
    """Refuse an operation that a parent topic of lite topics does not support.

    Args:
        topic: the topic.
        what: the operation, as in `it cannot be ...`.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if topic.type == _LITE_TOPIC:
        raise StatusError(
            Code.BAD_REQUEST, f"the topic {topic.name} is of type LITE and cannot be {what}; {_READ_AS_LITE}"
        )


def _due_ms(properties: SystemProperties) -> int:
    """Return the delivery time of a delayed message, in milliseconds: never before the one that its sender wrote.

    Clients write whole seconds (Python, Rust), milliseconds or finer; Python takes the number that its caller gives for
    seconds, though its own description says milliseconds. How far ahead it may be is for the broker to say.

    Raises:
        StatusError: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, ILLEGAL_DELIVERY_TIME.
    """
    has = properties.HasField
    if not has("delivery_timestamp"):
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the message is of type DELAY but has no delivery timestamp"
        )
    if has("message_group") or has("lite_topic") or has("priority"):
        raise StatusError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "the message is of type DELAY but has a message group, a lite topic or a priority",
        )
    seconds = properties.delivery_timestamp.seconds
    nanos = properties.delivery_timestamp.nanos
    if not (seconds >= 0 and is_time(properties.delivery_timestamp)):
        raise StatusError(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the delivery timestamp ({seconds} s, {nanos} ns) is not a time between the years 1970 and 9999; "
            "it is to be given in seconds, not in milliseconds",
        )
    return seconds * 1000 + -(-nanos // _NANOS_PER_MS)


def _shown_type(properties: SystemProperties) -> MessageType.ValueType | None:
    """Return the type that follows from a message's properties, if it is not an ordinary one."""
    has = properties.HasField
    if has("message_group"):
        return MessageType.FIFO
    if has("delivery_timestamp"):
        return MessageType.DELAY
    if has("lite_topic"):
        return MessageType.LITE
    if has("priority"):
        return MessageType.PRIORITY
    return None


def _type_name(kind: int) -> str:
    return MessageType.Name(MessageType.ValueType(kind)) if kind in MessageType.values() else str(kind)
