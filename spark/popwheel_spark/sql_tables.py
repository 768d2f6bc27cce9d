"""SQL tables: `CREATE TABLE t USING popwheel OPTIONS (...)`, then SELECT and INSERT.

Spark 4 keeps the options of a table and hands none of them to a Python source when the table is used. It forwards the
columns, with what the source once said of them. So a table's options stand beside its first column.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from popwheel_spark.errors import OptionError
from popwheel_spark.options import Side, find

if TYPE_CHECKING:
    import pyarrow as pa

_KEY: Final = "popwheel.options"
_PROVIDER: Final = "provider"
_OF_THE_CATALOG: Final = frozenset(
    (_PROVIDER, "owner", "comment", "external", "location", "is_managed_location", "collation", "path")
)
"""Options that Spark adds as it makes a table, in lower case; it adds each option once more, as `option.NAME`."""


def is_being_made(options: Mapping[str, str]) -> bool:
    """Return whether these options are of a CREATE TABLE."""
    return any(name.lower() == _PROVIDER for name in options)


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that a CREATE TABLE has given, without what Spark has added."""
    return {
        name: text
        for name, text in options.items()
        if name.lower() not in _OF_THE_CATALOG and not name.lower().startswith("option.")
    }


def with_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table, with its options beside the first."""
    first, *others = columns.fields
    noted = StructField(first.name, first.dataType, first.nullable, {_KEY: json.dumps(dict(options))})
    return StructType([noted, *others])


def of_sides(options: Mapping[str, str], sides: Iterable[Side]) -> dict[str, str]:
    """Return a table's options for some sides, by lower-case name; a table may have others."""
    wanted = {Side.ALL, *sides}
    return {
        name.lower(): text
        for name, text in options.items()
        if (option := find(name)) is None or not wanted.isdisjoint(option.sides)
    }


def options_of(schema: StructType, options: Mapping[str, str], sides: Iterable[Side]) -> Mapping[str, str]:
    """Return the options of a read or write: those of the statement, and the table's ones for its sides.

    Args:
        schema: of the statement.
        options: of the statement.
        sides: where it goes.
    """
    noted = next((field.metadata[_KEY] for field in schema.fields if _KEY in field.metadata), None)
    if noted is None:
        return options
    return of_sides(json.loads(noted), sides) | {name.lower(): text for name, text in options.items()}


def is_table(schema: StructType) -> bool:
    """Return whether rows go to a table that was made with its options."""
    return any(_KEY in field.metadata for field in schema.fields)


def check_options(options: Mapping[str, str]) -> None:
    """Check that a table's options exist, be they of reads or of writes.

    Raises:
        OptionError: there is no such option.
    """
    for name in options:
        if find(name) is None:
            raise OptionError(name, "there is no such option")


def rows_to_send(batches: Iterable["pa.RecordBatch"], sent: Iterable[str]) -> Iterator["pa.RecordBatch"]:
    """Yield rows for a table without the columns that only reads have.

    Args:
        batches: have all columns of the table.
        sent: columns that a message to be sent may have.

    Raises:
        OptionError: a row has a value in another column.
    """
    wanted = frozenset(sent)
    for batch in batches:
        for name in batch.schema.names:
            if name not in wanted and batch.column(name).null_count < batch.num_rows:
                raise OptionError("schema", f"{name} is not sent, the cluster gives it: leave it out of the INSERT")
        yield batch.select([name for name in batch.schema.names if name in wanted])
