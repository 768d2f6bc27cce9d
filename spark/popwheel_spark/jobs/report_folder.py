"""Report of a job: tables as Parquet, and a page for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popwheel_spark.jobs.file_system import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ReportFolder:
    """Folder of a report; files of an earlier run are replaced.

    Args:
        spark: writes it.
        path: where it is, as Spark knows it.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._files = FileSystem(spark)
        self.path = self._files.full(path)

    def put_table(self, name: str, table: DataFrame) -> DataFrame:
        """Write a table; return the stored one, which is fast to read again."""
        table.write.mode("overwrite").parquet(f"{self.path}/{name}")
        return self._spark.read.schema(table.schema).parquet(f"{self.path}/{name}")

    def put_page(self, html: str) -> str:
        """Write the page; return its path."""
        file = f"{self.path}/report.html"
        self._files.put(file, html)
        return file
