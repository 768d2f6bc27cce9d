"""Planner of reads, on the driver: finds the queues of a cluster and their offsets."""

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from popwheel_spark.errors import OptionError
from popwheel_spark.source.bounds import Bound, Strategy
from popwheel_spark.source.data_loss import loss_sentence, report_loss
from popwheel_spark.source.read_options import ReadOptions
from popwheel_spark.wire.admin_api import AdminApi
from popwheel_spark.wire.offsets import LATEST, START, Instant, Offsets, Queue
from popwheel_spark.wire.queue_client import QueueClient

_TOPICS_AT_ONCE = 32


class Planner:
    """Finds queues and offsets.

    Args:
        client: client of the cluster.
        options: of the read.
    """

    def __init__(self, client: QueueClient, options: ReadOptions) -> None:
        self._client = client
        self._options = options
        self._named: set[Queue] = set()

    async def queues(self, known: Collection[Queue] = ()) -> list[Queue]:
        """Return all existing queues to be read.

        Args:
            known: those that were read before.

        Raises:
            OptionError: a topic, or an assigned queue, is not there; or a known queue is not to be read any more.
            DataLossError: a known topic is gone, and that is an error.
        """
        for queue in known:
            if not self._options.subscription.has(queue):
                raise OptionError(
                    self._options.subscription.option,
                    f"the stream has read {queue} so far, which is not to be read any more. Give it the topics that it "
                    "began with, more if you like, or begin another stream with a checkpoint of its own",
                )
        topics_before = {queue.topic for queue in known}
        subscription = self._options.subscription
        topics = subscription.topics or tuple(subscription.assign or ())
        if subscription.pattern:
            pattern = re.compile(subscription.pattern)
            topics = tuple(topic for topic in AdminApi(self._options.connection).topics() if pattern.fullmatch(topic))
        found = await self._found(topics)
        for topic in topics_before:
            if found.get(topic) is None:
                what = f"the topic {topic} is gone, and its messages that were not read"
                report_loss(what, fail=self._options.fail_on_data_loss)
        for topic, queues in found.items():
            if queues is None and topic not in topics_before:
                raise OptionError(subscription.option, f"there is no topic {topic}")
        there = [queue for queues in found.values() if queues for queue in queues]
        return there if subscription.assign is None else _only(subscription.assign, there)

    async def _found(self, topics: Sequence[str]) -> dict[str, list[Queue] | None]:
        """Return the queues of each topic, some topics at a time; None for one that does not exist."""
        found: dict[str, list[Queue] | None] = {}
        for begin in range(0, len(topics), _TOPICS_AT_ONCE):
            some = topics[begin : begin + _TOPICS_AT_ONCE]
            try:
                async with asyncio.TaskGroup() as group:
                    asked = [group.create_task(self._client.queues(topic)) for topic in some]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            found |= {topic: answer.result() for topic, answer in zip(some, asked, strict=True)}
        return found

    async def start(self, queues: Iterable[Queue], default: int) -> Offsets:
        """Return where a batch or a new stream begins.

        Args:
            queues: that are read.
            default: `EARLIEST` or `LATEST`, if no option says it.

        Raises:
            OptionError: it is not possible to begin there.
        """
        queues = list(queues)
        bound = self._options.start or Bound("startingOffsets", default)
        marks = bound.of(queues)
        offsets = await self._client.places(marks)
        # There may be thousands of queues: an offset that the broker has just returned needs no check.
        unchecked = [queue for queue, mark in marks.items() if isinstance(mark, Instant) or mark >= START]
        ends = await self._client.ends(unchecked)
        self._named = {queue for queue in unchecked if not isinstance(marks[queue], Instant)}
        for queue in unchecked:
            mark = marks[queue]
            if isinstance(mark, Instant) and offsets[queue] == ends[queue] and self._options.strategy is Strategy.ERROR:
                raise OptionError(
                    bound.option,
                    f"{queue} has no message that was stored then or later; startingTimestampStrategy=latest begins "
                    "behind its last one",
                )
            if offsets[queue] > ends[queue]:
                raise OptionError(bound.option, f"{queue} has offsets up to {ends[queue]}, not {offsets[queue]}")
        # An option that names the offset 0 wants that message; elsewhere 0 only means that there was none yet.
        named = {queue: START for queue in self._named if marks[queue] == START}
        await self.check_stored(named, {queue: ends[queue] for queue in named})
        return offsets

    async def beginnings(self, start: Mapping[Queue, int], end: Mapping[Queue, int]) -> Offsets:
        """Return the first offsets of queues that have had their first messages since; no entry for an offset of 0.

        Such a queue was at `START`, or not known.
        """
        fresh = [queue for queue, offset in end.items() if start.get(queue, START) == START < offset]
        firsts = await self._client.firsts(fresh)
        return {queue: first for queue, first in firsts.items() if START < first <= end[queue]}

    async def end(self, queues: Iterable[Queue]) -> Offsets:
        """Return where a batch ends.

        Raises:
            OptionError: a queue is not that long.
        """
        queues = list(queues)
        bound = self._options.end or Bound("endingOffsets", LATEST)
        marks = bound.of(queues)
        offsets = await self._client.places(marks)
        if any(isinstance(mark, int) and mark != LATEST for mark in marks.values()):
            for queue, end in (await self._client.ends(queues)).items():
                if offsets[queue] > end:
                    raise OptionError(bound.option, f"{queue} has offsets up to {end}, not {offsets[queue]}")
        return offsets

    async def check_named(self, start: Offsets, end: Offsets) -> None:
        """Check the queues whose offsets an option names; the others begin where the broker said.

        Raises:
            DataLossError: see `check_stored`.
        """
        await self.check_stored(start, {queue: end[queue] for queue in self._named})

    async def check_stored(self, start: Offsets, end: Offsets) -> None:
        """Check, before tasks read, that the queues still have the messages of a range.

        Raises:
            DataLossError: messages are gone, and `failOnDataLoss` is set.
        """
        begins = {queue: start.get(queue, START) for queue in end if start.get(queue, START) < end[queue]}
        for queue, first in (await self._client.firsts(begins)).items():
            if begins[queue] < first:
                lost = min(first, end[queue])
                reason = f"retention has deleted them, the queue begins at {first} now"
                report_loss(loss_sentence(queue, begins[queue], lost, reason), fail=self._options.fail_on_data_loss)


def _only(assign: Mapping[str, Mapping[str, tuple[int, ...]]], there: Collection[Queue]) -> list[Queue]:
    """Return the assigned queues.

    Raises:
        OptionError: the topic has no such queue.
    """
    wanted = [
        Queue(topic, broker, number)
        for topic, brokers in assign.items()
        for broker, numbers in brokers.items()
        for number in numbers
    ]
    for queue in wanted:
        if queue not in there:
            raise OptionError("assign", f"there is no {queue}")
    return wanted
