"""Metrics of sends to brokers."""

from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_common.series import Series


class _Sends:
    """A number of sends."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class SendMetrics(Collector):
    """Metrics of sends by broker and outcome, and of avoided brokers.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = Series(2, _Sends)
        registry.register(self)
        self.retries = Counter(
            "popwheel_proxy_send_retries",
            "Sends retried as a broker was not reached or took no messages",
            registry=registry,
        )
        self.moved = Counter(
            "popwheel_proxy_sends_moved",
            "Sends that waited for a broker that hung or left and went to another",
            registry=registry,
        )
        self.brokers_avoided = Gauge(
            "popwheel_proxy_brokers_avoided",
            "Brokers that sends avoid now: slow, failing or hanging",
            registry=registry,
        )
        probes = Counter(
            "popwheel_proxy_broker_probes",
            "Puts that probe avoided brokers; a good one ends the avoidance",
            ("result",),
            registry=registry,
        )
        self._probes = {good: probes.labels("good" if good else "bad") for good in (True, False)}

    def ended(self, broker: str, outcome: str, sends: int) -> None:
        """Count the sends of a Put that has ended."""
        self._ended.row(broker, outcome).count += sends

    def probed(self, *, good: bool) -> None:
        """Count a probe of an avoided broker."""
        self._probes[good].inc()

    def retain(self, brokers: Collection[str]) -> None:
        """Drop the counts of brokers that have left."""
        self._ended.retain(lambda broker, outcome: broker in brokers)

    def collect(self) -> Iterable[Metric]:
        """Return the sends by broker and outcome."""
        family = CounterMetricFamily(
            "popwheel_proxy_sends",
            "Sends (of one or more messages for one queue) by broker and outcome of their Put",
            labels=("broker", "outcome"),
        )
        for labels, sends in self._ended:
            family.add_metric(labels, sends.count)
        yield family
