"""What was planned and is gone when it is read is a loss, whatever its first offset; a queue may begin late."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql.types import StructType

from popwheel_spark.errors import DataLossError, OptionError
from popwheel_spark.source import batch_reader, readers, stream_reader
from popwheel_spark.source.batch_reader import BatchReader
from popwheel_spark.source.plan import QueueRange
from popwheel_spark.source.planner import Planner
from popwheel_spark.source.read_limits import HAS_LIMITS
from popwheel_spark.source.read_options import ReadOptions, read_options
from popwheel_spark.source.stream_reader import StreamReader
from popwheel_spark.wire.offsets import EARLIEST, LATEST, Mark, Offsets, Queue
from popwheel_spark.wire.queue_client import QueueClient

QUEUE = Queue("orders", "b-0", 0)


class OpenMessages(QueueClient):
    """The queues of a topic, of which a broker holds messages from .. to.

    Args:
        first: offset of the first message of each.
        end: offset behind the last.
    """

    def __init__(self, first: int = 0, end: int = 0) -> None:
        self.first, self.end = first, end

    async def queues(self, topic: str) -> list[Queue] | None:
        return [QUEUE]

    async def places(self, marks: Mapping[Queue, Mark]) -> Offsets:
        found = {EARLIEST: self.first, LATEST: self.end}
        return {queue: found.get(mark, mark) for queue, mark in marks.items() if isinstance(mark, int)}

    async def publish(self, progress: Mapping[Queue, int]) -> None:
        pass

    async def close(self) -> None:
        pass


def options(**more: str) -> ReadOptions:
    return read_options({"endpoints": "h:1", "topic": "orders"} | more)


Streams = Callable[..., StreamReader]


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    """Makes a stream that asks these queues."""
    made: list[StreamReader] = []

    def make(held: OpenMessages, **more: str) -> StreamReader:
        monkeypatch.setattr(stream_reader, "QueueClient", lambda *_: held)
        made.append(StreamReader(options(**more)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def batch(monkeypatch: pytest.MonkeyPatch, held: OpenMessages, **more: str) -> list[object]:
    """The ranges of a batch that asks these queues."""
    monkeypatch.setattr(batch_reader, "QueueClient", lambda *_: held)
    return [each for part in BatchReader(options(**more)).partitions() for each in part.value]


def planned(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[object]:
    return [each for part in reader.partitions(start, end) for each in part.value]


@pytest.mark.parametrize("begin", [{"orders": {"b-0": {"0": 0}}}, {}], ids=["known", "new"])
def test_what_was_planned_from_the_first_message_on_and_is_gone_at_the_restart(
    stream: Streams, begin: dict[str, Any]
) -> None:
    held = OpenMessages(0, 100)
    reader = stream(held)
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert planned(reader, begin, end) == [QueueRange(QUEUE, 0, 100)]
    held.first = 90
    with pytest.raises(DataLossError, match="from offset 0 up to 90 are gone"):
        planned(stream(held), begin, end)


@pytest.mark.parametrize("begin", [{"orders": {"b-0": {"0": 0}}}, {}], ids=["known", "new"])
def test_a_queue_may_begin_late_and_what_it_had_when_it_was_planned_is_known(
    stream: Streams, begin: dict[str, Any]
) -> None:
    held = OpenMessages(200, 500)
    reader = stream(held)
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert planned(reader, begin, end) == [QueueRange(QUEUE, 200, 500)]
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end, "Spark would plan again and again"
    held.end = 600
    after = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert after == {"orders": {"b-0": {"0": 600}}}
    assert planned(reader, end, after) == [QueueRange(QUEUE, 500, 600)]
    held.first = 300
    with pytest.raises(DataLossError, match="from offset 200 up to 300 are gone"):
        planned(stream(held), begin, end)
    assert planned(stream(held, failOnDataLoss="false"), begin, end) == [QueueRange(QUEUE, 200, 500)]


@pytest.mark.skipif(not HAS_LIMITS, reason="Spark 4.1 knows no limits")
def test_a_limit_of_rows_counts_from_where_a_queue_begins(stream: Streams) -> None:
    reader = stream(OpenMessages(200, 500), maxRowsPerTrigger="10")
    end = reader.latestOffset({}, reader.getDefaultReadLimit())
    assert planned(reader, {}, end) == [QueueRange(QUEUE, 200, 210)]


def test_a_stream_that_ends_with_what_was_there_misses_what_went_meanwhile(stream: Streams) -> None:
    held = OpenMessages(0, 100)
    reader = stream(held)
    reader.prepareForTriggerAvailableNow()
    held.first, held.end = 150, 200
    begin = {"orders": {"b-0": {"0": 0}}}
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    with pytest.raises(DataLossError, match="from offset 0 up to 100 are gone"):
        planned(reader, begin, end)


class Filling(OpenMessages):
    """A queue of a topic that was made anew: empty when it is asked for its first message, filled a moment later."""

    async def firsts(self, queues: Iterable[Queue]) -> Offsets:
        found = await super().firsts(queues)
        self.first, self.end = 200, 500
        return found

    async def places(self, marks: Mapping[Queue, Mark]) -> Offsets:
        found = await super().places(marks)
        if EARLIEST in marks.values():
            self.first, self.end = 200, 500
        return found


def test_a_batch_begins_where_a_queue_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch(monkeypatch, OpenMessages(200, 500)) == [QueueRange(QUEUE, 200, 500)]
    assert batch(monkeypatch, Filling()) == [QueueRange(QUEUE, 200, 500)]


def test_an_offset_that_was_asked_for_and_is_gone_is_a_loss_also_if_it_is_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DataLossError, match="from offset 0 up to 90 are gone"):
        batch(monkeypatch, OpenMessages(90, 500), startingOffsets='{"orders": {"b-0": {"0": 0}}}')
    assert batch(monkeypatch, OpenMessages(0, 500), startingOffsets='{"orders": {"b-0": {"0": 0}}}')


def test_the_planner_asks_nothing_of_queues_that_are_past_their_beginning() -> None:
    class Silent(OpenMessages):
        async def firsts(self, queues: Iterable[Queue]) -> Offsets:
            assert not list(queues)
            return {}

    assert asyncio.run(Planner(Silent(), options()).beginnings({QUEUE: 7}, {QUEUE: 9})) == {}


def test_a_stream_of_spark_4_1_is_not_reported_where_it_begins(stream: Streams) -> None:
    held = OpenMessages(200, 500)
    new = stream(held, startingOffsets="earliest")
    begin = new.initialOffset()
    end = new.latestOffset()
    assert planned(new, begin, end) == [QueueRange(QUEUE, 200, 500)]
    held.end = 600
    after = new.latestOffset()
    assert planned(new, end, after) == [QueueRange(QUEUE, 500, 600)]
    assert new.latestOffset() == after
    again = stream(held)
    held.end = 700
    later = again.latestOffset()
    assert planned(again, after, later) == [QueueRange(QUEUE, 600, 700)]
    held.first, held.end = 0, 50
    with pytest.raises(DataLossError, match="the queue ends before them"):
        planned(stream(held), later, stream(held).latestOffset())


def test_spark_4_1_takes_no_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "HAS_LIMITS", False)
    with pytest.raises(OptionError, match=r"option maxRowsPerTrigger: Spark 4\.1 takes all there is"):
        readers.stream_reader({"endpoints": "h:1", "topic": "t", "maxRowsPerTrigger": "5"}, StructType())
