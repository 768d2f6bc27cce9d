"""What consumers have noted of their deliveries. The broker does not keep when a message was given to whom."""

from pyspark.sql import DataFrame, SparkSession

SCHEMA = "group STRING, messageId STRING, attempt INT, deliveredTimestamp TIMESTAMP, ackedTimestamp TIMESTAMP"
"""One row for each delivery; `ackedTimestamp` is null if the consumer has not acknowledged it."""


def delivery_record(spark: SparkSession, path: str) -> DataFrame:
    """Read such a record.

    Args:
        spark: reads it.
        path: JSON lines if it ends with `.json` or `.jsonl`, else Parquet; a file, a folder or a pattern.
    """
    reader = spark.read.schema(SCHEMA)
    return reader.json(path) if path.endswith((".json", ".jsonl")) else reader.parquet(path)


def no_record(spark: SparkSession) -> DataFrame:
    """A record without deliveries."""
    return spark.createDataFrame([], SCHEMA)
