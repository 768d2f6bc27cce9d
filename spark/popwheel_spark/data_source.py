"""The data source `popwheel`: its name, readers and writers.

Spark starts a process for each step of a query (to make the source, to plan, to commit), and each imports this module.
The modules of readers and writers take longer to import than pyspark, so only the steps that need them import them.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from popwheel_spark.errors import OptionError
from popwheel_spark.options import Side

if TYPE_CHECKING:
    from popwheel_spark.sink.write_options import WriteOptions


class PopwheelDataSource(DataSource):
    """Reads topics as tables and streams, and sends rows as messages.

    `spark.dataSource.register(PopwheelDataSource)`, then `spark.read.format("popwheel")`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "popwheel"

    def schema(self) -> str | StructType:
        """Return the columns, if the query does not choose some; those of a SQL table carry its options."""
        from popwheel_spark.source.readers import columns, table_columns
        from popwheel_spark.sql_tables import is_being_made

        return table_columns(self.options) if is_being_made(self.options) else columns(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        from popwheel_spark.source.readers import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from popwheel_spark.source.readers import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        from popwheel_spark.sink.writer import BatchWriter

        return BatchWriter(self._write_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        from popwheel_spark.sink.writer import StreamWriter

        options = self._write_options(schema, overwrite)
        if options.write_id:
            raise OptionError("writeId", "leave it out: the checkpoint of a stream identifies its messages")
        return StreamWriter(options)

    def _write_options(self, schema: StructType, overwrite: bool) -> "WriteOptions":
        from popwheel_spark.sink.row_requests import check_columns
        from popwheel_spark.sink.write_options import write_options
        from popwheel_spark.sql_tables import is_table, options_of
        from popwheel_spark.wire.spark_schema import arrow_of

        if overwrite:
            raise OptionError("mode", "messages are only ever added: .mode('append'), or the output mode append")
        of_table = is_table(schema)
        options = write_options(options_of(schema, self.options, (Side.SINK,)), of_table=of_table)
        check_columns(arrow_of(schema), options.topic, of_table=of_table)
        return options
