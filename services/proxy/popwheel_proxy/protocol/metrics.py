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
    """rocketmq_rpc_latency: how long calls took, by method and status."""

    def __init__(self, latency: HistogramTable) -> None:
        self._latency = latency

    def collect(self) -> Iterable[Metric]:
        """The table as Prometheus reads it."""
        family = HistogramMetricFamily(
            "rocketmq_rpc_latency",
            "Milliseconds from a call's arrival to its answer",
            labels=("node_type", "protocol_type", "request_code", "response_code"),
        )
        for (method, code), row in list(self._latency.rows.items()):
            family.add_metric(("proxy", "grpc", method, code_name(code)), row.buckets, row.total_ms)
        yield family


class ClientLibraries(Collector):
    """popwheel_clients: clients by the language and version of their library.

    Args:
        counts: the numbers, of those that have said it.
        registry: where they are shown.
    """

    def __init__(self, counts: Mapping[tuple[str, str], int], registry: CollectorRegistry) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The most frequent ones, and all others together."""
        family = GaugeMetricFamily(
            "popwheel_clients",
            "Clients by the language and version that they have said, the 20 most frequent, and all others together",
            labels=("language", "version"),
        )
        rows: dict[tuple[str, ...], int] = dict(self._counts.items())
        for labels, count in bounded(rows, _LIBRARIES_MAX).items():
            family.add_metric(labels, count)
        yield family


class ProxyMetrics:
    """Metrics that no single folder counts.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.latency = HistogramTable(_BOUNDS_MS)
        registry.register(_LatencyTable(self.latency))
        self.up = Gauge("rocketmq_proxy_up", "1 while the proxy serves", registry=registry)
        self._limit_hits = Counter(
            "popwheel_proxy_limit_hits",
            "How often a client went past a limit: the call was refused, or what it asked for was cut to the limit",
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
        self.released_of_gone = Counter(
            "popwheel_proxy_renewed_handles_released",
            "Receipt handles released that clients kept renewed which have gone",
            registry=registry,
        )
        self.release_failures = Counter(
            "popwheel_proxy_release_failures",
            "Release calls for clients that have gone that failed: their messages come again later",
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"popwheel_proxy_{name}", text, registry=registry)
            for name, text in {
                "polls": "Polls being served now",
                "polls_waiting": "Polls that wait for messages now",
                "polls_absent": "Polls that are held as their topic or group is not there",
                "interests": "Different topic, group and filter that are polled for now",
                "filter_bytes": "Characters of their filters, of 32 MiB",
                "interests_refused": "Interests that brokers do not notify for, as they have too many; popped in turn",
                "counted_polls": "Topics and groups whose polls are counted now, to choose how they wait",
                "unsent_bytes": "Bytes of answers that readers have not taken yet",
                "waiting_sends": "Messages that wait for a Put to a broker",
                "waiting_in_lanes": "Sends that wait for another one of their message group or lite topic",
                "clients": "Clients known now",
                "clients_broken": "Clients whose last open call has broken, and that have not called since",
                "client_facts_bytes": "Memory of the lists of topics that clients give in their settings, of 64 MiB",
                "client_uses": "Pairs of a client and what it polls for or sends to, of 200,000 that are kept",
                "known_filters": "SQL92 filters kept in mind, of 4,096",
                "waiting_filters": "New SQL92 filters that wait to be read, of 512",
                "repeated_bytes": "Bytes of settings that are kept for a moment to be sent again",
                "telemetry_streams": "Telemetry streams open now",
                "producer_topics": "Pairs of a producer and a topic of which it can be asked how transactions ended",
                "asked_bytes": "Bytes of what clients are asked to do on their Telemetry streams, on its way to them",
                "renewed_handles": "Receipt handles kept renewed now",
                "held_calls": "Calls held now, as their broker group has no master or does not answer",
                "held_bytes": "Bytes of messages in sends that are held now",
                "brokers_without_master": "Broker groups that have no master now",
                "masters_changed": "How often another process became a broker group's master, or none was",
                "stale_routes": "How often a master of a broker group was told of that is not the latest",
            }.items()
        }

    def limit_hit(self, limit: str) -> None:
        """Count a call that was refused because of a limit."""
        self._limit_hits.labels(limit).inc()

    def read_from(self, sources: dict[str, Callable[[], float]]) -> None:
        """Take the gauges' values from here whenever they are shown; names as in `popwheel_proxy_...`."""
        for name, source in sources.items():
            self._gauges[name].set_function(source)
