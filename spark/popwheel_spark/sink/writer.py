"""Sends rows as messages, each at least once: a task that runs again sends its rows again, under the same keys.

Only tasks import the modules that send, not the steps on the driver (see `popwheel_spark.data_source`).
"""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from popwheel_spark.sink.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are sent by tasks"
    return task


def _send(options: WriteOptions, root: str, rows: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
    """Send all rows of a task."""
    from popwheel_spark.sink.row_requests import WRITTEN, Origin
    from popwheel_spark.sink.sender import send_rows
    from popwheel_spark.sql_tables import rows_to_send

    if options.of_table:
        rows = rows_to_send(rows, WRITTEN)
    send_rows(options, Origin(root, _task().partitionId()), rows)
    return WriterCommitMessage()


class BatchWriter(DataSourceArrowWriter):
    """Writer of a batch.

    Args:
        options: where to, and how.

    Attributes:
        root: of the keys of its rows.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self.root = options.write_id or f"{uuid.uuid4()}/0"

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        """Send a part, on an executor."""
        return _send(self._options, self.root, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream.

    Args:
        options: where to, and how.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        """Send a part of a micro-batch, on an executor. Its keys are the same if the query is restarted."""
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        assert query is not None and batch is not None, "Spark names the stream and the batch in its tasks"
        return _send(self._options, f"{query}/{batch}", iterator)
