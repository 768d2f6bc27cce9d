"""A script with two streams of one topic: into Parquet files, and into another topic in the order of message groups.

`long_stream.py ENDPOINTS TOPIC INTO FOLDER ROWS_PER_TRIGGER`. Begun again, it goes on where it was.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from popwheel_spark.group_order import in_group_order
from popwheel_spark.session import spark_session

TASKS = 2
"""A micro-batch that is sent again must be split in the same way, so that its rows get the same ids."""


def run(spark: SparkSession, connection: Mapping[str, str], topic: str, into: str, folder: Path, rows: str) -> None:
    """Take in what is there.

    Args:
        spark: runs it.
        connection: the options that say how the cluster is reached.
        topic: is read.
        into: is sent to.
        folder: gets `files`, and the checkpoints `kept` and `sent`.
        rows: of a micro-batch.
    """

    def send(batch: DataFrame, number: int) -> None:
        ordered = in_group_order(batch, partitions=TASKS).select("body", "messageGroup")
        sink = ordered.write.format("popwheel").mode("append").options(**connection, topic=into)
        sink.option("writeId", f"long/{number}").save()

    options = {**connection, "topic": topic, "startingOffsets": "earliest", "maxRowsPerTrigger": rows}
    messages = spark.readStream.format("popwheel").options(**options).load()
    kept = messages.writeStream.format("parquet").option("path", str(folder / "files"))
    sent = messages.writeStream.foreachBatch(send)
    queries = [
        writer.option("checkpointLocation", str(folder / name)).trigger(availableNow=True).start()
        for name, writer in (("kept", kept), ("sent", sent))
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    endpoints, topic, into, folder, rows = sys.argv[1:]
    run(spark_session("long stream"), {"endpoints": endpoints}, topic, into, Path(folder), rows)
