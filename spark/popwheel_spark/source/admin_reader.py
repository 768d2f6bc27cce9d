"""Reader of tables of the admin API: a task for each topic and broker reads its pages. It shows the rows at the time
of the read, so that a retried task may read others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.errors import OptionError
from popwheel_spark.given_options import SPARKS_OWN, GivenOptions
from popwheel_spark.source.admin_tables import ADMIN_TABLES, AdminTable, admin_record_batch
from popwheel_spark.wire.admin_api import AdminApi


@dataclass(frozen=True)
class AdminReadOptions:
    """Options of such a table.

    Args:
        connection: where the cluster is.
        table: which one.
        topics: whose rows; empty: of all.
        query: what else the list is asked for.
        columns: that are read.
    """

    connection: ConnectionOptions
    table: AdminTable
    topics: tuple[str, ...]
    query: Mapping[str, str]
    columns: tuple[str, ...]


def admin_read_options(options: Mapping[str, str]) -> AdminReadOptions:
    """Parse the options of a read whose `table` is one of `ADMIN_TABLES`.

    Raises:
        OptionError: one is unknown, missing or impossible.
    """
    given = GivenOptions(options, SPARKS_OWN)
    name = given.choice("table")
    table = ADMIN_TABLES[name]
    connection = ConnectionOptions.take(given)
    topics = (*given.words("topic"), *given.words("topics"))
    columns = given.columns(table.columns)
    query = {"group": given.text("group")} if name == "inflight" else {}
    if name == "timers":
        query["within_ms"] = str(given.number("withinMs"))
    given.check_all_taken()
    if not connection.admin:
        raise OptionError(
            "admin", f"the table {name} is read from the controller: say http://HOST:PORT of its admin API"
        )
    if table.topic_needed and not topics:
        raise OptionError("topic", f"say of which topics the table {name} is to be, by topic or topics")
    return AdminReadOptions(connection, table, topics, query, columns)


class AdminReader(DataSourceReader):
    """Reader of such a table.

    Args:
        options: which, and how.
    """

    def __init__(self, options: AdminReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return a part for each topic and broker."""
        brokers = [broker["name"] for broker in AdminApi(self._options.connection).get("cluster")["brokers"]]
        topics = self._options.topics or ("",)
        return [InputPartition((topic, broker)) for topic in topics for broker in brokers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part, on an executor; there is none if there is no broker.

        Raises:
            RefusedError, UnreachableError: see `AdminApi.pages`.
        """
        if partition.value is None:
            return
        topic, broker = partition.value
        table = self._options.table
        query = {**self._options.query, "topic": topic, "broker": broker}
        for page in AdminApi(self._options.connection).pages(table.path, query):
            if page[table.rows]:
                yield admin_record_batch(table, self._options.columns, page[table.rows])
