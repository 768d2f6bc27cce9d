"""What has become of messages, by the rule of docs/operate/messages.md."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from popwheel_spark.jobs import audit_states
from popwheel_spark.jobs.records import DELIVERIES

MESSAGES = f"{audit_states.PLACES}, messageId STRING"
RETRY = "%RETRY%g+t"
EXPECTED = {
    "acked": "acknowledged",
    "acked at its retry": "acknowledged",
    "dead": "dead letter",
    "aside": "poison message",
    "aside at its retry": "poison message",
    "out": "in flight",
    "out again": "in flight",
    "waits": "waits for its retry",
    "waits once more": "waits for its retry",
    "new": "unread",
    "of another broker": "unread",
}


@pytest.fixture
def found(spark: SparkSession) -> DataFrame:
    """The states of all messages: queue 0 of broker b was read up to the one before the last."""
    names = [name for name in EXPECTED if name != "of another broker"]
    messages = [("t", "b", 0, offset, name) for offset, name in enumerate(names)]
    offset_of = {name: offset for _, _, _, offset, name in messages}
    retried = ["acked at its retry", "aside at its retry", "out again", "waits once more", "waits", "waits once more"]
    retries = [(RETRY, "b", 0, offset, name) for offset, name in enumerate(retried)]
    return audit_states.states(
        spark.createDataFrame([*messages, ("t", "c", 0, 0, "of another broker")], MESSAGES),
        "g",
        spark.createDataFrame([("t", "b", 0, offset_of["new"]), (RETRY, "b", 0, 4)], audit_states.PROGRESS),
        spark.createDataFrame([("t", "b", 0, offset_of["out"]), (RETRY, "b", 0, 2)], audit_states.PLACES),
        spark.createDataFrame([*retries, (RETRY, "c", 0, 9, "acked")], MESSAGES),
        spark.createDataFrame([("b", "dead"), ("c", "acked")], "brokerName STRING, messageId STRING"),
        spark.createDataFrame([("t", "b", 0, offset_of["aside"]), (RETRY, "b", 0, 1)], audit_states.PLACES),
    )


def test_states(found: DataFrame) -> None:
    assert {row["messageId"]: row["state"] for row in found.collect()} == EXPECTED


def kinds(table: DataFrame) -> list[tuple[Any, ...]]:
    return [(row["kind"], row["messageId"]) for row in table.where("kind <> 'open'").collect()]


def test_what_is_open_is_named(found: DataFrame) -> None:
    named = {row["messageId"] for row in audit_states.findings(found, None, None, None).collect()}
    assert named == {name for name, state in EXPECTED.items() if state not in audit_states.FINAL}


def test_what_no_topic_has_is_lost(found: DataFrame, spark: SparkSession) -> None:
    sent = spark.createDataFrame([("acked",), ("waits for its time",), ("nowhere",)], "messageId STRING")
    there = spark.createDataFrame([("acked",), ("waits for its time",)], "messageId STRING")
    assert kinds(audit_states.findings(found, sent, there, None)) == [("lost", "nowhere")]


def test_records_of_consumers_are_compared_against_the_brokers(found: DataFrame, spark: SparkSession) -> None:
    noted = [("g", name, 1, None, None) for name in ("acked", "dead")]
    deliveries = spark.createDataFrame(noted, DELIVERIES.columns).unionByName(
        spark.sql(
            "SELECT 'g' AS `group`, 'out' AS messageId, 1 AS attempt, now() deliveredTimestamp, now() ackedTimestamp"
        )
    )
    assert kinds(audit_states.findings(found, None, None, deliveries)) == [
        ("unkept", "out"),
        ("unrecorded", "acked at its retry"),
    ]
