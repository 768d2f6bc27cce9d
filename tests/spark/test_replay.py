"""What a replay sends."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession

from popwheel_spark.jobs.replay import SENT, Delays, replayed

MESSAGES = (
    "messageId STRING, tag STRING, keys ARRAY<STRING>, messageGroup STRING, body BINARY, "
    "properties MAP<STRING, STRING>, bornTimestamp TIMESTAMP, deliveryTimestamp TIMESTAMP, "
    "priority INT"
)
BORN = datetime(2026, 1, 31, 12, tzinfo=UTC)
DUE = datetime(2026, 1, 31, 14, tzinfo=UTC)
START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def messages(spark: SparkSession) -> DataFrame:
    rows = [
        ("a", "t", ["k"], None, b"1", {"p": "v"}, BORN, DUE, None),
        ("b", None, None, "g", b"2", None, BORN, None, 7),
    ]
    return spark.createDataFrame(rows, MESSAGES)


def test_each_message_bears_one_more_key(messages: DataFrame) -> None:
    sent = replayed(messages, "again", Delays("none"), 0)
    assert tuple(sent.columns) == SENT
    assert [row["keys"] for row in sent.collect()] == [["k", "replay/again/a"], ["replay/again/b"]]
    assert [(bytes(row["body"]), row["priority"]) for row in sent.collect()] == [(b"1", None), (b"2", 7)]


@pytest.mark.parametrize(
    ("delays", "due"),
    [
        (Delays("none"), None),
        (Delays("shift", shift_ms=3_600_000), datetime(2026, 1, 31, 15, tzinfo=UTC)),
        (Delays("scale", factor=0.5), datetime(2026, 3, 1, 1, tzinfo=UTC)),
    ],
)
def test_delivery_times(messages: DataFrame, delays: Delays, due: datetime | None) -> None:
    sent = replayed(messages, "again", delays, int(START.timestamp() * 1000)).collect()
    found = [row["deliveryTimestamp"] and row["deliveryTimestamp"].astimezone(UTC) for row in sent]
    assert found == [due, None]
