"""Spark's side of the cases of Spark: `python -m bench.spark_side WAY ADDRESS TOPIC [FOLDER [COUNT]]`.

Prints its figures as JSON. The session is started and each way gone once before anything is measured.
"""

import json
import sys
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from bench.steps import BODY_BYTES, Figures, percentiles
from popwheel_spark.session import spark_session
from popwheel_spark.sink.row_requests import MESSAGES_MAX

_ROUNDS = 6
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.noDataProgressEventInterval": "0",
}


def took_s(act: Callable[[], None]) -> float:
    """Return the seconds it takes; the first of two times warms up."""
    act()
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def best_s(*acts: Callable[[], None]) -> list[float]:
    """Return the seconds that each takes at its best, of several rounds of all in turn: all are as warm as they get,
    and what else is on the machine hits none of them alone.
    """
    times: list[list[float]] = [[] for _ in acts]
    for _ in range(_ROUNDS):
        for act, taken in zip(acts, times, strict=True):
            began = time.perf_counter()
            act()
            taken.append(time.perf_counter() - began)
    return [min(taken) for taken in times]


def topic_of(spark: SparkSession, address: str, topic: str) -> DataFrame:
    """The messages of a topic."""
    return spark.read.format("popwheel").options(endpoints=address, topic=topic).load()


def nowhere(frame: DataFrame) -> None:
    """Read all of it."""
    frame.write.format("noop").mode("overwrite").save()


def read(spark: SparkSession, address: str, topic: str, few_topic: str, folder: str) -> Figures:
    """Into Parquet, to nowhere, and from Parquet to nowhere: all times from the plan to the last row, with what a query
    takes before its first row. That alone is what the few rows of another topic show.
    """
    rows = topic_of(spark, address, topic).count()
    path, few_path = f"{folder}/spark.parquet", f"{folder}/few.parquet"
    topic_of(spark, address, few_topic).write.parquet(few_path)
    archive_s = took_s(lambda: topic_of(spark, address, topic).write.mode("overwrite").parquet(path))
    read_s, parquet_s, read_start_s, parquet_start_s = best_s(
        lambda: nowhere(topic_of(spark, address, topic)),
        lambda: nowhere(spark.read.parquet(path)),
        lambda: nowhere(topic_of(spark, address, few_topic)),
        lambda: nowhere(spark.read.parquet(few_path)),
    )
    return {
        "rows": float(rows),
        "archived_per_s": rows / archive_s,
        "read_per_s": rows / read_s,
        "parquet_per_s": rows / parquet_s,
        "read_start_ms": 1000 * read_start_s,
        "parquet_start_ms": 1000 * parquet_start_s,
    }


def write(spark: SparkSession, address: str, topic: str, folder: str, count: str) -> Figures:
    """Write Parquet into a topic: all rows, and one for each of the two tasks, which is the start of a job."""

    def send(rows: int) -> Callable[[], None]:
        path = f"{folder}/{rows}.parquet"
        body = f"cast(lpad('' || id, {BODY_BYTES}, 'x') AS BINARY) AS body"
        spark.range(0, rows, 1, 2).selectExpr(body).write.parquet(path)
        options = {"endpoints": address, "topic": topic}
        return lambda: spark.read.parquet(path).write.format("popwheel").mode("append").options(**options).save()

    return {
        "job_s": took_s(send(int(count))),
        "job_start_s": took_s(send(2)),
        "request_messages": float(MESSAGES_MAX),
    }


def trigger(spark: SparkSession, address: str, topic: str, folder: str, count: str) -> Figures:
    """Micro-batches of one row, and what is asked where there is none."""
    options = {"endpoints": address, "topic": topic, "startingOffsets": "latest"}
    stream = spark.readStream.format("popwheel").options(**options).load()
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="10 milliseconds")
        .start()
    )
    one_row = spark.range(1).selectExpr("'x' AS body")
    for _ in range(int(count)):
        one_row.write.format("popwheel").mode("append").options(endpoints=address, topic=topic).save()
        query.processAllAvailable()
    progress = list(query.recentProgress)
    query.stop()
    full = [float(each["durationMs"]["triggerExecution"]) for each in progress if each["numInputRows"]]
    empty = [float(each["durationMs"]["triggerExecution"]) for each in progress if not each["numInputRows"]]
    return {**percentiles("trigger", full), **percentiles("empty_trigger", empty)}


def queues(spark: SparkSession, address: str, topics: str) -> Figures:
    """Read many small queues, twice."""
    times: list[float] = []
    for _ in range(2):
        began = time.perf_counter()
        table = spark.read.format("popwheel").options(endpoints=address, topics=topics).load()
        rows = table.count()
        times.append(time.perf_counter() - began)
    return {"rows": float(rows), "first_s": times[0], "then_s": times[1]}


def main(way: str, *words: str) -> None:
    """Measure one of them."""
    spark = spark_session("bench", _SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    ways: dict[str, Callable[..., Figures]] = {"read": read, "write": write, "trigger": trigger, "queues": queues}
    figures = ways[way](spark, *words)
    spark.stop()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
