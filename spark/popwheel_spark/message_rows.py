"""Messages as rows of Arrow: column by column, which is several times quicker than row by row (pure)."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_spark.offsets import Queue
from popwheel_spark.schema import arrow_schema
from services.common.contract.names import topic_of_retry_topic
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Encoding, Message, SystemProperties

_GZIP = int(Encoding.GZIP)
_MICROS_PER_S = 1_000_000
_NANOS_PER_MICRO = 1000


def record_batch(queue: Queue, messages: Sequence[Message], columns: Sequence[str]) -> pa.RecordBatch:
    """Messages of one queue as rows.

    Args:
        queue: where they are from.
        messages: in the order of the rows.
        columns: those of `schema.COLUMNS` that are wanted.
    """
    schema = arrow_schema(columns)
    properties = [message.system_properties for message in messages]
    arrays = []
    for field in schema:
        if field.name in _OF_QUEUE:
            value = pa.scalar(_OF_QUEUE[field.name](queue), field.type)
            arrays.append(pa.repeat(value, len(messages)))
        else:
            arrays.append(pa.array(_OF_MESSAGES[field.name](messages, properties), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


Properties = Sequence[SystemProperties]
Column = list[Any]

_OF_QUEUE: Final[Mapping[str, Callable[[Queue], str | int]]] = {
    "topic": lambda queue: queue.topic,
    "brokerName": lambda queue: queue.broker,
    "queueId": lambda queue: queue.number,
}


def _bodies(messages: Sequence[Message], properties: Properties) -> Column:
    return [
        gzip.decompress(message.body) if each.body_encoding == _GZIP else message.body
        for message, each in zip(messages, properties, strict=True)
    ]


# To ask first whether there are any takes a fifth of what it takes to go through none.
def _user_properties(messages: Sequence[Message], _: Properties) -> Column:
    return [list(some.items()) if (some := message.user_properties) else () for message in messages]


def _keys(_: Sequence[Message], properties: Properties) -> Column:
    return [list(some) if (some := each.keys) else () for each in properties]


def _delivery_times(_: Sequence[Message], properties: Properties) -> Column:
    return [_micros(each.delivery_timestamp) if each.HasField("delivery_timestamp") else None for each in properties]


def _attempts(_: Sequence[Message], properties: Properties) -> Column:
    return [each.delivery_attempt if each.HasField("delivery_attempt") else None for each in properties]


def _origins(_: Sequence[Message], properties: Properties) -> Column:
    topics = [each.dead_letter_queue.topic for each in properties]
    return [topic_of_retry_topic(topic) or topic or None for topic in topics]


_OF_MESSAGES: Final[Mapping[str, Callable[[Sequence[Message], Properties], Column]]] = {
    "tag": lambda _, properties: [each.tag or None for each in properties],
    "keys": _keys,
    "messageGroup": lambda _, properties: [each.message_group or None for each in properties],
    "body": _bodies,
    "properties": _user_properties,
    "queueOffset": lambda _, properties: [each.queue_offset for each in properties],
    "bornTimestamp": lambda _, properties: [_micros(each.born_timestamp) for each in properties],
    "storeTimestamp": lambda _, properties: [_micros(each.store_timestamp) for each in properties],
    "deliveryTimestamp": _delivery_times,
    "messageId": lambda _, properties: [each.message_id for each in properties],
    "attempts": _attempts,
    "originTopic": _origins,
}


def _micros(time: Timestamp) -> int:
    return time.seconds * _MICROS_PER_S + time.nanos // _NANOS_PER_MICRO
