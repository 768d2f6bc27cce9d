"""The job `archive`: topics to Parquet, by date and topic, each message exactly once (docs/use/spark-jobs.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.jobs.cluster import Cluster, Window, cluster_flags
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.job_session import job_session
from popwheel_spark.jobs.outcome import JobError, outcome
from popwheel_spark.jobs.time_flags import Moment, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 1
_DAY_S = 86_400


def by_date(messages: DataFrame) -> DataFrame:
    """Return the messages with the column `date`: the day of their storage in UTC, in any time zone (pure)."""
    from pyspark.sql import functions as sql

    days = sql.floor(sql.unix_seconds("storeTimestamp") / _DAY_S)
    return messages.withColumn("date", sql.date_from_unix_date(days.cast("int")))


def start(messages: DataFrame, folder: ArchiveFolder, every_ms: int | None) -> StreamingQuery:
    """Start or continue the stream that writes messages to an archive.

    Args:
        messages: the stream.
        folder: of the archive; its checkpoint says how far it is.
        every_ms: how often a micro-batch is written; None: all that is there now, and no more.
    """
    writer = by_date(messages).writeStream.format("parquet").queryName("archive").partitionBy("date", "topic")
    writer = writer.option("checkpointLocation", folder.checkpoint).option("path", folder.incoming)
    if every_ms is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_ms} milliseconds").start()


def watch(query: StreamingQuery) -> int:
    """Log each micro-batch of a query until it ends; return the number of its messages.

    Raises:
        JobError: it failed.
    """
    from pyspark.errors import StreamingQueryException

    logged, messages = -1, 0
    ended = False
    while not ended:
        try:
            ended = bool(query.awaitTermination(_POLL_S))
        except StreamingQueryException as error:
            code, said = outcome(error)
            raise JobError(f"the query failed: {said}", code) from None
        for progress in query.recentProgress:
            if progress["batchId"] > logged and progress["numInputRows"]:
                logged = progress["batchId"]
                messages += progress["numInputRows"]
                seconds = progress["durationMs"]["triggerExecution"] / 1000
                click.echo(f"micro-batch {logged}: {progress['numInputRows']:,} messages in {seconds:.1f} s")
    return messages


@click.command(epilog="Example: popwheel-spark archive --topics Orders,Payments --to /data/archive --every 5m")
@click.option("--topics", default="", metavar="NAME,..", help="Topics to archive; these or --topic-pattern.")
@click.option(
    "--topic-pattern", default="", metavar="REGEX", help="All topics whose whole names it matches; new ones, too."
)
@click.option("--to", "path", required=True, metavar="FOLDER", help="The archive: any folder that Spark can write to.")
@click.option(
    "--from",
    "start_ms",
    type=Moment(),
    show_default="the first stored one",
    help="Begin a new archive with what was stored then: 2026-01-31T12:00:00Z, or milliseconds since 1970.",
)
@click.option(
    "--every",
    type=Span(),
    default="1m",
    show_default=True,
    help="How often a micro-batch is written: 90s, 10m, 2h or 1d.",
)
@click.option("--until-now", is_flag=True, help="End when all current messages are written.")
@cluster_flags
def archive(
    cluster: Cluster, topics: str, topic_pattern: str, path: str, start_ms: int | None, every: int, until_now: bool
) -> None:
    """Write topics to Parquet by date and topic, each message once.

    Started again with the same folder, it continues where it stopped.
    """
    if bool(topics) == bool(topic_pattern):
        raise click.UsageError("say what to archive by one of --topics and --topic-pattern")
    cluster.check_stream()
    spark = job_session("archive")
    which = {"topics": topics} if topics else {"topicPattern": topic_pattern}
    begin = {"startingOffsets": "earliest"} if start_ms is None else Window(start_ms).options
    folder = ArchiveFolder(spark, path)
    query = start(cluster.stream(spark, **which, **begin), folder, None if until_now else every)
    click.echo(f"archiving {topics or topic_pattern} to {folder.incoming}")
    try:
        click.echo(f"archived {watch(query):,} messages")
    except KeyboardInterrupt:
        click.echo("stopping; started again, it continues here")
    finally:
        query.stop()
    click.echo(f"in all {folder.describe()}")


if __name__ == "__main__":
    run(archive)
