"""The job `audit`: sent against delivered against acknowledged (docs/use/spark-jobs.md, docs/operate/messages.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from popwheel_common.contract import names
from popwheel_spark.given_options import words
from popwheel_spark.jobs.audit_snapshot import AuditSnapshot
from popwheel_spark.jobs.cluster import Cluster, Window, cluster_flags, window_flags
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.job_session import job_session
from popwheel_spark.jobs.outcome import Exit, InputError
from popwheel_spark.jobs.records import DELIVERIES, SENDS, check_not_empty, record
from popwheel_spark.jobs.report_folder import ReportFolder
from popwheel_spark.wire.admin_api import AdminApi

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "messageId")
_SHOWN_MAX = 20
_LOST = ("lost", "unrecorded")
"""Findings of errors; the others may be temporary."""


@dataclass(frozen=True)
class Verdict:
    """Verdict of an audit.

    Args:
        states: number of messages by state.
        kinds: number of findings by kind.
        ids: some of the findings that say that something is wrong: kind and message id.
        sent: whether a sender's record was at hand.
        delivered: whether a consumers' record was.
    """

    states: Mapping[str, int]
    kinds: Mapping[str, int]
    ids: Sequence[tuple[str, str]]
    sent: bool
    delivered: bool

    @property
    def lost(self) -> int:
        """Number of messages that are lost, or acknowledged without any record of it."""
        return sum(self.kinds.get(kind, 0) for kind in _LOST)

    def sentence(self) -> str:
        """Return the result in words: what is proved, and what is not."""
        total, left = sum(self.states.values()), self.kinds.get("open", 0)
        if self.lost:
            parts = [f"{self.kinds[kind]:,} {kind}" for kind in _LOST if self.kinds.get(kind)]
            return f"NOT PROVED: {' and '.join(parts)}; their ids are in the table findings"
        known = (
            "all that the sender's record has is there" if self.sent else "what was sent is taken to be what is stored"
        )
        if not total and not self.sent:
            return (
                "NOTHING TO PROVE: the topics have no message in this window, and there is no senders' record (--sent)"
            )
        if left:
            return f"{known}; {left:,} of {total:,} messages are open. Ask again later: what is open then is late"
        seen = ", and the consumers' record has each" if self.delivered else ""
        return f"PROVED: {known}; each of {total:,} messages is acknowledged or a dead letter{seen}"


def audit_group(
    spark: SparkSession,
    cluster: Cluster,
    topics: Sequence[str],
    group: str,
    window: Window,
    folder: ReportFolder,
    sent: str | None = None,
    deliveries: str | None = None,
) -> Verdict:
    """Read the cluster, compare it with the records, and write the findings; arguments as of the command.

    Raises:
        InputError: a topic or a record is not there, or a record is not as it must be.
        JobError: the cluster does not answer as a whole.
    """
    from pyspark.sql import functions as sql

    from popwheel_spark.jobs import audit_states

    # First, as the rest takes long.
    acknowledged = None if sent is None else record(spark, SENDS, sent)
    if acknowledged is not None and sent is not None:
        check_not_empty(acknowledged, SENDS, sent)
    noted = None if deliveries is None else record(spark, DELIVERIES, deliveries).where(sql.col("group") == group)
    missing = set(topics) - set(cluster.existing(topics))
    if missing:
        raise InputError(f"there is no topic {sorted(missing)[0]}")
    snapshot = AuditSnapshot(AdminApi(cluster.connection), group)
    there = None
    if sent is not None:
        # Before the topics are read: what waited then, and waits no more, is in its topic.
        waiting = folder.put_table("waiting", cluster.timers(spark, topics).select("messageId"))
        there = waiting.unionByName(cluster.messages(spark, topics, Window(), columns="messageId").select("messageId"))
    click.echo("reading progress")
    progress = spark.createDataFrame(snapshot.progress(topics), audit_states.PROGRESS)
    click.echo("reading messages in flight")
    in_flight = spark.createDataFrame(snapshot.in_flight(topics), audit_states.PLACES)
    click.echo("reading retries, dead letters and messages")
    read = {"columns": ",".join(_COLUMNS)}
    since = Window(window.start_ms)
    retry_topics = [names.retry_topic(group, topic) for topic in topics]
    retries = folder.put_table("retries", cluster.messages(spark, retry_topics, since, **read).select(*_COLUMNS))
    dead_topic = [names.dead_letter_topic(group)]
    dead = folder.put_table("dead_letters", cluster.messages(spark, dead_topic, since, **read).select(*_COLUMNS))
    poison_messages = spark.createDataFrame(snapshot.poison_messages(), audit_states.PLACES)
    messages = cluster.messages(spark, topics, window, **read).select(*_COLUMNS)
    found = folder.put_table(
        "states", audit_states.states(messages, group, progress, in_flight, retries, dead, poison_messages)
    )
    findings = folder.put_table("findings", audit_states.findings(found, acknowledged, there, noted))
    wrong = findings.where(sql.col("kind").isin(*_LOST)).limit(_SHOWN_MAX).collect()
    return Verdict(
        _counts(found, "state"),
        _counts(findings, "kind"),
        [(row["kind"], row["messageId"]) for row in wrong],
        sent is not None,
        deliveries is not None,
    )


def show(verdict: Verdict, path: str) -> None:
    """Print the summary."""
    from popwheel_spark.jobs import audit_states

    for state in audit_states.STATES:
        click.echo(f"{state:20} {verdict.states.get(state, 0):,}")
    for kind, message_id in verdict.ids:
        click.echo(f"{kind}: {message_id}")
    click.echo(f"tables: {path}")
    click.echo(verdict.sentence())


@click.command(
    epilog="Example: popwheel-spark audit --topics Orders --group billing --sent sent.jsonl --to audit",
)
@click.option("--topics", required=True, metavar="NAME,..", help="Which topics it reads.")
@click.option("--group", required=True, metavar="NAME", help="Which consumer group.")
@click.option(
    "--sent", metavar="PATH", help="The senders' own record, messageId: JSON lines (.json, .jsonl) or Parquet."
)
@click.option("--deliveries", metavar="PATH", help="The consumers' own record: JSON lines (.json, .jsonl) or Parquet.")
@click.option("--to", "path", required=True, metavar="FOLDER", help="Where the tables go; what is there is replaced.")
@window_flags
@cluster_flags
def audit(
    cluster: Cluster,
    topics: str,
    group: str,
    sent: str | None,
    deliveries: str | None,
    window: Window,
    path: str,
) -> int:
    """Prove that a group has lost no message, or name those that it has.

    Messages that were never stored are found by the senders' record only, and acknowledged ones that no consumer got by
    the consumers' record only. The exit code is 1 if messages are lost, or missing in a record.
    """
    spark = job_session("audit")
    folder = ReportFolder(spark, path)
    verdict = audit_group(spark, cluster, words(topics), group, window, folder, sent, deliveries)
    show(verdict, folder.path)
    return Exit.LOST if verdict.lost else Exit.DONE


def _counts(table: DataFrame, column: str) -> dict[str, int]:
    return {row[column]: row["count"] for row in table.groupBy(column).count().collect()}


if __name__ == "__main__":
    run(audit)
