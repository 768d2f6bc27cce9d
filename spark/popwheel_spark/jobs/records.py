"""Records of senders and consumers: brokers store neither answers to sends nor deliveries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from popwheel_spark.jobs.outcome import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JSON = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_CORRUPT = "_corrupt"
_LINES_MAX = 100


@dataclass(frozen=True)
class RecordKind:
    """Kind of a record.

    Args:
        name: whose it is, in words.
        columns: in Spark's DDL.
        needed: those that no row may leave out.
    """

    name: str
    columns: str
    needed: tuple[str, ...]


DELIVERIES = RecordKind(
    "the consumers' record",
    "group STRING, messageId STRING, attempt INT, deliveredTimestamp TIMESTAMP, ackedTimestamp TIMESTAMP",
    ("group", "messageId"),
)
"""Rows of deliveries; `ackedTimestamp` is null if the consumer has not acknowledged it."""
SENDS = RecordKind("the senders' record", "messageId STRING", ("messageId",))
"""Rows of sends that were answered with success."""


def record(spark: SparkSession, kind: RecordKind, path: str) -> DataFrame:
    """Check and read a record.

    Args:
        spark: reads it.
        kind: `DELIVERIES` or `SENDS`.
        path: JSON lines if it ends with `.json` or `.jsonl`, else Parquet; a file, a folder or a pattern.

    Raises:
        InputError: it is not there, or a row of it is not as it must be: where, and why.
    """
    return _json(spark, kind, path) if path.endswith(_JSON) else _parquet(spark, kind, path)


def check_not_empty(rows: DataFrame, kind: RecordKind, path: str) -> None:
    """Check that a record has a row.

    Raises:
        InputError: it has no row.
    """
    if rows.isEmpty():
        raise InputError(f"{path}: {kind.name} is empty, so that nothing could be proved by it")


def _json(spark: SparkSession, kind: RecordKind, path: str) -> DataFrame:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sql

    try:
        lines = spark.read.text(path).select("value", sql.input_file_name().alias("file"))
    except AnalysisException as error:
        raise _unreadable(path, error) from None
    lines = lines.where(sql.trim("value") != "")
    schema = f"{kind.columns}, {_CORRUPT} STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    read = lines.withColumn("row", sql.from_json("value", schema, options))
    is_bad = (
        sql.col("row").isNull()
        | sql.col(f"row.{_CORRUPT}").isNotNull()
        | ~sql.col("value").rlike(r"^\s*\{")
        | sql.greatest(*(sql.coalesce(f"row.{name}", sql.lit("")) == "" for name in (*kind.needed, kind.needed[-1])))
    )
    bad = read.where(is_bad).select("file", "value").orderBy("file").limit(_LINES_MAX).collect()
    if bad:
        file = bad[0]["file"]
        number, value = _first(spark, file, {row["value"] for row in bad if row["file"] == file})
        raise InputError(f"{file} line {number}: {_reason(value, kind)}")
    return read.select("row.*").drop(_CORRUPT)


def _first(spark: SparkSession, file: str, values: set[str]) -> tuple[int, str]:
    """Return the number and text of a file's first line that is one of these."""
    lines = spark.sparkContext.textFile(file).zipWithIndex()
    value, index = lines.filter(lambda line: line[0] in values).min(key=lambda line: line[1])
    return index + 1, value


def _reason(text: str, kind: RecordKind) -> str:
    """Return why a line is no row."""
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        return f"it is not JSON: {error}"
    if not isinstance(row, dict):
        return "it is no JSON object"
    missing = [name for name in kind.needed if not row.get(name)]
    if missing:
        return f"it has no {missing[0]}, which each row of {kind.name} needs"
    return f"a value is of another type; {kind.name} has {kind.columns}"


def _parquet(spark: SparkSession, kind: RecordKind, path: str) -> DataFrame:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sql

    wanted = spark.createDataFrame([], kind.columns).schema
    try:
        rows = spark.read.parquet(path)
    except (PySparkException, Py4JJavaError) as error:
        raise _unreadable(path, error) from None
    there = {field.name: field.dataType.simpleString() for field in rows.schema}
    for field in wanted:
        if field.name not in there:
            raise InputError(
                f"{path}: there is no column {field.name}, only {', '.join(there)}; {kind.name} has {kind.columns}"
            )
        said, must = there[field.name], field.dataType.simpleString()
        if said != must and (said, must) not in (("bigint", "int"), ("timestamp_ntz", "timestamp")):
            raise InputError(f"{path}: the column {field.name} is {said.upper()}, and must be {must.upper()}")
    for name in kind.needed:
        lacking = rows.where(sql.coalesce(name, sql.lit("")) == "").select(sql.input_file_name().alias("file")).first()
        if lacking is not None:
            raise InputError(f"{lacking['file']}: a row has no {name}, which each row of {kind.name} needs")
    return rows.select(*(sql.col(field.name).cast(field.dataType) for field in wanted))


def _unreadable(path: str, error: Exception) -> InputError:
    from popwheel_spark.jobs.outcome import sentence

    said = sentence(str(error))
    if "PATH_NOT_FOUND" in said:
        return InputError(f"{path}: there is no such file or folder")
    return InputError(
        f"{path}: it can't be read; JSON lines end with .json or .jsonl, anything else must be Parquet: {said}"
    )
