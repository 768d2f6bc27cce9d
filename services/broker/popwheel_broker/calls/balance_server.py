"""Reports where all messages are that the topics of a group ever got: each is at exactly one of several places (P1).

The numbers:

| number | counts |
| --- | --- |
| stored | all messages that the topic got since it was created, deleted ones as well; and delayed ones to come |
| waiting | the group has yet to receive it: in the topic, in its retry topic, or behind others of its message group |
| in flight (`held`) | delivered and not acknowledged, also while a back-off hides it |
| delayed | waits for its delivery time |
| dead | dead letters of the group from this topic |
| poisoned | poison messages in quarantine: deliveries to this group, and delayed messages |
| expired | deleted by retention before the group was past it |
| done | messages that the group is past, without those that are at another place |

So `done` is acknowledged, or skipped: by a filter, by a reset of the offset, or as a dead letter that was purged or has
expired. Messages read and not done are counted by queue; messages in flight are counted by group and topic. Both counts
are separate, and the difference shows if they part.
"""

from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from popwheel_broker.calls.term_reads import TermReads
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.delay.overview import system_properties
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_common.clock import Clock
from popwheel_common.contract import names, receipt
from popwheel_common.contract.names import Kind, Use
from popwheel_common.errors import CorruptDataError
from popwheel_common.pace import Pace
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.service import Call

TOPICS_MAX: Final = 1_000
"""Limit of topics in one answer."""
DEAD_LETTERS_MAX: Final = 1_000
"""Limit of dead letters that are read to find their topics, for a group that reads several."""
_LETTERS_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 20
_TRIES: Final = 3

_Span = tuple[int, int]
"""First offset and end of the dead letters."""


class _Letters(NamedTuple):
    """Dead letters by topic.

    Args:
        span: that were counted.
        of_topic: their number by topic; None if they are too many.
    """

    span: _Span
    of_topic: dict[str, int] | None


class BalanceServer:
    """Serves balances of popwheel.v1.Broker. It changes nothing.

    Args:
        core: the broker's state.
        reads: the reads of this term.
        clock: how long a step takes.
    """

    def __init__(self, core: BrokerCore, reads: TermReads, clock: Clock) -> None:
        self._core = core
        self._reads = reads
        self._clock = clock
        self._pace = Pace(clock)

    async def balance(self, call: Call, request: pb.GroupBalanceRequest) -> pb.GroupBalanceResponse:
        """Return the balance of a group, by topic."""
        names.group(request.group)
        if request.topic:
            names.topic(request.topic, Use.RECEIVE)
        self._core.cluster_changes.apply((request.topic,) if request.topic else (), (request.group,))
        topics = self._topics(request.group)
        asked = [request.topic] if request.topic else list(islice(topics, TOPICS_MAX))
        answer = pb.GroupBalanceResponse(more=not request.topic and len(topics) > TOPICS_MAX)
        letters: _Letters | None = None
        for topic in asked:
            began_s = self._clock.monotonic()
            for _ in range(_TRIES):
                letters = await self._letters(request.group, topics, letters)
                row = await self._reads.run(partial(self._row, request.group, topic, letters))
                if row is not None:  # else more letters have come meanwhile
                    break
            answer.topics.append(row or pb.TopicBalance(topic=topic))
            await self._pace.let_others(self._clock.monotonic() - began_s)
        return answer

    def _topics(self, group: str) -> dict[str, None]:
        """Return the topics that a group reads, or has read from, by their names."""
        core = self._core
        found = [*core.topic_registry.readers.topics_of(group)]
        found += [queue.topic for queue in core.state.merge_buffer.of_group(group)]
        found += map(names.topic_of_retry_topic, core.store.queues.retry_topics_of_group(group))
        clients = map(names.client_topic, found)
        return dict.fromkeys(sorted(each for each in clients if names.kind_of(each) is Kind.USER))

    def _span(self, group: str, queue: ConsumeQueue | None) -> _Span:
        if queue is None:
            return 0, 0
        return self._core.dead_letters.first_offset(group, queue), queue.max_offset

    async def _letters(self, group: str, topics: dict[str, None], known: _Letters | None) -> _Letters:
        """Return the dead letters of a group by topic, read if necessary."""
        queue = self._core.dead_letters.queue(group)
        span = await self._reads.run(partial(self._span, group, queue))
        if known is not None and known.span == span:
            return known
        begin, end = span
        if queue is None or begin >= end:
            return _Letters(span, {})
        if len(topics) == 1:
            return _Letters(span, dict.fromkeys(topics, end - begin))
        if end - begin > DEAD_LETTERS_MAX:
            return _Letters(span, None)
        of_topic: dict[str, int] = {}
        while begin < end:
            read = partial(self._core.dead_letters.read, queue, begin, _LETTERS_AT_ONCE, _BYTES_AT_ONCE)
            try:
                found = await self._reads.run(read)
            except CorruptDataError:
                return _Letters(span, None)  # the topic of that one is unknown
            if not found:
                return _Letters(span, None)
            for letter in found[: end - begin]:
                topic = system_properties(letter.system_properties).dead_letter_queue.topic
                of_topic[topic] = of_topic.get(topic, 0) + 1
            begin += len(found)
        return _Letters(span, of_topic)

    def _row(self, group: str, topic: str, letters: _Letters) -> pb.TopicBalance | None:
        """Return the balance of a topic, in one turn, so that nothing changes meanwhile. None if the dead letters
        have.
        """
        core = self._core
        if self._span(group, core.dead_letters.queue(group)) != letters.span:
            return None
        row = pb.TopicBalance(topic=topic)
        queues = core.store.queues
        if queues.lite_count(topic):
            return row  # each lite topic is read by itself
        delayed = core.timer.state.pending.of_topic(topic)
        poisoned_timers = poisoned = 0
        for entry in core.quarantine.table:
            if names.client_topic(entry.topic) == topic:
                poisoned_timers += entry.is_timer
                poisoned += entry.is_delivery and entry.group == group
        stored = passed = waiting = expired = open_messages = 0
        retry_topic = names.stored_retry_topic(group, topic)
        for origin, of_topic in ((receipt.FROM_TOPIC, topic), (receipt.FROM_RETRY_TOPIC, retry_topic)):
            for queue in queues.of_topic(of_topic):
                count = self._queue(group, queue)
                waiting += count.waiting
                expired += count.expired
                open_messages += core.state.table.in_flight_of(group, topic, origin, queue.queue_id)
                if origin == receipt.FROM_TOPIC:
                    stored += count.stored
                    passed += count.passed
                else:
                    # These were in the topic before, and are counted there.
                    passed -= count.waiting + count.expired
        in_line = core.state.table.message_group_queues.blocked_of.get((group, topic), 0)
        row.stored = stored + delayed + poisoned_timers
        row.in_flight = core.state.table.in_flight.get((group, topic), 0)
        row.waiting, row.expired = waiting + in_line, expired
        row.delayed, row.poisoned = delayed, poisoned + poisoned_timers
        if letters.of_topic is not None:
            row.dead = letters.of_topic.get(topic, 0)
            row.done = passed - open_messages - row.dead - poisoned
        return row

    def _queue(self, group: str, queue: ConsumeQueue) -> "_QueueCount":
        progress = self._core.state.merge_buffer.of(group, queue)
        end, first_stored = queue.max_offset, queue.min_offset
        read_to = queue.begin_offset if progress.is_new else min(max(progress.popped, progress.committed), end)
        read_to = max(read_to, queue.begin_offset)
        return _QueueCount(
            stored=end - queue.begin_offset,
            passed=read_to - queue.begin_offset,
            waiting=end - max(read_to, first_stored),
            expired=max(0, first_stored - read_to),
        )


class _QueueCount(NamedTuple):
    """The offsets of a queue: passed by a group, expired before that, waiting."""

    stored: int
    passed: int
    waiting: int
    expired: int
