"""Writes that are distinguished, or known to be the same, by `writeId`."""

import pytest

from popwheel_spark.data_source import PopwheelDataSource
from popwheel_spark.errors import OptionError
from popwheel_spark.sink.row_requests import Origin
from popwheel_spark.sink.write_options import write_options
from popwheel_spark.sink.writer import BatchWriter

GIVEN = {"endpoints": "h:1", "topic": "t"}


def root(**more: str) -> str:
    return BatchWriter(write_options(GIVEN | more)).root


def test_a_write_that_is_repeated_has_the_same_root_of_ids() -> None:
    assert root(writeId="query/7") == root(writeId="query/7") == "query/7"
    assert Origin(root(writeId="query/7"), 3).key(5) == "query/7/3/5"


def test_without_it_no_two_writes_are_the_same() -> None:
    assert root() != root()


@pytest.mark.parametrize("text", ["a\nb", "x" * 201])
def test_it_is_a_beginning_of_keys(text: str) -> None:
    with pytest.raises(OptionError, match="option writeId: "):
        write_options(GIVEN | {"writeId": text})


def test_a_stream_has_one_of_its_own() -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    rows = StructType([StructField("body", StringType())])
    with pytest.raises(OptionError, match=r"option writeId: .* checkpoint of a stream"):
        PopwheelDataSource(GIVEN | {"writeId": "a"}).streamWriter(rows, overwrite=False)
