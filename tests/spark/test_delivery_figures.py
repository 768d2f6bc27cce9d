"""The figures of a delivery report, of messages that one can count by hand."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from popwheel_spark.jobs import delivery_figures
from popwheel_spark.jobs.records import DELIVERIES

MESSAGES = (
    "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, messageId STRING, bornTimestamp TIMESTAMP, "
    "storeTimestamp TIMESTAMP, deliveryTimestamp TIMESTAMP"
)
OF_GROUPS = "group STRING, messageId STRING"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(ms: float) -> datetime:
    """So long after noon."""
    return NOON + timedelta(milliseconds=ms)


@pytest.fixture
def messages(spark: SparkSession) -> DataFrame:
    """Of topic t: a, b (twice), c (offset 2 is missing before it), and d, delayed by 10 s and 40 ms late; of u: e."""
    rows = [
        ("t", "b1", 0, 0, "a", at(0), at(5), None),
        ("t", "b1", 0, 1, "b", at(0), at(10), None),
        ("t", "b2", 0, 7, "b", at(0), at(900), None),
        ("t", "b1", 0, 3, "c", at(100), at(115), None),
        ("t", "b1", 1, 0, "d", at(0), at(10_040), at(10_000)),
        ("u", "b1", 0, 9, "e", at(0), at(1), None),
    ]
    return spark.createDataFrame(rows, MESSAGES)


@pytest.fixture
def deliveries(spark: SparkSession) -> DataFrame:
    """Group g got a and acknowledged it; b twice, the second time acknowledged; d at once, and again after its ack."""
    rows = [
        ("g", "a", 1, at(20), at(30)),
        ("g", "b", 1, at(60), None),
        ("g", "b", 2, at(5_060), at(5_070)),
        ("g", "d", 1, at(10_050), at(10_060)),
        ("g", "d", 2, at(11_000), None),
        ("g", "of another topic", 1, at(0), None),
    ]
    return spark.createDataFrame(rows, DELIVERIES.columns)


@pytest.fixture
def retries(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("g", "b"), ("g", "d"), ("h", "a"), ("h", "a")], OF_GROUPS)


@pytest.fixture
def dead_letters(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("h", "a")], OF_GROUPS)


def rows(table: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.select(*columns).collect()), key=repr)


def test_topics(messages: DataFrame) -> None:
    figures = delivery_figures.topic_figures(messages)
    assert rows(figures, "topic", "messages", "timers", "storedTwice", "offsetGaps") == [
        ("t", 4, 1, 1, 1),
        ("u", 1, 0, 0, 0),
    ]
    # Of a, b and c; b as it was stored first.
    assert rows(figures, "topic", "storedP50Ms", "storedMaxMs", "lateMaxMs") == [
        ("t", 10.0, 15.0, 40.0),
        ("u", 1.0, 1.0, None),
    ]


def test_groups(messages: DataFrame, deliveries: DataFrame, retries: DataFrame, dead_letters: DataFrame) -> None:
    figures = delivery_figures.group_figures(messages, deliveries, retries, dead_letters)
    counts = (
        "topic",
        "group",
        "messages",
        "delivered",
        "acked",
        "gaps",
        "repeats",
        "retried",
        "retries",
        "deadLetters",
    )
    assert rows(figures, *counts) == [
        ("t", "g", 4, 3, 3, 1, 1, 2, 2, 0),
        ("t", "h", 4, None, None, None, None, 1, 2, 1),
    ]
    # a after 20 ms, b after 60, d 50 after its time.
    assert rows(figures, "group", "endToEndP50Ms", "endToEndMaxMs") == [("g", 50.0, 60.0), ("h", None, None)]


def test_findings(messages: DataFrame, deliveries: DataFrame, dead_letters: DataFrame) -> None:
    found = delivery_figures.findings(messages, deliveries, dead_letters)
    assert rows(found, "kind", "topic", "group", "messageId", "times") == [
        ("dead-letter", "t", "h", "a", 1),
        ("gap", "t", "g", "c", 0),
        ("repeat", "t", "g", "d", 2),
        ("stored-twice", "t", None, "b", 2),
    ]


def test_a_dead_letter_is_no_gap(messages: DataFrame, deliveries: DataFrame, spark: SparkSession) -> None:
    dead = spark.createDataFrame([("g", "c")], OF_GROUPS)
    found = delivery_figures.findings(messages, deliveries, dead)
    assert rows(found.where("group = 'g'"), "kind", "messageId") == [("dead-letter", "c"), ("repeat", "d")]


def test_the_course(messages: DataFrame, deliveries: DataFrame) -> None:
    course = delivery_figures.course(messages, deliveries, 10)
    noon, later = (datetime(2026, 1, 31, 12, 0, second, tzinfo=UTC) for second in (0, 10))
    stored = {(row["topic"], row["group"], row["time"].astimezone(UTC)): row["count"] for row in course.collect()}
    assert stored == {
        ("t", None, noon): 3,
        ("t", None, later): 1,
        ("u", None, noon): 1,
        ("t", "g", noon): 2,
        ("t", "g", later): 1,
    }


@pytest.mark.parametrize(("span_s", "step_s"), [(0, 1), (400, 1), (401, 10), (86_400, 600), (1e9, 86_400)])
def test_steps(span_s: float, step_s: int) -> None:
    assert delivery_figures.step_s(span_s) == step_s
