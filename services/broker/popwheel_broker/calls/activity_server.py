"""Reports the traffic of a broker, and the state of its groups and topics: samples, and batches of names.

It changes nothing but where the next sample begins. The work of each answer is bounded, and done in steps.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from heapq import nlargest
from itertools import chain, islice
from typing import Final

from popwheel_broker.calls.activity_counts import NOTHING, ActivityRow, Used
from popwheel_broker.calls.metrics import BrokerStatistics
from popwheel_broker.calls.queue_counts import GroupWaiting, QueueTotals
from popwheel_broker.calls.term_reads import TermReads
from popwheel_broker.consume.oldest_messages import Ages
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.options import BrokerOptions
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace, Steps
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.series import OTHER, Labels
from popwheel_rpc.service import Call

LISTED_MAX: Final = 1_000
"""Topics, and groups, of one sample."""
NAMES_MAX: Final = 100
"""Topics or groups that one answer describes."""
_TOPICS_OF_GROUP_MAX: Final = 20
"""Limit of a group's topics whose messages are added up."""
_QUEUES_MAX: Final = 100_000
"""Queues that are counted for one answer."""
_STEP: Final = 500
_FEW: Final = 50
_ALL_QUEUES_STEPS: Final = 40
"""Number of queues that one sample counts, of a count over all queues: 20,000."""


class ActivityServer:
    """Serves activity and descriptions of popwheel.v1.Broker.

    Args:
        core: the broker's state.
        statistics: its counts.
        reads: the reads of this term.
        options: limits.
        clock: the time.
    """

    def __init__(
        self, core: BrokerCore, statistics: BrokerStatistics, reads: TermReads, options: BrokerOptions, clock: Clock
    ) -> None:
        self._core = core
        self._statistics = statistics
        self._reads = reads
        self._options = options
        self._clock = clock
        self._pace = Pace(clock)
        # Another term, or another process, has other numbers, so that samples of two are not mixed up.
        self._number = clock.wall_ms()
        self._began_s = clock.monotonic()
        self._in_before, self._out_before = statistics.messages_in, statistics.messages_out
        self._queues = QueueTotals(core)
        self._ages_of: Mapping[Labels, Ages] | None = None
        self._ages: dict[str, tuple[int, int | None]] = {}

    async def sample(self, call: Call, request: pb.SampleActivityRequest) -> pb.SampleActivityResponse:
        """Return the activity since the sample before, and the broker's state."""
        topics_max = min(max(0, request.topics_max), LISTED_MAX)
        groups_max = min(max(0, request.groups_max), LISTED_MAX)
        steps = Steps(self._clock, self._pace)
        await self._count_lag(steps)
        await self._compute_ages(steps)
        if not request.peek:
            for _ in islice(self._queues.steps(), _ALL_QUEUES_STEPS):
                await steps.take()
        answer = pb.SampleActivityResponse(number=self._number, epoch=self._core.store.epoch, totals=self._totals())
        if request.peek:
            for group in self._oldest_groups(groups_max):
                self._describe_activity(answer.groups.add(), group, ActivityRow(), NOTHING)
            return answer
        # From here to the end of the answer nothing waits: later counts belong to the next sample.
        statistics, now_s = self._statistics, self._clock.monotonic()
        topics, groups = statistics.active_topics.take(), statistics.active_groups.take()
        counts = request.since == self._number
        if counts:
            answer.interval_ms = max(1, round((now_s - self._began_s) * 1000))
            answer.totals.messages_in = statistics.messages_in - self._in_before
            answer.totals.messages_out = statistics.messages_out - self._out_before
        self._number += 1
        answer.number, self._began_s = self._number, now_s
        self._in_before, self._out_before = statistics.messages_in, statistics.messages_out
        await self._add_groups(answer, groups, topics, groups_max, steps, counts=counts)
        await self._add_topics(answer, topics, topics_max, steps, counts=counts)
        return answer

    async def describe_groups(self, call: Call, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
        """Return the state of some groups.

        Raises:
            StatusError: BAD_REQUEST, they are too many; ILLEGAL_CONSUMER_GROUP.
        """
        _check(request.groups)
        for group in request.groups:
            names.group(group)
        steps = Steps(self._clock, self._pace)
        await self._compute_ages(steps)
        poisoned: dict[str, int] = {}
        for entry in self._core.quarantine.table:
            poisoned[entry.group] = poisoned.get(entry.group, 0) + 1
        answer = pb.DescribeGroupsResponse()
        queues_left = _QUEUES_MAX
        for group in request.groups:
            standing = answer.groups.add(name=group, poisoned=poisoned.get(group, 0))
            count = GroupWaiting(self._core, group)
            for _ in islice(count.steps(), max(0, queues_left)):
                queues_left -= 1
                if queues_left % _FEW == 0:
                    await steps.take()
            await steps.take()
            self._describe_group(standing, count if queues_left > 0 else None)
        return answer

    async def describe_topics(self, call: Call, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        """Return the number of messages of some topics.

        Raises:
            StatusError: BAD_REQUEST, they are too many; ILLEGAL_TOPIC.
        """
        _check(request.topics)
        answer, steps = pb.DescribeTopicsResponse(), Steps(self._clock, self._pace)
        for topic in request.topics:
            names.topic(topic, names.Use.QUERY)
            stored = await self._reads.run(partial(self._stored, topic))
            standing = answer.topics.add(
                name=topic,
                delayed=self._core.timer.state.pending.of_topic(topic),
                groups=self._core.topic_registry.readers.count_of_topic(topic),
            )
            if stored is not None:
                standing.stored = stored
            await steps.take()
        return answer

    def _stored(self, topic: str) -> int | None:
        queues = self._core.store.queues
        if queues.lite_count(topic) > _STEP:
            return None
        return sum(each.max_offset - each.min_offset for each in (*queues.of_topic(topic), *queues.lite_of(topic)))

    # Samples

    async def _count_lag(self, steps: Steps) -> None:
        for _ in self._core.lag.few():
            await steps.take()

    async def _compute_ages(self, steps: Steps) -> None:
        """Compute the greatest ages by group, if there are newer ones."""
        found = self._core.oldest.found
        if self._ages_of is found:
            return
        ages: dict[str, tuple[int, int | None]] = {}
        for number, ((group, _), each) in enumerate(found.items(), 1):
            if each.unacked_ms is not None:
                unacked_ms, waiting_ms = ages.get(group, (0, None))
                if each.waiting_ms is not None:
                    waiting_ms = max(each.waiting_ms, waiting_ms or 0)
                ages[group] = max(each.unacked_ms, unacked_ms), waiting_ms
            if number % _FEW == 0:
                await steps.take()
        self._ages_of, self._ages = found, ages

    def _lag_of(self, group: str) -> int | None:
        core = self._core
        if not core.lag.is_known:
            return None
        return core.lag.of_groups.get(group, 0) + core.state.table.shares.share(group)

    def _age_of(self, group: str, lag: int | None) -> tuple[int | None, int | None]:
        """Return lag in time, and of waiting messages; 0 if there are none, None if it was not measured yet."""
        if lag == 0:
            return 0, 0
        return self._ages.get(group, (None, None))

    def _oldest_groups(self, count: int) -> list[str]:
        """Return the groups with the greatest lag in time."""
        oldest = nlargest(count, self._ages.items(), key=lambda each: each[1][0])
        knows = self._core.topic_registry.knows_group
        return [group for group, _ in oldest if knows(group) and self._lag_of(group) != 0]

    async def _add_groups(
        self,
        answer: pb.SampleActivityResponse,
        used: Used,
        topics: Used,
        count: int,
        steps: Steps,
        *,
        counts: bool,
    ) -> None:
        """Add the most active groups: they have a lag, messages in flight or deliveries in this interval."""
        core, weights = self._core, dict[str, int]()
        await steps.take()
        lags = [*core.lag.of_groups.items(), *core.state.table.shares.by_holder.items()]
        delivered = ((name, row.messages_out) for name, row in used.rows.items())
        for number, (group, messages) in enumerate(chain(lags, delivered), 1):
            if messages and group != OTHER:
                weights[group] = weights.get(group, 0) + messages
            if number % _FEW == 0:
                await steps.take()
        chosen = await self._greatest(weights.items(), count, steps)
        answer.all_groups = used.is_whole and len(weights) <= count
        if not counts:
            used = topics = NOTHING
        for number, (group, _) in enumerate(chosen, 1):
            if core.topic_registry.knows_group(group):
                self._describe_activity(answer.groups.add(), group, used.rows.get(group) or ActivityRow(), topics)
            if number % _FEW == 0:
                await steps.take()

    async def _greatest(
        self, rows: Collection[tuple[str, int]], count: int, steps: Steps
    ) -> Collection[tuple[str, int]]:
        """Return the names with the greatest numbers."""
        if len(rows) <= count:
            return rows
        found: list[tuple[str, int]] = []
        waiting = iter(rows)
        await steps.take()
        while some := list(islice(waiting, _STEP)):
            found = nlargest(count, found + some, key=_number)
            await steps.take()
        return found

    def _describe_activity(self, found: pb.GroupActivity, group: str, row: ActivityRow, topics: Used) -> None:
        core = self._core
        found.name, found.messages_out, found.in_flight = group, row.messages_out, core.state.table.shares.share(group)
        lag = self._lag_of(group)
        if lag is not None:
            found.lag = lag
        lag_ms, waiting_ms = self._age_of(group, lag)
        if lag_ms is not None:
            found.lag_ms = lag_ms
        if waiting_ms is not None:
            found.waiting_ms = waiting_ms
        readers = core.topic_registry.readers
        if topics.is_whole and readers.count_of_group(group) <= _TOPICS_OF_GROUP_MAX:
            found.messages_in = sum(map(topics.messages_in, readers.topics_of(group)))

    async def _add_topics(
        self, answer: pb.SampleActivityResponse, used: Used, count: int, steps: Steps, *, counts: bool
    ) -> None:
        """Add the topics with the most traffic."""
        core = self._core
        await steps.take()
        weights = [(name, row.messages_in + row.messages_out) for name, row in used.rows.items()]
        answer.all_topics = used.is_whole and len(weights) <= count
        for number, (name, _) in enumerate(await self._greatest(weights, count, steps), 1):
            row = used.rows[name]
            found = answer.topics.add(name=name, delayed=core.timer.state.pending.of_topic(name))
            if counts:
                found.messages_in, found.messages_out = row.messages_in, row.messages_out
            if core.lag.is_known:
                found.lag = core.lag.of_topics.get(name, 0) + core.state.table.in_flight_of_topic.get(name, 0)
            if number % _FEW == 0:
                await steps.take()

    def _totals(self) -> pb.ActivityTotals:
        core = self._core
        timer, usage, now_ms = core.timer, core.disk_usage(), core.pop_clock.now_ms()
        due_ms, oldest = core.state.table.next_due_ms(), core.transactions.table.oldest
        totals = pb.ActivityTotals(
            in_flight=core.state.table.shares.total,
            delayed=timer.state.pending.total,
            poisoned=len(core.quarantine.table),
            poisoned_max=self._options.quarantine_max,
            revive_behind_ms=0 if due_ms is None else max(0, now_ms - due_ms),
            timers_behind_ms=timer.dequeue_behind_ms(),
            timers_max=self._options.timer.timers_max,
            damaged=len(core.pops.damaged) + len(timer.state.damaged),
            paused=len(core.state.table.message_group_queues.paused),
            disk_used_share=usage.used_share,
            disk_full_share=self._options.disk_full_share,
            transaction_age_ms=0 if oldest is None else max(0, self._clock.wall_ms() - oldest.stored_ms),
        )
        if self._queues.stored is not None:
            totals.stored, totals.dead_letters = self._queues.stored, self._queues.dead_letters
        if core.lag.is_known:
            totals.lag = sum(core.lag.of_groups.values()) + totals.in_flight
            if not totals.lag:
                totals.lag_ms = 0
            elif self._ages:
                totals.lag_ms = max(unacked_ms for unacked_ms, _ in self._ages.values())
        return totals

    # Groups

    def _describe_group(self, found: pb.GroupStanding, count: GroupWaiting | None) -> None:
        core, group = self._core, found.name
        found.in_flight = core.state.table.shares.share(group)
        found.topics = core.topic_registry.readers.count_of_group(group)
        letters = core.dead_letters.queue(group)
        if letters is not None:
            found.dead_letters = core.state.merge_buffer.of(group, letters).available_at_most
        lag: int | None = None
        if count is not None:
            found.waiting, found.retrying = count.waiting, count.retrying
            lag = found.waiting + found.retrying + found.in_flight
        lag_ms, _ = self._age_of(group, lag)
        if lag_ms is not None:
            found.lag_ms = lag_ms


def _number(row: tuple[str, int]) -> int:
    return row[1]


def _check(asked: Iterable[str]) -> None:
    if sum(1 for _ in asked) > NAMES_MAX:
        raise StatusError(Code.BAD_REQUEST, f"one call describes at most {NAMES_MAX} names")
