"""The job `replay`: what was sent, from an archive or a topic, into a topic once more (docs/spark-jobs.md)."""

import time
from collections.abc import Iterable, Iterator

import click
from pyspark.sql import DataFrame, Row, SparkSession

from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.jobs.cluster import Cluster, Window, cluster_flags
from popwheel_spark.jobs.command import JobError, run
from popwheel_spark.jobs.replay_rows import Delays, DelaysFlag, paced, replayed
from popwheel_spark.jobs.time_flags import Moment
from popwheel_spark.session import spark_session

_COLUMNS = ("messageId", "tag", "keys", "messageGroup", "body", "properties", "bornTimestamp", "deliveryTimestamp")


def limited(spark: SparkSession, rows: DataFrame, rate: float, tasks: int) -> DataFrame:
    """Rows in so many tasks, which together do not go on faster than a rate.

    Args:
        spark: makes rows of them again.
        rows: to be sent.
        rate: rows a second, of all tasks.
        tasks: how many there are. If fewer run at once, the rate is lower.
    """
    share = rate / tasks

    def slowed(part: Iterable[Row]) -> Iterator[Row]:
        return paced(iter(part), share, time.monotonic, time.sleep)

    # Not by mapInArrow, which needs pandas: who asks for a rate is in no hurry.
    return spark.createDataFrame(rows.coalesce(tasks).rdd.mapPartitions(slowed), rows.schema)


@click.command()
@click.option("--topic", required=True, metavar="NAME", help="Whose messages.")
@click.option("--archive", metavar="FOLDER", help="Read them there, not from the cluster.")
@click.option("--from", "start_ms", type=Moment(), help="Messages that were stored then or later.")
@click.option("--until", "end_ms", type=Moment(), help="Messages that were stored before then.  [default: now]")
@click.option("--into", required=True, metavar="NAME", help="The topic that they are sent to.")
@click.option(
    "--name", required=True, metavar="NAME", help="Of this replay. Of the same messages one name gives the same keys."
)
@click.option(
    "--delays",
    type=DelaysFlag(),
    default="none",
    show_default=True,
    metavar="none|shift:SPAN|scale:FACTOR",
    help="Deliver all at once; at its old time and SPAN later; or after FACTOR of its old delay.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second at the most.")
@cluster_flags
def replay(
    cluster: Cluster,
    topic: str,
    archive: str | None,
    start_ms: int | None,
    end_ms: int | None,
    into: str,
    name: str,
    delays: Delays,
    rate: float | None,
) -> None:
    """Send messages of an archive or of a topic once more.

    Each bears the key replay/NAME/ID, so that what a failed task has sent twice can be dropped.
    """
    spark = spark_session("popwheel replay")
    began_at = time.time()
    # Always with an end: what is sent may go to the topic that is read.
    window = Window(start_ms, int(began_at * 1000) if end_ms is None else end_ms)
    if archive is None:
        messages = cluster.messages(spark, [topic], window, columns=",".join(_COLUMNS))
    else:
        messages = ArchiveFolder(spark, archive).messages([topic], window).select(*_COLUMNS)
    count = messages.count()
    if not count:
        raise JobError(f"there are no messages of {topic} in this window")
    click.echo(f"sending {count:,} messages of {topic} to {into}")
    rows = replayed(messages, name, delays, int(began_at * 1000))
    if rate is not None:
        rows = limited(spark, rows, rate, spark.sparkContext.defaultParallelism)
    cluster.send(rows, into)
    seconds = time.time() - began_at
    click.echo(f"sent {count:,} messages in {seconds:.1f} s, with keys replay/{name}/ID")


if __name__ == "__main__":
    run(replay)
