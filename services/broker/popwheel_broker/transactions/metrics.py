"""Metrics of transactions."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from popwheel_broker.transactions.coordinator import Coordinator
from popwheel_broker.transactions.half import Resolution
from popwheel_common.clock import Clock


def transaction_metrics(transactions: Coordinator, clock: Clock) -> Iterator[Metric]:
    """Yield the metrics of transactions."""
    oldest = transactions.table.oldest
    yield GaugeMetricFamily(
        "popwheel_transactions_open",
        "Half messages that are neither committed nor rolled back, of broker.transaction.open_max.",
        value=len(transactions.table),
    )
    yield GaugeMetricFamily(
        "popwheel_transactions_oldest_seconds",
        "Age of the oldest open half message; 0 if there is none.",
        value=0 if oldest is None else max(0, clock.wall_ms() - oldest.stored_ms) / 1000,
    )
    ended = CounterMetricFamily(
        "popwheel_transactions_ended", "Transactions that this broker has ended.", labels=("resolution",)
    )
    for resolution in Resolution:
        ended.add_metric((resolution.name.lower(),), transactions.resolved[resolution])
    yield ended
    yield CounterMetricFamily(
        "popwheel_transactions_checks",
        "Checks of half messages sent to producers.",
        value=transactions.checks,
    )
