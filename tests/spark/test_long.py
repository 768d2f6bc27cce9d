"""What the long stream is checked by: it notices what is missing, twice, or out of order."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.long import check_all_are_there, check_order, check_order_in_files, first_ones

TYPES = "brokerName STRING, queueId INT, queueOffset BIGINT, messageId STRING, messageGroup STRING, body BINARY"
RIGHT = ((0, 0, "g", b"0"), (0, 1, "h", b"1"), (0, 2, "g", b"2"), (1, 0, "i", b"3"))


def rows(spark: SparkSession, *given: tuple[int, int, str, bytes]) -> DataFrame:
    """Messages: queue, offset, message group, body."""
    found = [("b", queue, offset, f"id-{body!r}", group, body) for queue, offset, group, body in given]
    return spark.createDataFrame(found, TYPES)


def test_what_is_right_passes(spark: SparkSession) -> None:
    check_all_are_there(rows(spark, *RIGHT), 4)
    check_order(rows(spark, *RIGHT))


@pytest.mark.parametrize("wrong", [RIGHT[:3], (*RIGHT, (1, 1, "i", b"3")), (*RIGHT[:3], (0, 2, "i", b"3"))])
def test_what_is_missing_or_twice_is_noticed(
    spark: SparkSession, wrong: tuple[tuple[int, int, str, bytes], ...]
) -> None:
    with pytest.raises(AssertionError):
        check_all_are_there(rows(spark, *wrong), 4)


def test_order_is_noticed(spark: SparkSession) -> None:
    with pytest.raises(AssertionError, match="1 messages are out of order"):
        check_order(rows(spark, (0, 0, "g", b"2"), (0, 1, "h", b"1"), (0, 2, "g", b"0")))
    with pytest.raises(AssertionError, match="in several queues"):
        check_order(rows(spark, (0, 0, "g", b"0"), (1, 1, "g", b"1")))


def test_order_in_files_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    for name, given in (("right", (b"0", b"1", b"2")), ("wrong", (b"0", b"2", b"1"))):
        frame = rows(spark, *((0, offset, "g", body) for offset, body in enumerate(given)))
        frame.coalesce(1).write.parquet(str(tmp_path / name))
    check_order_in_files(spark.read.parquet(str(tmp_path / "right")))
    with pytest.raises(AssertionError, match="1 messages are out of order"):
        check_order_in_files(spark.read.parquet(str(tmp_path / "wrong")))


def test_of_what_was_sent_again_the_first_counts(spark: SparkSession) -> None:
    again = rows(spark, (0, 0, "g", b"0"), (0, 1, "g", b"1"), (0, 2, "g", b"0"), (0, 3, "g", b"1"), (0, 4, "g", b"2"))
    check_order(first_ones(again))
    with pytest.raises(AssertionError, match="out of order"):
        check_order(again)
