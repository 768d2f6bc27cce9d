"""Metrics of broker groups."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_controller.broker_groups.broker_group import GroupState


class GroupMetrics:
    """Metrics of broker groups.

    Args:
        registry: to register with.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.elections = Counter(
            "popwheel_controller_elections", "Elections of masters of broker groups, for any reason", registry=registry
        )
        self.unclean_elections = Counter(
            "popwheel_controller_unclean_elections",
            "Unclean elections: masters that an operator chose although they may lack acknowledged messages",
            registry=registry,
        )
        self.conflicts = Counter(
            "popwheel_controller_store_conflicts",
            "Changes that were decided anew because another controller had changed the same broker group",
            registry=registry,
        )
        self.transfers = Counter(
            "popwheel_controller_hand_overs",
            "Requested leadership transfers, by outcome",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("done", "refused"):
            self.transfers.labels(outcome)  # exposed from the start: Prometheus sees no increase in a first sample
        self._epoch = Gauge("popwheel_controller_group_epoch", "Epoch of a broker group", ["broker"], registry=registry)
        self._members = Gauge(
            "popwheel_controller_group_sync_state_set_size",
            "Replicas in the sync-state set of a broker group",
            ["broker"],
            registry=registry,
        )
        self._replicas = Gauge(
            "popwheel_controller_group_replicas",
            "Replicas of a broker group, living or not",
            ["broker"],
            registry=registry,
        )
        self._masterless = Gauge(
            "popwheel_controller_groups_without_master",
            "Broker groups without a living master",
            registry=registry,
        )
        self._without_master = Gauge(
            "popwheel_controller_group_without_master",
            "1 while a broker group has no living master",
            ["broker"],
            registry=registry,
        )
        self._without: set[str] = set()
        self._masterless.set_function(lambda: len(self._without))

    def show(self, state: GroupState, *, has_master: bool) -> None:
        """Set the gauges of a group."""
        self._epoch.labels(state.name).set(state.epoch)
        self._members.labels(state.name).set(len(state.sync_state_set))
        self._replicas.labels(state.name).set(len(state.replicas))
        self._without_master.labels(state.name).set(not has_master)
        if has_master:
            self._without.discard(state.name)
        else:
            self._without.add(state.name)

    def forget(self, group: str) -> None:
        """Remove the gauges of a group."""
        self._without.discard(group)
        self._epoch.remove(group)
        self._members.remove(group)
        self._replicas.remove(group)
        self._without_master.remove(group)

    def clear(self) -> None:
        """Remove the gauges of all groups: this controller does not lead."""
        self._without.clear()
        self._epoch.clear()
        self._members.clear()
        self._replicas.clear()
        self._without_master.clear()
