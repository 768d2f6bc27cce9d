"""What ends while a stream runs: workers, proxies, masters; and what retention takes. No row is missing or twice."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from popwheel_spark.jobs.archive_folder import ArchiveFolder
from tests.harness.cluster import ClusterCommand
from tests.spark import fragile
from tests.spark.round_trip import stream_to_parquet
from tests.spark.topics import Topics, own_topics

MESSAGES = int(os.environ.get("SPARK_MESSAGES") or 20_000)
PLACE = ("brokerName", "queueId", "queueOffset")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterCommand]:
    """Two broker groups of two replicas each, and two proxies."""
    words = ("--groups", "2", "--replicas", "2", "--proxies", "2", "--set", "broker.flush=async")
    with ClusterCommand(tmp_path, *words) as running:
        yield running


def proxies(cluster: ClusterCommand) -> list[str]:
    """`host:port` of each."""
    return [row[0] for name, row in sorted(cluster.rows().items()) if name.startswith("proxy")]


class Batches:
    """The rows of micro-batches; something happens after some of them.

    Args:
        happens: by the number of the micro-batch.
    """

    def __init__(self, happens: dict[int, Callable[[], None]]) -> None:
        self._happens = happens
        self.rows: dict[int, list[tuple[object, ...]]] = {}

    def take(self, frame: DataFrame, number: int) -> None:
        """Take a micro-batch in; a second time it has the same rows."""
        rows = sorted(tuple(row) for row in frame.select("messageId", *PLACE).collect())
        assert self.rows.setdefault(number, rows) == rows
        happening = self._happens.pop(number, None)
        if happening is not None:
            happening()

    def check(self, sent: set[str]) -> None:
        """See that every message is there, and no place twice."""
        rows = [row for batch in self.rows.values() for row in batch]
        assert len({row[1:] for row in rows}) == len(rows)
        assert {row[0] for row in rows} == sent


@pytest.mark.timeout(3600)
def test_nothing_is_missing_or_twice_when_a_proxy_and_masters_are_killed(
    spark: SparkSession, cluster: ClusterCommand, tmp_path: Path
) -> None:
    endpoints = proxies(cluster)
    with Topics(endpoints[0], cluster.url) as topics:
        sent = topics.fill(topics.make("struck", queues=4), MESSAGES)
    killed = {1: "proxy-0", 2: "broker-0", 3: "broker-1"}
    batches = Batches({number: partial(cluster.kill_process, name) for number, name in killed.items()})
    options = {"endpoints": ",".join(endpoints), "topic": "struck", "startingOffsets": "earliest"}
    stream = spark.readStream.format("popwheel").options(**options, maxRowsPerTrigger=str(MESSAGES // 8)).load()
    query = (
        stream.writeStream.foreachBatch(batches.take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches.check(sent)


class ArchiveJob:
    """The job `archive` as a process, as one calls it. Use as a context manager, which kills it.

    Args:
        endpoints: of the proxies.
        folder: of the archive.
    """

    def __init__(self, endpoints: Sequence[str], folder: Path) -> None:
        words = ("--endpoints", ",".join(endpoints), "--topics", "kept", "--to", str(folder), "--until-now")
        limit = ("--option", f"maxRowsPerTrigger={MESSAGES // 32}")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "popwheel_spark.jobs.archive", *words, *limit],
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_for_micro_batch(self) -> None:
        """Wait until it has written one more."""
        assert self._process.stdout is not None
        assert any(line.startswith("micro-batch") for line in self._process.stdout), "it has ended"

    def wait(self) -> None:
        """Wait until it has done its work."""
        assert self._process.stdout is not None
        assert "messages" in self._process.stdout.read()
        assert self._process.wait() == 0


@pytest.mark.timeout(3600)
def test_an_archive_has_each_message_once_when_its_job_a_proxy_and_a_master_are_killed(
    spark: SparkSession, cluster: ClusterCommand, tmp_path: Path
) -> None:
    endpoints, folder = proxies(cluster), tmp_path / "archive"
    with Topics(endpoints[0], cluster.url) as topics:
        sent = topics.fill(topics.make("kept", queues=4), MESSAGES)
    with ArchiveJob(endpoints, folder) as job:
        job.wait_for_micro_batch()
        cluster.kill_process("proxy-0")
        job.wait_for_micro_batch()
    with ArchiveJob(endpoints, folder) as job:
        job.wait_for_micro_batch()
        cluster.kill_process("broker-0")
        job.wait_for_micro_batch()
        job.wait()
    rows = ArchiveFolder(spark, str(folder)).table().select("messageId", *PLACE).collect()
    assert len(rows) == len({row[1:] for row in rows}) == MESSAGES
    assert {row["messageId"] for row in rows} == sent


@pytest.mark.timeout(3600)
def test_all_messages_of_two_brokers_are_read_by_id(spark: SparkSession, tmp_path: Path) -> None:
    with ClusterCommand(tmp_path, "--groups", "2", "--proxies", "2", "--set", "broker.flush=async") as cluster:
        endpoints = proxies(cluster)
        with Topics(endpoints[0], cluster.url) as topics:
            sent = topics.fill(topics.make("million", queues=4), MESSAGES)
        options = {"endpoints": ",".join(endpoints), "topic": "million", "startingOffsets": "earliest"}
        stream = spark.readStream.format("popwheel").options(**options, maxRowsPerTrigger=str(MESSAGES // 4)).load()
        stream_to_parquet(stream.select("messageId", *PLACE), tmp_path)
        batch = spark.read.format("popwheel").options(**options).load().select("messageId", *PLACE)
        for frame in (batch, spark.read.parquet(str(tmp_path / "files"))):
            rows = frame.collect()
            assert len(rows) == MESSAGES
            assert {row.messageId for row in rows} == sent
            assert len({(row.brokerName, row.queueId) for row in rows}) == 8


def test_a_worker_that_is_killed_reads_the_same_rows_again(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    spark.dataSource.register(fragile.FragileDataSource)
    sent = topics.fill(topics.make("fragile"), 2_000)
    options = topics.options | {"topic": "fragile", "startingOffsets": "earliest", "path": str(tmp_path / "died")}
    stream_to_parquet(spark.readStream.format("fragile").options(**options).load(), tmp_path)
    assert (tmp_path / "died").exists()
    rows = spark.read.parquet(str(tmp_path / "files")).select("messageId").collect()
    assert sorted(row.messageId for row in rows) == sorted(sent)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Topics]:
    """Topics of a server that keeps messages for a second, in small segments."""
    settings = ("broker.log.segment_bytes=65536", "broker.retention.hours=0.0003", "broker.retention.interval_ms=100")
    with own_topics(tmp_path / "forgetful", *settings) as topics:
        yield topics


def test_retention_that_overtakes_the_reader(spark: SparkSession, forgetful: Topics, tmp_path: Path) -> None:
    def large(message: Message, _: int) -> None:
        message.body = bytes(4096)

    forgetful.fill(forgetful.make("passing", queues=1), 100, large)
    options = forgetful.options | {"topic": "passing", "columns": "queueOffset"}
    start = '{"passing": {"broker-0": {"0": 1}}}'
    strict = spark.read.format("popwheel").options(**options, startingOffsets=start)
    while True:  # until retention has been there
        forgetful.fill("passing", 20, large)
        try:
            strict.load().collect()
        except PySparkException as error:
            assert "queue 0 of passing at broker-0: the messages from offset 1 up to" in str(error)
            break
    tolerant = spark.read.format("popwheel").options(**options, startingOffsets=start, failOnDataLoss="false")
    offsets = sorted(row.queueOffset for row in tolerant.load().collect())
    assert offsets and offsets[0] > 1
    assert offsets == list(range(offsets[0], offsets[-1] + 1))


def test_a_query_without_any_proxy_says_so(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("popwheel").options(endpoints="127.0.0.1:1", topic="t", timeoutMs="200").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match=r"with 127\.0\.0\.1:1; at last"):
        query.awaitTermination()
