"""Metrics of the transport."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_rpc.server.call_counts import BUCKETS_S, CallCounts
from popwheel_rpc.server.totals import Totals
from popwheel_rpc.status import GrpcStatus


class RpcMetrics(Collector):
    """Metrics of a server, made from its `CallCounts` when Prometheus asks.

    Args:
        registry: where the metrics `popwheel_rpc_...` appear.

    Attributes:
        counts: the observer for a server.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counts = CallCounts()
        self._totals: Totals | None = None
        registry.register(self)

    def read_from(self, totals: Totals) -> None:
        """Show the memory of all connections of a server."""
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        yield GaugeMetricFamily("popwheel_rpc_connections", "Open connections", value=self.counts.connections)
        yield CounterMetricFamily(
            "popwheel_rpc_connections_opened", "Opened connections", value=self.counts.connections_total
        )
        if self._totals is not None:
            yield GaugeMetricFamily(
                "popwheel_rpc_received_bytes",
                "Buffered bytes of requests that are incomplete or not taken by their handlers yet",
                value=self._totals.received_bytes,
            )
            yield GaugeMetricFamily(
                "popwheel_rpc_unsent_bytes",
                "Bytes of answers that clients have not read yet",
                value=self._totals.unsent_bytes,
            )
        in_flight = GaugeMetricFamily("popwheel_rpc_calls_in_flight", "Running handlers", labels=["path"])
        calls = CounterMetricFamily("popwheel_rpc_calls", "Ended calls", labels=["path", "status"])
        seconds = HistogramMetricFamily("popwheel_rpc_call_seconds", "Duration of calls", labels=["path"])
        for path, counts in self.counts.paths.items():
            in_flight.add_metric([path], counts.in_flight)
            for status in GrpcStatus:
                if counts.statuses[status]:
                    calls.add_metric([path, status.name], counts.statuses[status])
            seconds.add_metric([path], _cumulative(counts.buckets), counts.seconds)
        limits = CounterMetricFamily("popwheel_rpc_limit_hits", "Violations of a limit", labels=["limit"])
        for name, count in self.counts.limits.items():
            limits.add_metric([name], count)
        yield in_flight
        yield calls
        yield seconds
        yield limits


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    total = 0
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip(bounds, buckets, strict=True):
        total += count
        cumulative.append((bound, total))
    return cumulative
