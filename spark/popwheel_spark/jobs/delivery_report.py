"""The job `delivery-report`: delays, retries and losses by topic and group (docs/use/spark-jobs.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from popwheel_common.contract import names
from popwheel_spark.given_options import words
from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.jobs.cluster import Cluster, Window, cluster_flags, window_flags
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.delivery_page import GROUP_COLUMNS, ROWS_MAX, TOPIC_COLUMNS, delivery_page, table
from popwheel_spark.jobs.job_session import job_session
from popwheel_spark.jobs.outcome import InputError
from popwheel_spark.jobs.page import cell_words
from popwheel_spark.jobs.records import DELIVERIES, record
from popwheel_spark.jobs.report_folder import ReportFolder
from popwheel_spark.jobs.time_flags import moment_words
from popwheel_spark.text_table import print_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = (
    *("topic", "brokerName", "queueId", "queueOffset", "messageId"),
    *("bornTimestamp", "storeTimestamp", "deliveryTimestamp"),
)
_COURSES_MAX = 12
"""Number of topics in charts over time: those with most messages."""
_NOTHING = "group STRING, messageId STRING"


@dataclass(frozen=True)
class Inputs:
    """Inputs of a report: tables for `delivery_figures`."""

    messages: DataFrame
    deliveries: DataFrame
    retries: DataFrame
    dead_letters: DataFrame


@dataclass(frozen=True)
class Report:
    """Rows of the report, and its page.

    Args:
        topics, groups: rows of the tables.
        page: where the page is.
    """

    topics: Sequence[Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]
    page: str

    def show(self) -> None:
        """Print the summary."""
        for columns, rows in ((TOPIC_COLUMNS, self.topics), (GROUP_COLUMNS, self.groups)):
            if rows:
                shown = table(rows, columns)
                print_table(shown.headings, [[cell_words(cell) for cell in row] for row in shown.rows])
                click.echo()
        click.echo(f"report: {self.page}")


def of_groups(spark: SparkSession, cluster: Cluster, topics: Mapping[str, str], window: Window) -> DataFrame:
    """Return the messages in groups' retry or dead letter topics: columns `group, messageId`.

    Args:
        spark: reads them.
        cluster: where they are.
        topics: retry or dead letter topic -> group.
        window: from its start on; a retry comes after its message, maybe after the window.
    """
    from pyspark.sql import functions as sql

    since = Window(window.start_ms)
    if not topics:
        return spark.createDataFrame([], _NOTHING)
    group = sql.create_map(*[sql.lit(word) for pair in topics.items() for word in pair])[sql.col("topic")]
    read = cluster.messages(spark, list(topics), since, columns="topic,messageId")
    return read.select(group.alias("group"), "messageId")


def make(spark: SparkSession, inputs: Inputs, folder: ReportFolder, lead: str) -> Report:
    """Find all figures, and write them.

    Args:
        spark: works.
        inputs: of what.
        folder: where to.
        lead: says of which messages the report is.

    Raises:
        InputError: there are no messages.
    """
    from pyspark.sql import functions as sql

    from popwheel_spark.jobs import delivery_figures

    messages = inputs.messages.persist()
    try:
        click.echo("reading messages")
        first, last, count = messages.agg(
            sql.min("storeTimestamp"), sql.max("storeTimestamp"), sql.count("*")
        ).collect()[0]
        if not count:
            raise InputError("there are no messages of these topics in this window")
        click.echo(f"{count:,} messages; topics")
        topics = _rows(folder.put_table("topics", delivery_figures.topic_figures(messages)))
        click.echo("groups")
        groups_of = delivery_figures.group_figures(messages, inputs.deliveries, inputs.retries, inputs.dead_letters)
        groups = _rows(folder.put_table("groups", groups_of))
        click.echo("findings")
        found = delivery_figures.findings(messages, inputs.deliveries, inputs.dead_letters)
        findings = folder.put_table("findings", found)
        click.echo("course over time")
        step_s = delivery_figures.step_s((last - first).total_seconds())
        course = folder.put_table("course", delivery_figures.course(messages, inputs.deliveries, step_s))
    finally:
        messages.unpersist()
    largest = sorted(topics, key=lambda row: -row["messages"])[:_COURSES_MAX]
    shown = course.where(sql.col("topic").isin(*[row["topic"] for row in largest])).orderBy("topic", "group", "time")
    listed = findings.orderBy("kind", "topic", "group", "messageId").limit(ROWS_MAX + 1)
    html = delivery_page(lead, topics, groups, _rows(shown), _rows(listed), step_s)
    return Report(topics, groups, folder.put_page(html))


@click.command(
    "delivery-report",
    epilog="Example: popwheel-spark delivery-report --topics Orders --groups billing --to report",
)
@click.option("--topics", required=True, metavar="NAME,..", help="Which topics.")
@click.option(
    "--groups",
    default="",
    show_default="none",
    metavar="NAME,..",
    help="Groups whose retries and dead letters are counted.",
)
@click.option(
    "--archive",
    metavar="FOLDER",
    show_default="the cluster",
    help="Archive to read the messages from, as the job archive writes it.",
)
@click.option("--deliveries", metavar="PATH", help="The consumers' own record: JSON lines (.json, .jsonl) or Parquet.")
@click.option("--to", "path", required=True, metavar="FOLDER", help="Where the report goes; what is there is replaced.")
@window_flags
@cluster_flags
def delivery_report(
    cluster: Cluster,
    topics: str,
    groups: str,
    archive: str | None,
    deliveries: str | None,
    window: Window,
    path: str,
) -> None:
    """Report by topic and group how long messages took, and which were retried, lost or delivered twice.

    Deliveries are known from the consumers' own record only; without one there are no figures of them.
    """
    spark = job_session("delivery-report")
    report_on(
        spark, cluster, words(topics), words(groups), window, ReportFolder(spark, path), archive, deliveries
    ).show()


def report_on(
    spark: SparkSession,
    cluster: Cluster,
    topics: Sequence[str],
    groups: Sequence[str],
    window: Window,
    folder: ReportFolder,
    archive: str | None = None,
    deliveries: str | None = None,
) -> Report:
    """Read the inputs of a report, and make it; arguments as of the command."""
    if archive is None:
        messages = cluster.messages(spark, topics, window, columns=",".join(_COLUMNS))
    else:
        messages = ArchiveFolder(spark, archive).messages(topics, window).select(*_COLUMNS)
    retry_topics: dict[str, str] = {names.retry_topic(group, topic): group for group in groups for topic in topics}
    dead_letter_topics: dict[str, str] = {names.dead_letter_topic(group): group for group in groups}
    inputs = Inputs(
        messages,
        spark.createDataFrame([], DELIVERIES.columns) if deliveries is None else record(spark, DELIVERIES, deliveries),
        of_groups(spark, cluster, retry_topics, window),
        of_groups(spark, cluster, dead_letter_topics, window),
    )
    begin = "the first" if window.start_ms is None else moment_words(window.start_ms)
    end = "the last" if window.end_ms is None else moment_words(window.end_ms)
    return make(spark, inputs, folder, f"{', '.join(topics)}: messages stored from {begin} to {end}.")


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.collect()]


if __name__ == "__main__":
    run(delivery_report)
