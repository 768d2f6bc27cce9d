"""Batches: exactly the rows that are there, and sentences for what can't be."""

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import spark_partition_id

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Encoding, Message
from tests.spark.topics import Topics


def read(spark: SparkSession, made: Topics, **options: Any) -> DataFrame:
    """A table of the server's messages."""
    return spark.read.format("popwheel").options(**made.options, **options).load()


def ids(frame: DataFrame) -> list[str]:
    """All message ids, in order."""
    return sorted(row.messageId for row in frame.select("messageId").collect())


def test_every_message_is_a_row_once(spark: SparkSession, topics: Topics) -> None:
    sent = topics.fill(topics.make("all"), 3_000)
    assert ids(read(spark, topics, topic="all")) == sorted(sent)


def test_a_row_says_all_that_its_message_says(spark: SparkSession, topics: Topics) -> None:
    def dress(message: Message, _: int) -> None:
        message.user_properties["colour"] = "red"
        message.system_properties.tag = "a"
        message.system_properties.keys.extend(["k1", "k2"])
        message.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_123)

    (message_id,) = topics.fill(topics.make("one", queues=1), 1, dress)
    (row,) = read(spark, topics, topic="one").collect()
    assert row.messageId == message_id
    assert (row.topic, row.brokerName, row.queueId, row.queueOffset) == ("one", "broker-0", 0, 0)
    assert bytes(row.body) == b"00000000"
    assert (row.tag, row["keys"], row.properties) == ("a", ["k1", "k2"], {"colour": "red"})
    assert row.bornTimestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert (row.messageGroup, row.deliveryTimestamp, row.attempts) == (None, None, None)


def test_an_empty_topic_is_an_empty_table(spark: SparkSession, topics: Topics) -> None:
    topics.make("empty")
    assert read(spark, topics, topic="empty").collect() == []


def test_topics_patterns_and_queues_are_read_together(spark: SparkSession, topics: Topics) -> None:
    first, second = topics.fill(topics.make("pair-1"), 50), topics.fill(topics.make("pair-2"), 50)
    topics.fill(topics.make("other"), 10)
    assert ids(read(spark, topics, topics="pair-1, pair-2")) == sorted(first | second)
    assert ids(read(spark, topics, topicPattern="pair-[0-9]")) == sorted(first | second)
    assigned = read(spark, topics, assign=json.dumps({"pair-1": {"broker-0": [0, 3]}}))
    assert {row.queueId for row in assigned.collect()} <= {0, 3}


def test_a_batch_begins_and_ends_where_it_is_reported(spark: SparkSession, topics: Topics) -> None:
    topics.fill(topics.make("part", queues=1), 100)
    places = {
        "startingOffsets": json.dumps({"part": {"broker-0": {"0": 10}}}),
        "endingOffsets": json.dumps({"part": {"broker-0": {"0": 90}}}),
    }
    rows = read(spark, topics, topic="part", columns="queueOffset", minPartitions=3, **places).collect()
    assert sorted(rows) == [Row(queueOffset=offset) for offset in range(10, 90)]


@pytest.mark.parametrize(
    ("options", "tasks", "rows_max"),
    [
        ({}, 1, 300),
        ({"targetRowsPerPartition": "1"}, 2, 200),
        ({"minPartitions": "7"}, 7, 200),
        ({"maxRowsPerPartition": "30"}, 10, 30),
    ],
)
def test_queues_are_split_among_tasks(
    spark: SparkSession, topics: Topics, options: dict[str, str], tasks: int, rows_max: int
) -> None:
    topic = "-".join(("split", *options))
    sent = topics.fill(topics.make(topic, queues=2), 300)
    rows = read(spark, topics, topic=topic, **options).select("messageId", spark_partition_id().alias("task")).collect()
    sizes = Counter(row["task"] for row in rows)
    assert len(sizes) >= tasks and max(sizes.values()) <= rows_max
    assert sorted(row["messageId"] for row in rows) == sorted(sent)


def test_a_task_reads_many_small_queues(spark: SparkSession, topics: Topics) -> None:
    topics.make("thousand", queues=1_000)
    sent = {each for number in range(20) for each in topics.fill("thousand", 64)}
    sent |= topics.fill_singly("thousand", 1_000)
    table = read(spark, topics, topic="thousand", columns="messageId,queueId,queueOffset")
    rows = table.select("*", spark_partition_id().alias("task")).collect()
    assert sorted(row.messageId for row in rows) == sorted(sent)
    assert len({row.queueId for row in rows}) == 1_000
    assert len({row.task for row in rows}) <= 12
    assert len({(row.queueId, row.queueOffset) for row in rows}) == len(rows)


def test_the_broker_filters_by_tag(spark: SparkSession, topics: Topics) -> None:
    def tag(message: Message, number: int) -> None:
        message.system_properties.tag = "abc"[number % 3]

    topics.fill(topics.make("tags"), 600, tag)
    rows = read(spark, topics, topic="tags", tags="a || c", columns="tag").collect()
    assert sorted(row.tag for row in rows) == ["a"] * 200 + ["c"] * 200


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "option topic: say what to read by exactly one of"),
        ({"topik": "a"}, "did you mean topic?"),
        ({"topic": "nowhere"}, "option topic: there is no topic nowhere"),
        ({"topic": "%RETRY%"}, "is not a name for a retry topic"),
        ({"topic": "part", "endingOffsets": '{"part": {"broker-0": {"0": 999}}}'}, "has offsets up to 100, not 999"),
        ({"topic": "part", "startingOffsets": '{"part": {"broker-0": {"7": 0}}}'}, "there is no queue 7 of part"),
        ({"topic": "part", "startingTimestamp": "2999-01-01T00:00:00Z"}, "no message that was stored then or later"),
        ({"topic": "part", "endpoints": "127.0.0.1:1", "timeoutMs": "300"}, "with 127.0.0.1:1; at last:"),
    ],
)
def test_the_driver_says_what_is_wrong(
    spark: SparkSession, topics: Topics, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("popwheel").options(**topics.options).options(**options).load().collect()
    assert sentence in str(caught.value)
    assert "Job aborted" not in str(caught.value), "a worker said it"


@pytest.mark.parametrize(("policy", "counts"), [("skip", (2, 0)), ("column", (3, 1))])
def test_a_body_that_is_not_what_it_says_does_not_end_a_query(
    spark: SparkSession, topics: Topics, policy: str, counts: tuple[int, int]
) -> None:
    def lie(message: Message, number: int) -> None:
        message.system_properties.body_encoding = Encoding.GZIP if number == 1 else Encoding.IDENTITY

    name = topics.make(f"lies-{policy}", queues=1)
    topics.fill(name, 3, lie)
    strict = spark.read.format("popwheel").options(**topics.options, topic=name)
    with pytest.raises(PySparkException, match=rf"queue 0 of {name} at broker-0: the message at offset 1 \(id "):
        strict.load().collect()
    rows = strict.option("badRecords", policy).load()
    bad = "count(badRecord)" if policy == "column" else "0"
    assert tuple(rows.selectExpr("count(*)", bad).collect()[0]) == counts
