"""Records of a broker's log as rows of Arrow."""

import gzip
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from popwheel_common.contract.names import topic_of_retry_topic
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Encoding, Message, SystemProperties
from popwheel_spark.errors import FormatError
from popwheel_spark.wire.columns import ddl
from popwheel_spark.wire.offsets import Queue
from popwheel_spark.wire.record_rows import record_batch
from popwheel_spark.wire.schema import COLUMNS, arrow_schema
from popwheel_spark.wire.spark_schema import arrow_of
from tests.harness.records import block_of, record_of

QUEUE = Queue("orders", "b-0", 3)
WHOLE = tuple(name for name in COLUMNS if name != "badRecord")
SPARKS: dict[str, DataType] = {
    "STRING": StringType(),
    "ARRAY<STRING>": ArrayType(StringType()),
    "BINARY": BinaryType(),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "TIMESTAMP": TimestampType(),
}


TEXT = st.sampled_from(("", "a", "ab", "\u00e9", "x" * 200)) | st.text(max_size=5)
TIMES = st.builds(Timestamp, seconds=st.integers(-(10**9), 10**10), nanos=st.integers(0, 999_999_999))


def rows_of(*messages: Message, columns: tuple[str, ...] = WHOLE) -> list[dict[str, Any]]:
    batch = record_batch(QUEUE, block_of(record_of(each, 3, origin=b"12345678") for each in messages), columns)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(columns))
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


@st.composite
def any_message(draw: st.DrawFn) -> Message:
    """Whatever protobuf can say, with each part there or not."""
    message = Message(body=draw(st.binary(max_size=300)))
    message.topic.name = draw(TEXT)
    message.user_properties.update(draw(st.dictionaries(TEXT, TEXT, max_size=3)))
    properties = message.system_properties
    for name in ("tag", "message_id", "message_group", "born_host", "trace_context"):
        if draw(st.booleans()):
            setattr(properties, name, draw(TEXT))
    properties.keys.extend(draw(st.lists(TEXT, max_size=3)))
    if draw(st.booleans()):
        properties.delivery_attempt = draw(st.integers(0, 2**16 - 1))
    if draw(st.booleans()):
        properties.dead_letter_queue.topic = draw(st.sampled_from(("", "orders", "%RETRY%g+orders")))
        properties.dead_letter_queue.message_id = "m"
    if draw(st.booleans()):
        properties.priority = draw(st.integers(0, 2**31 - 1))
    for time in (properties.born_timestamp, properties.delivery_timestamp):
        if draw(st.booleans()):
            time.CopyFrom(draw(TIMES))
    properties.queue_offset = draw(st.integers(0, 2**40))
    properties.store_timestamp.FromMilliseconds(draw(st.integers(0, 10**13)))
    return message


def expected(message: Message) -> dict[str, object]:
    """What protobuf reads in it."""
    properties: SystemProperties = message.system_properties
    dead = properties.dead_letter_queue.topic
    later = properties.delivery_timestamp if properties.HasField("delivery_timestamp") else None
    return {
        "topic": "orders",
        "tag": properties.tag or None,
        "keys": list(properties.keys),
        "messageGroup": properties.message_group or None,
        "body": message.body,
        "properties": sorted(message.user_properties.items()),
        "brokerName": "b-0",
        "queueId": 3,
        "queueOffset": properties.queue_offset,
        "bornTimestamp": micros(properties.born_timestamp),
        "storeTimestamp": micros(properties.store_timestamp),
        "deliveryTimestamp": None if later is None else micros(later),
        "messageId": properties.message_id,
        "attempts": properties.delivery_attempt or None,
        "priority": properties.priority if properties.HasField("priority") else None,
        "originTopic": topic_of_retry_topic(dead) or dead or None,
    }


def micros(time: Timestamp) -> int:
    return time.seconds * 1_000_000 + time.nanos // 1000


def seen(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Rows with times as microseconds, and properties in an order."""
    times = [name for name in batch.schema.names if name.endswith("Timestamp")]
    numbers = {name: batch.column(name).cast(pa.int64()).to_pylist() for name in times}
    plain = batch.drop_columns(times).to_pylist()
    return [
        {**row, "properties": sorted(row["properties"]), **{name: numbers[name][place] for name in times}}
        for place, row in enumerate(plain)
    ]


@settings(max_examples=25)
@given(st.lists(any_message(), max_size=6))
def test_rows_are_what_protobuf_reads_in_the_messages(messages: list[Message]) -> None:
    batch = record_batch(QUEUE, block_of(record_of(each, 3) for each in messages), WHOLE)
    batch.validate(full=True)
    assert seen(batch) == [expected(each) for each in messages]


@settings(max_examples=15)
@given(st.lists(any_message(), max_size=4))
def test_parts_of_a_message_may_come_twice(messages: list[Message]) -> None:
    """Protobuf reads several parts of one message as their merge, and of several values the last."""
    batch = record_batch(QUEUE, block_of(record_of(each, 3, times=2) for each in messages), WHOLE)
    assert seen(batch) == [expected(Message.FromString(each.SerializeToString() * 2)) for each in messages]


def test_spark_expects_the_same_of_arrow() -> None:
    table = StructType([StructField(name, SPARKS[kind]) for name, (kind, _) in COLUMNS.items()])
    assert arrow_of(table).equals(arrow_schema(tuple(COLUMNS)))
    assert ddl(("topic", "queueId")) == "topic STRING, queueId INT"


def test_a_message_that_says_everything() -> None:
    message = Message(body=gzip.compress(b"hello"), user_properties={"a": "b"})
    properties = message.system_properties
    properties.tag, properties.message_id, properties.message_group = "t", "id-1", "g"
    properties.keys.extend(("k1", "k2"))
    properties.body_encoding = Encoding.GZIP
    properties.queue_offset, properties.delivery_attempt = 7, 2
    properties.dead_letter_queue.topic = "%RETRY%g+orders"
    properties.born_timestamp.FromMilliseconds(1001)
    properties.store_timestamp.FromMilliseconds(2002)
    properties.delivery_timestamp.FromMicroseconds(3003)
    (row,) = rows_of(message)
    times = {name: row.pop(name).timestamp() for name in tuple(row) if name.endswith("Timestamp")}
    assert times == {"bornTimestamp": 1.001, "storeTimestamp": 2.002, "deliveryTimestamp": 0.003003}
    assert row == {
        "topic": "orders",
        "tag": "t",
        "keys": ["k1", "k2"],
        "messageGroup": "g",
        "body": b"hello",
        "properties": [("a", "b")],
        "brokerName": "b-0",
        "queueId": 3,
        "queueOffset": 7,
        "messageId": "id-1",
        "attempts": 2,
        "priority": None,
        "originTopic": "orders",
    }


def test_a_message_that_says_little() -> None:
    (row,) = rows_of(Message(body=b"x"), columns=("tag", "keys", "messageGroup", "deliveryTimestamp"))
    assert row == {"tag": None, "keys": [], "messageGroup": None, "deliveryTimestamp": None}
    assert rows_of() == []


def test_packed_bodies_among_others() -> None:
    packed = Message(body=gzip.compress(b"small"))
    packed.system_properties.body_encoding = Encoding.GZIP
    assert rows_of(Message(body=b"a"), packed, Message(), columns=("body",)) == [
        {"body": b"a"},
        {"body": b"small"},
        {"body": b""},
    ]


def test_records_of_a_newer_release_are_refused() -> None:
    record = bytearray(record_of(Message(body=b"x")))
    record[9] = 2
    with pytest.raises(FormatError, match="format 2, this release knows 1"):
        record_batch(QUEUE, block_of([bytes(record)]), ("body",))
