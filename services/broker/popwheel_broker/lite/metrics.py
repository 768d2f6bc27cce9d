"""Metrics of lite topics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from popwheel_broker.lite.lite_topics import LiteTopics
from popwheel_broker.log.queues import Queues


def lite_metrics(lite: LiteTopics, queues: Queues) -> Iterator[Metric]:
    """Yield the metrics of lite topics."""
    for name, text, value in (
        ("topics", "Lite topics, of broker.lite.topics_max.", queues.lite_topics),
        ("clients", "Clients that read lite topics.", lite.subscriptions.clients),
        (
            "subscriptions",
            "Pairs of a client and a lite topic that it reads, and clients, of broker.lite.subscriptions_max.",
            len(lite.subscriptions),
        ),
        ("ready", "Pairs of a group and a lite topic that may have a message for it.", lite.subscriptions.ready),
    ):
        yield GaugeMetricFamily(f"popwheel_lite_{name}", text, value=value)
    ended = CounterMetricFamily("popwheel_lite_topics_ended", "Lite topics that have ended.", labels=("reason",))
    ended.add_metric(("expired",), lite.expired)
    ended.add_metric(("emptied",), lite.emptied)
    yield ended
