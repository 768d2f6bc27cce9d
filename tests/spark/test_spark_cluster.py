"""On Spark's own cluster, all is as in one process: reads, streams, sends and jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from popwheel_spark.jobs import archive
from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.package import write_package
from tests.harness.spark_cluster import SparkCluster, bare_python
from tests.spark import round_trip
from tests.spark.topics import Topics

CARRIED = ("body", "tag", "properties")
"""What a message keeps that is sent on."""


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Iterator[SparkCluster]:
    """Whose workers have nothing of this project. `spark` finds Java, or skips."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with SparkCluster(folder, bare_python(folder / "python")) as running:
        yield running


def rows(frame: DataFrame) -> list[Row]:
    """All rows, in order."""
    return sorted(frame.collect(), key=repr)


@pytest.mark.timeout(600)
def test_a_cluster_gives_what_one_process_gives(
    spark: SparkSession, cluster: SparkCluster, topics: Topics, tmp_path: Path
) -> None:
    def dress(message: Message, number: int) -> None:
        message.system_properties.tag = "ab"[number % 2]
        message.user_properties["number"] = str(number)

    sent = topics.fill(topics.make("Trip"), 600, dress)
    here, there = topics.make("TripHere"), topics.make("TripThere")
    local, remote = tmp_path / "local", tmp_path / "remote"
    package = tmp_path / "popwheel.zip"
    write_package(package)

    round_trip.round_trip(spark, {"endpoints": topics.address}, "Trip", here, local)
    cluster.submit(package, Path(round_trip.__file__), topics.address, "Trip", there, str(remote))

    first, second = cluster.executors()
    assert len(first) == 1 and first == second, "both workers ran it"
    wanted = rows(spark.read.parquet(str(local / "batch" / "files")))
    assert {row["messageId"] for row in wanted} == sent
    for folder in (local / "stream", remote / "batch", remote / "stream"):
        assert rows(spark.read.parquet(str(folder / "files"))) == wanted
    for topic in (here, there):
        carried = spark.read.format("popwheel").options(**topics.options, topic=topic).load().select(*CARRIED)
        assert rows(carried) == sorted((Row(**{name: row[name] for name in CARRIED}) for row in wanted), key=repr)

    words = ("--endpoints", topics.address, "--topics", "Trip", "--to", str(tmp_path / "archive"), "--until-now")
    assert "archived 600 messages" in cluster.submit(package, Path(archive.__file__), *words)
    archived = ArchiveFolder(spark, str(tmp_path / "archive")).table().drop("date")
    assert rows(archived.select(*wanted[0].asDict())) == wanted
