"""The job `dead-letter-report`: dead letters by cause, attempts and age (docs/use/spark-jobs.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_spark.given_options import words
from popwheel_spark.jobs import charts
from popwheel_spark.jobs.audit_snapshot import AuditSnapshot
from popwheel_spark.jobs.cluster import Cluster, Window, cluster_flags, window_flags
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.job_session import job_session
from popwheel_spark.jobs.page import Cell, Section, Table, cell_words, page
from popwheel_spark.jobs.report_folder import ReportFolder
from popwheel_spark.text_table import print_table
from popwheel_spark.wire.admin_api import AdminApi

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]

_COLUMNS = (
    *("topic", "brokerName", "queueOffset", "messageId", "tag", "keys", "messageGroup"),
    *("bornTimestamp", "storeTimestamp", "originTopic"),
)
_RETRY_COLUMNS = ("topic", "brokerName", "messageId", "attempts", "storeTimestamp")
_AGES: Final = {
    "1 minute": 60,
    "10 minutes": 600,
    "1 hour": 3_600,
    "6 hours": 21_600,
    "1 day": 86_400,
    "7 days": 604_800,
    "30 days": 2_592_000,
}
"""Upper bounds of the histogram's columns, in seconds."""
_OLDER: Final = "older"
UNKNOWN_SENTENCE: Final = (
    "Consumers do not report to brokers why they failed. Attempts are those of the latest retry that the group's retry "
    "topic still has; cause and attempts are unknown where it has none."
)
_ROWS_MAX = 200
_TIME = "%Y-%m-%d %H:%M:%SZ"


@dataclass(frozen=True)
class DeadLetterReport:
    """Rows of the report, and its page.

    Args:
        asked: when, in UTC.
        causes, ages, tops: rows of the tables, their times in UTC.
        page: where the page is; empty: nowhere.
    """

    asked: datetime
    causes: Sequence[Row]
    ages: Sequence[Row]
    tops: Sequence[Row]
    page: str = ""

    @property
    def letters(self) -> int:
        """Count of dead letters."""
        return sum(row["letters"] for row in self.causes)

    @property
    def open(self) -> int:
        """Count of letters that were not redriven, purged or received."""
        return sum(row["open"] for row in self.causes)

    def show(self) -> None:
        """Print the report as text."""
        click.echo(f"dead letters: {self.letters:,}; open: {self.open:,}")
        for table in (causes_table(self.causes), ages_table(self.ages), tops_table(self.tops)):
            if table.rows:
                click.echo()
                _print(table)
        if any(row["cause"] == "unknown" for row in self.causes):
            click.echo(f"\n{UNKNOWN_SENTENCE}")
        if self.page:
            click.echo(f"report: {self.page}")

    def json(self) -> str:
        """Return the report as one JSON object."""
        tables = {"causes": self.causes, "ages": self.ages, "tops": self.tops}
        return json.dumps(
            {
                "asked": self.asked.isoformat(),
                "letters": self.letters,
                "open": self.open,
                **{name: [dict(row) for row in rows] for name, rows in tables.items()},
                **({"report": self.page} if self.page else {}),
            },
            default=datetime.isoformat,
            ensure_ascii=False,
        )


def causes_table(rows: Sequence[Row]) -> Table:
    """Return the table of letters by cause, from `dead_letter_figures.causes`; times are in UTC."""
    headings = ("group", "topic", "cause", "attempts", "letters", "open", "first dead", "last dead")
    cells: list[Sequence[Cell]] = [
        [
            *(row["group"], row["originTopic"], row["cause"], row["attempts"], row["letters"], row["open"]),
            *(row[name].strftime(_TIME) for name in ("firstDead", "lastDead")),
        ]
        for row in rows[:_ROWS_MAX]
    ]
    return Table(headings, cells, frozenset(number for number, row in enumerate(rows[:_ROWS_MAX]) if row["open"]))


def ages_table(rows: Iterable[Row]) -> Table:
    """Return the table of letters by age, from `dead_letter_figures.ages`: a row per group, a column per age."""
    columns = (*_AGES, _OLDER)
    counts = _by_group(rows)
    cells: list[Sequence[Cell]] = [[group, *(found.get(age, 0) for age in columns)] for group, found in counts.items()]
    return Table(["group", *(f"≤ {age}" for age in _AGES), _OLDER], cells)


def tops_table(rows: Sequence[Row]) -> Table:
    """Return the table of message groups, keys and tags with most letters, from `dead_letter_figures.tops`."""
    cells = [[row[name] for name in ("group", "kind", "value", "letters", "open")] for row in rows[:_ROWS_MAX]]
    return Table(["group", "kind", "value", "letters", "open"], cells)


def dead_letter_page(lead: str, causes: Sequence[Row], ages: Sequence[Row], tops: Sequence[Row]) -> str:
    """Return the page.

    Args:
        lead: of which letters it is.
        causes, ages, tops: rows as `dead_letter_figures` has them.
    """
    columns = (*_AGES, _OLDER)
    series = {group: [found.get(age, 0) for age in columns] for group, found in _by_group(ages).items()}
    labels = [*(f"≤ {age}" for age in _AGES), _OLDER]
    sections = [
        Section(
            "Causes", f"{UNKNOWN_SENTENCE} Open: not redriven, purged or received yet.", table=causes_table(causes)
        ),
        Section("How long they have been dead", picture=charts.bars(series, labels, "dead letters")),
        Section("Message groups, keys and tags that have most", "" if tops else "None.", table=tops_table(tops)),
    ]
    return page("Dead letters", lead, sections)


def report_on(
    spark: SparkSession,
    cluster: Cluster,
    groups: Sequence[str],
    window: Window,
    most: int,
    folder: ReportFolder | None = None,
) -> DeadLetterReport:
    """Read and count dead letters; arguments as of the command.

    Raises:
        RefusedError: there is no such group.
        UnreachableError: a broker does not answer, so the counts would not be whole.
    """
    from pyspark.sql import functions as sql

    from popwheel_spark.jobs import dead_letter_figures as figures

    api = AdminApi(cluster.connection)
    limits = _limits(api, groups)
    asked = datetime.now(UTC)
    progress = spark.createDataFrame(list(_progress(api, limits)), figures.PROGRESS)
    letters = _letters(spark, cluster, list(limits), window).persist()
    try:
        pairs = [tuple(row) for row in letters.select("group", "originTopic").distinct().collect()]
        retries = _retries(spark, cluster, pairs)
        of_groups = spark.createDataFrame(list(limits.items()), figures.GROUPS)
        known = figures.known(letters, retries, of_groups, progress).persist()
        tables = {
            "causes": figures.causes(known),
            "ages": figures.ages(known, sql.lit(asked), _AGES, _OLDER),
            "tops": figures.tops(known, most),
        }
        rows = {name: [_in_utc(row.asDict()) for row in table.collect()] for name, table in tables.items()}
        if folder is not None:
            for name, table in {"letters": known, **tables}.items():
                folder.put_table(name, table)
        known.unpersist()
    finally:
        letters.unpersist()
    place = "" if folder is None else _put_page(folder, asked, list(limits), rows)
    return DeadLetterReport(asked, rows["causes"], rows["ages"], rows["tops"], place)


@click.command(
    "dead-letter-report",
    epilog="Example: popwheel-spark dead-letter-report --groups billing --to report",
)
@click.option("--groups", default="", show_default="all", metavar="NAME,..", help="Whose dead letters.")
@click.option(
    "--most",
    type=click.IntRange(1, 1_000),
    default=10,
    show_default=True,
    help="Number of message groups, keys and tags that are listed for each group.",
)
@click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="What is printed: for people, or one JSON object.",
)
@click.option(
    "--to",
    "path",
    metavar="FOLDER",
    show_default="nowhere",
    help="Where a page and tables go, too; what is there is replaced.",
)
@window_flags
@cluster_flags
def dead_letter_report(cluster: Cluster, groups: str, most: int, output: str, path: str | None, window: Window) -> None:
    """Report the dead letters of groups: by topic, cause, attempts and age, and the keys with most of them."""
    spark = job_session("dead-letter-report")
    folder = None if path is None else ReportFolder(spark, path)
    found = report_on(spark, cluster, words(groups), window, most, folder)
    if output == "json":
        click.echo(found.json())
    else:
        found.show()


def _limits(api: AdminApi, groups: Sequence[str]) -> dict[str, int]:
    """Return the limit of attempts by group; of all groups if none is named."""
    if groups:
        return {name: api.get(f"groups/{quote(name, safe='')}")["max_attempts"] for name in groups}
    return {group["name"]: group["max_attempts"] for page in api.pages("groups", {}) for group in page["groups"]}


def _progress(api: AdminApi, groups: Iterable[str]) -> Iterable[tuple[str, str, int]]:
    for group in groups:
        topic = names.dead_letter_topic(group)
        for found, broker, queue, offset in AuditSnapshot(api, group).progress([topic]):
            if found == topic and queue == 0:
                yield group, broker, offset


def _letters(spark: SparkSession, cluster: Cluster, groups: Sequence[str], window: Window) -> DataFrame:
    from pyspark.sql import functions as sql

    from popwheel_spark.jobs.dead_letter_figures import LETTERS

    topics = cluster.existing([names.dead_letter_topic(group) for group in groups])
    there = [topic.removeprefix(names.DEAD_LETTER_PREFIX) for topic in topics]
    if not there:
        return spark.createDataFrame([], LETTERS)
    read = cluster.table(spark, table="dlq", group=",".join(there), columns=",".join(_COLUMNS), **window.options)
    group = sql.substring(sql.col("topic"), len(names.DEAD_LETTER_PREFIX) + 1, 1_000)
    return read.withColumn("group", group).drop("topic")


def _retries(spark: SparkSession, cluster: Cluster, pairs: Iterable[tuple[str, str | None]]) -> DataFrame:
    """Return all stored retries of groups and topics, as retries precede a dead letter."""
    from pyspark.sql import functions as sql

    from popwheel_spark.jobs.dead_letter_figures import RETRIES

    topics: dict[str, tuple[str, str]] = {}
    for group, topic in pairs:
        try:
            topics[names.retry_topic(group, topic or "")] = group, topic or ""
        except StatusError:
            continue  # of a name that older releases allowed; its retries are unknown
    if not topics:
        return spark.createDataFrame([], RETRIES)
    rows = [(topic, *pair) for topic, pair in topics.items()]
    whose = spark.createDataFrame(rows, "topic STRING, group STRING, originTopic STRING")
    read = cluster.messages(spark, list(topics), Window(), columns=",".join(_RETRY_COLUMNS)).select(*_RETRY_COLUMNS)
    return read.join(sql.broadcast(whose), "topic").drop("topic")


def _put_page(folder: ReportFolder, asked: datetime, groups: Sequence[str], rows: Mapping[str, Sequence[Row]]) -> str:
    whose = ", ".join(groups) if len(groups) <= 10 else f"{len(groups)} groups"
    lead = f"{whose}, asked at {asked:%Y-%m-%d %H:%M:%SZ}."
    return folder.put_page(dead_letter_page(lead, rows["causes"], rows["ages"], rows["tops"]))


def _by_group(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """Return letters by group and age, of all topics."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        ages = found.setdefault(row["group"], {})
        ages[row["age"]] = ages.get(row["age"], 0) + row["letters"]
    return found


def _in_utc(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()}


def _print(table: Table) -> None:
    print_table(table.headings, [[cell_words(cell) for cell in row] for row in table.rows])


if __name__ == "__main__":
    run(dead_letter_report)
