"""What falls due when, from a table of timers (pure: DataFrame -> DataFrame)."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sql

_MINUTE_S = 60


def by_minute(timers: DataFrame, start_s: int, minutes: int) -> DataFrame:
    """What falls due in each minute of each topic: columns `topic, minute, count`.

    What was due before is counted in a row whose `minute` is null; what is due later is left out.

    Args:
        timers: by `topic, messageId, deliveryTimestamp`. One that is listed twice counts once.
        start_s: when the first minute begins, in seconds since 1970.
        minutes: how many.
    """
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
    """What falls due in each minute in all: columns `minute, count, peak, largestTopic`.

    A minute is a peak if it has more than a multiple of what an average minute has, empty ones among them, and is not
    small.

    Args:
        forecast: as of `by_minute`.
        minutes: how many it is of.
        peak_factor: the multiple.
        peak_least: no minute with fewer is a peak.
    """
    due = forecast.where(sql.col("minute").isNotNull())
    summed = due.groupBy("minute").agg(
        sql.sum("count").alias("count"), sql.max_by("topic", "count").alias("largestTopic")
    )
    mean = sql.sum("count").over(Window.partitionBy(sql.lit(0))) / minutes
    peak = (sql.col("count") > mean * peak_factor) & (sql.col("count") >= peak_least)
    return summed.select("minute", "count", peak.alias("peak"), "largestTopic").orderBy("minute")
