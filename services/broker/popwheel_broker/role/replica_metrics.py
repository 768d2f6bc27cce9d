"""Metrics of a replica's role and progress."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_broker.calls.dedup import MESSAGES_MAX
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_broker.role.checkpoint_server import CheckpointServer
from popwheel_broker.role.role import Role


class ReplicaCollector(Collector):
    """Collector that reads the replica's state at each scrape.

    Args:
        registry: where it registers itself.
        role: the replica's role.
        files: its log.
        checkpoints: the progress of the master.
        options: settings.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        role: Role,
        files: ReplicaStore,
        checkpoints: CheckpointServer,
        options: BrokerOptions,
    ) -> None:
        self._role = role
        self._files = files
        self._checkpoints = checkpoints
        self._options = options
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the role."""
        role, files = self._role, self._files
        by_name = GaugeMetricFamily("popwheel_replica_role", "1 for the role that this replica has.", labels=("role",))
        by_name.add_metric(("master",), int(role.leader is not None))
        by_name.add_metric(("slave",), int(role.follower is not None))
        yield by_name
        leader = role.leader
        end = files.end_position
        for name, text, value in (
            ("popwheel_replica_number", "Number of this replica within its broker group.", self._options.replica),
            (
                "popwheel_replica_without_role",
                "1 if the last try of this replica to take its role failed; /readyz says why.",
                int(role.trouble is not None),
            ),
            ("popwheel_replica_epoch", "Epoch of the master, as last received.", role.group.epoch),
            ("popwheel_replica_end_position", "End of the log.", end),
            (
                "popwheel_replica_synced_position",
                "Position before which the log is on this replica's device.",
                files.synced_position,
            ),
            (
                "popwheel_replica_high_watermark",
                "Position before which the log may be read: every replica that may become master has it.",
                files.high_watermark,
            ),
            (
                "popwheel_replica_replicated_position",
                "Position before which the log outlives the process of the master: the set has received it.",
                end if leader is None or leader.flusher.is_alone else leader.members.replicated_position,
            ),
            (
                "popwheel_replica_sync_state_set_size",
                "Replicas that must have a message before it is acknowledged.",
                len(role.group.sync_state_set),
            ),
            (
                "popwheel_replica_suspect",
                "1 if a start cut off the end of the log, and other replicas may have it.",
                int(files.is_suspect),
            ),
            (
                "popwheel_broker_kept_for_tries",
                f"Messages and ids remembered for retries of sends, each of at most {MESSAGES_MAX}.",
                0 if leader is None else leader.server.remembered_for_tries,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield from self._of_checkpoint()

    def _of_checkpoint(self) -> Iterator[Metric]:
        checkpoints = self._checkpoints
        for name, text, value in (
            (
                "popwheel_replica_checkpoint_version",
                "Version of the master's progress that this slave has.",
                checkpoints.version,
            ),
            (
                "popwheel_replica_checkpoint_epoch",
                "Epoch of the master's progress that this slave has.",
                checkpoints.epoch,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        if checkpoints.age_s is not None and self._role.leader is None:
            yield GaugeMetricFamily(
                "popwheel_replica_checkpoint_age_seconds",
                "Age of the master's progress that this slave has.",
                value=checkpoints.age_s,
            )
        outcomes = CounterMetricFamily(
            "popwheel_replica_checkpoints", "Checkpoints of the master that this slave received.", labels=("outcome",)
        )
        outcomes.add_metric(("stored",), checkpoints.stored)
        outcomes.add_metric(("refused",), checkpoints.refused)
        yield outcomes
