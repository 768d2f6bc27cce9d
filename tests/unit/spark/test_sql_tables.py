"""Options of SQL tables: kept beside a column, found again by reads and writes."""

import pyarrow as pa
import pytest

from popwheel_spark.errors import OptionError
from popwheel_spark.options import Side
from popwheel_spark.sink.row_requests import WRITTEN, check_columns
from popwheel_spark.source.readers import table_columns
from popwheel_spark.sql_tables import is_being_made, is_table, options_of, rows_to_send

GIVEN = {"endpoints": "h:1", "topic": "t", "Columns": "body,queueOffset", "requestsAtOnce": "2"}
MADE = {**GIVEN, **{f"option.{name}": text for name, text in GIVEN.items()}, "provider": "popwheel", "owner": "me"}
"""As Spark says them when a table is made."""


def test_a_table_keeps_its_options_and_no_others() -> None:
    assert is_being_made(MADE) and not is_being_made(GIVEN)
    columns = table_columns(MADE)
    assert is_table(columns)
    assert columns.simpleString() == "struct<body:binary,queueOffset:bigint>"
    assert options_of(columns, {}, (Side.SINK,)) == {"endpoints": "h:1", "topic": "t", "requestsatonce": "2"}
    read = options_of(columns, {}, (Side.READ, Side.BATCH))
    assert read == {"endpoints": "h:1", "topic": "t", "columns": "body,queueOffset"}


def test_a_statement_says_it_otherwise() -> None:
    assert options_of(table_columns(MADE), {"Topic": "u"}, (Side.SINK,))["topic"] == "u"


def test_an_option_that_is_none_is_refused_when_the_table_is_made() -> None:
    with pytest.raises(OptionError, match="topci"):
        table_columns({**MADE, "topci": "t"})
    with pytest.raises(OptionError, match="endpoints"):
        table_columns({"provider": "popwheel", "topic": "t"})


def test_columns_that_only_reads_have_are_no_part_of_what_is_sent() -> None:
    schema = pa.schema([("body", pa.binary()), ("queueOffset", pa.int64()), ("tag", pa.string())])
    check_columns(schema, "t", of_table=True)
    with pytest.raises(OptionError, match="queueOffset"):
        check_columns(schema, "t")
    rows = pa.RecordBatch.from_pylist([{"body": b"b", "queueOffset": None, "tag": None}], schema=schema)
    (sent,) = rows_to_send([rows], WRITTEN)
    assert sent.schema.names == ["body", "tag"]
    rows = pa.RecordBatch.from_pylist([{"body": b"b", "queueOffset": 3, "tag": None}], schema=schema)
    with pytest.raises(OptionError, match="leave it out of the INSERT"):
        list(rows_to_send([rows], WRITTEN))
