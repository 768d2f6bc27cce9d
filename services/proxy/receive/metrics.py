"""What the proxy counts of polls. Names of RocketMQ 5 where it has one, `popwheel_proxy_...` otherwise."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.common.contract.cluster_view import ClusterView
from services.common.histogram import Histogram
from services.common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from services.common.series import Series
from services.proxy.receive.long_poll import Mode

Known = Callable[[str, str], bool]
"""Whether a topic (of the system, too) and a group are there."""
Modes = Callable[[], Iterable[tuple[tuple[str, str], Mode]]]
"""The mode of each topic and group that was polled of late."""

_BOUNDS_MS = (1, 3, 5, 10, 100, 1000, 3000)


class RoundTrips(Collector):
    """How long it took from a broker's notification to the answer of the pop that it brought about."""

    def __init__(self) -> None:
        self._histogram = Histogram(_BOUNDS_MS)
        self.observe = self._histogram.observe

    def collect(self) -> Iterable[Metric]:
        """The histogram as Prometheus reads it."""
        family = HistogramMetricFamily(
            "popwheel_proxy_notification_round_trip_ms",
            "Milliseconds from a broker's notification to the answer of the pop that it brought about",
        )
        family.add_metric((), self._histogram.buckets, self._histogram.total_ms)
        yield family


class PollModes(Collector):
    """How the polls of each topic and group that is polled now wait: 1 for the mode they have.

    Args:
        modes: the modes.
        known: topics and groups that are not known are not shown.
    """

    def __init__(self, modes: Modes, known: Known) -> None:
        self._modes = modes
        self._known = known

    def collect(self) -> Iterable[Metric]:
        """The modes as Prometheus reads them."""
        family = GaugeMetricFamily(
            "popwheel_proxy_poll_mode",
            "1 for how the polls of a topic and group wait: notify, plain or sliced",
            labels=("topic", "consumer_group", "mode"),
        )
        for (topic, group), mode in self._modes():
            if self._known(topic, group):
                family.add_metric((topic, group, mode.value), 1)
        yield family


class Count:
    """A number that goes up."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self) -> None:
        """One more."""
        self.value += 1


class PollCounts(Collector):
    """Counts polls by topic and group, as many of these as `Series` allows.

    Args:
        name: of the metric.
        text: what it says.
        known: topics and groups that are not known are dropped when the counts are shown.
    """

    def __init__(self, name: str, text: str, known: Known) -> None:
        self._name = name
        self._text = text
        self._series = Series(2, Count)
        self.known = known

    def labels(self, topic: str, group: str) -> Count:
        """Where to count the polls of a group for a topic."""
        return self._series.row(topic, group)

    def keep(self, known: Known) -> None:
        """Drop what is not known."""
        self._series.keep(known)

    def collect(self) -> Iterable[Metric]:
        """The counts as Prometheus reads them."""
        # Polls that were under way when a topic was deleted may have counted after that.
        self._series.keep(self.known)
        family = CounterMetricFamily(self._name, self._text, labels=("topic", "consumer_group"))
        for labels, count in self._series:
            family.add_metric(labels, count.value)
        yield family


class PollMetrics:
    """Polls, pops and notifications.

    Args:
        registry: where they are shown.
        view: tells of topics and groups that were deleted.
        known: which there are.
        modes: how polls wait.
    """

    def __init__(self, registry: CollectorRegistry, view: ClusterView, known: Known, modes: Modes) -> None:
        self.long_polls = PollCounts("is_long_polling", "Polls that may wait for messages", known)
        self.short_polling_hits = PollCounts("is_short_polling_hit", "Polls whose first pop found messages", known)
        self.pops_with_notify = PollCounts(
            "is_pop_with_notify", "Polls that waited to be notified by all brokers", known
        )
        self._by_poll = (self.long_polls, self.short_polling_hits, self.pops_with_notify)
        self.notification_round_trip = RoundTrips()
        for collector in (*self._by_poll, PollModes(modes, known), self.notification_round_trip):
            registry.register(collector)
        self._mode_switches = Counter(
            "popwheel_proxy_poll_mode_switches",
            "How often the polls of a topic and group began to wait another way",
            ("to",),
            registry=registry,
        )
        for mode in Mode:
            self._mode_switches.labels(mode.value)
        self.wakes = Counter("popwheel_proxy_poll_wakes", "Polls woken by a notification", registry=registry)
        self.empty_wakes = Counter(
            "popwheel_proxy_poll_wakes_without_message", "Polls woken whose pop found nothing", registry=registry
        )
        self.pops = Counter("popwheel_proxy_pops", "Pop calls to brokers", registry=registry)
        self.first_pops_spared = Counter(
            "popwheel_proxy_first_pops_spared",
            "Polls that waited at once, as all brokers had said that nothing waits for them",
            registry=registry,
        )
        self.pop_failures = Counter("popwheel_proxy_pop_failures", "Pop calls that failed", registry=registry)
        self.released = Counter(
            "popwheel_proxy_messages_released", "Messages given back for clients that had gone", registry=registry
        )
        self.notify_streams_broken = Counter(
            "popwheel_proxy_notify_streams_broken", "Notify streams that ended and were opened anew", registry=registry
        )
        view.subscribe(self._cluster_changed)

    def mode_switched(self, to: Mode) -> None:
        """Count a (topic, group) whose polls wait another way from now on."""
        self._mode_switches.labels(to.value).inc()

    def _cluster_changed(self, update: ClusterUpdate) -> None:
        """Drop what was counted for topics and groups that were deleted, even if they were made again since."""
        topics, groups = frozenset(update.deleted_topics), frozenset(update.deleted_groups)
        if topics or groups:
            for counts in self._by_poll:
                counts.keep(lambda topic, group: topic not in topics and group not in groups)
