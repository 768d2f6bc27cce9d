"""Reads topics as a stream: the planner of its micro-batches, on the driver, and their tasks, on executors."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from popwheel_spark.errors import PopwheelSparkError
from popwheel_spark.source.batch_reader import partitions_of, read_partition
from popwheel_spark.source.data_loss import loss_sentence, report_loss
from popwheel_spark.source.plan import admit, ranges
from popwheel_spark.source.planner import Planner
from popwheel_spark.source.read_limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from popwheel_spark.source.read_options import ReadOptions
from popwheel_spark.wire.offsets import LATEST, START, Offsets, Queue, flat, nested
from popwheel_spark.wire.queue_client import QueueClient

T = TypeVar("T")

_PUBLISH_S = 2.0
"""Time limit of a progress report, which is optional."""
_SAMPLE = 32

_log = logging.getLogger("popwheel_spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream.

    Spark has one of these in a process of the driver's machine while the query runs; the tasks have others.

    Args:
        options: of the read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._runner: asyncio.Runner | None = None
        self._client: QueueClient | None = None
        self._target: Offsets | None = None
        self._ends: Offsets | None = None
        self._published: Offsets = {}
        self._reached: Offsets | None = None
        self._last_advanced_at = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new stream begins; a restarted one begins at its checkpoint."""
        self._reached = self._ask(self._initial)
        return nested(self._reached)

    async def _initial(self, client: QueueClient) -> Offsets:
        planner = Planner(client, self._options)
        return await planner.start(await planner.queues(), LATEST)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch. Spark knows one limit; the other options apply beside it."""
        options = self._options
        if options.rows_per_trigger_max:
            return ReadMaxRows(options.rows_per_trigger_max)
        if options.bytes_per_trigger_max:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadMinRows(options.rows_per_trigger_min) if options.rows_per_trigger_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the current ends of the queues: the stream ends with them."""
        self._target = self._ask(lambda client: self._latest(client, {}))

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Return where the next micro-batch ends.

        Args:
            start: where it begins, so that everything before has been written. Spark 4.1 does not say it: then it is
                where the last one ended. A stream that goes on does not know even that, and takes all there is.
            limit: of Spark: ours, or all there is.

        Raises:
            DataLossError: a topic is gone, or was made anew, and that is an error.
        """
        begin = self._reached if start is None else flat(start, {})
        if begin is None:
            ends = self._ask(lambda client: self._latest(client, {}))
            return nested({queue: end for queue, end in ends.items() if end})
        end, beginnings = self._ask(lambda client: self._next_end(client, begin, limit or ReadAllAvailable()))
        return nested(end, beginnings) if end != begin or start is None else start

    async def _next_end(self, client: QueueClient, begin: Offsets, limit: ReadLimit) -> tuple[Offsets, Offsets]:
        """Return where the next micro-batch ends, and where those queues begin that it is the first to read."""
        await self._publish(client, begin)
        ends = await self._latest(client, begin)
        self._ends = {**begin, **ends}
        if self._target is not None:
            ends = {queue: min(end, self._target[queue]) for queue, end in ends.items() if queue in self._target}
        # A new, empty queue is left out, or Spark would take it for a change.
        end = begin | {queue: offset for queue, offset in ends.items() if offset or queue in begin}
        beginnings = await Planner(client, self._options).beginnings(begin, end)
        return await self._limited(client, begin | beginnings, end, limit) or begin, beginnings

    async def _limited(self, client: QueueClient, begin: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of a micro-batch within the limit; its begin if it is to wait."""
        if isinstance(limit, ReadAllAvailable):
            return end
        if self._should_wait(begin, end):
            return {}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.rows_per_trigger_max
        if rows_max:
            end = admit(begin, end, dict.fromkeys(end, 1), rows_max)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.bytes_per_trigger_max
        if bytes_max:
            end = admit(begin, end, await self._weights(client, begin, end), bytes_max)
        return end

    async def _latest(self, client: QueueClient, begin: Offsets) -> Offsets:
        """Return the ends of all queues that exist now.

        Args:
            client: asks the cluster.
            begin: where the next micro-batch begins. A queue whose broker group is away is left out: it stays where
                it is.
        """
        queues = await Planner(client, self._options).queues(begin)
        ends = await client.ends(queues)
        for queue, end in ends.items():
            if end < begin.get(queue, 0):
                reason = "the queue ends before them; was the topic deleted, and made anew?"
                report_loss(loss_sentence(queue, end, begin[queue], reason), fail=self._options.fail_on_data_loss)
        return ends

    def _should_wait(self, begin: Offsets, end: Offsets) -> bool:
        """Return whether there are too few messages for a micro-batch, and it may wait."""
        now = time.monotonic()
        rows = sum(each.rows for each in ranges(begin, end))
        late = now - self._last_advanced_at >= self._options.trigger_delay_s_max
        if rows < self._options.rows_per_trigger_min and not late and self._target is None:
            return True
        self._last_advanced_at = now
        return False

    async def _weights(self, client: QueueClient, begin: Offsets, end: Offsets) -> dict[Queue, float]:
        """Return the approximate size of the next messages of queues, in bytes: a sample of each is pulled."""
        weights = dict.fromkeys(end, 1.0)
        for each in ranges(begin, end):
            pulled = await client.pull(each.queue, each.start, _SAMPLE, self._options.tags)
            passed = max(1, pulled.next_offset - each.start)
            weights[each.queue] = max(1.0, float(pulled.lengths.sum()) / passed)
        return weights

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues when last asked, for Spark's metrics."""
        return None if self._ends is None else nested(self._ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Split a micro-batch among tasks; the same offsets give the same parts, also after a restart."""
        beginnings: Offsets = {}
        until = flat(end, beginnings)
        begin = flat(start, {}) | beginnings
        self._reached = until
        for queue, offset in begin.items():
            reached = until.get(queue, START)
            if reached < offset:
                reason = "the queue ends before them, or is not there; was the topic deleted, or made anew?"
                report_loss(loss_sentence(queue, reached, offset, reason), fail=self._options.fail_on_data_loss)
        self._ask(lambda client: Planner(client, self._options).check_stored(begin, until))
        return partitions_of(self._options, begin, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part, on an executor."""
        return read_partition(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint has the position of the stream, and `latestOffset` publishes it. Spark commits a
        micro-batch only when it plans the one after the next.
        """

    def stop(self) -> None:
        """End the connection."""
        if self._runner is not None and self._client is not None:
            self._runner.run(self._client.close())
            self._runner.close()
        self._runner = self._client = None

    async def _publish(self, client: QueueClient, reached: Offsets) -> None:
        """Publish the stream's position as a consumer group's progress; failures are only logged."""
        changed = {queue: offset for queue, offset in reached.items() if self._published.get(queue) != offset}
        self._published = reached
        try:
            async with asyncio.timeout(_PUBLISH_S):
                await client.publish(changed)
        except (PopwheelSparkError, TimeoutError) as error:
            _log.warning("the group %s does not show the stream's progress: %r", self._options.group, error)

    def _ask(self, question: Callable[[QueueClient], Coroutine[None, None, T]]) -> T:
        """Call the cluster; the connection stays open for the next call."""
        if self._runner is None or self._client is None:
            self._runner = asyncio.Runner()
            self._client = QueueClient(self._options.connection, self._options.group)
        return self._runner.run(question(self._client))
