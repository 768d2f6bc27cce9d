"""What those who sent and received have noted. The broker keeps neither who got an answer nor who was given what."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELIVERIES = "group STRING, messageId STRING, attempt INT, deliveredTimestamp TIMESTAMP, ackedTimestamp TIMESTAMP"
"""One row for each delivery; `ackedTimestamp` is null if the consumer has not acknowledged it."""
SENDS = "messageId STRING"
"""One row for each send that was answered with success."""


def record(spark: SparkSession, schema: str, path: str) -> DataFrame:
    """Read such a record.

    Args:
        spark: reads it.
        schema: `DELIVERIES` or `SENDS`.
        path: JSON lines if it ends with `.json` or `.jsonl`, else Parquet; a file, a folder or a pattern.
    """
    reader = spark.read.schema(schema)
    return reader.json(path) if path.endswith((".json", ".jsonl")) else reader.parquet(path)
