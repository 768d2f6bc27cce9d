"""Metrics of the broker, under RocketMQ 5's names where it has one.

The hot path counts in plain numbers; they become metrics only when they are scraped.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from popwheel_broker.calls.activity_counts import ActivityCounts
from popwheel_broker.consume.delivery import REVIVE_QUEUES
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.options import BrokerOptions
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.put import MessageRun
from popwheel_common.disk import DiskUsage
from popwheel_common.exposition import SlicedCollector, filled
from popwheel_common.histogram import in_seconds
from popwheel_common.series import OTHER, Labels, Series, bounded_in_steps
from popwheel_common.shares import Shares

_PAIRS_AT_ONCE = 500


@dataclass(slots=True)
class Traffic:
    """Traffic in one direction.

    Args:
        messages: number of messages.
        size_bytes: of all of them.
    """

    messages: int = 0
    size_bytes: int = 0


class BrokerStatistics:
    """Plain counts of the hot path."""

    def __init__(self) -> None:
        self.stored = Series(1, Traffic)  # by topic
        self.delivered = Series(2, Traffic)  # by topic and group
        self.delivered_of_topic = Series(1, Traffic)  # by topic
        self.delivered_to_group = Series(1, Traffic)  # by group: a sum over topics would go down when one is deleted
        self.refused_disk_full = 0
        self.pulls_waiting = Shares()  # by group
        self.active_topics, self.active_groups = ActivityCounts(), ActivityCounts()
        self.messages_in = self.messages_out = 0

    def put(self, runs: Sequence[MessageRun]) -> None:
        """Count stored messages."""
        for run in runs:
            traffic = self.stored.row(run.topic)
            traffic.messages += len(run.payloads)
            traffic.size_bytes += sum(map(len, run.payloads))
            self.active_topics.row(run.topic).messages_in += len(run.payloads)
            self.messages_in += len(run.payloads)

    def popped(self, group: str, topic: str, answer: PopAnswer) -> None:
        """Count delivered messages."""
        messages, size_bytes = len(answer.messages), sum(map(len, answer.messages))
        rows = (
            self.delivered.row(topic, group),
            self.delivered_of_topic.row(topic),
            self.delivered_to_group.row(group),
        )
        for traffic in rows:
            traffic.messages += messages
            traffic.size_bytes += size_bytes
        self.active_topics.row(topic).messages_out += messages
        self.active_groups.row(group).messages_out += messages
        self.messages_out += messages

    def forget(self, topics: Collection[str], groups: Collection[str]) -> None:
        """Drop the counts of topics and groups that were deleted, also if they were created again since."""
        self.stored.retain(lambda topic: topic not in topics)
        self.delivered.retain(lambda topic, group: topic not in topics and group not in groups)
        self.delivered_of_topic.retain(lambda topic: topic not in topics)
        self.delivered_to_group.retain(lambda group: group not in groups)
        self.active_topics.forget(topics)
        self.active_groups.forget(groups)

    def drop_unknown(self, core: BrokerCore) -> Iterator[None]:
        """Drop the counts of a topic or a group from calls that were running at its deletion, in steps."""
        knows_topic, knows_group = core.topic_registry.knows_topic, core.topic_registry.knows_group
        yield from self.stored.retain_in_steps(knows_topic)
        yield from self.delivered.retain_in_steps(lambda topic, group: knows_topic(topic) and knows_group(group))
        yield from self.delivered_of_topic.retain_in_steps(knows_topic)
        yield from self.delivered_to_group.retain_in_steps(knows_group)


class BrokerCollector(SlicedCollector):
    """Reads the broker's state when it is scraped.

    Args:
        registry: where it registers itself.
        options: for limits.
        core: returns the core.
        statistics: its counts.
        clock: the time.
        redelivered: returns how many messages were revived so far.
        usage: returns the usage of the disk.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        options: BrokerOptions,
        core: Callable[[], BrokerCore],
        statistics: BrokerStatistics,
        clock: Clock,
        redelivered: Callable[[], int],
        usage: Callable[[], DiskUsage],
    ) -> None:
        self._options = options
        self._core_now = core
        self._statistics = statistics
        self._clock = clock
        self._redelivered = redelivered
        self._usage = usage
        registry.register(self)

    @property
    def _core(self) -> BrokerCore:
        return self._core_now()

    def families(self, *, pairs: bool) -> Iterator[Metric | None]:
        """Yield all metrics of the broker."""
        yield from self._traffic(pairs)
        yield from self._consumers(pairs)
        yield from self._ages(pairs)
        yield from self._pop()
        yield from self._paused()
        yield from self._storage()
        for wing in self._core.wings:
            yield from wing.metrics()

    def _traffic(self, pairs: bool) -> Iterator[Metric | None]:
        statistics = self._statistics
        yield from statistics.drop_unknown(self._core)
        delivered = statistics.delivered if pairs else statistics.delivered_to_group
        for direction, text, labels, series in (
            ("in", "stored", ("topic",), statistics.stored),
            ("out", "delivered", ("topic", "consumer_group") if pairs else ("consumer_group",), delivered),
        ):
            rows = list(series)
            yield from filled(
                CounterMetricFamily(f"rocketmq_messages_{direction}", f"Messages {text}.", labels=labels),
                ((values, traffic.messages) for values, traffic in rows),
            )
            yield from filled(
                CounterMetricFamily(f"rocketmq_throughput_{direction}", f"Bytes of messages {text}.", labels=labels),
                ((values, traffic.size_bytes) for values, traffic in rows),
            )
        yield from filled(
            CounterMetricFamily("popwheel_topic_messages_out", "Messages delivered, to all groups.", labels=("topic",)),
            ((values, traffic.messages) for values, traffic in list(statistics.delivered_of_topic)),
        )
        dead = CounterMetricFamily(
            "rocketmq_send_to_dlq_messages", "Messages moved to dead letter queues.", labels=("consumer_group",)
        )
        yield from filled(dead, self._dead_letters())
        yield CounterMetricFamily(
            "popwheel_broker_refused_disk_full",
            "Sends refused because the disk is nearly full.",
            value=statistics.refused_disk_full,
        )
        active = GaugeMetricFamily(
            "popwheel_broker_activity_rows",
            "Topics and groups counted for the next sample, of 10,000 each.",
            labels=("kind",),
        )
        active.add_metric(("topic",), len(statistics.active_topics))
        active.add_metric(("group",), len(statistics.active_groups))
        yield active

    def _dead_letters(self) -> Iterator[tuple[Labels, int]]:
        queues = self._core.store.queues
        for topic in list(queues.system_topics):
            if topic.startswith(names.DEAD_LETTER_PREFIX):
                count = sum(queue.max_offset - queue.begin_offset for queue in queues.of_topic(topic))
                yield (topic.removeprefix(names.DEAD_LETTER_PREFIX),), count

    def _consumers(self, pairs: bool) -> Iterator[Metric | None]:
        lag, table = self._core.lag, self._core.state.table
        ready, in_flight = dict(lag.ready()), _rows(table.shares.by_holder)
        if pairs:
            in_flight = dict(table.in_flight)
        else:
            ready = _rows(lag.of_groups)
        # A delivery of a deleted topic lapses only when it is due: deleted topics are left out.
        known: Callable[..., bool] = self._is_known if pairs else self._knows_group
        labels = ("consumer_group", "topic") if pairs else ("consumer_group",)
        for name, text, rows in (
            ("rocketmq_consumer_ready_messages", "Messages that wait for delivery.", ready.items()),
            (
                "rocketmq_consumer_inflight_messages",
                "Messages in flight: delivered and not acknowledged yet.",
                in_flight.items(),
            ),
            (
                "rocketmq_consumer_lag_messages",
                "Messages not acknowledged yet.",
                _sums(ready, in_flight),
            ),
        ):
            shown = yield from bounded_in_steps(rows, known)
            yield from filled(GaugeMetricFamily(name, text, labels=labels), shown.items())
        shown = yield from bounded_in_steps(_rows(table.holders.clients_by_group()).items(), self._knows_group)
        family = GaugeMetricFamily(
            "popwheel_consumer_inflight_clients",
            "Known clients with messages in flight.",
            labels=("consumer_group",),
        )
        yield from filled(family, shown.items())
        of_topics = _sums(_rows(lag.of_topics), _rows(table.in_flight_of_topic))
        shown = yield from bounded_in_steps(of_topics, self._knows_topic)
        family = GaugeMetricFamily(
            "popwheel_topic_lag_messages", "Messages not acknowledged yet, of all groups together.", labels=("topic",)
        )
        yield from filled(family, shown.items())

    def _ages(self, pairs: bool) -> Iterator[Metric | None]:
        """Yield the ages of the oldest messages. Only a master measures them."""
        waiting: dict[Labels, int] = {}
        unacked: dict[Labels, int] = {}
        of_topics: dict[Labels, int] = {}
        for number, ((group, topic), ages) in enumerate(self._core.oldest.found.items(), 1):
            if number % _PAIRS_AT_ONCE == 0:
                yield None
            if self._is_known(group, topic):
                labels = (group, topic) if pairs else (group,)
                for oldest, key, age_ms in (
                    (waiting, labels, ages.waiting_ms),
                    (unacked, labels, ages.unacked_ms),
                    (of_topics, (topic,), ages.unacked_ms),
                ):
                    if age_ms is not None:
                        oldest[key] = max(age_ms, oldest.get(key, 0))
        by_group = ("consumer_group", "topic") if pairs else ("consumer_group",)
        for name, text, labels, oldest in (
            (
                "rocketmq_consumer_queueing_latency",
                "Age of the oldest message that waits for delivery, in milliseconds.",
                by_group,
                waiting,
            ),
            (
                "rocketmq_consumer_lag_latency",
                "Age of the oldest message that is not acknowledged yet, in milliseconds.",
                by_group,
                unacked,
            ),
            (
                "popwheel_topic_lag_latency",
                "Age of the oldest message that some group has not acknowledged yet, in milliseconds.",
                ("topic",),
                of_topics,
            ),
        ):
            yield from filled(GaugeMetricFamily(name, text, labels=labels), oldest.items())
        waited = HistogramMetricFamily(
            "popwheel_pop_queueing_seconds",
            "Time from storage to first delivery to a group.",
        )
        queueing = self._core.pops.queueing
        waited.add_metric((), in_seconds(queueing.buckets), queueing.total_ms / 1000)
        yield waited

    def _knows_group(self, group: str) -> bool:
        return group == OTHER or self._core.topic_registry.knows_group(group)

    def _knows_topic(self, topic: str) -> bool:
        return topic == OTHER or self._core.topic_registry.knows_topic(topic)

    def _is_known(self, group: str, topic: str) -> bool:
        return group == OTHER or (
            self._core.topic_registry.knows_group(group) and self._core.topic_registry.knows_topic(topic)
        )

    def _pop(self) -> Iterator[Metric]:
        table = self._core.state.table
        now_ms = self._core.pop_clock.now_ms()
        due_ms = table.next_due_ms()
        yield GaugeMetricFamily(
            "rocketmq_pop_checkpoint_buffer_size",
            "Deliveries that keep a committed offset back.",
            value=len(self._core.state.merge_buffer),
        )
        yield GaugeMetricFamily(
            "popwheel_pop_progress",
            "Pairs of a group and a queue with progress, of broker.pop.progress_max.",
            value=self._core.state.merge_buffer.pairs,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_unrecorded_progress",
            "Groups and queues that have passed messages without a delivery; the log says so within seconds.",
            value=self._core.state.merge_buffer.unrecorded,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_readers",
            "Pairs of a group and a topic that it has polled, of 100,000; without, only messages read count as lag.",
            value=len(self._core.topic_registry.readers),
        )
        yield GaugeMetricFamily("popwheel_pop_open_deliveries", "Open deliveries.", value=len(table))
        yield GaugeMetricFamily(
            "popwheel_pop_open_messages",
            "Messages in flight, of broker.pop.open_messages_max.",
            value=table.open_messages,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_open_messages_largest_share",
            "Messages in flight of the group that has most of them.",
            value=table.shares.largest,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_holders",
            "Pairs of a group and a client with messages in flight, of 50,000.",
            value=len(table.holders),
        )
        yield CounterMetricFamily(
            "popwheel_pop_holders_unnamed",
            "Pops whose client was not recorded, as there was no room for another one.",
            value=table.holders.unnamed,
        )
        events = self._core.state.events
        yield GaugeMetricFamily(
            "popwheel_pop_events", "Deliveries and their ends in memory, of broker.pop.events_max.", value=len(events)
        )
        yield CounterMetricFamily(
            "popwheel_pop_events_dropped", "Events dropped in favor of later ones.", value=events.dropped
        )
        lines = table.message_group_queues
        yield GaugeMetricFamily(
            "popwheel_pop_blocked_messages",
            "Messages of FIFO groups that were read and are blocked by others of their message groups, of "
            "broker.pop.held_messages_max.",
            value=lines.blocked.total,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_lines",
            "Message groups of which a FIFO group has messages in flight or blocked.",
            value=len(lines),
        )
        yield GaugeMetricFamily(
            "popwheel_pop_paused",
            "FIFO groups and topics of which no more is read, as too many messages are blocked.",
            value=len(lines.paused),
        )
        yield GaugeMetricFamily(
            "popwheel_pop_attempts",
            "Tracked tries of ordered receives, of 10,000.",
            value=len(self._core.pops.ordered.receives),
        )
        yield GaugeMetricFamily(
            "popwheel_pop_shared_deliveries",
            "Deliveries that several tries of an ordered receive have, of 10,000.",
            value=self._core.pops.ordered.receives.shared,
        )
        priorities = self._core.pops.priorities
        yield GaugeMetricFamily(
            "popwheel_pop_priority_heads",
            "Priority levels with a tracked head-of-line wait, of 10,000.",
            value=priorities.heads,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_priority_turns",
            "Groups and topics with a tracked turn, high or overdue messages, of 10,000.",
            value=priorities.rotations,
        )
        yield CounterMetricFamily(
            "popwheel_pop_priority_overdue_messages",
            "Messages delivered before those of a higher priority, as they had waited for broker.pop.priority_wait_ms.",
            value=priorities.overdue,
        )
        yield CounterMetricFamily(
            "popwheel_pop_relocated_messages",
            "Messages hidden for so long that they were copied, so that their segments could be deleted.",
            value=self._core.relocation.messages,
        )
        lag = GaugeMetricFamily(
            "rocketmq_pop_revive_lag", "Records since the oldest open delivery.", labels=("queue_id",)
        )
        topic = self._core.revive_topic
        for number in range(REVIVE_QUEUES):
            end = self._core.store.next_offset(topic, number)
            lag.add_metric((str(number),), end - table.oldest_offset(number, end))
        yield lag
        yield GaugeMetricFamily(
            "rocketmq_pop_revive_latency",
            "Milliseconds by which the most overdue message is late.",
            value=0 if due_ms is None else max(0, now_ms - due_ms),
        )
        yield CounterMetricFamily(
            "rocketmq_pop_revive_retry_messages", "Messages that came due and were revived.", value=self._redelivered()
        )
        yield GaugeMetricFamily(
            "popwheel_notify_interests",
            "Interests that proxies have registered, of broker.pop.notify_interests_max.",
            value=len(self._core.interests),
        )
        yield GaugeMetricFamily(
            "popwheel_notify_filter_bytes",
            "Memory of the filters of interests, of broker.pop.notify_filter_bytes_max.",
            value=self._core.interests.filter_bytes,
        )
        yield from self._sql_filters()
        yield GaugeMetricFamily(
            "popwheel_pulls_waiting",
            "Pulls that wait for a message, of broker.pop.pulls_waiting_max.",
            value=self._statistics.pulls_waiting.total,
        )
        yield CounterMetricFamily(
            "popwheel_notify_interests_refused",
            "Interests refused as there were too many: their polls find messages later.",
            value=self._core.interests.refused,
        )
        yield GaugeMetricFamily(
            "popwheel_damaged_queues",
            "Queues that stand still at a damaged record.",
            value=len(self._core.pops.damaged),
        )

    def _sql_filters(self) -> Iterator[Metric]:
        scan = self._core.pops.sql_scan
        messages = CounterMetricFamily(
            "popwheel_sql_filter_messages",
            "Messages that SQL92 filters were asked about before delivery. Of those that did not pass, "
            "some were not comparable: a property was to be compared with a number, and is none.",
            labels=["outcome"],
        )
        counts = scan.counts
        outcomes = {"passed": counts.passed, "kept_back": counts.rejected, "not_comparable": counts.not_comparable}
        for outcome, count in outcomes.items():
            messages.add_metric([outcome], count)
        yield messages
        filters = self._core.pops.group_filters
        yield GaugeMetricFamily(
            "popwheel_groups_with_different_filters",
            "Pairs of a group and a topic whose consumers asked with different filters within the last minute: some "
            "messages may reach none of them.",
            value=filters.count(self._core.pop_clock.now_ms()),
        )
        yield GaugeMetricFamily(
            "popwheel_group_filters", "Pairs of a group and a topic whose filters are compared.", value=len(filters)
        )
        yield GaugeMetricFamily(
            "popwheel_recent_polls",
            "Clients of groups and topics that have popped within the last ten seconds or are still remembered.",
            value=len(self._core.pops.recent_polls),
        )
        yield CounterMetricFamily(
            "popwheel_group_filter_changes",
            "Pops that asked with another filter than the one before, of groups that use both.",
            value=filters.changes,
        )
        yield CounterMetricFamily(
            "popwheel_group_filter_passed_over_messages",
            "Messages that one filter of a group skipped while other consumers of it asked with another one.",
            value=filters.passed_over,
        )
        arrivals = self._core.interests.arrivals
        yield GaugeMetricFamily(
            "popwheel_arrivals_waiting",
            "Arrived messages that filters of waiting polls are still to be asked about.",
            value=0 if arrivals is None else arrivals.messages,
        )
        yield CounterMetricFamily(
            "popwheel_arrivals_unasked",
            "Messages of which all polls with filters were notified, as too many of their topic waited.",
            value=0 if arrivals is None else arrivals.unasked,
        )

    def _paused(self) -> Iterator[Metric]:
        view = self._core.view
        paused = GaugeMetricFamily(
            "popwheel_paused", "Paused topics and groups, of which nothing is delivered.", labels=("of",)
        )
        paused.add_metric(("topics",), len(view.paused_topics))
        paused.add_metric(("groups",), len(view.paused_groups))
        yield paused

    def _storage(self) -> Iterator[Metric]:
        store = self._core.store
        usage = self._usage()
        yield GaugeMetricFamily(
            "rocketmq_storage_size", "Bytes of the commit log.", value=store.log.end_position - store.log.start_position
        )
        yield GaugeMetricFamily(
            "popwheel_storage_cold_calls",
            "Calls that wait for a read from the device; 8 reads run at once.",
            value=store.reads.waiting,
        )
        yield CounterMetricFamily(
            "popwheel_storage_cold_read_bytes",
            "Bytes that were not in memory and were read by threads.",
            value=store.reads.fetched_bytes,
        )
        yield GaugeMetricFamily(
            "rocketmq_storage_flush_behind_bytes",
            "Bytes not yet on the device.",
            value=store.log.end_position - store.log.synced_position,
        )
        yield GaugeMetricFamily(
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes not yet readable, of broker.waiting_bytes_max.",
            value=store.log.end_position - store.high_watermark,
        )
        yield GaugeMetricFamily(
            "popwheel_storage_queues", "Consume queues, of broker.log.queues_max.", value=len(store.queues)
        )
        yield GaugeMetricFamily(
            "popwheel_storage_index_files",
            "Index files of the consume queues; none is open for longer than a read.",
            value=len(store.index.files),
        )
        yield GaugeMetricFamily(
            "popwheel_storage_index_absent",
            "Queues that index files remember not to have; of 64 in each.",
            value=sum(file.absent for file in store.index.files),
        )
        yield GaugeMetricFamily(
            "popwheel_storage_segments", "Segments of the commit log.", value=store.log.segment_count
        )
        yield GaugeMetricFamily("popwheel_disk_used_share", "Share of the disk in use.", value=usage.used_share)
        yield GaugeMetricFamily(
            "popwheel_disk_full_share", "Share at which sends are refused.", value=self._options.disk_full_share
        )


def _rows(counts: Mapping[str, int]) -> dict[Labels, int]:
    return {(name,): count for name, count in counts.items()}


def _sums(some: Mapping[Labels, int], others: Mapping[Labels, int]) -> Iterator[tuple[Labels, int]]:
    """Yield the sums of counts with the same labels."""
    for labels, count in some.items():
        yield labels, count + others.get(labels, 0)
    for labels, count in others.items():
        if labels not in some:
            yield labels, count
