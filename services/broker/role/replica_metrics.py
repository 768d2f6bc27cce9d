"""What is shown of a replica's role, and of how far it has come."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.broker.calls.dedup import MESSAGES_MAX
from services.broker.options import BrokerOptions

if TYPE_CHECKING:
    from services.broker.app import BrokerApp


class ReplicaCollector(Collector):
    """Reads the replica's state when it is scraped.

    Args:
        registry: where it registers itself.
        app: the replica.
        options: settings.
    """

    def __init__(self, registry: CollectorRegistry, app: "BrokerApp", options: BrokerOptions) -> None:
        self._app = app
        self._options = options
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """All metrics of the role."""
        app = self._app
        role = GaugeMetricFamily("popwheel_replica_role", "1 for the role that this replica has.", labels=("role",))
        role.add_metric(("master",), int(app.leading is not None))
        role.add_metric(("slave",), int(app.following is not None))
        yield role
        leading = app.leading
        end = app.files.end_position
        for name, text, value in (
            ("popwheel_replica_number", "Number of this replica within its broker group.", self._options.replica),
            (
                "popwheel_replica_without_role",
                "1 if this replica could not take its role when it last tried; /readyz says why.",
                int(app.trouble is not None),
            ),
            ("popwheel_replica_epoch", "Epoch of the master, as heard last.", app.group.epoch),
            ("popwheel_replica_end_position", "Where the log ends.", end),
            ("popwheel_replica_synced_position", "Up to here the log is on the device.", app.files.synced_position),
            (
                "popwheel_replica_confirmed_position",
                "Up to here the log may be read: every replica has it that may become master.",
                app.files.confirmed_position,
            ),
            (
                "popwheel_replica_held_position",
                "Up to here the log outlives the process of the master.",
                end if leading is None or leading.flusher.is_alone else leading.members.held_position,
            ),
            (
                "popwheel_replica_sync_state_set_size",
                "Replicas that must have a message before it is acknowledged.",
                len(app.group.sync_state_set),
            ),
            (
                "popwheel_replica_doubtful",
                "1 if the end of the log was cut off at a start, and others may have it.",
                int(app.files.is_doubtful),
            ),
            (
                "popwheel_broker_kept_for_tries",
                f"Messages and ids kept in mind for sends that are tried again, each of {MESSAGES_MAX}.",
                0 if leading is None else leading.server.kept_for_tries,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield from self._of_checkpoint()

    def _of_checkpoint(self) -> Iterator[Metric]:
        checkpoints = self._app.checkpoints
        held = checkpoints.file.held
        for name, text, value in (
            (
                "popwheel_replica_checkpoint_version",
                "Version of the master's progress that is held.",
                checkpoints.version,
            ),
            ("popwheel_replica_checkpoint_epoch", "Epoch of the master whose progress is held.", held.latest.epoch),
            ("popwheel_replica_checkpoint_offsets", "Offsets in the master's progress.", len(held.offsets)),
            ("popwheel_replica_checkpoint_bytes", "Size of its file.", checkpoints.file.size_bytes),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        if checkpoints.age_s is not None and self._app.leading is None:
            yield GaugeMetricFamily(
                "popwheel_replica_checkpoint_age_seconds",
                "How old the master's progress is that this slave holds.",
                value=checkpoints.age_s,
            )
        outcomes = CounterMetricFamily(
            "popwheel_replica_checkpoints", "Checkpoints of the master that came to this slave.", labels=("outcome",)
        )
        outcomes.add_metric(("stored",), checkpoints.stored)
        outcomes.add_metric(("refused",), checkpoints.refused)
        yield outcomes
