"""Metrics of calls during the failover of a broker group."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.retry_policy import Fault

_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class FailoverMetrics:
    """Metrics of parked calls and their retries.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.retries = Counter(
            "popwheel_proxy_call_retries",
            "Retries of calls to broker groups, by the fault of the try before",
            ("reason",),
            registry=registry,
        )
        for fault in Fault:
            self.retries.labels(fault.value)
        self._parked = Histogram(
            "popwheel_proxy_parked_seconds",
            "Time that calls were parked as their broker group did not serve them; served: whether it did in the end",
            ("served",),
            buckets=_BOUNDS_S,
            registry=registry,
        )
        self._served = {served: self._parked.labels("yes" if served else "no") for served in (True, False)}

    def parked(self, seconds: float, *, served: bool) -> None:
        """Record that a parked call has ended."""
        self._served[served].observe(seconds)


class MasterMetrics(Collector):
    """Broker groups without a master, as the controller last reported; shown also while no controller answers.

    Args:
        brokers: the broker groups.
        registry: where it is shown.
    """

    def __init__(self, brokers: Brokers, registry: CollectorRegistry) -> None:
        self._brokers = brokers
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the groups as they are now."""
        shown = GaugeMetricFamily(
            "popwheel_proxy_broker_without_master", "1 while a broker group has no master", labels=["broker"]
        )
        led = set(self._brokers.led)
        for name in self._brokers.names:
            shown.add_metric([name], float(name not in led))
        yield shown
