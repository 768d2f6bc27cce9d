"""The job `timer-forecast`: delayed messages that fall due per minute in the next days (docs/use/spark-jobs.md)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from popwheel_spark.jobs import charts
from popwheel_spark.jobs.cluster import Cluster, cluster_flags
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.job_session import job_session
from popwheel_spark.jobs.page import Cell, Section, Table, page
from popwheel_spark.jobs.report_folder import ReportFolder
from popwheel_spark.jobs.time_flags import moment_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = Mapping[str, Any]

_MINUTE_S = 60
_MINUTES_A_DAY = 24 * 60
_DAY_MS = _MINUTES_A_DAY * 60_000
_SHOWN_MAX = 10
_ROWS_MAX = 100
"""Limit of the rows of a table on the page; the Parquet files have all."""
_BARS_MAX = 500


@dataclass(frozen=True)
class Forecast:
    """Forecast with its tables and their folder.

    Args:
        due: messages that fall due in the days asked for.
        overdue: messages whose time had come already.
        peaks: rows of `totals`, the fullest first.
        page: where the page is.
    """

    due: int
    overdue: int
    peaks: Sequence[Row]
    page: str

    def show(self) -> None:
        """Print the summary."""
        click.echo(f"due: {self.due:,}; overdue: {self.overdue:,}; peaks: {len(self.peaks):,}")
        for row in self.peaks[:_SHOWN_MAX]:
            click.echo(f"{minute_words(row['minute'])}  {row['count']:,}, most of them of {row['largestTopic']}")
        click.echo(f"report: {self.page}")


def by_minute(timers: DataFrame, start_s: int, minutes: int) -> DataFrame:
    """Count the timers due in each minute of each topic: columns `topic, minute, count` (pure).

    What was due before is counted in a row whose `minute` is null; what is due later is left out.

    Args:
        timers: by `topic, messageId, deliveryTimestamp`. One that is listed twice counts once.
        start_s: when the first minute begins, in seconds since 1970.
        minutes: how many.
    """
    from pyspark.sql import functions as sql

    due_s = sql.unix_seconds("deliveryTimestamp")
    minute_s = sql.when(due_s >= start_s, sql.floor((due_s - start_s) / _MINUTE_S) * _MINUTE_S + start_s)
    return (
        timers.dropDuplicates(["topic", "messageId"])
        .where(due_s < start_s + minutes * _MINUTE_S)
        .groupBy("topic", sql.timestamp_seconds(minute_s).alias("minute"))
        .agg(sql.count("*").alias("count"))
        .orderBy("minute", "topic")
    )


def totals(forecast: DataFrame, minutes: int, peak_factor: float, peak_least: int) -> DataFrame:
    """Count the timers due in each minute in all: columns `minute, count, peak, largestTopic` (pure).

    A minute is a peak if it has more than a multiple of what an average minute has, empty ones among them, and is not
    small.

    Args:
        forecast: as of `by_minute`.
        minutes: how many it is of.
        peak_factor: the multiple.
        peak_least: no minute with fewer is a peak.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    due = forecast.where(sql.col("minute").isNotNull())
    summed = due.groupBy("minute").agg(
        sql.sum("count").alias("count"), sql.max_by("topic", "count").alias("largestTopic")
    )
    mean = sql.sum("count").over(Window.partitionBy(sql.lit(0))) / minutes
    peak = (sql.col("count") > mean * peak_factor) & (sql.col("count") >= peak_least)
    return summed.select("minute", "count", peak.alias("peak"), "largestTopic").orderBy("minute")


def forecast_page(lead: str, minutes: Sequence[Row], topics: Sequence[Row]) -> str:
    """Return the page (pure).

    Args:
        lead: of which times and topics it is.
        minutes: rows of `totals`.
        topics: by `topic`, `count` and `overdue`.
    """
    peaks = sorted((row for row in minutes if row["peak"]), key=lambda row: -row["count"])[:_ROWS_MAX]
    counts, crests, step_s = _columns(minutes)
    cells: list[Sequence[Cell]] = [[minute_words(row["minute"]), row["count"], row["largestTopic"]] for row in peaks]
    by_topic: list[Sequence[Cell]] = [[row["topic"], row["count"], row["overdue"]] for row in topics[:_ROWS_MAX]]
    per = "a minute" if step_s == 60 else f"the fullest minute of {step_s // 60}"
    sections = [
        Section("What falls due", f"A column is {per}.", charts.columns(counts, crests, step_s, "messages a minute")),
        Section("Peaks", "" if peaks else "None.", table=Table(["minute (UTC)", "due", "most of them of"], cells)),
        Section("Topics", table=Table(["topic", "due", "overdue"], by_topic)),
    ]
    return page("Timer forecast", lead, sections)


def minute_words(minute: datetime) -> str:
    """Return a minute as text, in UTC."""
    return minute.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _columns(minutes: Sequence[Row]) -> tuple[list[tuple[datetime, float]], list[tuple[datetime, float]], int]:
    """The fullest minute of each column, those with a peak among them, and the seconds of a column: a picture has room
    for some hundred.
    """
    if not minutes:
        return [], [], 60
    first = minutes[0]["minute"].astimezone(UTC)
    span_s = (minutes[-1]["minute"].astimezone(UTC) - first).total_seconds() + 60
    step_s = 60 * max(1, -(-int(span_s) // (60 * _BARS_MAX)))
    fullest: dict[int, Row] = {}
    for row in minutes:
        number = int((row["minute"].astimezone(UTC) - first).total_seconds()) // step_s
        if number not in fullest or row["count"] > fullest[number]["count"]:
            fullest[number] = row
    counts = {
        datetime.fromtimestamp(first.timestamp() + number * step_s, UTC): row for number, row in sorted(fullest.items())
    }
    crests = [(time, float(row["count"])) for time, row in counts.items() if row["peak"]]
    return [(time, float(row["count"])) for time, row in counts.items()], crests, step_s


def forecast_of(
    timers: DataFrame, start_s: int, days: int, peak_factor: float, peak_least: int, folder: ReportFolder
) -> Forecast:
    """Find all figures, and write them; arguments as of the command and of `by_minute`."""
    from pyspark.sql import functions as sql

    minutes = days * _MINUTES_A_DAY
    forecast = folder.put_table("minutes", by_minute(timers, start_s, minutes))
    summed = folder.put_table("totals", totals(forecast, minutes, peak_factor, peak_least))
    full = [row.asDict() for row in summed.orderBy("minute").collect()]
    late = sql.col("minute").isNull()
    by_topic = forecast.groupBy("topic").agg(
        sql.coalesce(sql.sum(sql.when(~late, sql.col("count"))), sql.lit(0)).alias("count"),
        sql.coalesce(sql.sum(sql.when(late, sql.col("count"))), sql.lit(0)).alias("overdue"),
    )
    topics = [row.asDict() for row in by_topic.orderBy(sql.desc("count"), "topic").collect()]
    peaks = sorted((row for row in full if row["peak"]), key=lambda row: -row["count"])
    lead = f"The {days} days from {moment_words(start_s * 1000)} on, of {len(topics)} topics."
    place = folder.put_page(forecast_page(lead, full, topics))
    return Forecast(sum(row["count"] for row in topics), sum(row["overdue"] for row in topics), peaks, place)


@click.command("timer-forecast", epilog="Example: popwheel-spark timer-forecast --days 7 --to forecast")
@click.option("--topics", default="", show_default="all", metavar="NAME,..", help="Which topics.")
@click.option("--days", type=click.IntRange(1, 366), default=3, show_default=True, help="Length of the forecast.")
@click.option(
    "--peak-factor",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    help="A minute with more than this multiple of an average one is a peak.",
)
@click.option(
    "--peak-least", type=click.IntRange(min=1), default=100, show_default=True, help="No minute with fewer is a peak."
)
@click.option("--to", "path", required=True, metavar="FOLDER", help="Where the report goes; what is there is replaced.")
@cluster_flags
def timer_forecast(cluster: Cluster, topics: str, days: int, peak_factor: float, peak_least: int, path: str) -> None:
    """Report how many delayed messages fall due per minute in the next days, and when too many do at once."""
    spark = job_session("timer-forecast")
    start_s = int(time.time()) // 60 * 60
    click.echo("reading the timers of all brokers")
    folder = ReportFolder(spark, path)
    which = {"topics": topics} if topics else {}
    timers = cluster.table(spark, table="timers", withinMs=str(days * _DAY_MS), **which)
    forecast_of(timers, start_s, days, peak_factor, peak_least, folder).show()


if __name__ == "__main__":
    run(timer_forecast)
