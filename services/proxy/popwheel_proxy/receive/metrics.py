"""Metrics of polls. Names of RocketMQ 5 where it has one, `popwheel_proxy_...` otherwise."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.exposition import SlicedCollector, filled
from popwheel_common.histogram import Histogram, in_seconds
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_common.series import Labels, Series, bounded_in_steps
from popwheel_proxy.receive.long_poll import Mode

Known = Callable[[str, str], bool]
"""Function that returns whether a topic (system topics included) and a group exist."""
Modes = Callable[[], Iterable[tuple[tuple[str, str], Mode]]]
"""The mode of each topic and group that was polled of late."""

_BOUNDS_MS = (1, 3, 5, 10, 100, 1000, 3000)


class RoundTrips(Collector):
    """Times from a broker's notification to the answer of the pop that it caused."""

    def __init__(self) -> None:
        self._histogram = Histogram(_BOUNDS_MS)
        self.observe = self._histogram.observe

    def collect(self) -> Iterable[Metric]:
        """Return the histogram."""
        family = HistogramMetricFamily(
            "popwheel_proxy_notification_round_trip_seconds",
            "Time from a broker's notification to the answer of the pop that it caused",
        )
        family.add_metric((), in_seconds(self._histogram.buckets), self._histogram.total_ms / 1000)
        yield family


class PollModes(SlicedCollector):
    """Modes in which polls wait: 1 for that of each topic and group that is polled now, or how many have each.

    Args:
        modes: the modes.
        known: topics and groups that are not known are not shown.
    """

    def __init__(self, modes: Modes, known: Known) -> None:
        self._modes = modes
        self._known = known

    def families(self, *, pairs: bool) -> Iterator[Metric | None]:
        """Yield the modes."""
        rows = ((pair, mode.value) for pair, mode in self._modes())
        shown: Mapping[Labels, int] = yield from bounded_in_steps(
            (((*pair, mode) if pairs else (mode,), int(self._known(*pair))) for pair, mode in rows),
            lambda *labels: True,
        )
        family = GaugeMetricFamily(
            "popwheel_proxy_poll_mode",
            "Number of (topic, group) pairs by the mode of their polls: notify, plain or sliced",
            labels=("topic", "consumer_group", "mode") if pairs else ("mode",),
        )
        yield from filled(family, ((labels, count) for labels, count in shown.items() if count))


class Count:
    """Counter of one series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class PollCounts(SlicedCollector):
    """Counts polls by group, and by topic and group: as many of these as `Series` allows.

    Args:
        name: of the metric.
        text: its HELP text.
        known: topics and groups that are not known are dropped when the counts are shown.
        known_group: the same of groups.
    """

    def __init__(self, name: str, text: str, known: Known, known_group: Callable[[str], bool]) -> None:
        self._name = name
        self._text = text
        self._pairs = Series(2, Count)
        self._groups = Series(1, Count)
        """Counts by group, kept separately: a sum over topics would fall when one is deleted."""
        self.known = known
        self._known_group = known_group

    def inc(self, topic: str, group: str) -> None:
        """Count a poll of a group for a topic."""
        self._pairs.row(topic, group).value += 1
        self._groups.row(group).value += 1

    def of(self, topic: str, group: str) -> int:
        """Return the count of a group's polls for a topic."""
        row = self._pairs.get(topic, group)
        return 0 if row is None else row.value

    def pairs(self) -> list[tuple[str, str]]:
        """Return the topics and groups with counts."""
        return [(topic, group) for (topic, group), _ in self._pairs]

    def retain(self, known: Known, known_group: Callable[[str], bool]) -> None:
        """Drop the counts of unknown topics and groups."""
        self._pairs.retain(known)
        self._groups.retain(known_group)

    def families(self, *, pairs: bool) -> Iterator[Metric | None]:
        """Yield the counts."""
        # Polls that were under way when a topic was deleted may have counted after that.
        yield from self._pairs.retain_in_steps(self.known)
        yield from self._groups.retain_in_steps(self._known_group)
        family = CounterMetricFamily(
            self._name, self._text, labels=("topic", "consumer_group") if pairs else ("consumer_group",)
        )
        series = self._pairs if pairs else self._groups
        yield from filled(family, ((labels, count.value) for labels, count in list(series)))


class PollMetrics:
    """Polls, pops and notifications.

    Args:
        registry: where they are shown.
        view: reports deleted topics and groups.
        known: which there are.
        modes: how polls wait.
    """

    def __init__(self, registry: CollectorRegistry, view: ClusterView, known: Known, modes: Modes) -> None:
        there = (known, lambda group: group in view.groups)
        self.long_polls = PollCounts("is_long_polling", "Polls that may wait for messages", *there)
        self.short_polling_hits = PollCounts("is_short_polling_hit", "Polls whose first pop found messages", *there)
        self.pops_with_notify = PollCounts(
            "is_pop_with_notify", "Polls that waited to be notified by all brokers", *there
        )
        self._by_poll = (self.long_polls, self.short_polling_hits, self.pops_with_notify)
        self.notification_round_trip = RoundTrips()
        for collector in (*self._by_poll, PollModes(modes, known), self.notification_round_trip):
            registry.register(collector)
        self._mode_switches = Counter(
            "popwheel_proxy_poll_mode_switches",
            "Changes of the mode in which the polls of a topic and group wait",
            ("to",),
            registry=registry,
        )
        for mode in Mode:
            self._mode_switches.labels(mode.value)
        self.wakes = Counter("popwheel_proxy_poll_wakes", "Polls woken by a notification", registry=registry)
        self.empty_wakes = Counter(
            "popwheel_proxy_poll_wakes_without_message", "Polls woken whose pop found nothing", registry=registry
        )
        self._wakes_of, self._empty_wakes_of = Series(2, Count), Series(2, Count)
        self.pops = Counter("popwheel_proxy_pops", "Pop calls to brokers", registry=registry)
        self.first_pops_spared = Counter(
            "popwheel_proxy_first_pops_spared",
            "Polls that waited without a first pop, as no broker had messages for them",
            registry=registry,
        )
        self.pop_failures = Counter("popwheel_proxy_pop_failures", "Pop calls that failed", registry=registry)
        self.released = Counter(
            "popwheel_proxy_messages_released", "Messages released for clients that had gone", registry=registry
        )
        self.notify_streams_broken = Counter(
            "popwheel_proxy_notify_streams_broken", "Notify streams that ended and were reopened", registry=registry
        )
        view.subscribe(self._cluster_changed)

    def woken(self, topic: str, group: str) -> None:
        """Count a poll that was woken by a notification."""
        self.wakes.inc()
        self._wakes_of.row(topic, group).value += 1

    def woken_for_nothing(self, topic: str, group: str) -> None:
        """Count a woken poll whose pop found nothing."""
        self.empty_wakes.inc()
        self._empty_wakes_of.row(topic, group).value += 1

    def wakes_of(self, topic: str, group: str) -> tuple[int, int]:
        """Return how often polls of a group for a topic were woken, and how often for nothing."""
        wakes, empty = self._wakes_of.get(topic, group), self._empty_wakes_of.get(topic, group)
        return 0 if wakes is None else wakes.value, 0 if empty is None else empty.value

    def mode_switched(self, to: Mode) -> None:
        """Count a change of the mode of a (topic, group)."""
        self._mode_switches.labels(to.value).inc()

    def _cluster_changed(self, update: ClusterUpdate) -> None:
        """Drop the counts of deleted topics and groups, even if they were created again since."""
        topics, groups = frozenset(update.deleted_topics), frozenset(update.deleted_groups)
        if topics or groups:
            for series in (self._wakes_of, self._empty_wakes_of):
                series.retain(lambda topic, group: topic not in topics and group not in groups)
            for counts in self._by_poll:
                counts.retain(
                    lambda topic, group: topic not in topics and group not in groups, lambda group: group not in groups
                )
