"""Reads a range of a queue: every message of it that is still there, in order, a batch of rows at a time."""

import asyncio
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from popwheel_spark.data_loss import gone, report_loss
from popwheel_spark.message_rows import record_batch
from popwheel_spark.offsets import START, Queue
from popwheel_spark.plan import QueueRange
from popwheel_spark.queue_client import Pulled, QueueClient
from popwheel_spark.read_options import ReadOptions
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Message
from services.rpc.backoff import Backoff

ROWS_MAX: Final = 10_000
"""Rows of one batch."""
BYTES_MAX: Final = 16 * 2**20
"""No more is pulled for a batch whose messages have so many bytes."""
PULL_MESSAGES: Final = 256
"""As many as a proxy gives at once."""
PULL_BYTES: Final = 2**20
"""No more messages are asked for at once than have so many bytes together, by the size of those that came before."""
_FIRST_PULL_MESSAGES = 16
_PULLS_AT_ONCE = 4


@dataclass(slots=True)
class _Batch:
    """What was pulled for one batch of rows.

    Args:
        at: where to go on.
        messages: in order.
        bytes: of all answers.
        gaps: offsets from .. up to .. that were passed over: filtered, or gone.
    """

    at: int
    messages: list[Message] = field(default_factory=list)
    bytes: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def take(self, pulled: Pulled, end: int) -> None:
        """Take what is new of an answer: other pulls may have given some of it already."""
        self.bytes += pulled.bytes
        for message in pulled.messages:
            offset = message.system_properties.queue_offset
            if offset >= end:
                break
            if offset < self.at:
                continue
            if offset > self.at:
                self.pass_to(offset)
            self.messages.append(message)
            self.at = offset + 1
        self.pass_to(min(end, pulled.next_offset))

    def pass_to(self, offset: int) -> None:
        """Nothing came from here up to this offset."""
        if offset > self.at:
            self.gaps.append((self.at, offset))
            self.at = offset


class RangeReader:
    """Reads one range.

    Args:
        client: asks the cluster.
        options: of the read.
        what: the range.
    """

    def __init__(self, client: QueueClient, options: ReadOptions, what: QueueRange) -> None:
        self._client = client
        self._options = options
        self._queue: Queue = what.queue
        self._end = what.end
        self._backoff = Backoff(random.Random())
        self._at_once = _FIRST_PULL_MESSAGES

    async def batch(self, at: int) -> tuple[pa.RecordBatch, int]:
        """The rows from an offset on, and the offset to go on with.

        Raises:
            DataLossError: some are gone, and that is an error.
            RefusedError, UnreachableError: see `Proxies.call`.
        """
        batch = _Batch(at)
        if self._options.tags:
            await self._pull_filtered(batch)
        else:
            await self._pull_ahead(batch)
        if batch.gaps:
            await self._check(batch.gaps)
        return record_batch(self._queue, batch.messages, self._options.columns), batch.at

    async def _pull_ahead(self, batch: _Batch) -> None:
        """Without a filter offsets have no gaps, so that several pulls can be on their way."""
        last = min(self._end, batch.at + ROWS_MAX)
        asked = batch.at
        ahead: deque[tuple[int, asyncio.Task[Pulled]]] = deque()
        try:
            while batch.at < last:
                while (asked := max(asked, batch.at)) < last and self._may_ask(batch, len(ahead)):
                    stop = min(asked + self._at_once, last)
                    pull = self._pull(asked, stop - asked)
                    ahead.append((stop, asyncio.create_task(pull)))
                    asked = stop
                if not ahead:
                    return
                stop, task = ahead.popleft()
                batch.take(await task, self._end)
                while batch.at < stop:  # an answer holds fewer than asked for if they are large
                    if batch.bytes >= BYTES_MAX:
                        return
                    await self._pull_on(batch, stop - batch.at)
        finally:
            for _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)

    def _may_ask(self, batch: _Batch, ahead: int) -> bool:
        return ahead < _PULLS_AT_ONCE and batch.bytes < BYTES_MAX

    async def _pull_filtered(self, batch: _Batch) -> None:
        """Where the next pull begins only the answer says."""
        while batch.at < self._end and (room := ROWS_MAX - len(batch.messages)) and batch.bytes < BYTES_MAX:
            await self._pull_on(batch, room)

    async def _pull_on(self, batch: _Batch, count: int) -> None:
        """Pull until something has come. What was planned is there: if a queue seems shorter, its new master has yet
        to learn what the old one has promised.

        Raises:
            DataLossError: the queue stays shorter, and that is an error.
        """
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self._options.connection.timeout_s
        before = batch.at
        while True:
            batch.take(await self._pull(batch.at, count), self._end)
            if batch.at > before:
                self._backoff.reset()
                return
            if clock() > give_up_at:
                self._lost(before, self._end, "the queue ends there; was the topic deleted, and made anew?")
                batch.at = self._end
                return
            await asyncio.sleep(self._backoff.next_s())

    async def _pull(self, offset: int, count: int) -> Pulled:
        """Pull so many messages at the most, and learn from their size how many are asked for from now on."""
        pulled = await self._client.pull(self._queue, offset, min(count, self._at_once), self._options.tags)
        if pulled.messages:
            fitting = PULL_BYTES * len(pulled.messages) // max(1, pulled.bytes)
            self._at_once = max(1, min(PULL_MESSAGES, fitting))
        return pulled

    async def _check(self, gaps: Sequence[tuple[int, int]]) -> None:
        """Tell what is gone from what a filter kept back: only what is before the queue's first message is gone."""
        first = (await self._client.firsts((self._queue,)))[self._queue]
        for begin, end in gaps:
            if START < begin < first:
                self._lost(begin, min(end, first), f"retention has deleted them, the queue begins at {first} now")
            if end > first and not self._options.tags:
                reason = "the broker cannot read them and has set them aside (popwheel admin quarantine list)"
                self._lost(max(begin, first), end, reason)

    def _lost(self, begin: int, end: int, reason: str) -> None:
        report_loss(gone(self._queue, begin, end, reason), fail=self._options.fail_on_data_loss)


def read_range(options: ReadOptions, what: QueueRange) -> Iterator[pa.RecordBatch]:
    """All rows of a range. Between two batches no call is on its way: whoever takes them may take his time.

    Raises:
        DataLossError, RefusedError, UnreachableError: see `RangeReader.batch`.
    """
    with asyncio.Runner() as runner:
        client = QueueClient(options.connection, options.group)
        reader = RangeReader(client, options, what)
        try:
            at = what.start
            while at < what.end:
                batch, at = runner.run(reader.batch(at))
                if batch.num_rows:
                    yield batch
        finally:
            runner.run(client.close())
