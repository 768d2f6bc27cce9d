"""What a replay sends, from what was (pure: DataFrame -> DataFrame)."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from popwheel_spark.jobs.time_flags import Span

T = TypeVar("T")

_AHEAD_S_MAX = 0.1
_SCALE = re.compile(r"[0-9]+(\.[0-9]+)?")
SENT = ("tag", "keys", "messageGroup", "body", "properties", "deliveryTimestamp")
"""The columns of what is sent."""


@dataclass(frozen=True)
class Delays:
    """What becomes of delivery times.

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
        """The new delivery time of a message; null if it is to be delivered at once.

        Args:
            start_ms: when the replay begins, in milliseconds since 1970.
        """
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
    """The messages to be sent: `SENT`.

    Each has one more key, `replay/NAME/ID` with the message id that it had. What a task sends twice has the same key
    twice, so that whoever reads can drop repeats.

    Args:
        messages: that were.
        name: of the replay.
        delays: what becomes of delivery times.
        start_ms: when it begins, in milliseconds since 1970.
    """
    key = sql.concat(sql.lit(f"replay/{name}/"), "messageId")
    keys = sql.concat(sql.coalesce("keys", sql.array().cast("array<string>")), sql.array(key))
    changed = messages.withColumn("keys", keys).withColumn("deliveryTimestamp", delays.delivery(start_ms))
    return changed.select(*SENT)


def paced(rows: Iterator[T], rate: float, clock: Callable[[], float], wait: Callable[[float], None]) -> Iterator[T]:
    """Rows, not ahead of a rate by more than a tenth of a second.

    Args:
        rows: that come.
        rate: rows a second.
        clock: seconds.
        wait: waits for so many seconds.
    """
    began_at = clock()
    for number, row in enumerate(rows):
        ahead_s = number / rate - (clock() - began_at)
        if ahead_s > _AHEAD_S_MAX:
            wait(ahead_s)
        yield row
