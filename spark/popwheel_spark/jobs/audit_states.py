"""States of messages for a group, from a cluster's answers on both (pure: DataFrame -> DataFrame).

The rule, and the order in which the cluster must be asked, are those of docs/operate/messages.md.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from popwheel_common.contract.names import RETRY_PREFIX

STATES = ("acknowledged", "dead letter", "poison message", "in flight", "waits for its retry", "unread")
"""States of a message; the first two are final."""
FINAL = STATES[:2]

PROGRESS = "topic STRING, brokerName STRING, queueId INT, nextOffset BIGINT"
PLACES = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT"
"""Columns of messages in flight and of poison messages."""
_PLACE = ["topic", "brokerName", "queueId", "queueOffset"]


def states(
    messages: DataFrame,
    group: str,
    progress: DataFrame,
    in_flight: DataFrame,
    retries: DataFrame,
    dead_letters: DataFrame,
    poison_messages: DataFrame,
) -> DataFrame:
    """The state of each message for a group: columns `topic, brokerName, queueId, queueOffset, messageId, state`.

    Args:
        messages: of topics, by `topic, brokerName, queueId, queueOffset, messageId`.
        group: whose state it is.
        progress: of the group, also in its retry topics: `PROGRESS`.
        in_flight: messages in flight: `PLACES`.
        retries: of the group, as `messages`; `topic` is the retry topic.
        dead_letters: of the group: `brokerName, messageId`.
        poison_messages: `PLACES`.
    """
    asked = messages.select(*_PLACE, "messageId")
    latest = Window.partitionBy("topic", "brokerName", "messageId").orderBy(sql.desc("queueOffset"))
    last_retry = retries.withColumn("age", sql.row_number().over(latest)).where("age = 1")
    retried = last_retry.select(
        sql.col("topic").alias("retryTopic"),
        "brokerName",
        sql.col("queueId").alias("retryQueueId"),
        sql.col("queueOffset").alias("retryOffset"),
        "messageId",
    )
    known = asked.withColumn("retryTopic", sql.concat(sql.lit(f"{RETRY_PREFIX}{group}+"), "topic")).join(
        retried, ["retryTopic", "brokerName", "messageId"], "left"
    )
    known = _marked(known, dead_letters.select("brokerName", "messageId"), ["brokerName", "messageId"], "dead")
    for name, places in (("poison", poison_messages), ("inFlight", in_flight)):
        known = _marked(known, places.select(*_PLACE), _PLACE, name)
        of_retry = places.select(
            sql.col("topic").alias("retryTopic"),
            "brokerName",
            sql.col("queueId").alias("retryQueueId"),
            sql.col("queueOffset").alias("retryOffset"),
        )
        known = _marked(known, of_retry, ["retryTopic", "brokerName", "retryQueueId", "retryOffset"], f"{name}Retry")
    known = known.join(
        progress.select("topic", "brokerName", "queueId", sql.col("nextOffset").alias("next")),
        ["topic", "brokerName", "queueId"],
        "left",
    )
    known = known.join(
        progress.select(
            sql.col("topic").alias("retryTopic"),
            "brokerName",
            sql.col("queueId").alias("retryQueueId"),
            sql.col("nextOffset").alias("retryNext"),
        ),
        ["retryTopic", "brokerName", "retryQueueId"],
        "left",
    )
    return known.select(*_PLACE, "messageId", _state().alias("state"))


def _state() -> Column:
    """Return the state: the first rule that matches."""
    next_offset, retry_next = (sql.coalesce(column, sql.lit(0)) for column in ("next", "retryNext"))
    has_retry = sql.col("retryOffset").isNotNull()
    return (
        sql.when(sql.col("dead"), "dead letter")
        .when(sql.col("poison") | sql.col("poisonRetry"), "poison message")
        .when(sql.col("inFlight") | sql.col("inFlightRetry"), "in flight")
        .when(has_retry & (sql.col("retryOffset") >= retry_next), "waits for its retry")
        .when(has_retry | (sql.col("queueOffset") < next_offset), "acknowledged")
        .otherwise("unread")
    )


def _marked(table: DataFrame, others: DataFrame, columns: list[str], name: str) -> DataFrame:
    """Return a table with one more column: whether a row is among the others."""
    marks = others.distinct().withColumn(name, sql.lit(True))
    return table.join(marks, columns, "left").fillna(False, [name])


def findings(
    found: DataFrame, sent: DataFrame | None, there: DataFrame | None, deliveries: DataFrame | None
) -> DataFrame:
    """Return contradictions and unfinished messages: columns `kind, topic, messageId, state`.

    | kind | meaning |
    | --- | --- |
    | lost | the sender's record has it; no topic has it, and it is not a delayed message that waits |
    | unrecorded | acknowledged, or dead, for the broker; the consumers' record has no delivery of it |
    | unkept | acknowledged in the consumers' record; not acknowledged for the broker |
    | open | not acknowledged and no dead letter when the cluster was asked |

    Args:
        found: as of `states`.
        sent: the sender's record: `messageId` of what was answered with success; None if there is none.
        there: `messageId` of all messages of the topics, in the window or not, and of delayed messages that are not
            due yet; None if there is no sender's record.
        deliveries: the consumers' record of this group; None if there is none.
    """
    final = sql.col("state").isin(*FINAL)
    rows = found.where(~final).select(sql.lit("open").alias("kind"), "topic", "messageId", "state")
    if sent is not None and there is not None:
        lost = sent.select("messageId").distinct().join(there.select("messageId"), "messageId", "left_anti")
        no_text = sql.lit(None).cast("string")
        rows = rows.unionByName(
            lost.select(sql.lit("lost").alias("kind"), no_text.alias("topic"), "messageId", no_text.alias("state"))
        )
    if deliveries is not None:
        noted = deliveries.select("messageId").distinct()
        acked = deliveries.where("ackedTimestamp IS NOT NULL").select("messageId").distinct()
        unrecorded = found.where(final).join(noted, "messageId", "left_anti")
        unkept = found.where(~final).join(acked, "messageId", "left_semi")
        for kind, ones in (("unrecorded", unrecorded), ("unkept", unkept)):
            rows = rows.unionByName(ones.select(sql.lit(kind).alias("kind"), "topic", "messageId", "state"))
    return rows.orderBy("kind", "topic", "messageId")
