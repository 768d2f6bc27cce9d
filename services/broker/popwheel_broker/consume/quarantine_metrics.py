"""Metrics of poison messages."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from popwheel_broker.consume.quarantine import Quarantine


def quarantine_metrics(quarantine: Quarantine) -> Iterator[Metric]:
    """Yield the metrics of poison messages."""
    poisoned = GaugeMetricFamily(
        "popwheel_quarantined_messages",
        "Poison messages in quarantine, of broker.quarantine_max.",
        labels=("step",),
    )
    faults = CounterMetricFamily("popwheel_record_faults", "Failures of a step for a single record.", labels=("step",))
    for step, count in quarantine.table.counts().items():
        poisoned.add_metric((step.label,), count)
        faults.add_metric((step.label,), quarantine.faults[step])
    yield poisoned
    yield GaugeMetricFamily(
        "popwheel_quarantine_max", "Limit of poison messages in quarantine.", value=quarantine.entries_max
    )
    yield faults
