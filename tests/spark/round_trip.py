"""A script that reads a topic as a table and as a stream, and sends it on: the same here and by spark-submit.

`round_trip.py ENDPOINTS TOPIC INTO FOLDER`
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from popwheel_spark.session import spark_session


def stream_to_parquet(rows: DataFrame, folder: Path) -> StreamingQuery:
    """Write what a stream has now; returns the query at its end.

    Args:
        rows: a stream.
        folder: gets `files`, and `checkpoint`, from which the next call goes on.

    Raises:
        StreamingQueryException: it failed.
    """
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(folder / "files"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def round_trip(spark: SparkSession, connection: Mapping[str, str], topic: str, into: str, folder: Path) -> None:
    """Read and send.

    Args:
        spark: runs it.
        connection: the options that say how the cluster is reached.
        topic: is read.
        into: is sent to.
        folder: for what was read: `batch/files` and `stream/files`.
    """
    options = {**connection, "topic": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("popwheel").options(**options).load()
    batch.write.parquet(str(folder / "batch" / "files"))
    stream = spark.readStream.format("popwheel").options(**options, maxRowsPerTrigger="150").load()
    stream_to_parquet(stream, folder / "stream")
    sent = batch.select("body", "tag", "keys", "properties")
    sent.write.format("popwheel").mode("append").options(**connection, topic=into).save()


if __name__ == "__main__":
    endpoints, topic, into, folder = sys.argv[1:]
    round_trip(spark_session("round trip"), {"endpoints": endpoints}, topic, into, Path(folder))
