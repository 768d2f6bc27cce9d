"""The job `replay`: sends messages of an archive or a topic to a topic again (docs/use/spark-jobs.md)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.jobs.cluster import Cluster, Window, sending_cluster_flags, window_flags
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.job_session import job_session
from popwheel_spark.jobs.outcome import InputError
from popwheel_spark.jobs.time_flags import Span

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

T = TypeVar("T")

_COLUMNS = (
    *("messageId", "tag", "keys", "messageGroup", "body", "properties", "bornTimestamp", "deliveryTimestamp"),
    *("priority", "brokerName", "queueId", "queueOffset", "storeTimestamp"),
)
_AHEAD_S_MAX = 0.1
_SCALE = re.compile(r"[0-9]+(\.[0-9]+)?")
SENT = ("tag", "keys", "messageGroup", "body", "properties", "deliveryTimestamp", "priority")
"""Columns of the sent rows."""


@dataclass(frozen=True)
class Delays:
    """Delays: the treatment of delivery times.

    Args:
        kind: `none`: there are none, all is delivered at once. `shift`: they are later by `shift_ms`. `scale`: the
            time from birth to delivery is multiplied by `factor`, and begins anew with the replay.
        shift_ms: see `kind`.
        factor: see `kind`.
    """

    kind: str
    shift_ms: int = 0
    factor: float = 1.0

    def delivery(self, start_ms: int) -> Column:
        """Return the new delivery time of a message; null for an immediate one.

        Args:
            start_ms: when the replay begins, in milliseconds since 1970.
        """
        from pyspark.sql import functions as sql

        due_ms, born_ms = sql.unix_millis("deliveryTimestamp"), sql.unix_millis("bornTimestamp")
        match self.kind:
            case "shift":
                moved = due_ms + self.shift_ms
            case "scale":
                moved = sql.lit(start_ms) + sql.round((due_ms - born_ms) * self.factor).cast("bigint")
            case _:
                moved = sql.lit(None).cast("bigint")
        return sql.timestamp_millis(moved)


class DelaysFlag(click.ParamType[Delays]):
    """`none`, `shift:SPAN` or `scale:FACTOR`."""

    name = "delays"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Delays:
        if isinstance(value, Delays):
            return value
        kind, _, text = value.partition(":")
        if value == "none":
            return Delays("none")
        if kind == "shift":
            return Delays("shift", shift_ms=Span().convert(text, param, ctx))
        if kind != "scale" or not _SCALE.fullmatch(text):
            self.fail(f"{value!r} is none of none, shift:SPAN as shift:1d, scale:FACTOR as scale:0.5", param, ctx)
        return Delays("scale", factor=float(text))


def replayed(messages: DataFrame, name: str, delays: Delays, start_ms: int) -> DataFrame:
    """Return the messages to be sent: `SENT` (pure).

    Each has one more key, `replay/NAME/ID` with its original message id. A message that a task sends twice has the same
    key twice, so that consumers can drop repeats.

    Args:
        messages: that were.
        name: of the replay.
        delays: treatment of delivery times.
        start_ms: when it begins, in milliseconds since 1970.
    """
    from pyspark.sql import functions as sql

    key = sql.concat(sql.lit(f"replay/{name}/"), "messageId")
    keys = sql.concat(sql.coalesce("keys", sql.array().cast("array<string>")), sql.array(key))
    changed = messages.withColumn("keys", keys).withColumn("deliveryTimestamp", delays.delivery(start_ms))
    return changed.select(*SENT)


def paced(rows: Iterator[T], rate: float, clock: Callable[[], float], wait: Callable[[float], None]) -> Iterator[T]:
    """Yield rows at a limited rate, at most a tenth of a second ahead of it (pure).

    Args:
        rows: that come.
        rate: rows a second.
        clock: seconds.
        wait: waits for a number of seconds.
    """
    began_at = clock()
    for number, row in enumerate(rows):
        ahead_s = number / rate - (clock() - began_at)
        if ahead_s > _AHEAD_S_MAX:
            wait(ahead_s)
        yield row


def limited(spark: SparkSession, rows: DataFrame, rate: float, tasks: int) -> DataFrame:
    """Return rows in tasks that together do not exceed a rate.

    Args:
        spark: makes rows of them again.
        rows: to be sent.
        rate: rows a second, of all tasks.
        tasks: how many there are. If fewer run at once, the rate is lower.
    """
    share = rate / tasks

    def slowed(part: Iterable[Row]) -> Iterator[Row]:
        return paced(iter(part), share, time.monotonic, time.sleep)

    # Not by mapInArrow, which needs pandas: a limited rate needs no fast path.
    return spark.createDataFrame(rows.coalesce(tasks).rdd.mapPartitions(slowed), rows.schema)


@click.command(
    epilog="Example: popwheel-spark replay --topic Orders --from 2026-01-31T00:00:00Z --into OrdersAgain "
    "--name january --rate 500 --delays shift:1d"
)
@click.option("--topic", required=True, metavar="NAME", help="Whose messages.")
@click.option(
    "--archive",
    metavar="FOLDER",
    show_default="the cluster",
    help="Archive to read from, as the job archive writes it.",
)
@click.option("--into", required=True, metavar="NAME", help="Topic to send to.")
@click.option(
    "--name",
    required=True,
    metavar="NAME",
    help="Name of this replay. The same messages get the same keys under the same name.",
)
@click.option(
    "--delays",
    type=DelaysFlag(),
    default="none",
    show_default=True,
    metavar="none|shift:SPAN|scale:FACTOR",
    help="Deliver all at once; at its old time and SPAN (90s, 10m, 2h, 1d) later; or after FACTOR of its old delay.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    show_default="no limit",
    help="Limit of messages per second.",
)
@window_flags
@sending_cluster_flags
def replay(
    cluster: Cluster,
    topic: str,
    archive: str | None,
    window: Window,
    into: str,
    name: str,
    delays: Delays,
    rate: float | None,
) -> None:
    """Send messages of an archive or of a topic once more.

    Each has the key replay/NAME/ID, so that consumers can drop messages that a failed task sent twice.
    """
    spark = job_session("replay")
    began_at = time.time()
    # Always with an end: what is sent may go to the topic that is read.
    window = Window(window.start_ms, int(began_at * 1000) if window.end_ms is None else window.end_ms)
    if archive is None:
        messages = cluster.messages(spark, [topic], window, columns=",".join(_COLUMNS))
    else:
        messages = ArchiveFolder(spark, archive).messages([topic], window).select(*_COLUMNS)
    from pyspark.sql import functions as sql

    count, in_groups = messages.agg(sql.count("*"), sql.count("messageGroup")).collect()[0]
    if not count:
        raise InputError(f"there are no messages of {topic} in this window")
    click.echo(f"sending {count:,} messages of {topic} to {into}")
    if in_groups:
        from popwheel_spark.group_order import in_group_order

        messages = in_group_order(messages)
    rows = replayed(messages, name, delays, int(began_at * 1000))
    if rate is not None:
        rows = limited(spark, rows, rate, spark.sparkContext.defaultParallelism)
    cluster.send(rows, into)
    seconds = time.time() - began_at
    click.echo(f"sent {count:,} messages in {seconds:.1f} s, with keys replay/{name}/ID")


if __name__ == "__main__":
    run(replay)
