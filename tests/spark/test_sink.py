"""Rows as messages, sent and read again."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from popwheel_spark.group_order import in_group_order
from popwheel_spark.repeats import without_repeats
from tests.harness.cluster import ClusterCommand
from tests.harness.standalone import ROOT
from tests.spark.topics import Topics

TYPES = "topic STRING, body BINARY, tag STRING, keys ARRAY<STRING>, properties MAP<STRING, STRING>"


def read(spark: SparkSession, topics: Topics, topic: str) -> DataFrame:
    return spark.read.format("popwheel").options(**topics.options, topic=topic).load()


def send(frame: DataFrame, topics: Topics, **options: str) -> None:
    frame.write.format("popwheel").mode("append").options(**topics.options, **options).save()


def test_rows_come_back_as_they_were_sent(spark: SparkSession, topics: Topics) -> None:
    one, two = topics.make("sent-1"), topics.make("sent-2")
    rows = [(one, b"a", "t", ["k"], {"p": "q"}), (two, b"b", None, None, None)]
    send(spark.createDataFrame(rows, TYPES), topics)
    (first,), (second,) = read(spark, topics, one).collect(), read(spark, topics, two).collect()
    assert (bytes(first.body), first.tag, first["keys"][0], first.properties) == (b"a", "t", "k", {"p": "q"})
    assert (bytes(second.body), second.tag, second.properties) == (b"b", None, {})
    assert second["keys"][0].count("/") == 3


def test_all_rows_are_stored_and_no_two_have_a_key(spark: SparkSession, topics: Topics) -> None:
    send(spark.range(0, 5000, 1, 3).selectExpr("'row ' || id AS body"), topics, topic=topics.make("many"))
    rows = read(spark, topics, "many").select("body", "messageId", "keys").collect()
    assert {bytes(row.body) for row in rows} == {b"row %d" % number for number in range(5000)}
    assert len(rows) == len({row.messageId for row in rows}) == len({row["keys"][-1] for row in rows}) == 5000


def test_delayed_rows_come_at_their_time(spark: SparkSession, topics: Topics) -> None:
    topics.make("later", kind="DELAY")
    due = datetime.fromtimestamp(time.time() // 1 + 2, UTC)
    send(spark.createDataFrame([("x", due)], "body STRING, deliveryTimestamp TIMESTAMP"), topics, topic="later")
    while not (rows := read(spark, topics, "later").collect()):
        pass
    assert rows[0].deliveryTimestamp.astimezone(UTC) == due <= rows[0].storeTimestamp.astimezone(UTC)


def test_priorities_go_both_ways(spark: SparkSession, topics: Topics) -> None:
    topics.make("urgent", kind="PRIORITY")
    rows = spark.range(9).selectExpr("'' || id AS body", "CASE WHEN id > 0 THEN CAST(id AS INT) END AS priority")
    send(rows, topics, topic="urgent")
    stored = read(spark, topics, "urgent").selectExpr("CAST(CAST(body AS STRING) AS INT) AS n", "priority").collect()
    assert sorted((row.n, row.priority or 0) for row in stored) == [(number, number) for number in range(9)]


def test_bodies_of_four_mebibytes_go_both_ways(spark: SparkSession, topics: Topics) -> None:
    size = 4 * 2**20
    frame = spark.range(12).selectExpr(f"cast(lpad('' || id, {size}, 'x') AS BINARY) AS body")
    send(frame, topics, topic=topics.make("large", queues=2))
    rows = read(spark, topics, "large").selectExpr("length(body) AS size", "md5(body) AS sum").collect()
    assert [row.size for row in rows] == [size] * 12
    assert len({row["sum"] for row in rows}) == 12


def test_a_stream_sends_each_row_once_and_repeats_can_be_reported(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.fill(topics.make("from"), 200)
    topics.make("to")

    def run(checkpoint: str) -> None:
        options = topics.options | {"topic": "from", "startingOffsets": "earliest"}
        stream = spark.readStream.format("popwheel").options(**options).load().select("body")
        query = (
            stream.writeStream.format("popwheel")
            .options(**topics.options, topic="to", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(str(tmp_path / "checkpoint"))
    run(str(tmp_path / "checkpoint"))
    assert read(spark, topics, "to").count() == 200
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink()
    run(str(tmp_path / "checkpoint"))  # as after a crash between the last row and the commit
    twice = read(spark, topics, "to")
    assert twice.count() == 400
    assert without_repeats(twice).count() == 200


def test_a_write_of_a_micro_batch_that_died_once_is_the_same_write(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.fill(topics.make("each-from"), 200)
    topics.make("each-to")
    died: list[int] = []

    def write(rows: DataFrame, number: int) -> None:
        send(rows.select("body"), topics, topic="each-to", writeId=f"each/{number}")
        if not died:
            died.append(number)
            raise ValueError("it dies behind its write")

    def run() -> None:
        options = topics.options | {"topic": "each-from", "startingOffsets": "earliest"}
        stream = spark.readStream.format("popwheel").options(**options).load()
        query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="it dies behind its write"):
        run()
    run()
    twice = read(spark, topics, "each-to")
    assert twice.count() == 400
    assert without_repeats(twice).count() == 200


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("'a' AS body", {}, "give the topic of the rows"),
        ("'a' AS text", {"topic": "many"}, "messages have no 'text'"),
        ("1 AS body", {"topic": "many"}, "the column body must be BINARY"),
        ("'a' AS body", {"topic": "%RETRY%g+t"}, "cannot be sent to"),
        ("'' AS body", {"topic": "many"}, "the body is empty"),
        ("'a' AS body, 'x' AS messageGroup", {"topic": "many"}, "is of type FIFO"),
    ],
)
def test_what_can_not_be_sent_is_said(
    spark: SparkSession, topics: Topics, columns: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        send(spark.range(1).selectExpr(*columns.split(", ")), topics, **options)
    assert sentence in str(caught.value)


def test_the_quick_start_runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "demo" / "spark_quick_start.py"), topics.address, str(tmp_path)]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "|    1000|" in ended.stdout


def test_offsets_of_a_write_can_be_read_on(spark: SparkSession, topics: Topics) -> None:
    topics.make("on", queues=1)
    send(spark.range(10).selectExpr("'a' AS body"), topics, topic="on")
    start = json.dumps({"on": {"broker-0": {"0": 10}}})
    send(spark.range(3).selectExpr("'b' AS body"), topics, topic="on")
    frame = spark.read.format("popwheel").options(**topics.options, topic="on", startingOffsets=start).load()
    assert [bytes(row.body) for row in frame.collect()] == [b"b"] * 3


GROUPS = 50


def inversions(rows: list[Row]) -> int:
    """How often a row of a message group lies behind a later one."""
    found = 0
    highest: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: (row.brokerName, row.queueId, row.queueOffset)):
        number = int(row.body)
        found += number < highest.get(row.messageGroup, -1)
        highest[row.messageGroup] = max(number, highest.get(row.messageGroup, -1))
    return found


def test_message_groups_keep_their_order_over_two_proxies_and_several_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = ("--groups", "2", "--proxies", "2", "--set", "broker.flush=async")
    with ClusterCommand(tmp_path, *words) as cluster:
        proxies = [row[0] for name, row in sorted(cluster.rows().items()) if name.startswith("proxy")]
        with Topics(proxies[0], cluster.url) as topics:
            topics.make("ordered", kind="FIFO")
            topics.make("again", kind="FIFO")
        connection = {"endpoints": ",".join(proxies)}
        group = f"'g' || (id % {GROUPS}) AS messageGroup"
        rows = spark.range(0, 10_000, 1, 4).selectExpr("'' || id AS body", group, "id")
        ordered = in_group_order(rows, "id", partitions=3).drop("id")
        ordered.write.format("popwheel").mode("append").options(**connection, topic="ordered").save()
        # Each queue is read by several tasks, and what they read is sent as it lies in the topic.
        read = spark.read.format("popwheel").options(**connection, topic="ordered", minPartitions="24").load()
        sent = in_group_order(read, partitions=3).select("body", "messageGroup")
        sent.write.format("popwheel").mode("append").options(**connection, topic="again").save()
        for topic in ("ordered", "again"):
            table = spark.read.format("popwheel").options(**connection, topic=topic).load()
            stored = table.select("brokerName", "queueId", "queueOffset", "messageGroup", "body").collect()
            assert len(stored) == 10_000
            assert inversions(stored) == 0
