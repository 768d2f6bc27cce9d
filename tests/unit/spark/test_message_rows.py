"""Messages as rows of Arrow."""

import gzip

from pyspark.sql.pandas.types import to_arrow_schema
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

from popwheel_spark.message_rows import record_batch
from popwheel_spark.offsets import Queue
from popwheel_spark.schema import COLUMNS, arrow_schema, ddl
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Encoding, Message

QUEUE = Queue("orders", "b-0", 3)
SPARKS: dict[str, DataType] = {
    "STRING": StringType(),
    "ARRAY<STRING>": ArrayType(StringType()),
    "BINARY": BinaryType(),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "TIMESTAMP": TimestampType(),
}


def test_spark_expects_the_same_of_arrow() -> None:
    table = StructType([StructField(name, SPARKS[kind]) for name, (kind, _) in COLUMNS.items()])
    assert to_arrow_schema(table, timezone="UTC").equals(arrow_schema(tuple(COLUMNS)))
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
    (row,) = record_batch(QUEUE, [message], tuple(COLUMNS)).to_pylist()
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
        "originTopic": "orders",
    }


def test_a_message_that_says_little() -> None:
    (row,) = record_batch(QUEUE, [Message(body=b"x")], ("tag", "keys", "messageGroup", "deliveryTimestamp")).to_pylist()
    assert row == {"tag": None, "keys": [], "messageGroup": None, "deliveryTimestamp": None}
    assert record_batch(QUEUE, [], tuple(COLUMNS)).num_rows == 0
