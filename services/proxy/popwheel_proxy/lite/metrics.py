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
            "What clients said of their lite topics: add, remove, set (all of them), end",
            ("action",),
            registry=registry,
        )
        for action in ("add", "remove", "set", "end"):
            self.syncs.labels(action)
        self.repeats = Counter(
            "popwheel_proxy_lite_repeats",
            "How often a broker was told again all that a client reads, as it is new or had forgotten it",
            registry=registry,
        )
        self.failures = Counter(
            "popwheel_proxy_lite_failures",
            "How often a broker could not be told what a client reads, or that it is there",
            registry=registry,
        )
        self.ends_told = Counter(
            "popwheel_proxy_lite_ends_told", "Clients told that a lite topic of theirs has ended", registry=registry
        )

    def read_from(self, book: LiteSubscriptions) -> None:
        """Take the gauges' values from here whenever they are shown."""
        self._readers.set_function(lambda: book.reader_count)
        self._subscriptions.set_function(lambda: len(book))
