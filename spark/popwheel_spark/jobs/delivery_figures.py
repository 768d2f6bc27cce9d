"""Figures of a delivery report, from tables of messages (pure: DataFrame -> DataFrame).

`messages` have at least `topic, brokerName, queueId, queueOffset, messageId, bornTimestamp, storeTimestamp,
deliveryTimestamp`; `retries` and `dead_letters` have `group, messageId`; `deliveries` have the columns of
`records.DELIVERIES`. Times that have passed are in milliseconds.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_ACCURACY = 10_000
_STEPS_S = (1, 10, 60, 600, 3_600, 86_400)
_STEPS_MAX = 400


def awaited(messages: DataFrame) -> DataFrame:
    """Return messages, each once, with their due times, and how long their storage took.

    Adds `dueTimestamp` (its delivery time, else its birth), `delayed` (whether it had a delivery time) and `storedMs`
    (from then until it was stored in its topic).
    """
    due = sql.coalesce("deliveryTimestamp", "bornTimestamp")
    first = Window.partitionBy("topic", "messageId").orderBy("storeTimestamp", "brokerName", "queueId", "queueOffset")
    once = messages.withColumn("copy", sql.row_number().over(first)).where("copy = 1").drop("copy")
    return (
        once.withColumn("dueTimestamp", due)
        .withColumn("delayed", sql.col("deliveryTimestamp").isNotNull())
        .withColumn("storedMs", _ms_between(due, sql.col("storeTimestamp")))
    )


def topic_figures(messages: DataFrame) -> DataFrame:
    """Return a row for each topic: numbers of messages, and delays."""
    copies = messages.groupBy("topic").agg(
        (sql.count("*") - sql.countDistinct("messageId")).alias("storedTwice"),
        sql.min("storeTimestamp").alias("firstStored"),
        sql.max("storeTimestamp").alias("lastStored"),
    )
    offsets = messages.groupBy("topic", "brokerName", "queueId").agg(
        (sql.max("queueOffset") - sql.min("queueOffset") + 1 - sql.countDistinct("queueOffset")).alias("missing")
    )
    gaps = offsets.groupBy("topic").agg(sql.sum("missing").alias("offsetGaps"))
    figures = (
        awaited(messages)
        .groupBy("topic")
        .agg(
            sql.count("*").alias("messages"),
            sql.count_if("delayed").alias("timers"),
            *_spread("stored", sql.when(~sql.col("delayed"), sql.col("storedMs"))),
            *_spread("late", sql.when(sql.col("delayed"), sql.col("storedMs"))),
        )
    )
    return figures.join(copies, "topic").join(gaps, "topic").orderBy("topic")


def group_figures(messages: DataFrame, deliveries: DataFrame, retries: DataFrame, dead_letters: DataFrame) -> DataFrame:
    """Return a row for each topic and group with data.

    Of a group without a record of deliveries the columns that come from it are null.
    """
    once = awaited(messages).select("topic", "messageId", "dueTimestamp")
    given = once.join(deliveries, "messageId")
    first = given.groupBy("topic", "group", "messageId").agg(
        _ms_between(sql.first("dueTimestamp"), sql.min("deliveredTimestamp")).alias("endToEndMs"),
        sql.max(sql.col("ackedTimestamp").isNotNull()).alias("acked"),
    )
    received = first.groupBy("topic", "group").agg(
        sql.count("*").alias("delivered"),
        sql.count_if("acked").alias("acked"),
        *_spread("endToEnd", sql.col("endToEndMs")),
    )
    findings_of = findings(messages, deliveries, dead_letters)
    counts = findings_of.where(sql.col("group").isNotNull()).groupBy("topic", "group")
    found = counts.agg(
        sql.count_if(sql.col("kind") == "gap").alias("gaps"), sql.count_if(sql.col("kind") == "repeat").alias("repeats")
    )
    again = once.join(retries, "messageId").groupBy("topic", "group")
    retried = again.agg(sql.count("*").alias("retries"), sql.countDistinct("messageId").alias("retried"))
    dead = (
        once.join(dead_letters.distinct(), "messageId")
        .groupBy("topic", "group")
        .agg(sql.count("*").alias("deadLetters"))
    )
    sent = once.groupBy("topic").agg(sql.count("*").alias("messages"))
    parts = (received, found, retried, dead)
    both = reduce(lambda one, other: one.join(other, ["topic", "group"], "full"), parts)
    known = sql.col("delivered").isNotNull()
    return (
        both.join(sent, "topic")
        .withColumn("gaps", sql.when(known, sql.coalesce("gaps", sql.lit(0))))
        .withColumn("repeats", sql.when(known, sql.coalesce("repeats", sql.lit(0))))
        .fillna(0, ["retries", "retried", "deadLetters"])
        .orderBy("topic", "group")
    )


def findings(messages: DataFrame, deliveries: DataFrame, dead_letters: DataFrame) -> DataFrame:
    """Return suspicious messages, by message id: columns `topic, group, kind, messageId, times`.

    | kind | group | meaning |
    | --- | --- | --- |
    | stored-twice | null | the topic holds it `times` times: its sender has sent it again |
    | gap | of the record | its record has no delivery of it, and it is no dead letter |
    | repeat | of the record | delivered again though it was acknowledged, or twice as the same attempt |
    | dead-letter | the group | the group has given it up |
    """
    ids = messages.select("topic", "messageId").distinct()
    copies = messages.groupBy("topic", "messageId").agg(sql.count("*").alias("times")).where("times > 1")
    twice = copies.select("topic", _no_group(), sql.lit("stored-twice").alias("kind"), "messageId", "times")
    given = ids.join(deliveries, "messageId")
    dead = ids.join(dead_letters.distinct(), "messageId")
    wanted = given.select("topic", "group").distinct().join(ids, "topic")
    have = given.select("topic", "group", "messageId").unionByName(dead.select("topic", "group", "messageId"))
    gaps = wanted.join(have, ["topic", "group", "messageId"], "left_anti")
    acked = sql.min("ackedTimestamp").over(Window.partitionBy("topic", "group", "messageId"))
    order = Window.partitionBy("topic", "group", "messageId", "attempt").orderBy("deliveredTimestamp")
    needless = (sql.col("deliveredTimestamp") > sql.col("firstAcked")) | (sql.col("number") > 1)
    repeats = (
        given.withColumn("firstAcked", acked)
        .withColumn("number", sql.row_number().over(order))
        .where(needless)
        .groupBy("topic", "group", "messageId")
        .agg((sql.count("*") + 1).alias("times"))
    )
    kinds = (
        twice,
        gaps.select(
            "topic", "group", sql.lit("gap").alias("kind"), "messageId", sql.lit(0).cast("bigint").alias("times")
        ),
        repeats.select("topic", "group", sql.lit("repeat").alias("kind"), "messageId", "times"),
        dead.select(
            "topic",
            "group",
            sql.lit("dead-letter").alias("kind"),
            "messageId",
            sql.lit(1).cast("bigint").alias("times"),
        ),
    )
    return reduce(DataFrame.unionByName, kinds)


def course(messages: DataFrame, deliveries: DataFrame, step_s: int) -> DataFrame:
    """Return figures over time: columns `topic, group, time, count, p50Ms, p99Ms`, a row for each step with messages.

    Rows without a group count what was stored in the topic, and how late after its time. The others count what the
    group was given, and how late: from its time until its first delivery.

    Args:
        messages: of topics.
        deliveries: of groups.
        step_s: seconds of a step.
    """
    once = awaited(messages)
    stored = once.select("topic", _no_group(), sql.col("storeTimestamp").alias("at"), sql.col("storedMs").alias("ms"))
    first = deliveries.groupBy("group", "messageId").agg(sql.min("deliveredTimestamp").alias("at"))
    given = once.join(first, "messageId").select(
        "topic", "group", "at", _ms_between(sql.col("dueTimestamp"), sql.col("at")).alias("ms")
    )
    time = sql.timestamp_seconds(sql.floor(sql.unix_seconds("at") / step_s) * step_s).alias("time")
    both = stored.unionByName(given).groupBy("topic", "group", time)
    middle, high = (sql.percentile_approx("ms", PERCENTILES[name], _ACCURACY) for name in ("p50", "p99"))
    counted = both.agg(sql.count("*").alias("count"), middle.alias("p50Ms"), high.alias("p99Ms"))
    return counted.orderBy("topic", "group", "time")


def step_s(span_s: float) -> int:
    """Return the seconds of a step, so that a chart can show all steps of a span of time.

    Args:
        span_s: from the first message to the last.
    """
    return next((step for step in _STEPS_S if span_s / step <= _STEPS_MAX), _STEPS_S[-1])


def _no_group() -> Column:
    return sql.lit(None).cast("string").alias("group")


def _ms_between(begin: Column, end: Column) -> Column:
    return (sql.unix_micros(end) - sql.unix_micros(begin)) / 1000


def _spread(name: str, ms: Column) -> list[Column]:
    """Return percentiles and the maximum of times: `NAMEP50Ms` .. `NAMEMaxMs`."""
    found = [
        sql.percentile_approx(ms, share, _ACCURACY).alias(f"{name}{label.upper()}Ms")
        for label, share in PERCENTILES.items()
    ]
    return [*found, sql.max(ms).alias(f"{name}MaxMs")]
