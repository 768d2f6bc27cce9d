"""Counts of open tails and of the messages they showed."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

AT_ONCE_MAX: Final = 8


class Tails:
    """Registry of the open tails of this process.

    Args:
        registry: for their metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = 0
        Gauge("popwheel_controller_tails", "Tails of topics that are open over HTTP", registry=registry).set_function(
            lambda: self.open
        )
        self.shown = Counter("popwheel_controller_tail_messages", "Messages that tails showed", registry=registry)
        self.skipped = Counter(
            "popwheel_controller_tail_skipped",
            "Messages that tails skipped, as more arrived than they may show",
            registry=registry,
        )
