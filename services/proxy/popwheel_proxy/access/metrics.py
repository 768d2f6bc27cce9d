"""Metrics of access."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class AccessMetrics:
    """Metrics of denials, and of the access file.

    Args:
        registry: where they are shown.
        users: how many there are.
        refused: whether the file is invalid.
    """

    def __init__(self, registry: CollectorRegistry, users: Callable[[], int], refused: Callable[[], bool]) -> None:
        self._denials = Counter(
            "popwheel_proxy_access_denials",
            "Denied calls: not authenticated, or not authorized",
            ("method", "reason"),
            registry=registry,
        )
        Gauge("popwheel_proxy_access_users", "Users of the access file in use", registry=registry).set_function(users)
        Gauge(
            "popwheel_proxy_access_file_refused",
            "1 while the access file is invalid, so that the previous rules stay in use",
            registry=registry,
        ).set_function(refused)

    def denied(self, method: str, reason: str) -> None:
        """Count a denial; both have few values."""
        self._denials.labels(method, reason).inc()
