"""Reading a range: every message once and in order, whatever answers look like; what is gone is told."""

import asyncio
import logging
from collections.abc import Iterable

import pyarrow as pa
import pytest

from popwheel_common.contract.record_block import RecordBlock
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from popwheel_spark.errors import DataLossError, UnreachableError
from popwheel_spark.source import range_reader
from popwheel_spark.source.plan import QueueRange
from popwheel_spark.source.range_reader import BATCH_BYTES, BYTES_MAX, PULL_BYTES, ROWS_MAX, RangeReader, read_ranges
from popwheel_spark.source.read_options import read_options
from popwheel_spark.wire.offsets import Offsets, Queue
from popwheel_spark.wire.queue_client import QueueClient
from tests.harness.records import block_of, record_of

QUEUE = Queue("orders", "b-0", 3)


def record_with(body: bytes, number: int) -> bytes:
    message = Message(body=body)
    message.system_properties.queue_offset = number
    return record_of(message)


class OneQueue(QueueClient):
    """A queue in memory.

    Args:
        first: offset of the first message that it holds.
        end: offset behind its last.
        most: an answer has no more messages.
        damaged: offsets of messages that the broker can't read.
        body: of all messages.
    """

    def __init__(
        self, first: int, end: int, *, most: int = 32, damaged: Iterable[int] = (), body: bytes = b"x"
    ) -> None:
        self.first, self.end, self.most, self.damaged, self.body = first, end, most, set(damaged), body
        self.asked: list[int] = []

    async def pull(self, queue: Queue, offset: int, count: int, tags: str) -> RecordBlock:
        self.asked.append(count)
        at = max(offset, self.first)
        records: list[bytes] = []
        next_offset = at
        for number in range(at, self.end):
            next_offset = number + 1
            if number in self.damaged or (tags and number % 3):
                continue
            records.append(record_with(self.body, number))
            if len(records) == min(count, self.most):
                break
        return block_of(records, next_offset)

    async def firsts(self, queues: Iterable[Queue]) -> Offsets:
        return dict.fromkeys(queues, self.first)


def read(queue: OneQueue, start: int, end: int, **options: str) -> list[int]:
    """The offsets of all rows, read batch by batch."""
    given = {"endpoints": "h:1", "topic": "orders", "columns": "queueOffset", "timeoutMs": "1"}
    reader = RangeReader(queue, read_options(given | options), QueueRange(QUEUE, start, end))

    async def all_of_it() -> list[int]:
        found: list[int] = []
        async for part in reader.parts():
            batches = list(reader.batches(part))
            assert sum(batch.num_rows for batch in batches) <= ROWS_MAX
            for batch in batches:
                found += batch.column("queueOffset").to_pylist()
        return found

    return asyncio.run(all_of_it())


def first_part(queue: OneQueue, end: int, **options: str) -> tuple[list[pa.RecordBatch], int]:
    """The batches of the first part of a range, and where the next one begins."""
    reader = RangeReader(
        queue, read_options({"endpoints": "h:1", "topic": "orders"} | options), QueueRange(QUEUE, 0, end)
    )
    part = asyncio.run(anext(reader.parts()))
    return list(reader.batches(part)), part.at


@pytest.mark.parametrize("most", [1, 5, 31, 32])
@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 400), (17, 63), (7, 7 + 32)])
def test_every_message_comes_once_and_in_order(start: int, end: int, most: int) -> None:
    assert read(OneQueue(0, 500, most=most), start, end) == list(range(start, end))


@pytest.mark.parametrize(("options", "every"), [({}, 1), ({"tags": "a"}, 3)], ids=["all", "filtered"])
def test_a_batch_of_rows_has_a_limit_of_rows(options: dict[str, str], every: int) -> None:
    end = every * (ROWS_MAX + 5)
    assert read(OneQueue(0, end, most=256), 0, end, **options) == list(range(0, end, every))


@pytest.mark.parametrize("options", [{}, {"tags": "a"}], ids=["all", "filtered"])
@pytest.mark.parametrize(("size", "most"), [(2**20, 4), (2**12, 1000)], ids=["large", "small"])
def test_a_batch_of_rows_has_a_limit_of_bytes(size: int, most: int, options: dict[str, str]) -> None:
    queue, end = OneQueue(0, 20_000, body=bytes(size), most=most), 16_000
    batches, at = first_part(queue, end, columns="queueId", **options)
    assert at < end
    assert BYTES_MAX <= sum(batch.num_rows for batch in batches) * (size + 100) < BYTES_MAX + 5 * PULL_BYTES


@pytest.mark.parametrize(("size", "most"), [(10, ROWS_MAX), (1000, 1020), (600_000, 2), (3 * 2**20, 1)])
def test_spark_gets_a_mebibyte_at_a_time(size: int, most: int) -> None:
    queue = OneQueue(0, 2 * ROWS_MAX if size < 10**4 else 50, most=1024, body=bytes(size))
    batches, at = first_part(queue, queue.end, columns="queueOffset,body")
    assert [number for batch in batches for number in batch.column("queueOffset").to_pylist()] == list(range(at))
    assert max(batch.num_rows for batch in batches) <= most
    assert min([batch.num_rows for batch in batches[:-1]], default=most) * (size + 100) >= BATCH_BYTES * 0.9


@pytest.mark.parametrize(("size", "fitting"), [(2**20, 1), (2**16, 15), (100, 1024)])
def test_as_many_are_asked_for_at_once_as_have_a_mebibyte(size: int, fitting: int) -> None:
    end = 100 + 3 * fitting
    queue = OneQueue(0, 2 * end, body=bytes(size), most=2000)
    assert len(read(queue, 0, end)) == end
    assert max(queue.asked[4:]) == fitting
    queue.asked.clear()
    assert len(read(queue, 0, end, tags="a")) == -(-end // 3)
    assert max(queue.asked[1:]) == fitting


def test_what_a_filter_keeps_back_is_not_lost() -> None:
    assert read(OneQueue(0, 500), 10, 402, tags="a") == list(range(12, 402, 3))


@pytest.mark.parametrize("options", [{}, {"tags": "a"}], ids=["all", "filtered"])
def test_what_retention_took_is_reported_with_queue_and_range(options: dict[str, str]) -> None:
    with pytest.raises(DataLossError, match="queue 3 of orders at b-0: the messages from offset 10 up to 200 are gone"):
        read(OneQueue(200, 500), 10, 400, **options)


def test_retention_may_take_what_it_likes_if_that_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert read(OneQueue(200, 500), 10, 400, failOnDataLoss="false") == list(range(200, 400))
        assert read(OneQueue(450, 500), 10, 400, failOnDataLoss="false") == []
    assert "from offset 10 up to 200 are gone" in caplog.text
    assert "from offset 10 up to 400 are gone" in caplog.text
    with caplog.at_level(logging.WARNING):
        assert read(OneQueue(200, 500, damaged=(200,)), 10, 400, failOnDataLoss="false") == list(range(201, 400))
    assert "from offset 200 up to 201 are gone: they are in the broker's quarantine" in caplog.text


def test_what_the_broker_cannot_read_is_distinguished_from_what_retention_took() -> None:
    with pytest.raises(DataLossError, match="from offset 50 up to 52 are gone: they are in the broker's quarantine"):
        read(OneQueue(0, 500, damaged=(50, 51)), 0, 400)


class Growing(OneQueue):
    """A queue of 100 messages that has 400 more when it is asked for the fourth time."""

    async def pull(self, queue: Queue, offset: int, count: int, tags: str) -> RecordBlock:
        if len(self.asked) == 3:
            self.end += 400
        return await super().pull(queue, offset, count, tags)


def test_a_queue_that_is_too_short_is_waited_for() -> None:
    assert read(Growing(0, 100), 90, 110, timeoutMs="60000") == list(range(90, 110))


def test_a_queue_that_stays_too_short_is_reported() -> None:
    with pytest.raises(DataLossError, match="from offset 100 up to 110 are gone: the queue ends there"):
        read(OneQueue(0, 100), 90, 110)


class HalfDead(OneQueue):
    """A queue whose first messages can not be asked for, and whose others never come."""

    async def pull(self, queue: Queue, offset: int, count: int, tags: str) -> RecordBlock:
        if offset:
            await asyncio.Event().wait()
        raise UnreachableError("no proxy answers")


def test_what_is_still_asked_for_is_given_up_when_a_pull_fails() -> None:
    with pytest.raises(UnreachableError):
        read(HalfDead(0, 500), 0, 500)


def test_what_was_planned_from_offset_0_on_and_is_gone_is_reported() -> None:
    with pytest.raises(DataLossError, match="from offset 0 up to 200 are gone"):
        read(OneQueue(200, 500), 0, 400)


class ManyQueues(OneQueue):
    """Queues whose answers come in any order, and not always whole."""

    async def pull(self, queue: Queue, offset: int, count: int, tags: str) -> RecordBlock:
        for _ in range((queue.number * 7 + offset) % 5):
            await asyncio.sleep(0)
        self.end = queue.number + 1
        return await super().pull(queue, offset, count, tags)

    async def close(self) -> None:
        pass


def test_a_task_reads_many_ranges_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "QueueClient", lambda *_: ManyQueues(0, 0, most=7))
    what = [QueueRange(Queue("orders", "b-0", number), 0, number + 1) for number in range(60)]
    options = read_options({"endpoints": "h:1", "topic": "orders", "columns": "queueId,queueOffset"})
    batches = list(read_ranges(options, what))
    assert len(batches) == 1
    rows = [(row["queueId"], row["queueOffset"]) for row in batches[0].to_pylist()]
    assert rows == [(number, offset) for number in range(60) for offset in range(number + 1)]


def test_large_batches_are_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = ManyQueues(0, 0, body=bytes(2**20))
    monkeypatch.setattr(range_reader, "QueueClient", lambda *_: queue)
    options = read_options({"endpoints": "h:1", "topic": "orders", "columns": "body"})
    rows = read_ranges(options, [QueueRange(Queue("orders", "b-0", 40), 0, 41)])
    next(rows)
    assert len(queue.asked) <= 8, "the first is given before all are pulled"
    assert sum(batch.num_rows for batch in rows) == 40


def test_a_range_that_fails_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(ManyQueues):
        async def pull(self, queue: Queue, offset: int, count: int, tags: str) -> RecordBlock:
            if queue.number == 5:
                raise UnreachableError("no proxy answers")
            return await super().pull(queue, offset, count, tags)

    monkeypatch.setattr(range_reader, "QueueClient", lambda *_: Failing(0, 0))
    what = [QueueRange(Queue("orders", "b-0", number), 0, 1) for number in range(9)]
    with pytest.raises(UnreachableError):
        list(read_ranges(read_options({"endpoints": "h:1", "topic": "orders"}), what))
