"""What the proxy counts of broker groups that change their master, and of the calls that are held meanwhile."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.proxy.failover.retry_policy import Fault

_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class FailoverMetrics:
    """Masters that change, calls that are held and tried again.

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
        self._gauges = {
            name: Gauge(f"popwheel_proxy_{name}", text, registry=registry)
            for name, text in {
                "held_calls": "Calls held now, as their broker group has no master or does not answer",
                "held_bytes": "Bytes of messages in sends that are held now",
                "brokers_without_master": "Broker groups that have no master now",
                "masters_changed": "How often another process became a broker group's master, or none was",
                "stale_routes": "How often a master of a broker group was told of that is not the latest",
            }.items()
        }

    def held(self, seconds: float, *, served: bool) -> None:
        """A call is held no more."""
        self._served[served].observe(seconds)

    def read_from(self, sources: dict[str, Callable[[], float]]) -> None:
        """Take the gauges' values from here whenever they are shown; names as in `popwheel_proxy_...`."""
        for name, source in sources.items():
            self._gauges[name].set_function(source)
