"""What the controller counts."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.common.clock import Clock
from services.controller.broker_groups.broker_group import GroupState
from services.controller.checkpoints.checkpoint_sync import CheckpointSync


class GroupMetrics:
    """What is shown of broker groups.

    Args:
        registry: where it is shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.elections = Counter(
            "popwheel_controller_elections", "New masters of broker groups, for whatever reason", registry=registry
        )
        self.unclean_elections = Counter(
            "popwheel_controller_unclean_elections",
            "Masters that an operator chose although they may lack acknowledged messages",
            registry=registry,
        )
        self.conflicts = Counter(
            "popwheel_controller_store_conflicts",
            "Changes that had to be decided anew because another controller had changed the same",
            registry=registry,
        )
        self.transfers = Counter(
            "popwheel_controller_hand_overs", "Masters that passed on their role", ["outcome"], registry=registry
        )
        for outcome in ("done", "refused"):
            self.transfers.labels(outcome)  # shown from the start: Prometheus sees no rise to what it first sees
        self._epoch = Gauge("popwheel_controller_group_epoch", "Epoch of a broker group", ["broker"], registry=registry)
        self._members = Gauge(
            "popwheel_controller_group_sync_state_set_size",
            "Replicas that have every acknowledged message of a broker group",
            ["broker"],
            registry=registry,
        )
        self._replicas = Gauge(
            "popwheel_controller_group_replicas",
            "Replicas that a broker group has, whether they live or not",
            ["broker"],
            registry=registry,
        )
        self._masterless = Gauge(
            "popwheel_controller_groups_without_master",
            "Broker groups that have no living master now",
            registry=registry,
        )
        self._without: set[str] = set()
        self._masterless.set_function(lambda: len(self._without))

    def show(self, state: GroupState, *, has_master: bool) -> None:
        """Show a group as it is now."""
        self._epoch.labels(state.name).set(state.epoch)
        self._members.labels(state.name).set(len(state.sync_state_set))
        self._replicas.labels(state.name).set(len(state.replicas))
        if has_master:
            self._without.discard(state.name)
        else:
            self._without.add(state.name)

    def forget(self, group: str) -> None:
        """Show a group no more."""
        self._without.discard(group)
        self._epoch.remove(group)
        self._members.remove(group)
        self._replicas.remove(group)

    def clear(self) -> None:
        """Show no groups: this controller does not lead."""
        self._without.clear()
        self._epoch.clear()
        self._members.clear()
        self._replicas.clear()


class CheckpointMetrics(Collector):
    """What is shown of checkpoint sync.

    Args:
        registry: where it is shown.
        sync: decides, and knows how fresh what slaves hold is.
        clock: the time.
    """

    def __init__(self, registry: CollectorRegistry, sync: CheckpointSync, clock: Clock) -> None:
        self._sync = sync
        self._clock = clock
        self.durations = Histogram(
            "popwheel_controller_checkpoint_sync_seconds",
            "How long it took to bring a master's progress to a slave's disk",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.failures = Counter(
            "popwheel_controller_checkpoint_failures",
            "Masters that did not tell their progress, slaves that did not store it, or refused it",
            ["step"],
            registry=registry,
        )
        for step in ("fetch", "store", "refused"):
            self.failures.labels(step)
        self._fetched = Counter(
            "popwheel_controller_checkpoint_fetches",
            "Answers of masters: all of their progress, or what has changed",
            ["kind"],
            registry=registry,
        )
        self._bytes = Counter(
            "popwheel_controller_checkpoint_fetched_bytes", "Size of these answers", ["kind"], registry=registry
        )
        registry.register(self)

    def fetched(self, size_bytes: int, *, whole: bool) -> None:
        """A master has told its progress."""
        kind = "whole" if whole else "difference"
        self._fetched.labels(kind).inc()
        self._bytes.labels(kind).inc(size_bytes)

    def collect(self) -> Iterator[Metric]:
        """How fresh what slaves hold is, now."""
        ages = GaugeMetricFamily(
            "popwheel_controller_checkpoint_age_seconds",
            "How old the progress of its master is that a living slave holds on its disk",
            labels=("broker", "replica"),
        )
        now_s = self._clock.monotonic()
        for name in self._sync.names():
            for age in self._sync.ages(name, now_s):
                ages.add_metric((name, str(age.replica)), age.age_s)
        yield ages


class DeclarationMetrics:
    """What is shown of topics and consumer groups as resources of Kubernetes.

    Args:
        registry: where it is shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "popwheel_controller_resource_writes",
            "Resources of topics and consumer groups that were made, changed or deleted",
            ["kind"],
            registry=registry,
        )
        self._resources = Gauge(
            "popwheel_controller_resources",
            "Resources of topics and consumer groups: those that declare one, and those that show one",
            ["kind", "made_by"],
            registry=registry,
        )
        self._refused = Gauge(
            "popwheel_controller_resources_refused",
            "Resources of which no topic or consumer group is as they declare it",
            ["kind"],
            registry=registry,
        )
        self._left_out = Gauge(
            "popwheel_controller_resources_left_out",
            "1 if there are more resources than controller.resources allows to be looked at",
            ["kind"],
            registry=registry,
        )

    def show(self, kind: str, *, declared: int, shown: int, refused: int, left_out: bool) -> None:
        """Show how many resources of a kind there are."""
        self._resources.labels(kind, "user").set(declared)
        self._resources.labels(kind, "controller").set(shown)
        self._refused.labels(kind).set(refused)
        self._left_out.labels(kind).set(left_out)

    def clear(self) -> None:
        """Show none: this controller does not lead."""
        self._resources.clear()
        self._refused.clear()
        self._left_out.clear()


class ControllerMetrics:
    """The controller's metrics.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.saves = Histogram(
            "popwheel_controller_save_seconds",
            "How long it took to make a change of the cluster's state durable",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.save_failures = Counter(
            "popwheel_controller_save_failures", "Changes that could not be saved and were refused", registry=registry
        )
        self.watchers_lagged = Counter(
            "popwheel_controller_watchers_lagged",
            "How often a watcher fell so far behind that it got the whole state anew",
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"popwheel_controller_{name}", text, registry=registry)
            for name, text in {
                "topics": "Topics of the cluster, without the system's own",
                "groups": "Consumer groups of the cluster",
                "brokers": "Brokers registered now",
                "watchers": "Processes that follow the cluster's state now",
                "changes_waiting": "Changes that wait to be decided and saved",
                "state_version": "Version of the cluster's state",
                "state_pages": "Pages in the store that hold topics and groups, beside the head",
                "leads": "1 if this controller leads, 0 if another one does or nobody",
            }.items()
        }

    def read_from(self, sources: dict[str, Callable[[], float]]) -> None:
        """Take the gauges' values from here whenever they are shown: topics, groups, brokers, watchers,
        changes_waiting, state_version, state_pages, leads.
        """
        for name, source in sources.items():
            self._gauges[name].set_function(source)
