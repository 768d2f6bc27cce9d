"""Metrics of delayed messages, under RocketMQ 5's names where it has one."""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.options import TimerOptions
from popwheel_common.exposition import SlicedCollector, filled
from popwheel_common.histogram import in_seconds
from popwheel_common.series import Series, bounded_in_steps

LATENESS_BOUNDS_MS = (1, 2, 5, 10, 15, 20, 50, 100, 200, 500, 1000, 5000, 60_000)


class Count:
    """A counter."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class TimerStatistics:
    """Plain counts of the hot path."""

    def __init__(self) -> None:
        self.accepted = Series(1, Count)  # by topic
        self.fired = Series(1, Count)
        self.lateness_counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.lateness_sum_ms = 0
        self.recalls = 0

    def fire(self, topic: str, late_ms: int) -> None:
        """Count a delayed message that was put into its topic, `late_ms` after it was due."""
        self.fired.row(topic).total += 1
        self.lateness_counts[bisect_left(LATENESS_BOUNDS_MS, late_ms)] += 1
        self.lateness_sum_ms += late_ms


class TimerCollector(SlicedCollector):
    """Reads the timer's state when it is scraped.

    Args:
        registry: where it registers itself.
        options: for limits.
        timer: returns the timer.
        statistics: its counts.
        knows_topic: whether there is a topic of that name.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        options: TimerOptions,
        timer: Callable[[], MessageTimer],
        statistics: TimerStatistics,
        knows_topic: Callable[[str], bool],
    ) -> None:
        self._options = options
        self._timer = timer
        self._statistics = statistics
        self._knows_topic = knows_topic
        registry.register(self)

    def families(self, *, pairs: bool) -> Iterator[Metric | None]:
        """Yield all metrics of the timer."""
        timer, statistics = self._timer(), self._statistics
        state = timer.state
        for series in (statistics.accepted, statistics.fired):
            yield from series.retain_in_steps(self._knows_topic)
        for name, text, series in (
            ("rocketmq_timer_enqueue", "Delayed messages accepted.", statistics.accepted),
            ("rocketmq_timer_dequeue", "Delayed messages put into their topics.", statistics.fired),
        ):
            family = CounterMetricFamily(name, text, labels=("topic",))
            yield from filled(family, ((labels, count.total) for labels, count in list(series)))
        pending = GaugeMetricFamily("rocketmq_timing_messages", "Pending delayed messages.", labels=("topic",))
        counts = state.pending.by_topic()
        shown = yield from bounded_in_steps((((topic,), count) for topic, count in counts.items()), lambda topic: True)
        yield from filled(pending, shown.items())
        lateness = HistogramMetricFamily(
            "popwheel_timer_lateness_seconds", "Time from due time to delivery of delayed messages."
        )
        buckets, below = [], 0
        for bound, number in zip((*map(str, LATENESS_BOUNDS_MS), "+Inf"), statistics.lateness_counts, strict=True):
            below += number
            buckets.append((bound, below))
        lateness.add_metric((), in_seconds(buckets), statistics.lateness_sum_ms / 1000)
        yield lateness
        yield CounterMetricFamily("popwheel_timer_recalls", "Delayed messages recalled.", value=statistics.recalls)
        for name, text, value in (
            ("rocketmq_timer_enqueue_lag", "Records of the timer queue not in the wheel yet.", timer.enqueue_lag),
            ("rocketmq_timer_dequeue_lag", "Due messages not delivered yet.", timer.overdue_entries()),
            (
                "rocketmq_timer_dequeue_latency",
                "Milliseconds by which the oldest due message is late.",
                timer.dequeue_behind_ms(),
            ),
            ("popwheel_timers_pending", "Pending delayed messages, of broker.timer.timers_max.", state.pending.total),
            ("popwheel_timers_max", "Limit of pending delayed messages.", self._options.timers_max),
            ("popwheel_timer_recalled", "Recalls not due yet, of broker.timer.recalls_max.", len(state.recalled)),
            (
                "popwheel_timer_slot_entries",
                "Entries of the slots being read, each of broker.timer.timers_per_slot_max.",
                sum(slot.outstanding for slot in state.opened_slots.values()),
            ),
            ("popwheel_timer_put_bytes", "Bytes of messages that wait for the last stage, of 64 MiB.", state.put_bytes),
            ("popwheel_timer_open_slots", "Slots begun and not finished.", len(state.opened_slots)),
            (
                "popwheel_timer_damaged",
                "Delayed messages that wait for the repair of a damaged record.",
                len(state.damaged),
            ),
            (
                "popwheel_timer_log_bytes",
                "Bytes of the timer log.",
                state.log.end_position - state.log.start_position,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        stages = GaugeMetricFamily(
            "popwheel_timer_stage_entries",
            "Entries waiting between two stages, of broker.timer.stage_entries_max.",
            labels=("queue",),
        )
        for queue, entries in (
            ("enqueue_put", len(state.enqueue_put_queue)),
            ("unscheduled", len(state.unscheduled)),
            ("dequeue_get", len(state.dequeue_get_queue)),
            ("dequeue_put", len(state.dequeue_put_queue)),
        ):
            stages.add_metric((queue,), entries)
        yield stages
