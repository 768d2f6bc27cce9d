"""An archive: a folder of Parquet files, of which some are valid.

| in it | what it is |
| --- | --- |
| incoming/date=.../topic=.../*.parquet | what the job `archive` has written; `_spark_metadata` says which files count |
| compacted/RUN/date=.../topic=.../*.parquet | fewer, larger files that the job `compaction` made of others |
| manifests/N.json | the one with the greatest N says which files compaction has made, and which they replace |
| checkpoint | how far the archive is |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from popwheel_spark.jobs.cluster import MESSAGES, Window
from popwheel_spark.jobs.file_system import FileSystem
from popwheel_spark.jobs.manifest import INCOMING, Manifest
from popwheel_spark.jobs.outcome import InputError, JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = f"{MESSAGES}, date DATE"
"""Schema of an archive; files are by date and topic."""


class ArchiveFolder:
    """An archive.

    Args:
        spark: reads and writes it.
        path: where it is, as Spark knows it.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._files = FileSystem(spark)
        self.path = self._files.full(path)
        self.incoming = f"{self.path}/{INCOMING}"
        self.checkpoint = f"{self.path}/checkpoint"
        self._manifests = f"{self.path}/manifests"

    def manifest(self) -> Manifest:
        """Return the valid manifest; an empty one if there is none."""
        names = [name for name in self._files.names(self._manifests) if name.endswith(".json")]
        if not names:
            return Manifest()
        latest = max(names, key=lambda name: int(name.removesuffix(".json")))
        return Manifest.of(self._files.text(f"{self._manifests}/{latest}"))

    def put_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest: readers see the old one or the new one.

        Raises:
            JobError: another process has put one of that number.
        """
        if not self._files.put_new(f"{self._manifests}/{manifest.number}.json", manifest.text()):
            raise JobError(f"another compaction of {self.path} runs; run one at a time")

    def committed(self) -> list[str]:
        """Return the files that the archive's stream has committed, relative to the archive.

        Raises:
            InputError: there is no archive.
        """
        if "_spark_metadata" not in self._files.names(self.incoming):
            raise InputError(f"there is no archive in {self.path}: the job archive has not written there")
        found = self._spark.read.schema(SCHEMA).parquet(self.incoming).inputFiles()
        # Spark gives URIs, in which signs of file names are escaped.
        places = (unquote(urlsplit(uri).path) for uri in found)
        return sorted(f"{INCOMING}/date={place.rpartition(f'/{INCOMING}/date=')[2]}" for place in places)

    def files(self) -> list[str]:
        """Return the valid files, relative to the archive."""
        # The manifest last: what it replaces was committed before.
        committed = self.committed()
        return self.manifest().current(committed)

    def table(self) -> DataFrame:
        """Return all messages of the archive, each once, with the columns of `SCHEMA`."""
        return self.table_of(self.files())

    def messages(self, topics: Sequence[str], window: Window) -> DataFrame:
        """Return the messages of topics that were stored in a window."""
        from pyspark.sql import functions as sql

        messages = self.table().where(sql.col("topic").isin(*topics))
        stored_ms = sql.unix_millis("storeTimestamp")
        if window.start_ms is not None:
            messages = messages.where((stored_ms >= window.start_ms) & (sql.col("date") >= _date(window.start_ms)))
        if window.end_ms is not None:
            messages = messages.where((stored_ms < window.end_ms) & (sql.col("date") <= _date(window.end_ms)))
        return messages

    def table_of(self, files: Iterable[str]) -> DataFrame:
        """Return the messages of some of its files."""
        by_root: dict[str, list[str]] = {}
        for file in files:
            root = file.partition("/date=")[0]
            by_root.setdefault(f"{self.path}/{root}", []).append(f"{self.path}/{file}")
        table = self._spark.createDataFrame([], SCHEMA)
        for root, paths in sorted(by_root.items()):
            table = table.unionByName(self._spark.read.schema(SCHEMA).option("basePath", root).parquet(*paths))
        return table

    def describe(self) -> str:
        """Return the number of its files and bytes, in words."""
        files = self.files()
        size = sum(self.sizes(files))
        return f"{len(files):,} files, {size / 2**20:,.1f} MiB in {self.path}"

    def sizes(self, files: Iterable[str]) -> list[int]:
        """Return the bytes of each of some files."""
        return [self._files.size(f"{self.path}/{file}") for file in files]

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, relative to the archive."""
        return self._files.names(f"{self.path}/{folder}")

    def delete(self, names: Iterable[str]) -> None:
        """Delete files or folders, relative to the archive; those that are gone already do not matter."""
        for name in names:
            self._files.delete(f"{self.path}/{name}")


def _date(ms: int) -> date:
    """Return the date in UTC of a time in milliseconds since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC).date()
