"""Metrics of lite topics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_proxy.lite.lite_subscriptions import LiteSubscriptions


class LiteMetrics:
    """Readers, and notifications to brokers and clients.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._readers = Gauge(
            "popwheel_proxy_lite_readers", "Clients whose lite topics are known here now", registry=registry
        )
        self._subscriptions = Gauge(
            "popwheel_proxy_lite_subscriptions",
            "Lite topics that clients read, counted for each client",
            registry=registry,
        )
        self.syncs = Counter(
            "popwheel_proxy_lite_syncs",
            "Reports of clients about their lite subscriptions: add, remove, set (all of them), end",
            ("action",),
            registry=registry,
        )
        for action in ("add", "remove", "set", "end"):
            self.syncs.labels(action)
        self.repeats = Counter(
            "popwheel_proxy_lite_repeats",
            "Times that all subscriptions of a client were repeated to a broker that is new or had lost them",
            registry=registry,
        )
        self.failures = Counter(
            "popwheel_proxy_lite_failures",
            "Reports about a client that did not reach a broker",
            registry=registry,
        )
        self.ends_notified = Counter(
            "popwheel_proxy_lite_ends_notified",
            "Clients notified that a lite topic of theirs has ended",
            registry=registry,
        )

    def read_from(self, book: LiteSubscriptions) -> None:
        """Read the gauges' values from here at each scrape."""
        self._readers.set_function(lambda: book.reader_count)
        self._subscriptions.set_function(lambda: len(book))
