"""Start a cluster, send, archive to Parquet by a stream of Spark, report and audit (run by `make pipeline`).

The exit code is 0 only if the archive holds each message once, and none is lost.
"""

import asyncio
import json
import shutil
import urllib.request
from pathlib import Path

import click
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from demo.traffic import ATTEMPTS_MAX, GROUP, ORDERS, REMINDERS, Traffic
from popwheel_spark.jobs import archive
from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.jobs.audit import audit_group, show
from popwheel_spark.jobs.cluster import Cluster, Window
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.compaction import compact
from popwheel_spark.jobs.delivery_report import report_on
from popwheel_spark.jobs.outcome import JobError
from popwheel_spark.jobs.report_folder import ReportFolder
from popwheel_spark.session import spark_session
from tests.harness.cluster import ClusterCommand

_EVERY_MS = 2_000
_FILE_BYTES = 128 * 2**20
_SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "4"}


@click.command()
@click.option("--messages", type=click.IntRange(min=1), default=20_000, show_default=True, help="Orders that are sent.")
@click.option(
    "--reminders", type=click.IntRange(min=1), default=500, show_default=True, help="Delayed messages, besides."
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("build/pipeline"),
    show_default=True,
    help="For everything; what is there is deleted.",
)
def pipeline(messages: int, reminders: int, folder: Path) -> None:
    """See messages go through a cluster into Parquet, and a report on them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    spark = spark_session("popwheel pipeline", _SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with ClusterCommand(folder.resolve(), "--groups", "2", "--proxies", "2") as servers:
            report(spark, servers, messages, reminders, folder.resolve())
    finally:
        spark.stop()


def report(spark: SparkSession, servers: ClusterCommand, orders: int, reminders: int, folder: Path) -> None:
    """Do all that is to be seen, with a cluster that runs.

    Raises:
        JobError: the archive is not what was sent, or something is lost.
    """
    make("topics", servers, {"name": ORDERS, "type": "NORMAL", "queues": 4})
    make("topics", servers, {"name": REMINDERS, "type": "DELAY", "queues": 4})
    make("groups", servers, {"name": GROUP, "max_attempts": ATTEMPTS_MAX, "fifo": False})
    proxies = [words[0] for name, words in servers.rows().items() if name.startswith("proxy")]
    click.echo(f"a cluster runs: 2 brokers, proxies at {' and '.join(proxies)}")
    cluster = Cluster({"endpoints": ",".join(proxies), "admin": servers.url})
    archived = ArchiveFolder(spark, str(folder / "archive"))
    stream = cluster.stream(spark, topics=f"{ORDERS},{REMINDERS}", startingOffsets="earliest")
    query = archive.start(stream, archived, _EVERY_MS)
    click.echo(f"a stream archives to {archived.incoming}; {orders:,} orders and {reminders:,} reminders are sent")
    traffic = Traffic(proxies, orders, reminders)
    try:
        asyncio.run(traffic.run())
        query.processAllAvailable()
    finally:
        query.stop()
    for progress in query.recentProgress:
        if progress["numInputRows"]:
            click.echo(f"micro-batch {progress['batchId']}: {progress['numInputRows']:,} messages")
    record = folder / "deliveries.jsonl"
    traffic.write(record)
    replaced, made = compact(archived, _FILE_BYTES)
    click.echo(f"compaction: {replaced:,} files became {made:,}; now {archived.describe()}")
    check(archived, traffic.sent)
    reports = ReportFolder(spark, str(folder / "report"))
    topics = [ORDERS, REMINDERS]
    found = report_on(spark, cluster, topics, [GROUP], Window(), reports, archived.path, str(record))
    found.show()
    sent = folder / "sent.jsonl"
    sent.write_text("".join(f"{json.dumps({'messageId': message_id})}\n" for message_id in traffic.sent))
    audits = ReportFolder(spark, str(folder / "audit"))
    verdict = audit_group(spark, cluster, topics, GROUP, Window(), audits, str(sent), str(record))
    show(verdict, audits.path)
    if verdict.lost:
        raise JobError("the audit has found messages that are lost")


def make(kind: str, servers: ClusterCommand, wanted: dict[str, object]) -> None:
    """Make a topic or a group as an operator would."""
    body, headers = json.dumps(wanted).encode(), {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{servers.url}/api/v1/{kind}", body, headers)):
        pass


def check(archived: ArchiveFolder, sent: set[str]) -> None:
    """See that the archive holds what was sent.

    Raises:
        JobError: it does not.
    """
    counted = archived.table().groupBy("messageId").agg(sql.count("*").alias("times")).collect()
    times = {row["messageId"]: row["times"] for row in counted}
    missing, twice = sent - times.keys(), [message_id for message_id, count in times.items() if count > 1]
    if missing or twice or len(times) != len(sent):
        raise JobError(f"sent {len(sent)}, archived {len(times)}; missing {len(missing)}, twice {len(twice)}")
    click.echo(f"the archive holds each of the {len(sent):,} messages once")


if __name__ == "__main__":
    run(pipeline)
