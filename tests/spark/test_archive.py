"""An archive is written by a stream, compacted and read: each message counts once, whatever happens in between."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from popwheel_spark.jobs import archive, compaction
from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.jobs.cluster import MESSAGES, Window
from popwheel_spark.jobs.manifest import Manifest
from popwheel_spark.jobs.outcome import JobError

LARGE = 2**30
SATURDAY, SUNDAY = (datetime(2026, 1, day, 23, 59, tzinfo=UTC) for day in (30, 31))
ODD = "%DLQ%g"
"""A topic whose name Spark escapes in names of folders."""


class Stream:
    """Messages from files, as if they came from a cluster, and the archive that they go to."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._source = str(folder / "source")
        self.archive = ArchiveFolder(spark, str(folder / "archive"))

    def add(self, topic: str, stored: datetime, *ids: str) -> None:
        """Let messages come, each as a micro-batch of its own, and archive them."""
        for number, message_id in enumerate(ids):
            sent = (topic, None, None, None, b"body", None)
            row = (*sent, "b", 0, number, stored, stored, None, message_id, None, 3)
            self._spark.createDataFrame([row], MESSAGES).coalesce(1).write.mode("append").parquet(self._source)
        messages = self._spark.readStream.schema(MESSAGES).option("maxFilesPerTrigger", 1).parquet(self._source)
        query = archive.start(messages, self.archive, None)
        assert archive.watch(query) == len(ids)

    def ids(self) -> list[tuple[str, str]]:
        """Topics and ids of all messages of the archive."""
        return sorted((row["topic"], row["messageId"]) for row in self.archive.table().collect())


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def test_an_archive_keeps_priorities(stream: Stream) -> None:
    stream.add("t", SATURDAY, "a")
    assert [row["priority"] for row in stream.archive.table().collect()] == [3]


def of(topic: str, ids: Sequence[str]) -> list[tuple[str, str]]:
    return [(topic, message_id) for message_id in ids]


def test_each_message_counts_once(stream: Stream) -> None:
    with pytest.raises(JobError, match="there is no archive"):
        stream.archive.table()
    stream.add("t", SATURDAY, "a", "b")
    stream.add(ODD, SUNDAY, "c", "d")
    assert stream.ids() == sorted([*of("t", "ab"), *of(ODD, "cd")])
    assert {file.rpartition("/")[0] for file in stream.archive.files()} == {
        "incoming/date=2026-01-30/topic=t",
        "incoming/date=2026-01-31/topic=%25DLQ%25g",
    }
    before = stream.archive.files()

    assert compaction.compact(stream.archive, LARGE) == (4, 2)
    assert stream.ids() == sorted([*of("t", "ab"), *of(ODD, "cd")])
    assert len(stream.archive.files()) == 2
    # Who has begun to read before goes on.
    assert stream.archive.table_of(before).count() == 4
    assert compaction.compact(stream.archive, LARGE) == (0, 0)

    stream.add("t", SATURDAY, "e")
    assert stream.ids() == sorted([*of("t", "abe"), *of(ODD, "cd")])
    assert compaction.compact(stream.archive, LARGE) == (2, 1)
    assert stream.ids() == sorted([*of("t", "abe"), *of(ODD, "cd")])
    assert not set(before) & {
        f"incoming/{path.relative_to(stream.archive.incoming.removeprefix('file:'))}"
        for path in Path(stream.archive.incoming.removeprefix("file:")).rglob("*.parquet")
    }

    stored_ms = int(SATURDAY.timestamp() * 1000)
    assert stream.archive.messages(["t"], Window(stored_ms, stored_ms + 1)).count() == 3
    assert stream.archive.messages(["t"], Window(stored_ms + 1)).count() == 0
    assert stream.archive.messages(["t"], Window(None, stored_ms)).count() == 0


def test_of_two_compactions_at_once_one_counts(stream: Stream) -> None:
    manifest = Manifest().next(["compacted/1/x"], [])
    stream.archive.put_manifest(manifest)
    with pytest.raises(JobError, match="another compaction"):
        stream.archive.put_manifest(manifest)
    assert stream.archive.manifest() == manifest
