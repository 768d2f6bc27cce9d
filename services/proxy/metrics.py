"""What the proxy counts. Names of RocketMQ 5 where it has one, `popwheel_proxy_...` otherwise."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.common.cluster import ClusterView
from services.common.errors import code_name
from services.common.histogram import Histogram
from services.common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from services.common.series import Series
from services.proxy.failover.metrics import FailoverMetrics
from services.proxy.receive.long_poll import Mode
from services.proxy.send.metrics import SendMetrics

Known = Callable[[str, str], bool]
"""Whether a topic and a group are there."""

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
    """How the polls of each topic and group that is polled now wait: 1 for the mode they have."""

    def __init__(self) -> None:
        self.known: Known = _all_are_known
        self.source: Callable[[], Iterable[tuple[tuple[str, str], Mode]]] = tuple

    def collect(self) -> Iterable[Metric]:
        """The modes as Prometheus reads them."""
        family = GaugeMetricFamily(
            "popwheel_proxy_poll_mode",
            "1 for how the polls of a topic and group wait: notify, plain or sliced",
            labels=("topic", "consumer_group", "mode"),
        )
        for (topic, group), mode in self.source():
            if self.known(topic, group):
                family.add_metric((topic, group, mode.value), 1)
        yield family


class LatencyTable(Collector):
    """rocketmq_rpc_latency: how long calls took, by method and status."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], Histogram] = {}

    def observe(self, method: str, code: int, milliseconds: float) -> None:
        """Count one call."""
        row = self._rows.get((method, code))
        if row is None:
            row = self._rows[method, code] = Histogram(_BOUNDS_MS)
        row.observe(milliseconds)

    def collect(self) -> Iterable[Metric]:
        """The table as Prometheus reads it."""
        family = HistogramMetricFamily(
            "rocketmq_rpc_latency",
            "Milliseconds from a call's arrival to its answer",
            labels=("node_type", "protocol_type", "request_code", "response_code"),
        )
        for (method, code), row in list(self._rows.items()):
            family.add_metric(("proxy", "grpc", method, code_name(code)), row.buckets, row.total_ms)
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
    """

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._series = Series(2, Count)
        self.known: Known = _all_are_known

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


def _all_are_known(topic: str, group: str) -> bool:
    return True


class ProxyMetrics:
    """The proxy's metrics.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.latency = LatencyTable()
        registry.register(self.latency)
        self.up = Gauge("rocketmq_proxy_up", "1 while the proxy serves", registry=registry)
        self._limit_hits = Counter(
            "popwheel_proxy_limit_hits",
            "How often a client went past a limit: the call was refused, or what it asked for was cut to the limit",
            ("limit",),
            registry=registry,
        )
        self.long_polls = PollCounts("is_long_polling", "Polls that may wait for messages")
        self.short_polling_hits = PollCounts("is_short_polling_hit", "Polls whose first pop found messages")
        self.pops_with_notify = PollCounts("is_pop_with_notify", "Polls that waited to be notified by all brokers")
        self._by_poll = (self.long_polls, self.short_polling_hits, self.pops_with_notify)
        self.poll_modes = PollModes()
        self.notification_round_trip = RoundTrips()
        for collector in (*self._by_poll, self.poll_modes, self.notification_round_trip):
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
        self.sends = SendMetrics(registry)
        self.failover = FailoverMetrics(registry)
        self.renewals = Counter("popwheel_proxy_renewals", "Receipt handles renewed", registry=registry)
        self.renewal_failures = Counter(
            "popwheel_proxy_renewal_failures", "Renew calls to brokers that failed", registry=registry
        )
        self.notify_streams_broken = Counter(
            "popwheel_proxy_notify_streams_broken", "Notify streams that ended and were opened anew", registry=registry
        )
        self._gauges = {
            name: Gauge(f"popwheel_proxy_{name}", text, registry=registry)
            for name, text in {
                "polls": "Polls being served now",
                "polls_waiting": "Polls that wait for messages now",
                "interests": "Different topic, group and filter that are polled for now",
                "filter_bytes": "Characters of their filters, of 32 MiB",
                "interests_refused": "Interests that brokers do not notify for, as they have too many; popped in turn",
                "counted_polls": "Topics and groups whose polls are counted now, to choose how they wait",
                "unsent_bytes": "Bytes of answers that readers have not taken yet",
                "waiting_sends": "Messages that wait for a Put to a broker",
                "clients": "Clients known now",
                "repeated_bytes": "Bytes of settings that are kept for a moment to be sent again",
                "telemetry_streams": "Telemetry streams open now",
                "renewed_handles": "Receipt handles kept renewed now",
            }.items()
        }

    def limit_hit(self, limit: str) -> None:
        """Count a call that was refused because of a limit."""
        self._limit_hits.labels(limit).inc()

    def mode_switched(self, to: Mode) -> None:
        """Count a (topic, group) whose polls wait another way from now on."""
        self._mode_switches.labels(to.value).inc()

    def follow(self, view: ClusterView, known: Known) -> None:
        """Drop what was counted for topics and groups when their deletion is heard of.

        Args:
            view: the cluster.
            known: whether a topic (of the system, too) and a group are there; asked when `view` has changed.
        """

        def changed(update: ClusterUpdate) -> None:
            topics, groups = frozenset(update.deleted_topics), frozenset(update.deleted_groups)
            self.poll_modes.known = known
            for counts in self._by_poll:
                counts.known = known
                if topics or groups:
                    # Also what was made again since; what else is not known is dropped when the counts are shown.
                    counts.keep(lambda topic, group: topic not in topics and group not in groups)

        view.subscribe(changed)

    def read_from(self, sources: dict[str, Callable[[], float]]) -> None:
        """Take the gauges' values from here whenever they are shown; names as in `popwheel_proxy_...`."""
        for name, source in sources.items():
            self._gauges[name].set_function(source)
