"""What the broker counts, under RocketMQ 5's names where it has one.

The hot path counts in plain numbers; they become metrics only when somebody asks.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.broker.options import BrokerOptions
from services.broker.progress.check_point import REVIVE_QUEUES
from services.broker.state.core import BrokerCore
from services.broker.transactions.half import Resolution
from services.common.clock import Clock
from services.common.contract import names
from services.common.contract.pop_answer import PopAnswer
from services.common.contract.put import MessageRun
from services.common.disk import DiskUsage
from services.common.series import OTHER, Series, bounded
from services.common.shares import Shares


@dataclass(slots=True)
class Traffic:
    """What went one way.

    Args:
        messages: how many.
        size_bytes: of all of them.
    """

    messages: int = 0
    size_bytes: int = 0


class BrokerStatistics:
    """Plain counts of the hot path."""

    def __init__(self) -> None:
        self.stored = Series(1, Traffic)  # by topic
        self.given_out = Series(2, Traffic)  # by topic and group
        self.refused_disk_full = 0
        self.pulls_waiting = Shares()  # by group

    def put(self, runs: Sequence[MessageRun]) -> None:
        """Messages were stored."""
        for run in runs:
            traffic = self.stored.row(run.topic)
            traffic.messages += len(run.payloads)
            traffic.size_bytes += sum(map(len, run.payloads))

    def popped(self, group: str, topic: str, answer: PopAnswer) -> None:
        """Messages were given out."""
        traffic = self.given_out.row(topic, group)
        traffic.messages += len(answer.messages)
        traffic.size_bytes += sum(map(len, answer.messages))

    def forget(self, topics: Container[str], groups: Container[str]) -> None:
        """Drop what was counted for topics and groups that were deleted, also if they were made again since."""
        self.stored.keep(lambda topic: topic not in topics)
        self.given_out.keep(lambda topic, group: topic not in topics and group not in groups)

    def keep_known(self, core: BrokerCore) -> None:
        """Drop what was counted for a topic or a group after its deletion, by a call that was under way."""
        self.stored.keep(core.names.knows_topic)
        self.given_out.keep(lambda topic, group: core.names.knows_topic(topic) and core.names.knows_group(group))


class BrokerCollector(Collector):
    """Reads the broker's state when it is scraped.

    Args:
        registry: where it registers itself.
        options: for limits.
        core: gives the core whose state it is.
        statistics: its counts.
        clock: the time.
        redelivered: how many messages were revived so far.
        usage: how full the disk is.
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

    def collect(self) -> Iterator[Metric]:
        """All metrics of the broker."""
        yield from self._traffic()
        yield from self._consumers()
        yield from self._ages()
        yield from self._pop()
        yield from self._quarantine()
        yield from self._transactions()
        yield from self._lite()
        yield from self._storage()

    def _traffic(self) -> Iterator[Metric]:
        statistics = self._statistics
        statistics.keep_known(self._core)
        by_topic, by_topic_and_group = ("topic",), ("topic", "consumer_group")
        for messages, throughput, text, labels, series in (
            ("rocketmq_messages_in", "rocketmq_throughput_in", "stored", by_topic, statistics.stored),
            ("rocketmq_messages_out", "rocketmq_throughput_out", "given out", by_topic_and_group, statistics.given_out),
        ):
            counts = CounterMetricFamily(messages, f"Messages {text}.", labels=labels)
            sizes = CounterMetricFamily(throughput, f"Bytes of messages {text}.", labels=labels)
            for values, traffic in series:
                counts.add_metric(values, traffic.messages)
                sizes.add_metric(values, traffic.size_bytes)
            yield counts
            yield sizes
        dead = CounterMetricFamily(
            "rocketmq_send_to_dlq_messages", "Messages moved to dead letter queues.", labels=("consumer_group",)
        )
        queues = self._core.store.queues
        for topic in queues.system_topics:
            if topic.startswith(names.DEAD_LETTER_PREFIX):
                count = sum(queue.max_offset - queue.begin_offset for queue in queues.of_topic(topic))
                dead.add_metric((topic.removeprefix(names.DEAD_LETTER_PREFIX),), count)
        yield dead
        yield CounterMetricFamily(
            "popwheel_broker_refused_disk_full",
            "Sends refused because the disk is nearly full.",
            value=statistics.refused_disk_full,
        )

    def _consumers(self) -> Iterator[Metric]:
        ready, inflight = self._core.state.lag.ready(), self._core.state.table.in_flight
        lag = {labels: ready.get(labels, 0) + inflight.get(labels, 0) for labels in ready.keys() | inflight.keys()}
        for name, text, values in (
            ("rocketmq_consumer_ready_messages", "Messages that wait to be given out.", ready),
            ("rocketmq_consumer_inflight_messages", "Messages given out and not acknowledged yet.", inflight),
            ("rocketmq_consumer_lag_messages", "Messages not acknowledged yet.", lag),
        ):
            family = GaugeMetricFamily(name, text, labels=("consumer_group", "topic"))
            # What was given out of a deleted topic lapses only when it is due.
            there = {labels: count for labels, count in values.items() if self._is_known(*labels)}
            for group_and_topic, count in bounded(there).items():
                family.add_metric(group_and_topic, count)
            yield family

    def _ages(self) -> Iterator[Metric]:
        """How old the oldest messages are. Only a master looks for them."""
        queueing = GaugeMetricFamily(
            "rocketmq_consumer_queueing_latency",
            "How old the oldest message is that waits to be given out, in milliseconds.",
            labels=("consumer_group", "topic"),
        )
        lag = GaugeMetricFamily(
            "rocketmq_consumer_lag_latency",
            "How old the oldest message is that is not acknowledged yet, in milliseconds.",
            labels=("consumer_group", "topic"),
        )
        for labels, ages in self._core.oldest.found.items():
            if self._is_known(*labels):
                for family, age_ms in ((queueing, ages.waiting_ms), (lag, ages.unacked_ms)):
                    if age_ms is not None:
                        family.add_metric(labels, age_ms)
        yield queueing
        yield lag
        waited = HistogramMetricFamily(
            "popwheel_pop_queueing_milliseconds",
            "By how much later than it was stored a message was given out to a group for the first time.",
        )
        waited.add_metric((), self._core.pops.queueing.buckets, self._core.pops.queueing.total_ms)
        yield waited

    def _is_known(self, group: str, topic: str) -> bool:
        return group == OTHER or (self._core.names.knows_group(group) and self._core.names.knows_topic(topic))

    def _pop(self) -> Iterator[Metric]:
        table = self._core.state.table
        now_ms = self._core.pop_clock.now_ms()
        due_ms = table.next_due_ms()
        yield GaugeMetricFamily(
            "rocketmq_pop_checkpoint_buffer_size",
            "Check points that hold up a committed offset.",
            value=len(self._core.state.merge_buffer),
        )
        yield GaugeMetricFamily(
            "popwheel_pop_progress",
            "Pairs of a group and a queue that it has read, of broker.pop.progress_max.",
            value=self._core.state.merge_buffer.pairs,
        )
        yield GaugeMetricFamily("popwheel_pop_open_check_points", "Check points that are open.", value=len(table))
        yield GaugeMetricFamily(
            "popwheel_pop_open_messages",
            "Messages given out, of broker.pop.open_messages_max.",
            value=table.open_messages,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_open_messages_largest_share",
            "Messages given out to the group that has most of them.",
            value=table.shares.largest,
        )
        lines = table.lines
        yield GaugeMetricFamily(
            "popwheel_pop_held_messages",
            "Messages that were read for FIFO groups and wait for others of their message groups, of "
            "broker.pop.held_messages_max.",
            value=lines.held.total,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_lines",
            "Message groups of which a FIFO group has read something that it has not acknowledged.",
            value=len(lines),
        )
        yield GaugeMetricFamily(
            "popwheel_pop_paused",
            "FIFO groups and topics of which no more is read, as too many messages are held.",
            value=len(lines.paused),
        )
        yield GaugeMetricFamily(
            "popwheel_pop_attempts",
            "Tries of ordered receives that are kept in mind, of 10,000.",
            value=self._core.pops.ordered.attempts,
        )
        priorities = self._core.pops.priorities
        yield GaugeMetricFamily(
            "popwheel_pop_priority_heads",
            "Levels of which it is kept in mind since when their first message waits for a group, of 10,000.",
            value=priorities.heads,
        )
        yield GaugeMetricFamily(
            "popwheel_pop_priority_turns",
            "Groups and topics of which it is kept in mind whose turn it is, high or overdue messages, of 10,000.",
            value=priorities.turns,
        )
        yield CounterMetricFamily(
            "popwheel_pop_priority_overdue_messages",
            "Messages that came before those of a higher priority, as they had waited for broker.pop.priority_wait_ms.",
            value=priorities.overdue,
        )
        yield CounterMetricFamily(
            "popwheel_pop_relocated_messages",
            "Messages given out for so long that they were copied, so that their segments could go.",
            value=self._core.relocation.messages,
        )
        lag = GaugeMetricFamily(
            "rocketmq_pop_revive_lag", "Records since the oldest open check point.", labels=("queue_id",)
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
            "Memory that their filters take, of broker.pop.notify_filter_bytes_max.",
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
            "How often an interest was not registered, as there were too many: its polls find messages later.",
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
            "Messages that SQL92 filters were asked about as they were to be given out. Of those that were kept back, "
            "some are not comparable: a property was to be compared with a number, and is none.",
            labels=["outcome"],
        )
        for outcome in ("passed", "kept_back", "not_comparable"):
            messages.add_metric([outcome], getattr(scan.looks, outcome))
        yield messages

    def _quarantine(self) -> Iterator[Metric]:
        quarantine = self._core.quarantine
        held = GaugeMetricFamily(
            "popwheel_quarantined_messages",
            "Records set aside because they failed by themselves, of broker.quarantine_max.",
            labels=("step",),
        )
        faults = CounterMetricFamily(
            "popwheel_record_faults", "How often a step failed for a single record.", labels=("step",)
        )
        for step, count in quarantine.table.counts().items():
            held.add_metric((step.label,), count)
            faults.add_metric((step.label,), quarantine.faults[step])
        yield held
        yield GaugeMetricFamily(
            "popwheel_quarantine_max", "Records that may be set aside.", value=self._options.quarantine_max
        )
        yield faults

    def _transactions(self) -> Iterator[Metric]:
        transactions = self._core.transactions
        oldest = transactions.table.oldest
        yield GaugeMetricFamily(
            "popwheel_transactions_open",
            "Half messages that are neither committed nor rolled back, of broker.transaction.open_max.",
            value=len(transactions.table),
        )
        yield GaugeMetricFamily(
            "popwheel_transactions_oldest_seconds",
            "How old the oldest of them is; 0 if there is none.",
            value=0 if oldest is None else max(0, self._clock.wall_ms() - oldest.stored_ms) / 1000,
        )
        ended = CounterMetricFamily(
            "popwheel_transactions_ended", "Transactions that this broker has ended.", labels=("resolution",)
        )
        for resolution in Resolution:
            ended.add_metric((resolution.name.lower(),), transactions.resolved[resolution])
        yield ended
        yield CounterMetricFamily(
            "popwheel_transactions_checks",
            "How often a producer was to be asked about a half message.",
            value=transactions.checks,
        )

    def _lite(self) -> Iterator[Metric]:
        lite = self._core.lite
        for name, text, value in (
            ("topics", "Lite topics, of broker.lite.topics_max.", self._core.store.queues.lite_topics),
            ("clients", "Clients that read lite topics.", lite.subscriptions.clients),
            (
                "subscriptions",
                "Pairs of a client and a lite topic that it reads, and clients, of broker.lite.subscriptions_max.",
                len(lite.subscriptions),
            ),
            ("ready", "Pairs of which the lite topic may have something for the client.", lite.subscriptions.ready),
        ):
            yield GaugeMetricFamily(f"popwheel_lite_{name}", text, value=value)
        ended = CounterMetricFamily("popwheel_lite_topics_ended", "Lite topics that have ended.", labels=("reason",))
        ended.add_metric(("expired",), lite.expired)
        ended.add_metric(("emptied",), lite.emptied)
        yield ended

    def _storage(self) -> Iterator[Metric]:
        store = self._core.store
        usage = self._usage()
        yield GaugeMetricFamily(
            "rocketmq_storage_size", "Bytes of the commit log.", value=store.log.end_position - store.log.start_position
        )
        yield GaugeMetricFamily(
            "popwheel_storage_cold_calls",
            "Calls that wait for what they read and is not in memory; the device is read for 8 at once.",
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
            value=store.log.end_position - store.confirmed_position,
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
