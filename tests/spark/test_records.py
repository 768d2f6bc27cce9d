"""Records of senders and consumers: read as they are, or refused with file, line and reason."""

import gzip
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from popwheel_spark.jobs.outcome import Exit, InputError
from popwheel_spark.jobs.records import DELIVERIES, SENDS, RecordKind, check_not_empty, record

GOOD = '{"messageId": "a"}\n{"messageId": "b", "more": 1}\n'
DELIVERED = '{"group": "g", "messageId": "a", "attempt": 1, "deliveredTimestamp": "2026-01-31T12:00:00Z"}\n'


def test_good_ones_are_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "sent.jsonl").write_text(GOOD + "\n")
    assert sorted(row.messageId for row in record(spark, SENDS, str(tmp_path / "sent.jsonl")).collect()) == ["a", "b"]
    (tmp_path / "sent.jsonl.gz").write_bytes(gzip.compress(GOOD.encode()))
    assert record(spark, SENDS, str(tmp_path / "*.jsonl.gz")).count() == 2
    (tmp_path / "delivered.json").write_text(DELIVERED)
    (row,) = record(spark, DELIVERIES, str(tmp_path / "delivered.json")).collect()
    assert (row.group, row.attempt, row.ackedTimestamp) == ("g", 1, None)
    assert row.deliveredTimestamp is not None
    spark.createDataFrame([("a", 1)], "messageId STRING, more INT").write.parquet(str(tmp_path / "sent"))
    assert [tuple(row) for row in record(spark, SENDS, str(tmp_path / "sent")).collect()] == [("a",)]


@pytest.mark.parametrize(
    ("kind", "text", "line", "reason"),
    [
        (SENDS, "{'messageId': a", 3, "it is not JSON: "),
        (SENDS, "messageId,topic", 3, "it is not JSON: "),
        (SENDS, '["a"]', 3, "it is no JSON object"),
        (SENDS, '{"id": "a"}', 3, "it has no messageId, which each row of the senders' record needs"),
        (SENDS, '{"messageId": null}', 3, "it has no messageId"),
        (SENDS, '{"messageId": ""}', 3, "it has no messageId"),
        (DELIVERIES, '{"messageId": "a"}', 2, "it has no group, which each row of the consumers' record needs"),
        (DELIVERIES, '{"group": "g", "messageId": "a", "attempt": "x"}', 2, "a value is of another type"),
        (DELIVERIES, '{"group": "g", "messageId": "a", "ackedTimestamp": "soon"}', 2, "a value is of another type"),
    ],
)
def test_the_first_bad_line_is_named(
    spark: SparkSession, tmp_path: Path, kind: RecordKind, text: str, line: int, reason: str
) -> None:
    file = tmp_path / "noted.jsonl"
    good = GOOD if kind is SENDS else DELIVERED
    file.write_text(f"{good}{text}\n{good}not this one\n")
    with pytest.raises(InputError) as caught:
        record(spark, kind, str(file))
    assert f"/noted.jsonl line {line}: {reason}" in str(caught.value)
    assert caught.value.code is Exit.INPUT


def test_what_is_not_there_or_of_another_kind_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("gone.jsonl", "gone"):
        with pytest.raises(InputError, match=f"{name}: there is no such file or folder"):
            record(spark, SENDS, str(tmp_path / name))
    (tmp_path / "sent.txt").write_text(GOOD)
    with pytest.raises(InputError, match=r"sent\.txt: it can't be read; JSON lines end with"):
        record(spark, SENDS, str(tmp_path / "sent.txt"))


@pytest.mark.parametrize(
    ("columns", "row", "sentence"),
    [
        ("id STRING", ("a",), "there is no column messageId, only id"),
        ("messageId INT", (1,), "the column messageId is INT, and must be STRING"),
        ("messageId STRING", (None,), "a row has no messageId"),
    ],
)
def test_a_table_that_is_not_as_it_must_be_is_refused(
    spark: SparkSession, tmp_path: Path, columns: str, row: tuple[object, ...], sentence: str
) -> None:
    spark.createDataFrame([row], columns).write.parquet(str(tmp_path / "sent"))
    with pytest.raises(InputError, match=sentence):
        record(spark, SENDS, str(tmp_path / "sent"))


def test_an_empty_record_proves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "sent.jsonl").write_text("\n")
    rows = record(spark, SENDS, str(tmp_path / "sent.jsonl"))
    with pytest.raises(InputError, match="the senders' record is empty"):
        check_not_empty(rows, SENDS, "sent.jsonl")
