"""The job `timer-forecast`: what falls due per minute for the next days (docs/spark-jobs.md)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from popwheel_spark.given_options import words
from popwheel_spark.jobs import timer_figures
from popwheel_spark.jobs.cluster import Cluster, cluster_flags
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.report_folder import ReportFolder
from popwheel_spark.jobs.time_flags import moment_words
from popwheel_spark.jobs.timer_page import minute_words, timer_page
from popwheel_spark.session import spark_session

_MINUTES_A_DAY = 24 * 60
_DAY_MS = _MINUTES_A_DAY * 60_000
_SHOWN_MAX = 10


@dataclass(frozen=True)
class Forecast:
    """What was found, and where it is.

    Args:
        due: messages that fall due in the days asked for.
        overdue: messages whose time had come already.
        peaks: rows of `timer_figures.totals`, the fullest first.
        page: where the page is.
    """

    due: int
    overdue: int
    peaks: Sequence[Mapping[str, Any]]
    page: str

    def show(self) -> None:
        """Print the summary."""
        click.echo(f"due: {self.due:,}; overdue: {self.overdue:,}; peaks: {len(self.peaks):,}")
        for row in self.peaks[:_SHOWN_MAX]:
            click.echo(f"{minute_words(row['minute'])}  {row['count']:,}, most of them of {row['largestTopic']}")
        click.echo(f"report: {self.page}")


def forecast_of(
    timers: DataFrame, start_s: int, days: int, peak_factor: float, peak_least: int, folder: ReportFolder
) -> Forecast:
    """Find all figures, and write them; arguments as of the command and of `timer_figures`."""
    minutes = days * _MINUTES_A_DAY
    forecast = folder.put_table("minutes", timer_figures.by_minute(timers, start_s, minutes))
    totals_of = timer_figures.totals(forecast, minutes, peak_factor, peak_least)
    totals = [row.asDict() for row in folder.put_table("totals", totals_of).orderBy("minute").collect()]
    late = sql.col("minute").isNull()
    by_topic = forecast.groupBy("topic").agg(
        sql.coalesce(sql.sum(sql.when(~late, sql.col("count"))), sql.lit(0)).alias("count"),
        sql.coalesce(sql.sum(sql.when(late, sql.col("count"))), sql.lit(0)).alias("overdue"),
    )
    topics = [row.asDict() for row in by_topic.orderBy(sql.desc("count"), "topic").collect()]
    peaks = sorted((row for row in totals if row["peak"]), key=lambda row: -row["count"])
    lead = f"The {days} days from {moment_words(start_s * 1000)} on, of {len(topics)} topics."
    page = folder.put_page(timer_page(lead, totals, topics))
    return Forecast(sum(row["count"] for row in topics), sum(row["overdue"] for row in topics), peaks, page)


@click.command("timer-forecast")
@click.option("--topics", default="", metavar="NAME,..", help="Which topics; all if left out.")
@click.option("--days", type=click.IntRange(1, 366), default=3, show_default=True, help="How far it looks ahead.")
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
    """Tell how many delayed messages fall due per minute in the next days, and when too many do at once."""
    spark = spark_session("popwheel timer-forecast")
    start_s = int(time.time()) // 60 * 60
    click.echo("reading the timers of all brokers")
    folder = ReportFolder(spark, path)
    timers = cluster.timers(spark, words(topics), withinMs=str(days * _DAY_MS))
    forecast_of(timers, start_s, days, peak_factor, peak_least, folder).show()


if __name__ == "__main__":
    run(timer_forecast)
