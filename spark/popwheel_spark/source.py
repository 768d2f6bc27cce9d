"""The data source `popwheel`: what Spark makes of the options, and hands readers and writers out by."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from popwheel_spark.admin_reader import AdminReader, admin_read_options
from popwheel_spark.admin_tables import ADMIN_TABLES
from popwheel_spark.batch_reader import BatchReader
from popwheel_spark.errors import OptionError
from popwheel_spark.read_options import read_options
from popwheel_spark.row_requests import check_columns
from popwheel_spark.schema import COLUMNS, ddl
from popwheel_spark.stream_reader import StreamReader
from popwheel_spark.write_options import WriteOptions, write_options
from popwheel_spark.writer import BatchWriter, StreamWriter

_MESSAGES = {name: arrow for name, (_, arrow) in COLUMNS.items()}


class PopwheelDataSource(DataSource):
    """Reads topics as tables and streams, and sends rows as messages.

    `spark.dataSource.register(PopwheelDataSource)`, then `spark.read.format("popwheel")`.
    """

    @classmethod
    def name(cls) -> str:
        """As it is called in `format`."""
        return "popwheel"

    def schema(self) -> str:
        """The columns, if the query does not say which it wants."""
        if self._is_of_admin():
            options = admin_read_options(self.options)
            return ", ".join(f"{name} {options.table.columns[name].ddl}" for name in options.columns)
        return ddl(read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch."""
        if self._is_of_admin():
            options = admin_read_options(self.options)
            types = {name: column.type for name, column in options.table.columns.items()}
            return AdminReader(replace(options, columns=_columns(schema, types)))
        return BatchReader(read_options(self.options).of_columns(_columns(schema, _MESSAGES)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a stream."""
        if self._is_of_admin():
            raise OptionError("table", "only messages and dlq can be read as streams")
        return StreamReader(read_options(self.options).of_columns(_columns(schema, _MESSAGES)))

    def _is_of_admin(self) -> bool:
        return self.options.get("table", "").strip().lower() in ADMIN_TABLES

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch."""
        return BatchWriter(self._write_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Of a stream."""
        return StreamWriter(self._write_options(schema, overwrite))

    def _write_options(self, schema: StructType, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise OptionError("mode", "messages are only ever added: .mode('append'), or the output mode append")
        options = write_options(self.options)
        check_columns(to_arrow_schema(schema, timezone="UTC"), options.topic)
        return options


def _columns(schema: StructType, types: Mapping[str, pa.DataType]) -> tuple[str, ...]:
    """The columns that a query asks for, which may be fewer than there are.

    Args:
        schema: of the query.
        types: of all columns there are.

    Raises:
        OptionError: one is not there, or of another type.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    for field in wanted:
        if field.name not in types:
            raise OptionError("schema", f"there is no column {field.name!r}; there are {', '.join(types)}")
        if field.type != types[field.name] or not field.nullable:
            raise OptionError("schema", f"the column {field.name} is of the type {types[field.name]}, and may be null")
    return tuple(wanted.names)
