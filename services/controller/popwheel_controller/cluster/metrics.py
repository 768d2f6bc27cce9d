"""Metrics of the cluster's state."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ClusterMetrics:
    """Metrics of topics, groups, and their watchers.

    Args:
        registry: to register with.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.saves = Histogram(
            "popwheel_controller_save_seconds",
            "Time to store a change of the cluster's state",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.save_failures = Counter(
            "popwheel_controller_save_failures", "Changes that could not be saved and were refused", registry=registry
        )
        self.watchers_lagged = Counter(
            "popwheel_controller_watchers_lagged",
            "Watchers that lagged so far that they got the whole state anew",
            registry=registry,
        )
        self.other_clusters_refused = Counter(
            "popwheel_controller_other_clusters_refused",
            "Brokers and proxies that were refused because they belong to another cluster",
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"popwheel_controller_{name}", text, registry=registry)
            for name, text in {
                "topics": "Topics of the cluster, without system topics",
                "groups": "Consumer groups of the cluster",
                "brokers": "Brokers registered now",
                "deleted_names": "Deleted topics and groups that no first use may create for a while",
                "watchers": "Processes that watch the cluster's state now",
                "changes_waiting": "Changes that wait to be decided and saved",
                "state_version": "Version of the cluster's state",
                "state_pages": "Pages of topics and groups in the store, without the head",
                "leads": "1 if this controller leads, else 0",
            }.items()
        }

    def read_from(self, sources: dict[str, Callable[[], float]]) -> None:
        """Set the sources of the gauges, read at each scrape: topics, groups, brokers, deleted_names,
        watchers, changes_waiting, state_version, state_pages, leads.
        """
        for name, source in sources.items():
            self._gauges[name].set_function(source)
