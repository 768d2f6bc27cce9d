"""What the transport of a process counts: connections, and limits that were gone past."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.rpc.status import GrpcStatus


class RpcMetrics:
    """An `RpcObserver` for Prometheus. Calls are counted by the services, which know what became of them.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._connections = Gauge("popwheel_rpc_connections", "Connections open now", registry=registry)
        self._limit_hits = Counter(
            "popwheel_rpc_limit_hits",
            "How often a caller went past a limit of the transport",
            ("limit",),
            registry=registry,
        )

    def connection_opened(self) -> None:
        """A client has connected."""
        self._connections.inc()

    def connection_closed(self) -> None:
        """A connection is gone."""
        self._connections.dec()

    def call_started(self, path: str) -> None:
        """Not counted here."""

    def call_ended(self, path: str, status: GrpcStatus, seconds: float) -> None:
        """Not counted here."""

    def limit_hit(self, name: str) -> None:
        """Count a limit that was gone past."""
        self._limit_hits.labels(name).inc()
