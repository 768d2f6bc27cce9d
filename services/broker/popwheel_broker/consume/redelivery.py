"""Redelivery of a message that was not acknowledged: to its group, or to the dead letter queue (P4, P5)."""

from google.protobuf.message import DecodeError

from popwheel_broker.consume.delivery import Delivery, Origin
from popwheel_broker.consume.store_time import with_first_stored
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_common.contract import names
from popwheel_common.contract.send_id import without_send_id
from popwheel_common.contract.wire_format import varint
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import DeadLetterQueue, Message, Resource, SystemProperties

_DEAD_LETTER_QUEUE_TAG = b"\xa2\x01"
"""Field 20 of SystemProperties, length-delimited."""
_PRIORITY_TAG = b"\xb0\x01"
"""Field 22 of SystemProperties, a varint."""


def redelivered(delivery: Delivery, index: int, stored: StoredRecord, *, attempted: bool, attempts_max: int) -> Record:
    """Return the record that replaces message `index` of a delivery, in the group's retry topic or its dead letter
    topic.

    A message that a group has received from a retry topic, as older releases let it, has no retry: it is a dead letter.

    Args:
        delivery: the delivery that hid it.
        index: of the message.
        stored: the message.
        attempted: whether the delivery that ends now counts as an attempt.
        attempts_max: number of attempts after which it is a dead letter.
    """
    attempts = stored.attempts + (1 if attempted else 0)
    retry_topic = retry_topic_of(delivery)
    if attempts >= attempts_max or retry_topic is None:
        return dead_letter(delivery, index, stored)
    return Record(
        kind=RecordKind.MESSAGE,
        topic=retry_topic,
        queue_id=_level_of(delivery, stored),
        payload=stored.payload,
        system_properties=with_first_stored(stored),
        tag_hash=stored.tag_hash,
        attempts=attempts,
        origin=Origin(delivery.id, index).encode(),
    )


def _level_of(delivery: Delivery, stored: StoredRecord) -> int:
    """Return the queue of the retry topic for a message: its priority level, if it has a priority. Only topics whose
    queues are levels take such messages, so the message itself decides, whatever the topic is now.
    """
    if not delivery.queue_id or _PRIORITY_TAG not in stored.system_properties:
        return 0
    try:
        has_priority = SystemProperties.FromString(stored.system_properties).HasField("priority")
    except DecodeError:
        return 0
    return delivery.queue_id if has_priority else 0


def retry_topic_of(delivery: Delivery) -> str | None:
    """Return the retry topic of a delivery's messages; None if they came from a retry topic, which has none."""
    try:
        return names.retry_topic(delivery.group, delivery.topic)
    except StatusError:
        return None


def dead_letter(delivery: Delivery, index: int, stored: StoredRecord) -> Record:
    """Return the record of a delivery's message `index` in its group's dead letter queue, marked with its place of
    origin.
    """
    topic = names.dead_letter_topic(delivery.group)
    payload, message_id = stored.payload, ""
    try:
        message = Message.FromString(stored.payload)
        _rename(message.topic, delivery.group)
        payload = message.SerializeToString()
        message_id = SystemProperties.FromString(stored.system_properties).message_id
    except DecodeError:
        # Proxies let no such message in; one way or the other it must leave the revive queue (P4).
        pass
    note = DeadLetterQueue(topic=names.client_topic(delivery.topic), message_id=message_id).SerializeToString()
    return Record(
        kind=RecordKind.MESSAGE,
        topic=topic,
        queue_id=0,
        payload=payload,
        system_properties=without_send_id(stored.system_properties) + _DEAD_LETTER_QUEUE_TAG + varint(len(note)) + note,
        tag_hash=stored.tag_hash,
        origin=Origin(delivery.id, index).encode(),
    )


def _rename(topic: Resource, group: str) -> None:
    """Rename it to the dead letter topic of a group, as consumers name it: in the namespace that the message was sent
    to, if the group is in it, else in none.
    """
    name = group.removeprefix(f"{topic.resource_namespace}%") if topic.resource_namespace else group
    if name == group:
        topic.ClearField("resource_namespace")
    topic.name = names.dead_letter_topic(name)
