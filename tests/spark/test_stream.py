"""Streams: exactly the rows that are there, over restarts, and by the limits that are set."""

import asyncio
import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from popwheel_spark.source.read_limits import HAS_LIMITS
from tests.harness.client import MessagingClient
from tests.spark.round_trip import stream_to_parquet
from tests.spark.topics import Topics

needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="Spark 4.1 takes all there is")


class Archive:
    """A stream into Parquet files, run after run.

    Args:
        spark: runs it.
        topics: of the server.
        folder: for files and checkpoint.
        options: of the read.
    """

    def __init__(self, spark: SparkSession, topics: Topics, folder: Path, **options: str) -> None:
        self._spark = spark
        self._folder = folder
        self._options = topics.options | {"startingOffsets": "earliest"} | options

    def run(self) -> StreamingQuery:
        """Take in what is there; returns the query at its end.

        Raises:
            StreamingQueryException: it failed.
        """
        stream = self._spark.readStream.format("popwheel").options(**self._options).load()
        return stream_to_parquet(stream, self._folder)

    def ids(self) -> list[str]:
        """Message ids of all rows so far, in order."""
        rows = self._spark.read.parquet(str(self._folder / "files")).select("messageId").collect()
        return sorted(row.messageId for row in rows)


def test_every_message_is_a_row_once_over_restarts(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    archive = Archive(spark, topics, tmp_path, topic="again")
    sent = topics.fill(topics.make("again"), 500)
    archive.run()
    assert archive.ids() == sorted(sent)
    sent |= topics.fill("again", 300)
    archive.run()
    archive.run()
    assert archive.ids() == sorted(sent)


@needs_limits
def test_micro_batches_keep_to_the_limit(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    archive = Archive(spark, topics, tmp_path, topic="limited", maxRowsPerTrigger="100")
    sent = topics.fill(topics.make("limited"), 450)
    batches = [progress["numInputRows"] for progress in archive.run().recentProgress if progress["numInputRows"]]
    assert batches == [100, 100, 100, 100, 50]
    assert archive.ids() == sorted(sent)


@needs_limits
def test_micro_batches_keep_to_the_limit_of_bytes(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    def large(message: Message, _: int) -> None:
        message.body = bytes(1024)

    archive = Archive(spark, topics, tmp_path, topic="heavy", maxBytesPerTrigger="100000")
    sent = topics.fill(topics.make("heavy"), 400, large)
    batches = [progress["numInputRows"] for progress in archive.run().recentProgress if progress["numInputRows"]]
    assert max(batches) < 100_000 / 1024 and min(batches[:-1]) > 50
    assert archive.ids() == sorted(sent)


@needs_limits
def test_a_stream_waits_for_the_rows_that_it_is_reported(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topics.fill(topics.make("waited", queues=1), 99)
    options = topics.options | {"topic": "waited", "startingOffsets": "earliest"}
    stream = spark.readStream.format("popwheel").options(
        **options, minRowsPerTrigger="100", maxTriggerDelayMs="3600000"
    )
    query = stream.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    while query.status["message"] != "Waiting for data to arrive":  # it has asked, and 99 were there
        assert query.exception() is None
    topics.fill("waited", 1)
    query.processAllAvailable()
    query.stop()
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [100]


@needs_limits
def test_a_query_that_failed_in_the_middle_goes_on_where_it_was(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    sent = topics.fill(topics.make("broken"), 400)
    seen: dict[int, list[str]] = {}
    failures = [True]

    def take(rows: DataFrame, number: int) -> None:
        found = [row.messageId for row in rows.select("messageId").collect()]
        assert seen.setdefault(number, found) == found, "a batch that runs again has the same rows"
        if number == 2 and failures:
            failures.pop()
            raise ValueError("the sink fails once")

    def run() -> None:
        options = topics.options | {"topic": "broken", "startingOffsets": "earliest", "maxRowsPerTrigger": "100"}
        stream = spark.readStream.format("popwheel").options(**options).load()
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(StreamingQueryException, match="the sink fails once"):
        run()
    run()
    assert sorted(message_id for ids in seen.values() for message_id in ids) == sorted(sent)


def test_topics_that_come_later_are_found(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    archive = Archive(spark, topics, tmp_path, topicPattern="late-.*")
    sent = topics.fill(topics.make("late-1"), 50)
    archive.run()
    sent |= topics.fill(topics.make("late-2"), 70)
    archive.run()
    assert archive.ids() == sorted(sent)


@needs_limits  # its progress comes a micro-batch later
def test_progress_shows_as_a_group_up_to_the_last_batch(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topics.fill(topics.make("shown", queues=1), 30)
    Archive(spark, topics, tmp_path, topic="shown").run()
    queue = definition.MessageQueue(
        topic=definition.Resource(name="shown"), id=0, broker=definition.Broker(name="broker-0")
    )

    async def progress() -> int:
        async with MessagingClient(topics.address) as client:
            return (await client.get_offset("spark-shown", queue)).offset

    assert asyncio.run(progress()) == 30


def test_a_topic_that_was_made_anew_is_an_error_unless_it_is_none(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.fill(topics.make("anew", queues=1), 50)
    Archive(spark, topics, tmp_path, topic="anew").run()
    topics.delete("anew")
    topics.make("anew", queues=1)
    with pytest.raises(StreamingQueryException, match="was the topic deleted, and made anew"):
        Archive(spark, topics, tmp_path, topic="anew").run()
    tolerant = Archive(spark, topics, tmp_path, topic="anew", failOnDataLoss="false")
    tolerant.run()
    sent = topics.fill("anew", 20)
    tolerant.run()
    assert set(tolerant.ids()) >= sent


def test_a_stream_of_what_is_no_stream_is_refused(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    stream = spark.readStream.format("popwheel").options(**topics.options, table="timers").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match="only messages and dlq can be read as streams"):
        query.awaitTermination()


def test_offsets_in_the_checkpoint_can_be_read(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topics.fill(topics.make("written", queues=1), 5)
    archive = Archive(spark, topics, tmp_path, topic="written")
    archive.run()
    text = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    options = topics.options | {"topic": "written", "endingOffsets": text}
    assert spark.read.format("popwheel").options(**options).load().count() == 5
    assert set(json.loads(text)["written"]["broker-0"]) == {"0"}


def test_a_queue_that_begins_late_is_read_from_there(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topics.fill(topics.make("late", queues=1), 50)
    topics.delete("late")
    sent = topics.fill(topics.make("late", queues=1), 30)
    archive = Archive(
        spark, topics, tmp_path, topic="late", startingOffsets=json.dumps({"late": {"broker-0": {"0": -2}}})
    )
    archive.run()
    sent |= topics.fill("late", 20)
    archive.run()
    archive.run()
    assert archive.ids() == sorted(sent)


def test_a_new_topic_of_a_pattern_that_begins_late_is_read_from_there(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.fill(topics.make("pattern-late", queues=1), 50)
    topics.delete("pattern-late")
    sent = topics.fill(topics.make("pattern-other", queues=1), 5)
    archive = Archive(spark, topics, tmp_path, topicPattern="pattern-.*")
    archive.run()
    sent |= topics.fill(topics.make("pattern-late", queues=1), 30)
    archive.run()
    offsets = [json.loads(line) for line in (tmp_path / "checkpoint/offsets/1").read_text().splitlines()[2:]]
    (begun, end) = offsets[0]["pattern-late"]["broker-0"]["0"]
    assert begun > 0 and end == begun + 30
    sent |= topics.fill("pattern-late", 20)
    archive.run()
    assert archive.ids() == sorted(sent)
