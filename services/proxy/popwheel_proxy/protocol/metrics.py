"""Metrics of all calls, and gauges of the proxy. Names are those of RocketMQ 5 where it has one."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_common.errors import code_name
from popwheel_common.histogram import HistogramTable
from popwheel_common.series import bounded

_LIBRARIES_MAX = 20
_BOUNDS_MS = (1, 3, 5, 10, 100, 1000, 3000)


class _LatencyTable(Collector):
    """rocketmq_rpc_latency: duration of calls, by method and status."""

    def __init__(self, latency: HistogramTable) -> None:
        self._latency = latency

    def collect(self) -> Iterable[Metric]:
        """Return the table as a histogram."""
        family = HistogramMetricFamily(
            "rocketmq_rpc_latency",
            "Milliseconds from a call's arrival to its answer",
            labels=("node_type", "protocol_type", "request_code", "response_code"),
        )
        for (method, code), row in list(self._latency.rows.items()):
            family.add_metric(("proxy", "grpc", method, code_name(code)), row.buckets, row.total_ms)
        yield family


class ClientLibraries(Collector):
    """popwheel_clients: clients by language and version of their library.

    Args:
        counts: the numbers, of those that have said it.
        registry: where they are shown.
    """

    def __init__(self, counts: Mapping[tuple[str, str], int], registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the most frequent ones, and the sum of all others."""
        family = GaugeMetricFamily(
            "popwheel_clients",
            "Clients by language and version of their library, the 20 most frequent, and the sum of all others",
            labels=("language", "version"),
        )
        rows: dict[tuple[str, ...], int] = dict(self._counts.items())
        for labels, count in bounded(rows, _LIBRARIES_MAX).items():
            family.add_metric(labels, count)
        yield family


class ProxyMetrics:
    """Metrics of the proxy as a whole.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.latency = HistogramTable(_BOUNDS_MS)
        registry.register(_LatencyTable(self.latency))
        self.up = Gauge("rocketmq_proxy_up", "1 while the proxy serves", registry=registry)
        self._limit_hits = Counter(
            "popwheel_proxy_limit_hits",
            "Calls that exceeded a limit: they were refused, or their request was cut to the limit",
            ("limit",),
            registry=registry,
        )
        self.renewals = Counter("popwheel_proxy_renewals", "Receipt handles renewed", registry=registry)
        self.renewals_ended = Counter(
            "popwheel_proxy_renewals_ended",
            "Receipt handles renewed for as long as allowed, and then left to their group's back-off",
            registry=registry,
        )
        self.renewal_failures = Counter(
            "popwheel_proxy_renewal_failures", "Renew calls to brokers that failed", registry=registry
        )
        self.released_of_lost = Counter(
            "popwheel_proxy_renewed_handles_released",
            "Renewed receipt handles released for clients that had gone",
            registry=registry,
        )
        self.release_failures = Counter(
            "popwheel_proxy_release_failures",
            "Failed Release calls for clients that had gone: their messages are delivered again later",
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"popwheel_proxy_{name}", text, registry=registry)
            for name, text in {
                "polls": "Polls being served now",
                "polls_waiting": "Polls that wait for messages now",
                "polls_absent": "Polls that wait for their topic or group to be created",
                "interests": "Distinct (topic, group, filter) combinations that are polled for now",
                "filter_bytes": "Characters of the filters of interests, of 32 MiB",
                "interests_refused": "Interests that brokers refused as too many; popped periodically instead",
                "counted_polls": "(topic, group) pairs whose polls are counted now, to choose how they wait",
                "unsent_bytes": "Bytes of answers that clients have not read yet",
                "waiting_sends": "Messages that wait for a Put to a broker",
                "waiting_in_send_queues": "Sends that wait for an earlier one of their message group or lite topic",
                "clients": "Clients known now",
                "clients_broken": "Clients whose last open call has broken and that have made no call since",
                "client_facts_bytes": "Memory of the topic lists in clients' settings, of 64 MiB",
                "client_uses": "Pairs of a client and a topic that it polls or sends to, of 200,000",
                "known_filters": "Cached SQL92 filters, of 4,096",
                "waiting_filters": "New SQL92 filters that wait to be parsed, of 512",
                "repeated_bytes": "Bytes of settings that are cached for a moment, as they are sent several times",
                "telemetry_streams": "Telemetry streams open now",
                "producer_topics": "(producer, topic) pairs that brokers can ask how transactions ended",
                "asked_bytes": "Bytes of requests to clients that wait to be sent on their Telemetry streams",
                "renewed_handles": "Receipt handles kept renewed now",
                "parked_calls": "Calls parked now, as their broker group has no master or does not answer",
                "parked_bytes": "Bytes of messages in sends that are parked now",
                "brokers_without_master": "Broker groups that have no master now",
                "masters_changed": "Changes of a broker group's master, to another process or to none",
                "stale_routes": "Reports of a broker group's master with an older epoch than the known one",
            }.items()
        }

    def limit_hit(self, limit: str) -> None:
        """Count a call that was refused because of a limit."""
        self._limit_hits.labels(limit).inc()

    def read_from(self, sources: dict[str, Callable[[], float]]) -> None:
        """Read the gauges' values from here at each scrape; names as in `popwheel_proxy_...`."""
        for name, source in sources.items():
            self._gauges[name].set_function(source)
