"""What falls due when."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from popwheel_spark.jobs import timer_forecast

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
START_S = int(START.timestamp())


@pytest.fixture
def forecast(spark: SparkSession) -> DataFrame:
    """Of ten minutes: one message overdue, two in the first, seven in the fourth (one listed twice), one later."""
    dues = [
        ("a", -1),
        ("a", 0),
        ("b", 59),
        *[("a", 180 + number) for number in range(5)],
        ("b", 200),
        ("b", 239),
        ("b", 600),
    ]
    rows = [(topic, f"{topic}{due_s}", START + timedelta(seconds=due_s)) for topic, due_s in dues]
    timers = spark.createDataFrame([*rows, rows[3]], "topic STRING, messageId STRING, deliveryTimestamp TIMESTAMP")
    return timer_forecast.by_minute(timers, START_S, 10)


def minute(number: int) -> datetime:
    return START + timedelta(minutes=number)


def test_minutes_of_topics(forecast: DataFrame) -> None:
    found = {
        (row["topic"], row["minute"] and row["minute"].astimezone(UTC)): row["count"] for row in forecast.collect()
    }
    assert found == {("a", None): 1, ("a", minute(0)): 1, ("b", minute(0)): 1, ("a", minute(3)): 5, ("b", minute(3)): 2}


@pytest.mark.parametrize(("factor", "least", "peaks"), [(5, 1, [3]), (10, 1, []), (5, 8, []), (1, 1, [0, 3])])
def test_peaks(forecast: DataFrame, factor: float, least: int, peaks: list[int]) -> None:
    rows = timer_forecast.totals(forecast, 10, factor, least).collect()
    assert [(row["minute"].astimezone(UTC), row["count"]) for row in rows] == [(minute(0), 2), (minute(3), 7)]
    assert [row["minute"].astimezone(UTC) for row in rows if row["peak"]] == [minute(number) for number in peaks]
    assert rows[1]["largestTopic"] == "a"
