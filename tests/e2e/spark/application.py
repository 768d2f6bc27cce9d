"""Sends rows, reads them as a table and as a stream, and prints one line of JSON; `application.py TOPIC COUNT`."""

import json
import os
import sys
import tempfile

from pyspark.sql import DataFrame

from popwheel_spark.session import spark_session


def main(topic: str, count: int) -> None:
    """Do that.

    Args:
        topic: of whose messages nobody else sends any.
        count: rows to send.
    """
    spark = spark_session(f"{topic} on a cluster")
    cluster = {"endpoints": os.environ["POPWHEEL_ENDPOINT"], "topic": topic}
    rows = spark.range(count).selectExpr("'row ' || id AS body", "map('number', '' || id) AS properties")
    rows.repartition(4).write.format("popwheel").mode("append").options(**cluster).save()
    numbers = "CAST(properties['number'] AS BIGINT) AS number"
    batch = spark.read.format("popwheel").options(**cluster).load().selectExpr(numbers, "messageId")
    streamed: list[int] = []

    def collect(part: DataFrame, _: int) -> None:
        streamed.extend(row.number for row in part.selectExpr(numbers).collect())

    stream = spark.readStream.format("popwheel").options(**cluster, startingOffsets="earliest").load()
    with tempfile.TemporaryDirectory() as folder:
        writer = stream.writeStream.foreachBatch(collect).option("checkpointLocation", f"file://{folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
    print(
        json.dumps(
            {
                "executors": len({*spark.sparkContext.parallelize(range(64), 16).map(_host).collect()}),
                "ids": batch.select("messageId").distinct().count(),
                "batch": sorted(row.number for row in batch.collect()) == list(range(count)),
                "stream": sorted(streamed) == list(range(count)),
            }
        )
    )


def _host(_: int) -> str:
    return os.uname().nodename


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
