"""Figures of dead letters, from tables of a cluster's messages (pure: DataFrame -> DataFrame).

A dead letter has the topic where its group failed on it, and its sender's properties. It does not say how often it was
delivered, and consumers do not report to brokers why they fail. So attempts are those of its latest retry, while that
is stored; an unknown figure is null, or `unknown`.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

LETTERS: Final = (
    "group STRING, originTopic STRING, brokerName STRING, queueOffset BIGINT, messageId STRING, tag STRING, "
    "keys ARRAY<STRING>, messageGroup STRING, bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP"
)
"""Dead letters of groups."""
RETRIES: Final = (
    "group STRING, originTopic STRING, brokerName STRING, messageId STRING, attempts INT, storeTimestamp TIMESTAMP"
)
"""Retries of groups, whether they became dead letters or not."""
GROUPS: Final = "group STRING, attemptsMax INT"
"""Columns of groups with their current limits of attempts."""
PROGRESS: Final = "group STRING, brokerName STRING, nextOffset BIGINT"
"""Columns of the offsets up to which dead letters were redriven, purged or received."""

LIMIT, BEFORE_LIMIT, UNKNOWN = "limit", "before limit", "unknown"
"""Causes."""

_LETTER = ["group", "originTopic", "brokerName", "queueOffset"]


def known(letters: DataFrame, retries: DataFrame, groups: DataFrame, progress: DataFrame) -> DataFrame:
    """Return dead letters with the columns `attempts`, `cause` and `open`.

    | `cause` | meaning |
    | --- | --- |
    | limit | it was tried as often as the group may |
    | before limit | it was not: its consumer gave it up, or the group's limit was lower then |
    | unknown | no retry of it is left: the first attempt ended it, the group retries in order, or retention was there |

    Args:
        letters: `LETTERS`.
        retries: `RETRIES`.
        groups: `GROUPS`.
        progress: `PROGRESS`; a broker without a row has had nothing done about its letters.
    """
    before = retries.select(
        *(sql.col(name).alias(f"retry_{name}") for name in ("group", "originTopic", "brokerName", "messageId")),
        sql.coalesce("attempts", sql.lit(0)).alias("before"),  # none, if it was redriven
        sql.col("storeTimestamp").alias("retriedTimestamp"),
    )
    same = [sql.col(name) == sql.col(f"retry_{name}") for name in ("group", "originTopic", "brokerName", "messageId")]
    tried = letters.join(before, [*same, sql.col("retriedTimestamp") <= sql.col("storeTimestamp")], "left")
    latest = Window.partitionBy(*_LETTER).orderBy(sql.desc_nulls_last("retriedTimestamp"), sql.desc("before"))
    once = tried.withColumn("number", sql.row_number().over(latest)).where("number = 1")
    attempts = (sql.col("before") + 1).cast("int")
    cause = (
        sql.when(sql.col("attempts").isNull() | sql.col("attemptsMax").isNull(), UNKNOWN)
        .when(sql.col("attempts") >= sql.col("attemptsMax"), LIMIT)
        .otherwise(BEFORE_LIMIT)
    )
    return (
        once.join(groups, "group", "left")
        .join(progress, ["group", "brokerName"], "left")
        .withColumn("attempts", attempts)
        .withColumn("cause", cause)
        .withColumn("open", sql.col("queueOffset") >= sql.coalesce("nextOffset", sql.lit(0)))
        .select(*letters.columns, "attempts", "cause", "open")
    )


def causes(letters: DataFrame) -> DataFrame:
    """Return a row for each group, topic, cause and number of attempts, the most frequent of a group first.

    Args:
        letters: as `known` returns them.
    """
    return (
        letters.groupBy("group", "originTopic", "cause", "attempts")
        .agg(
            *_counts(),
            sql.min("storeTimestamp").alias("firstDead"),
            sql.max("storeTimestamp").alias("lastDead"),
        )
        .orderBy("group", sql.desc("letters"), "originTopic", "cause", "attempts")
    )


def ages(letters: DataFrame, now: Column, bounds: Mapping[str, int], older: str) -> DataFrame:
    """Return the ages of dead letters: a row for each group, topic and column of the histogram with letters.

    Args:
        letters: as `known` returns them.
        now: the time until which they are counted.
        bounds: the columns, and how many seconds their letters are old at the most.
        older: the column of all others.
    """
    age_s = (sql.unix_micros(now) - sql.unix_micros("storeTimestamp")) / 1_000_000
    number, name = sql.lit(len(bounds)), sql.lit(older)
    for place, (words, seconds) in reversed(list(enumerate(bounds.items()))):
        number = sql.when(age_s <= seconds, place).otherwise(number)
        name = sql.when(age_s <= seconds, words).otherwise(name)
    found = letters.withColumn("number", number).withColumn("age", name)
    counted = found.groupBy("group", "originTopic", "number", "age").agg(*_counts())
    return counted.orderBy("group", "originTopic", "number").drop("number")


def tops(letters: DataFrame, most: int) -> DataFrame:
    """Return the message groups, keys and tags with most letters: columns `group, kind, value, letters, open`.

    Args:
        letters: as `known` returns them.
        most: limit for each group and kind.
    """
    values = sql.array_distinct(sql.coalesce("keys", sql.array().cast("array<string>")))
    kinds = sql.concat(
        sql.array(*(sql.struct(sql.lit(kind).alias("kind"), sql.col(name).alias("value")) for kind, name in _SINGLE)),
        sql.transform(values, lambda key: sql.struct(sql.lit("key").alias("kind"), key.alias("value"))),
    )
    each = letters.select("group", "open", sql.explode(kinds).alias("found")).select("group", "open", "found.*")
    counted = each.where(sql.col("value").isNotNull()).groupBy("group", "kind", "value").agg(*_counts())
    place = Window.partitionBy("group", "kind").orderBy(sql.desc("letters"), "value")
    first = counted.withColumn("place", sql.row_number().over(place)).where(sql.col("place") <= most)
    return first.orderBy("group", "kind", "place").drop("place")


_SINGLE = (("message group", "messageGroup"), ("tag", "tag"))


def _counts() -> tuple[Column, Column]:
    return sql.count("*").alias("letters"), sql.count_if("open").alias("open")
