"""Readers by the option `table`: of the admin API, or of topics.

Each is imported only when it is needed: a query asks for its columns in a process of its own, and the modules that call
proxies take five times as long to import as those that know the columns.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from popwheel_spark.errors import OptionError
from popwheel_spark.options import Side, find
from popwheel_spark.source.admin_tables import ADMIN_TABLES
from popwheel_spark.source.read_limits import HAS_LIMITS
from popwheel_spark.source.read_options import read_options
from popwheel_spark.sql_tables import check_options, of_sides, options_of, own_options, with_options
from popwheel_spark.wire.columns import ddl
from popwheel_spark.wire.schema import COLUMNS
from popwheel_spark.wire.spark_schema import arrow_of

if TYPE_CHECKING:
    from popwheel_spark.source.admin_reader import AdminReadOptions

_BATCH: Final = (Side.READ, Side.BATCH, Side.LIST)
_STREAM: Final = (Side.READ, Side.STREAM)
_MESSAGES = {name: arrow for name, (_, arrow) in COLUMNS.items()}


def columns(options: Mapping[str, str]) -> str:
    """Return the columns, if the query does not choose some."""
    if _is_of_admin(options):
        read = _of_admin(options)
        return ", ".join(f"{name} {read.table.columns[name].ddl}" for name in read.columns)
    return ddl(read_options(options).columns)


def table_columns(options: Mapping[str, str]) -> StructType:
    """Return the columns of a new SQL table, with its options."""
    own = own_options(options)
    check_options(own)
    read = of_sides(own, _BATCH)
    if _is_of_admin(read):
        admin = _of_admin(read)
        fields = [(name, admin.table.columns[name].type) for name in admin.columns]
    else:
        fields = [(name, _MESSAGES[name]) for name in read_options(read).columns]
    return with_options(from_arrow_schema(pa.schema(fields)), own)


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader of a schema's columns, for one read."""
    options = options_of(schema, options, _BATCH)
    if _is_of_admin(options):
        from popwheel_spark.source.admin_reader import AdminReader

        read = _of_admin(options)
        types = {name: column.type for name, column in read.table.columns.items()}
        return AdminReader(replace(read, columns=_columns(schema, types)))
    from popwheel_spark.source.batch_reader import BatchReader

    return BatchReader(read_options(options).of_columns(_columns(schema, _MESSAGES)))


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the stream reader of a schema's columns."""
    options = options_of(schema, options, _STREAM)
    if _is_of_admin(options):
        raise OptionError("table", "only messages and dlq can be read as streams")
    for name in options:
        row = find(name)
        if row is not None and Side.BATCH in row.sides:
            raise OptionError(row.name, "a stream has no end; leave it out, or read a table (spark.read)")
    from popwheel_spark.source.stream_reader import StreamReader

    read = read_options(options)
    if not HAS_LIMITS and (read.rows_per_trigger_max or read.bytes_per_trigger_max or read.rows_per_trigger_min):
        raise OptionError("maxRowsPerTrigger", "Spark 4.1 takes all there is; a limit of micro-batches needs Spark 4.2")
    return StreamReader(read.of_columns(_columns(schema, _MESSAGES)))


def _is_of_admin(options: Mapping[str, str]) -> bool:
    return options.get("table", "").strip().lower() in ADMIN_TABLES


def _of_admin(options: Mapping[str, str]) -> "AdminReadOptions":
    from popwheel_spark.source.admin_reader import admin_read_options

    return admin_read_options(options)


def _columns(schema: StructType, types: Mapping[str, pa.DataType]) -> tuple[str, ...]:
    """Return the columns that a query asks for, which may be fewer than all.

    Args:
        schema: of the query.
        types: of all columns there are.

    Raises:
        OptionError: one is not there, or of another type.
    """
    wanted = arrow_of(schema)
    for field in wanted:
        if field.name not in types:
            raise OptionError("schema", f"there is no column {field.name!r}; there are {', '.join(types)}")
        if field.type != types[field.name] or not field.nullable:
            raise OptionError("schema", f"the column {field.name} is of the type {types[field.name]}, and may be null")
    return tuple(wanted.names)
