"""Metrics of calls to broker groups that change their master."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.retry_policy import Fault

_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class FailoverMetrics:
    """Calls that are parked and tried again.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.retries = Counter(
            "popwheel_proxy_call_retries",
            "Tries of calls to broker groups that did not go well and were made again, by what was wrong",
            ("reason",),
            registry=registry,
        )
        for fault in Fault:
            self.retries.labels(fault.value)
        self._held = Histogram(
            "popwheel_proxy_held_seconds",
            "For how long calls were held that their broker group did not answer at once; served: whether it did then",
            ("served",),
            buckets=_BOUNDS_S,
            registry=registry,
        )
        self._served = {served: self._held.labels("yes" if served else "no") for served in (True, False)}

    def held(self, seconds: float, *, served: bool) -> None:
        """A call is parked no more."""
        self._served[served].observe(seconds)


class MasterMetrics(Collector):
    """The broker groups without a master, as the controller last reported: also where no controller is left.

    Args:
        brokers: the broker groups.
        registry: where it is shown.
    """

    def __init__(self, brokers: Brokers, registry: CollectorRegistry) -> None:
        self._brokers = brokers
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The groups as they are now."""
        shown = GaugeMetricFamily(
            "popwheel_proxy_broker_without_master", "1 while a broker group has no master", labels=["broker"]
        )
        led = set(self._brokers.led)
        for name in self._brokers.names:
            shown.add_metric([name], float(name not in led))
        yield shown
