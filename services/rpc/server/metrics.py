"""What Prometheus is told of the transport."""

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.rpc.server.totals import Totals
from services.rpc.status import GrpcStatus

_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)


class _PathCounts:
    """Calls of one method."""

    __slots__ = ("buckets", "in_flight", "seconds", "statuses")

    def __init__(self) -> None:
        self.in_flight = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(_BUCKETS_S) + 1)
        self.statuses = [0] * len(GrpcStatus)


class RpcMetrics(Collector):
    """An `RpcObserver` that counts in plain lists; they become metrics only when Prometheus asks.

    Args:
        registry: where the metrics `popwheel_rpc_...` appear.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._connections = 0
        self._connections_total = 0
        self._paths: dict[str, _PathCounts] = {}
        self._limits: dict[str, int] = {}
        self._totals: Totals | None = None
        registry.register(self)

    def read_from(self, totals: Totals) -> None:
        """Show what a server's connections hold together."""
        self._totals = totals

    def connection_opened(self) -> None:
        self._connections += 1
        self._connections_total += 1

    def connection_closed(self) -> None:
        self._connections -= 1

    def call_started(self, path: str) -> None:
        counts = self._paths.get(path)
        if counts is None:
            counts = self._paths[path] = _PathCounts()
        counts.in_flight += 1

    def call_ended(self, path: str, status: GrpcStatus, seconds: float) -> None:
        counts = self._paths[path]
        counts.in_flight -= 1
        counts.statuses[status] += 1
        counts.seconds += seconds
        counts.buckets[bisect_left(_BUCKETS_S, seconds)] += 1

    def limit_hit(self, name: str) -> None:
        self._limits[name] = self._limits.get(name, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        yield GaugeMetricFamily("popwheel_rpc_connections", "Connections that are open", value=self._connections)
        yield CounterMetricFamily(
            "popwheel_rpc_connections_opened", "Connections that were opened", value=self._connections_total
        )
        if self._totals is not None:
            yield GaugeMetricFamily(
                "popwheel_rpc_received_bytes",
                "Bytes held of requests that are not whole, or not taken by their handlers yet",
                value=self._totals.received_bytes,
            )
            yield GaugeMetricFamily(
                "popwheel_rpc_unsent_bytes", "Bytes that readers have not taken yet", value=self._totals.unsent_bytes
            )
        in_flight = GaugeMetricFamily("popwheel_rpc_calls_in_flight", "Handlers that run", labels=["path"])
        calls = CounterMetricFamily("popwheel_rpc_calls", "Calls that have ended", labels=["path", "status"])
        seconds = HistogramMetricFamily("popwheel_rpc_call_seconds", "How long calls took", labels=["path"])
        for path, counts in self._paths.items():
            in_flight.add_metric([path], counts.in_flight)
            for status in GrpcStatus:
                if counts.statuses[status]:
                    calls.add_metric([path, status.name], counts.statuses[status])
            seconds.add_metric([path], _cumulative(counts.buckets), counts.seconds)
        limits = CounterMetricFamily("popwheel_rpc_limit_hits", "How often a limit was gone past", labels=["limit"])
        for name, count in self._limits.items():
            limits.add_metric([name], count)
        yield in_flight
        yield calls
        yield seconds
        yield limits


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    total = 0
    bounds = [*map(str, _BUCKETS_S), "+Inf"]
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip(bounds, buckets, strict=True):
        total += count
        cumulative.append((bound, total))
    return cumulative
