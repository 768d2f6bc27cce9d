"""The figures of dead letters, of some that one can count by hand."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from popwheel_spark.jobs import dead_letter_figures as figures

AGES = {"1 minute": 60, "10 minutes": 600, "1 hour": 3_600, "6 hours": 21_600}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def before(seconds: float) -> datetime:
    """So long before noon."""
    return NOON - timedelta(seconds=seconds)


@pytest.fixture
def known(spark: SparkSession) -> DataFrame:
    """Of g, which may try three times: a, dead by the limit; b, after its second try; c and d, of which no retry is
    held; a again, redriven and given up at once. Of h one, whose broker has not said anything.
    """
    letters = [
        ("g", "t", "b1", 0, "a", "red", ["k1", "k2"], "one", before(9_000), before(7_000)),
        ("g", "t", "b1", 1, "b", "red", ["k1"], None, before(9_000), before(600)),
        ("g", "u", "b2", 0, "c", None, ["k1", "k1"], "one", before(9_000), before(601)),
        ("g", "t", "b1", 2, "d", None, [], "two", before(9_000), before(30)),
        ("g", "t", "b1", 3, "a", "red", ["k1", "k2"], "one", before(9_000), before(5)),
        ("h", None, "b1", 0, "a", None, None, None, before(9_000), before(90 * 86_400)),
    ]
    retries = [
        ("g", "t", "b1", "a", 1, before(8_000)),
        ("g", "t", "b1", "a", 2, before(7_500)),
        ("g", "t", "b1", "a", None, before(100)),
        ("g", "t", "b1", "b", 1, before(700)),
        ("g", "t", "b2", "d", 1, before(700)),
        ("g", "u", "b1", "c", 1, before(700)),
    ]
    return figures.known(
        spark.createDataFrame(letters, figures.LETTERS),
        spark.createDataFrame(retries, figures.RETRIES),
        spark.createDataFrame([("g", 3), ("h", 1)], figures.GROUPS),
        spark.createDataFrame([("g", "b1", 1), ("g", "b2", 5)], figures.PROGRESS),
    )


def test_each_letter_is_known_once(known: DataFrame) -> None:
    rows = known.orderBy("group", "brokerName", "queueOffset").collect()
    assert [(row["messageId"], row["attempts"], row["cause"], row["open"]) for row in rows] == [
        ("a", 3, "limit", False),
        ("b", 2, "before limit", True),
        ("d", None, "unknown", True),
        ("a", 1, "before limit", True),
        ("c", None, "unknown", False),
        ("a", None, "unknown", True),
    ]


def test_letters_by_cause_and_attempts(known: DataFrame) -> None:
    rows = [tuple(row) for row in figures.causes(known).drop("firstDead", "lastDead").collect()]
    assert sorted(rows, key=repr) == [
        ("g", "t", "before limit", 1, 1, 1),
        ("g", "t", "before limit", 2, 1, 1),
        ("g", "t", "limit", 3, 1, 0),
        ("g", "t", "unknown", None, 1, 1),
        ("g", "u", "unknown", None, 1, 0),
        ("h", None, "unknown", None, 1, 1),
    ]


def test_letters_by_age(known: DataFrame) -> None:
    rows = figures.ages(known, sql.lit(NOON), AGES, "older").collect()
    assert [(row["group"], row["originTopic"], row["age"], row["letters"], row["open"]) for row in rows] == [
        ("g", "t", "1 minute", 2, 2),
        ("g", "t", "10 minutes", 1, 1),
        ("g", "t", "6 hours", 1, 0),
        ("g", "u", "1 hour", 1, 0),
        ("h", None, "older", 1, 1),
    ]


def test_what_has_most_letters(known: DataFrame) -> None:
    rows = [tuple(row) for row in figures.tops(known, 2).collect()]
    assert rows == [
        ("g", "key", "k1", 4, 2),
        ("g", "key", "k2", 2, 1),
        ("g", "message group", "one", 3, 1),
        ("g", "message group", "two", 1, 1),
        ("g", "tag", "red", 3, 2),
    ]
    assert [tuple(row)[2] for row in figures.tops(known, 1).collect()] == ["k1", "one", "red"]
