"""Controller, assembled from its parts: state in a store, the service for brokers and proxies, the admin API."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from popwheel_common.disk import Disk
from popwheel_common.errors import ConfigurationError, StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, Group, Topic
from popwheel_common.runtime import Runtime
from popwheel_controller.activity.activity_book import ActivityBook
from popwheel_controller.activity.findings import Findings
from popwheel_controller.activity.history import History
from popwheel_controller.activity.troubles import Troubles
from popwheel_controller.broker_groups.checkpoint_carrier import CheckpointCarrier, CheckpointMetrics
from popwheel_controller.broker_groups.checkpoint_sync import CheckpointSync
from popwheel_controller.broker_groups.decommission import Decommission
from popwheel_controller.broker_groups.group_history import GroupHistory
from popwheel_controller.broker_groups.group_writer import GroupWriter
from popwheel_controller.broker_groups.leadership_transfer import LeadershipTransfers
from popwheel_controller.broker_groups.master_lines import master_lines
from popwheel_controller.broker_groups.metrics import GroupMetrics
from popwheel_controller.broker_groups.overseer import Overseer
from popwheel_controller.broker_groups.probe import ReplicaProbe
from popwheel_controller.broker_groups.replica_streams import ReplicaStreams
from popwheel_controller.broker_groups.roles import Roles
from popwheel_controller.cluster.admission import Admission
from popwheel_controller.cluster.change_log import ChangeLog
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.context import ControllerContext
from popwheel_controller.cluster.inspection_streams import InspectionStreams
from popwheel_controller.cluster.inspections import Inspections
from popwheel_controller.cluster.metrics import ClusterMetrics
from popwheel_controller.cluster.processes import Processes
from popwheel_controller.cluster.server import ControllerServer
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.cluster.stored_cluster import StoredCluster
from popwheel_controller.cluster.watchers import Watchers
from popwheel_controller.http.activity_sampler import ActivitySampler
from popwheel_controller.http.inquiry import Inquiry
from popwheel_controller.http.tails import Tails
from popwheel_controller.http.timers import Timers
from popwheel_controller.http.use_checks import UseChecks
from popwheel_controller.kubernetes.state_store import KubernetesStateStore
from popwheel_controller.options import ControllerOptions
from popwheel_controller.store.file_state_store import FileStateStore
from popwheel_controller.store.leadership import Leadership
from popwheel_controller.store.lease import LeaseHolder
from popwheel_controller.store.private_disk import PrivateDisk, folder_lock
from popwheel_controller.store.state_store import CLUSTER, StateStore
from popwheel_rpc.cluster_guard import guard_by_cluster
from popwheel_rpc.service import Channel, Service

if TYPE_CHECKING:
    from popwheel_common.web.routes import Routes
    from popwheel_controller.http.drill_routes import KillReplica
    from popwheel_controller.kubernetes.mirror import KubernetesMirror
    from popwheel_controller.kubernetes.reconciler import Reconciler

    Shown = KubernetesMirror | Reconciler[Topic] | Reconciler[Group]

_CONTROLLER_ID_BYTES = 8
_MACHINE_BYTES = 8
_LOCK_NAME = "store.lock"

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ControllerAddresses:
    """Advertised addresses of a controller, each as host:port.

    Args:
        brokers_and_proxies: address of `popwheel.v1.Controller`.
        admin: address of the admin API.
    """

    brokers_and_proxies: str = ""
    admin: str = ""


_NOWHERE = ControllerAddresses()


class ControllerApp:
    """Owner of topics, consumer groups, and the master of each broker group.

    Args:
        runtime: clock, random source and metrics. The receipt key is drawn from the random source once, so a real
            process passes `random.SystemRandom()`.
        options: the controller's settings.
        data_dir: the controller's own folder; created if missing.
        broker_channels: opens a channel to a broker, for probes, leadership transfers and the admin API.
        disk: reads and writes the state's files; None for the machine's own.
        shared: store that several controllers share; None for the store of the options.
        addresses: that others reach it at.
    """

    def __init__(
        self,
        runtime: Runtime,
        options: ControllerOptions,
        data_dir: Path,
        broker_channels: Callable[[BrokerInfo], Channel],
        disk: Disk | None = None,
        shared: StateStore | None = None,
        addresses: ControllerAddresses = _NOWHERE,
    ) -> None:
        clock, random_source, registry = runtime.clock, runtime.random_source, runtime.registry
        self._options = options
        self._clock = clock
        self._random = random_source
        self._tails = Tails(registry)
        self._metrics = ClusterMetrics(registry)
        self._own_disk: PrivateDisk | None = None
        if disk is None:
            disk = self._own_disk = PrivateDisk()
        self._alone = shared is None and options.store.kind == "file" and not options.store.folder
        controller_id = "" if self._alone else random_source.randbytes(_CONTROLLER_ID_BYTES).hex()
        self._store = shared or _store(options, data_dir, disk, controller_id)
        self._stored = StoredCluster(
            self._store,
            alone=self._alone,
            random_source=random_source,
            clock=clock,
            metrics=self._metrics,
            page_bytes=options.store.page_bytes,
        )
        self.changes = ChangeLog(self._store, clock, registry, controller_id)
        self._watchers = Watchers()
        # The state is read when this controller begins to lead; before that it neither knows nor saves anything.
        self._state_writer = StateWriter(
            ClusterState(options.cluster_name, b""),
            self._stored.save,
            self._stored.load,
            self._watchers.publish,
            self._watchers.renew,
            options.changes_waiting_max,
        )
        replication, groups = options.replication, GroupMetrics(registry)
        self._leadership = Leadership(
            None if self._alone else self._store,
            LeaseHolder(controller_id, addresses.brokers_and_proxies, addresses.admin, replication.lease_ms / 1000),
            replication.lease_ms / 1000,
            clock,
            self._begin,
            self._end,
            self._check_store,
        )
        check = self._leadership.check
        context = ControllerContext(options, clock, registry, self.changes, check)
        group_writer = GroupWriter(self._store, options.broker_groups_max, groups.conflicts.inc)
        group_writer.subscribe(master_lines(self.changes, lambda: self.leads))
        self._history = GroupHistory(options.broker_groups_max, clock)
        group_writer.subscribe(self._history.changed)
        self.roles = Roles(broker_channels)
        self.overseer = Overseer(
            context,
            group_writer,
            self._state_writer,
            self.roles,
            ReplicaProbe(broker_channels, replication.probe_ms / 1000),
            groups,
        )
        interval_s = replication.checkpoint_interval_ms / 1000
        self.checkpoints = CheckpointSync(interval_s, replication.checkpoints_at_once_max)
        self._carrier = CheckpointCarrier(
            self.checkpoints,
            self.roles,
            clock,
            interval_s,
            CheckpointMetrics(registry, self.checkpoints, clock),
        )
        self._transfers = LeadershipTransfers(self.overseer, self.roles, replication.hand_over_ms / 1000, clock, groups)
        self._inquiry = Inquiry(self._state_writer, broker_channels)
        self._use_checks = UseChecks(self._inquiry)
        refusal = self._use_checks.refusal
        self._shows: list[Shown] = []
        """View of the Kubernetes resources, both shown and declared ones."""
        if isinstance(self._store, KubernetesStateStore):
            from popwheel_controller.kubernetes.declared_kind import DECLARED_GROUPS, DECLARED_TOPICS
            from popwheel_controller.kubernetes.mirror import KubernetesMirror
            from popwheel_controller.kubernetes.reconciler import DeclarationMetrics, Reconciler

            api, declarations = self._store.api, DeclarationMetrics(registry)
            self._shows = [
                KubernetesMirror(
                    context,
                    api,
                    addresses.brokers_and_proxies,
                    self.overseer,
                    self.checkpoints,
                    self._transfers,
                    self.roles,
                ),
                Reconciler(context, DECLARED_TOPICS, api, self._state_writer, declarations, refusal),
                Reconciler(context, DECLARED_GROUPS, api, self._state_writer, declarations, refusal),
            ]
        self._decommission = Decommission(self.overseer, self.roles, groups)
        self._processes = Processes()
        admission = Admission(self._state_writer, self._metrics.other_clusters_refused.inc, check)
        self._server = ControllerServer(
            context,
            self._state_writer,
            self._watchers,
            admission,
            self._processes,
            lagged=self._metrics.watchers_lagged.inc,
        )
        ReplicaStreams(self.overseer, self._transfers, admission, check, self._server.service)
        self._book = ActivityBook(History())
        self._troubles = Troubles()
        self._findings = Findings(self._book, self.overseer, self.checkpoints, self._processes, self.changes, clock)
        self._sampler = ActivitySampler(self._inquiry, self._book, clock, registry, self._judge)
        self._inspections = Inspections()
        InspectionStreams(self._inspections, admission, check, self._server.service)
        # Streams carry the cluster id in their first message.
        guard_by_cluster(self._server.service, lambda: self.state.id, streams=False)
        self._started = False
        self.own_pages: Mapping[str, Callable[[], Awaitable[bytes]]] = {}
        """Debug pages of this process, by name; to be set before `admin` is first read."""
        self.kill_replica: KillReplica | None = None
        """Kills a replica's process for a drill; to be set before `admin` is first read. None forbids drills."""

    @property
    def service(self) -> Service:
        """`popwheel.v1.Controller`."""
        return self._server.service

    @property
    def state(self) -> ClusterState:
        """Current state of the cluster; empty while this controller does not lead."""
        return self._state_writer.state

    @property
    def leads(self) -> bool:
        """True while this controller leads; a single controller always does."""
        return self._leadership.leads

    @property
    def admin(self) -> "Routes":
        """Routes of the admin API, `/api/v1/...`; FastAPI is imported on first use."""
        from popwheel_controller.http.activity_routes import activity_router
        from popwheel_controller.http.admin import admin_router
        from popwheel_controller.http.audit_routes import audit_router
        from popwheel_controller.http.balance_routes import balance_router
        from popwheel_controller.http.browse_routes import browse_router
        from popwheel_controller.http.changes_routes import changes_router
        from popwheel_controller.http.client_routes import client_router
        from popwheel_controller.http.consumption_routes import consumption_router
        from popwheel_controller.http.dead_letter_routes import dead_letter_router
        from popwheel_controller.http.debug_routes import debug_router
        from popwheel_controller.http.definition_routes import definition_router
        from popwheel_controller.http.definitions import Definitions
        from popwheel_controller.http.drill_routes import drill_router
        from popwheel_controller.http.group_routes import GroupViews, group_router
        from popwheel_controller.http.guard import Guard
        from popwheel_controller.http.holder_routes import holder_router
        from popwheel_controller.http.pause_routes import pause_router
        from popwheel_controller.http.poll_routes import poll_router
        from popwheel_controller.http.quarantine_routes import quarantine_router
        from popwheel_controller.http.recovery_routes import recovery_router
        from popwheel_controller.http.send_routes import Sending, send_router
        from popwheel_controller.http.settings_routes import settings_router
        from popwheel_controller.http.status_routes import shared_status, status_router
        from popwheel_controller.http.tail_routes import tail_router
        from popwheel_controller.http.timer_routes import timer_router
        from popwheel_controller.http.trouble_routes import trouble_router

        views = GroupViews(self.overseer, self.checkpoints, self._history, self._clock)
        guard = Guard(self.changes)
        router = admin_router(
            self._options, self._state_writer, self._inquiry, self._clock, self._leadership.check, guard
        )
        router.include(definition_router(Definitions(self._options, self._state_writer, self._use_checks)))
        status = shared_status(self._state_writer, self._processes, views)
        router.include(pause_router(self._state_writer, self._clock))
        router.include(status_router(status))
        router.include(recovery_router(self._options, self._state_writer, self._inquiry))
        router.include(timer_router(Timers(self._inquiry)))
        router.include(activity_router(self._inquiry, self._book, self._clock))
        router.include(balance_router(self._inquiry))
        router.include(
            trouble_router(self._findings, self._troubles, self._inquiry, self._book, status.result, self._clock)
        )
        router.include(poll_router(self._inspections, self._processes, self._clock))
        router.include(settings_router(self._inspections, self._processes, views, self.own_pages))
        router.include(holder_router(self._inquiry))
        router.include(dead_letter_router(self._inquiry, self._clock))
        router.include(consumption_router(self._inquiry))
        router.include(quarantine_router(self._inquiry))
        router.include(audit_router(self._inquiry))
        router.include(browse_router(self._inquiry, self._clock))
        router.include(tail_router(self._inquiry, self._clock, self._leadership.check, self._tails))
        sending = Sending(self._inspections, self._clock, self._random.randbytes(_MACHINE_BYTES).hex())
        router.include(send_router(sending, self._clock))
        router.include(changes_router(self.changes))
        router.include(client_router(self._inspections, self._processes, self._clock))
        router.include(debug_router(self._inspections, self._processes, views, self.own_pages))
        router.include(group_router(views, self._transfers, self._decommission))
        router.include(drill_router(views, self._processes, self.kill_replica))
        return router

    def health(self) -> str | None:
        """Return a sentence for `/readyz`; None if healthy, which a standby controller is, too."""
        return self._leadership.trouble if self._started else "the controller has not read its state yet"

    async def start(self) -> None:
        """Read the state, or create a new cluster's, and accept changes, if no other controller leads.

        Raises:
            CorruptDataError: the state is damaged.
            UnknownFormatError: the state has a kind or version that this release does not know.
            ConfigurationError: the store belongs to a cluster of another name.
            OSError: the store cannot be used. A shared store is retried instead.
        """
        await self._leadership.start()
        self._carrier.start()
        self._metrics.read_from(self._gauges())
        self._started = True

    async def stop(self) -> None:
        """End the streams of watchers, finish the pending changes, accept no more."""
        self._started = False
        await self._carrier.stop()
        await self._leadership.stop()
        await self.roles.close()
        await self._store.close()
        if self._own_disk is not None:
            self._own_disk.close()

    async def _begin(self) -> None:
        """Begin to lead."""
        self.changes.begin()
        self._history.begin()
        state = await self._stored.load_or_make(self._options.cluster_name)
        if state.name != self._options.cluster_name:
            raise ConfigurationError(
                "controller.cluster_name",
                f"{self._store.where(CLUSTER)} holds the cluster {state.name}, whose name cannot be changed to "
                f"{self._options.cluster_name}; give {state.name} or another data folder",
            )
        self._state_writer.start(state)
        routes = await self.overseer.begin()
        self._state_writer.state = replace(
            state,
            brokers={name: info for name, info in routes.items() if info is not None},
            away=frozenset(name for name, info in routes.items() if info is None),
        )
        self._watchers.open()
        self._sampler.start()
        for each in self._shows:
            each.start()

    def _judge(self) -> None:
        """Update the list of problems and their start times."""
        self._troubles.judged(self._findings.now(), self._clock.wall_ms())

    async def _end(self, refusal: StatusError) -> None:
        """Stop leading."""
        self._watchers.close()
        self._inspections.close()
        await self._sampler.stop()
        self._troubles.clear()
        for each in self._shows:
            await each.stop()
        await self.overseer.end(refusal)
        await self._state_writer.stop()
        await self.changes.end()

    async def _check_store(self) -> None:
        """Read the changes that other controllers made in a shared store."""
        versions = await self._store.versions()
        if versions.get(CLUSTER) != self._stored.version:
            # A previous leader may have written after this controller had read.
            self._state_writer.refresh_soon()
        await self.overseer.groups.poll_store(versions)

    def _count_deleted_names(self) -> float:
        now_ms = self._clock.wall_ms()
        return self.state.deleted_topics.count_resting(now_ms) + self.state.deleted_groups.count_resting(now_ms)

    def _gauges(self) -> dict[str, Callable[[], float]]:
        return {
            "topics": lambda: len(self.state.topics),
            "groups": lambda: len(self.state.groups),
            "brokers": lambda: len(self.state.brokers),
            "deleted_names": self._count_deleted_names,
            "watchers": lambda: len(self._watchers),
            "changes_waiting": lambda: self._state_writer.waiting,
            "state_version": lambda: self.state.version,
            "state_pages": lambda: self._stored.pages,
            "leads": lambda: float(self.leads),
        }


def _store(options: ControllerOptions, data_dir: Path, disk: Disk, controller_id: str) -> StateStore:
    """Open the store that the options name."""
    if options.store.kind == "kubernetes":
        from popwheel_controller.kubernetes.api import ClientKubernetesApi

        return KubernetesStateStore(ClientKubernetesApi(options.store.namespace), options.cluster_name)
    if not options.store.folder:
        return FileStateStore(data_dir, disk)
    folder = Path(options.store.folder)
    disk.make_folder(folder)
    lock: Callable[[], AbstractContextManager[object]] = folder_lock(folder / _LOCK_NAME)
    return FileStateStore(folder, disk, lock, controller_id)
