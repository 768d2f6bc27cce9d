"""Reader of topics as a table, between two offsets that are fixed when the query is planned."""

import asyncio
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from popwheel_spark.source.plan import QueueRange, ranges, split, tasks
from popwheel_spark.source.planner import Planner
from popwheel_spark.source.read_options import ReadOptions
from popwheel_spark.wire.offsets import EARLIEST, Offsets
from popwheel_spark.wire.queue_client import QueueClient


class RangePartition(InputPartition):
    """Partition that one task reads.

    Args:
        value: ranges of queues, of each queue one.
    """

    value: tuple[QueueRange, ...]

    def __init__(self, value: tuple[QueueRange, ...]) -> None:
        super().__init__(value)


def partitions_of(options: ReadOptions, start: Offsets, end: Offsets) -> list[InputPartition]:
    """Split the range between two offsets among tasks; the same offsets and options give the same parts."""
    parts = split(ranges(start, end), options.partitions_min, options.rows_per_partition_max)
    joined = tasks(parts, options.partitions_min, options.rows_per_partition_target, options.rows_per_partition_max)
    return [RangePartition(each) for each in joined]


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, on an executor. Spark passes an empty partition where none was planned."""
    from popwheel_spark.source.range_reader import read_ranges  # by tasks alone, not by the steps on the driver

    return read_ranges(options, partition.value) if isinstance(partition, RangePartition) else iter(())


class BatchReader(DataSourceReader):
    """Reader of a batch.

    Args:
        options: of the read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges to read, on the driver."""
        return asyncio.run(self._plan())

    async def _plan(self) -> list[InputPartition]:
        options = self._options
        async with QueueClient(options.connection, options.group) as client:
            planner = Planner(client, options)
            queues = await planner.queues()
            start = await planner.start(queues, EARLIEST)
            end = await planner.end(queues)
            start |= await planner.beginnings(start, end)  # of queues that were empty before
            await planner.check_named(start, end)
        return partitions_of(options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part, on an executor."""
        return read_partition(self._options, partition)
