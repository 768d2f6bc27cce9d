"""A long stream whose driver, worker, masters and proxy are killed: each row once, and all in order.

`python -m tests.spark.long [MESSAGES]` fills a topic with ordered messages, runs tests/spark/long_stream.py on
Spark's own cluster, kills what it needs meanwhile, and counts. It prints figures, and fails if a row is missing, twice,
or out of order.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.window import WindowSpec

from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.given_options import GivenOptions
from popwheel_spark.group_order import in_group_order
from popwheel_spark.package import write_package
from popwheel_spark.repeats import without_repeats
from popwheel_spark.session import spark_session
from popwheel_spark.wire.queue_client import QueueClient
from tests.harness.cluster import ClusterCommand
from tests.harness.spark_cluster import SparkCluster, bare_python
from tests.spark import long_stream
from tests.spark.topics import Topics

_MESSAGES = 1_000_000
_GROUPS = 1_000
_BATCHES = 20
_POLL_S = 0.1
_QUEUE = ("brokerName", "queueId")
_CLUSTER = ("--groups", "2", "--replicas", "2", "--proxies", "2", "--set", "broker.flush=async")


class Driver:
    """The script on Spark's cluster. It is begun again when it was killed.

    Args:
        cluster: where it runs.
        folder: for what it says.
        words: of its command line.
    """

    def __init__(self, cluster: SparkCluster, folder: Path, *words: str) -> None:
        self._cluster = cluster
        self._log = folder / "driver.log"
        self._package = folder / "popwheel.zip"
        write_package(self._package)
        self._words = words
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        return self._cluster.begin(self._log, self._package, Path(long_stream.__file__), *self._words)

    def kill(self) -> None:
        """End it with all its processes, and begin it again."""
        self.stop()
        self._process = self._begin()

    def stop(self) -> None:
        """End it with all its processes, if it runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def ends_soon(self) -> bool:
        """Return whether it has done its work, or does within a moment.

        Raises:
            AssertionError: it failed.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_POLL_S)
        code = self._process.poll()
        assert code in (None, 0), f"the driver ended with {code}:\n{self._log.read_text()[-6000:]}"
        return code == 0


def fill(spark: SparkSession, options: Mapping[str, str], topic: str, count: int) -> None:
    """Send numbers, each message group its own in order."""
    rows = spark.range(count).selectExpr("'' || id AS body", f"'group-' || (id % {_GROUPS}) AS messageGroup", "id")
    ordered = in_group_order(rows, "id", partitions=4).select("body", "messageGroup")
    ordered.write.format("popwheel").mode("append").options(**options, topic=topic).save()


def numbers(rows: DataFrame) -> DataFrame:
    """Messages with what was sent as numbers."""
    return rows.withColumn("number", sql.expr("CAST(CAST(body AS STRING) AS BIGINT)"))


def check_all_are_there(rows: DataFrame, count: int) -> None:
    """See that each number is there once, and each place.

    Args:
        rows: of one topic.
        count: how many were sent.
    """
    found, different, places, least, most = (
        numbers(rows)
        .agg(
            sql.count("*"),
            sql.countDistinct("number"),
            sql.countDistinct(*_QUEUE, "queueOffset"),
            sql.min("number"),
            sql.max("number"),
        )
        .collect()[0]
    )
    assert (found, different, places, least, most) == (count, count, count, 0, count - 1), (found, different, places)


def check_order(rows: DataFrame) -> None:
    """See that each message group lies in one queue, and its numbers grow with the offsets.

    Args:
        rows: of one topic, each message once.
    """
    queues = rows.groupBy("messageGroup").agg(sql.countDistinct(*_QUEUE).alias("queues")).where("queues > 1")
    assert queues.isEmpty(), "a message group lies in several queues"
    _check_numbers_grow(rows, Window.partitionBy("messageGroup").orderBy("queueOffset"))


def check_order_in_files(rows: DataFrame) -> None:
    """See that each task has got the messages of a group in order: a file has its rows as they came.

    Args:
        rows: read of files.
    """
    placed = rows.withColumns({"file": sql.col("_metadata.file_path"), "row": sql.col("_metadata.row_index")})
    _check_numbers_grow(placed, Window.partitionBy("messageGroup", "file").orderBy("row"))


def _check_numbers_grow(rows: DataFrame, window: WindowSpec) -> None:
    inversions = numbers(rows).withColumn("before", sql.lag("number").over(window)).where("number <= before")
    assert inversions.isEmpty(), f"{inversions.count()} messages are out of order: {inversions.take(3)}"


def first_ones(rows: DataFrame) -> DataFrame:
    """Of each message that was sent again the first one."""
    earliest = Window.partitionBy("messageId").orderBy("queueOffset")
    return rows.withColumn("copy", sql.row_number().over(earliest)).where("copy = 1").drop("copy")


def batches(folder: Path) -> int:
    """Count the micro-batches that both streams have done."""
    return min(len(list((folder / name / "commits").glob("[0-9]*"))) for name in ("kept", "sent"))


def stored(endpoints: str, topic: str) -> int:
    """Count the messages of a topic so far."""

    async def ask() -> int:
        options = ConnectionOptions.take(GivenOptions({"endpoints": endpoints}))
        async with QueueClient(options, "long-look") as client:
            return sum((await client.ends(await client.queues(topic) or ())).values())

    return asyncio.run(ask())


def stream(messages: ClusterCommand, cluster: SparkCluster, folder: Path, endpoints: str, count: int) -> int:
    """Run the streams to their end, and kill what they need, each while they send; how many processes were killed."""
    rows = max(1, count // _BATCHES)
    driver = Driver(cluster, folder, endpoints, "long", "again", str(folder), str(rows))
    kills: list[tuple[int, str, Callable[[], None]]] = [
        (2, "proxy", partial(messages.kill_process, "proxy-0")),
        (5, "master of broker-0", partial(messages.kill_process, "broker-0")),
        (8, "worker of Spark", partial(cluster.kill_worker, 0)),
        (10, "master of Spark", cluster.kill_master),
        (13, "driver of Spark", driver.kill),
        (16, "master of broker-1", partial(messages.kill_process, "broker-1")),
    ]
    try:
        for number, what, kill in kills:
            while (done := batches(folder)) < number and not driver.ends_soon():
                pass
            there = stored(endpoints, "again")
            while stored(endpoints, "again") == there and not driver.ends_soon():
                pass
            assert done < _BATCHES, f"the streams ended before the {what} was killed"
            kill()
            print(f"after {done} of {_BATCHES} micro-batches: killed the {what}", flush=True)
        while not driver.ends_soon():
            pass
    finally:
        driver.stop()
    return len(kills)


def main(count: int, folder: Path) -> None:
    """Run it all.

    Args:
        count: of messages.
        folder: for everything.
    """
    spark = spark_session("long", {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "8"})
    spark.sparkContext.setLogLevel("ERROR")
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {what}", flush=True)

    work = folder / "spark"
    work.mkdir()
    with ClusterCommand(folder, *_CLUSTER) as messages, SparkCluster(work, bare_python(work / "python")) as cluster:
        endpoints = ",".join(row[0] for name, row in sorted(messages.rows().items()) if name.startswith("proxy"))
        with Topics(endpoints.split(",")[0], messages.url) as topics:
            topics.make("long", queues=4, kind="FIFO")
            topics.make("again", queues=4, kind="FIFO")
        fill(spark, {"endpoints": endpoints}, "long", count)
        say(f"sent {count:,} messages of {min(count, _GROUPS):,} message groups")
        killed = stream(messages, cluster, work, endpoints, count)
        say(f"the streams have ended, {killed} processes were killed")
        kept = spark.read.parquet(str(work / "files"))
        check_all_are_there(kept, count)
        check_order(kept)
        check_order_in_files(kept)
        say(f"Parquet has each of {count:,} once, and in its group's order")
        again = spark.read.format("popwheel").options(endpoints=endpoints, topic="again").load().persist()
        once = first_ones(again)
        check_all_are_there(once, count)
        check_order(once)
        assert without_repeats(again).count() == count
        repeats = again.count() - count
        say(f"the other topic has each once, and in order, without {repeats:,} repeats, told by their ids")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="popwheel-long-") as name:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else _MESSAGES, Path(name))
