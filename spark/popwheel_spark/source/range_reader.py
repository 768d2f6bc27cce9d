"""Reads ranges of queues: all stored messages, in order, a batch of rows at a time."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from popwheel_common.contract.record_block import RecordBlock, joined
from popwheel_rpc.backoff import Backoff
from popwheel_spark.source.bad_records import BadRecord, decode, log_bad
from popwheel_spark.source.data_loss import loss_sentence, report_loss
from popwheel_spark.source.one_ahead import OneAhead
from popwheel_spark.source.plan import QueueRange
from popwheel_spark.source.read_options import ReadOptions
from popwheel_spark.wire.offsets import Queue
from popwheel_spark.wire.queue_client import QueueClient

ROWS_MAX: Final = 10_000
"""Limit of the rows that are pulled and decoded together."""
BYTES_MAX: Final = 4 * 2**20
"""Bytes of answers after which no more is pulled before decoding. All is decoded at once: each step of that
costs as much as some hundred rows.
"""
BATCH_BYTES: Final = 2**20
"""Approximate size of a batch of rows: Spark takes longer for larger ones."""
PULL_MESSAGES: Final = 1024
"""Number of messages of a pull: as many as a proxy returns at once."""
PULL_BYTES: Final = 2**20
"""Approximate limit of the bytes of one pull, estimated from the size of earlier messages."""
_FIRST_PULL_MESSAGES = 16
_PULLS_AT_ONCE = 2
_RANGES_AT_ONCE = 8


@dataclass(slots=True)
class Part:
    """Messages that were pulled together.

    Args:
        at: where to go on.
        blocks: in order.
        rows: of all blocks.
        bytes: of all answers.
        gaps: offsets from .. up to .. that were passed over: filtered, or gone.
    """

    at: int
    blocks: list[RecordBlock] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def take(self, pulled: RecordBlock, end: int) -> None:
        """Add the new messages of an answer: other pulls may have returned some of them already."""
        self.bytes += len(pulled.data)
        offsets = pulled.heads()["queue_offset"].astype(np.int64)
        first, behind = np.searchsorted(offsets, (self.at, end)).tolist()
        if first < behind:
            offsets = offsets[first:behind]
            expected = np.concatenate(((self.at,), offsets[:-1] + 1))
            passed = offsets != expected
            self.gaps += zip(expected[passed].tolist(), offsets[passed].tolist(), strict=True)
            self.blocks.append(pulled.part(first, behind))
            self.rows += len(offsets)
            self.at = int(offsets[-1]) + 1
        stop = min(end, pulled.next_offset)
        if stop > self.at:
            self.gaps.append((self.at, stop))
            self.at = stop


class RangeReader:
    """Reads one range.

    Args:
        client: client of the cluster.
        options: of the read.
        what: the range.
    """

    def __init__(self, client: QueueClient, options: ReadOptions, what: QueueRange) -> None:
        self._client = client
        self._options = options
        self._queue: Queue = what.queue
        self._start = what.start
        self._end = what.end
        self._backoff = Backoff(random.Random())
        self._at_once = _FIRST_PULL_MESSAGES
        self._bad: list[BadRecord] = []

    async def parts(self) -> AsyncGenerator[Part, None]:
        """Pull the range, a part at a time.

        Raises:
            DataLossError: some are gone, and that is an error.
            RefusedError, UnreachableError: see `Proxies.call`.
        """
        at = self._start
        while at < self._end:
            part = await self._pull_part(at)
            yield part
            at = part.at

    async def _pull_part(self, at: int) -> Part:
        part = Part(at)
        if self._options.tags:
            await self._pull_filtered(part)
        else:
            await self._pull_ahead(part)
        if part.gaps:
            await self._check(part.gaps)
        return part

    def batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, in batches of about `BATCH_BYTES`.

        Raises:
            BadRecordError: a message can't be decoded, and that is an error.
            FormatError: the brokers are of a newer release.
        """
        if part.blocks:
            yield from self._decoded(part)
        if part.at >= self._end:
            log_bad(self._queue, self._bad, self._options.bad_records)

    def _decoded(self, part: Part) -> list[pa.RecordBatch]:
        rows, bad = decode(self._queue, joined(part.blocks), self._options.columns, self._options.bad_records)
        self._bad += bad
        size = -(-part.rows * BATCH_BYTES // max(BATCH_BYTES, part.bytes))
        return [rows.slice(begin, size) for begin in range(0, rows.num_rows, size)]

    async def _pull_ahead(self, part: Part) -> None:
        """Pull ahead: without a filter offsets have no gaps, so several pulls can be in flight."""
        last = min(self._end, part.at + ROWS_MAX)
        asked = part.at
        ahead: deque[tuple[int, asyncio.Task[RecordBlock]]] = deque()
        try:
            while part.at < last:
                while (asked := max(asked, part.at)) < last and self._may_ask(part, len(ahead)):
                    stop = min(asked + self._at_once, last)
                    pull = self._pull(asked, stop - asked)
                    ahead.append((stop, asyncio.create_task(pull)))
                    asked = stop
                if not ahead:
                    return
                stop, task = ahead.popleft()
                part.take(await task, self._end)
                while part.at < stop:  # an answer holds fewer than asked for if they are large
                    if part.bytes >= BYTES_MAX:
                        return
                    await self._pull_on(part, stop - part.at)
        finally:
            for _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)

    def _may_ask(self, part: Part, ahead: int) -> bool:
        return ahead < _PULLS_AT_ONCE and part.bytes < BYTES_MAX

    async def _pull_filtered(self, part: Part) -> None:
        """Pull one after the other: only the answer has the offset of the next pull."""
        while part.at < self._end and (room := ROWS_MAX - part.rows) and part.bytes < BYTES_MAX:
            await self._pull_on(part, room)

    async def _pull_on(self, part: Part, count: int) -> None:
        """Pull until there are messages. The planned ones exist: if a queue seems shorter, its new master has yet
        to learn the high watermark of the old one.

        Raises:
            DataLossError: the queue stays shorter, and that is an error.
        """
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self._options.connection.timeout_s
        before = part.at
        while True:
            part.take(await self._pull(part.at, count), self._end)
            if part.at > before:
                self._backoff.reset()
                return
            if clock() > give_up_at:
                self._lost(before, self._end, "the queue ends there; was the topic deleted, and made anew?")
                part.at = self._end
                return
            await asyncio.sleep(self._backoff.next_s())

    async def _pull(self, offset: int, count: int) -> RecordBlock:
        """Pull messages up to a limit, and adapt the size of the next pulls to theirs."""
        pulled = await self._client.pull(self._queue, offset, min(count, self._at_once), self._options.tags)
        if len(pulled.begins):
            fitting = PULL_BYTES * len(pulled.begins) // len(pulled.data)
            self._at_once = max(1, min(PULL_MESSAGES, fitting))
        return pulled

    async def _check(self, gaps: Sequence[tuple[int, int]]) -> None:
        """Distinguish lost messages from filtered ones: only what is before the queue's first message is lost."""
        first = (await self._client.firsts((self._queue,)))[self._queue]
        for begin, end in gaps:
            if begin < first:
                self._lost(begin, min(end, first), f"retention has deleted them, the queue begins at {first} now")
            if end > first and not self._options.tags:
                reason = "they are in the broker's quarantine, as it cannot read them (popwheel admin quarantine list)"
                self._lost(max(begin, first), end, reason)

    def _lost(self, begin: int, end: int, reason: str) -> None:
        report_loss(loss_sentence(self._queue, begin, end, reason), fail=self._options.fail_on_data_loss)


def read_ranges(options: ReadOptions, what: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of some ranges, one after the other: a task that is retried has the same order. One part is pulled
    ahead, and then no call is in flight, so the consumer may be slow.

    Raises:
        BadRecordError, DataLossError, FormatError, RefusedError, UnreachableError: see `RangeReader`.
    """
    with contextlib.closing(OneAhead(_parts(options, what))) as parts:
        yield from _joined_batches(batch for reader, part in parts for batch in reader.batches(part))


async def _parts(options: ReadOptions, what: Sequence[QueueRange]) -> AsyncGenerator[tuple[RangeReader, Part], None]:
    async with QueueClient(options.connection, options.group) as client:
        for begin in range(0, len(what), _RANGES_AT_ONCE):
            readers = [RangeReader(client, options, each) for each in what[begin : begin + _RANGES_AT_ONCE]]
            parts = [reader.parts() for reader in readers]
            for reader, part, later in zip(readers, await _first_of(parts), parts, strict=True):
                if part is not None:
                    yield reader, part
                async for part in later:
                    yield reader, part


async def _first_of(parts: Sequence[AsyncGenerator[Part, None]]) -> list[Part | None]:
    """Pull the first part of several ranges, side by side: most small ranges have no more."""
    try:
        async with asyncio.TaskGroup() as group:
            pulls = [group.create_task(_first(each)) for each in parts]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [pull.result() for pull in pulls]


async def _first(parts: AsyncGenerator[Part, None]) -> Part | None:
    return await anext(parts, None)


def _joined_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, as each costs Spark more than some hundred rows. Large ones are yielded at once, as Spark
    processes them while the next is pulled.
    """
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_large = batch.nbytes >= BATCH_BYTES // 2
        if small and (is_large or rows + batch.num_rows > ROWS_MAX or size + batch.nbytes > BATCH_BYTES):
            yield _one(small)
            small, rows, size = [], 0, 0
        if is_large:
            yield batch
            continue
        small.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if small:
        yield _one(small)


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
