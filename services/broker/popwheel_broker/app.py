"""A replica as a whole: what it is made of, and how it begins and ends."""

import asyncio
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.calls.metrics import BrokerCollector, BrokerStatistics
from popwheel_broker.calls.router import Router
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.delay.timer_metrics import TimerCollector, TimerStatistics
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.channels import BrokerChannels
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.disk_watch import DiskWatch
from popwheel_broker.replication.metrics import ReplicationCollector
from popwheel_broker.replication.peers import Peers
from popwheel_broker.replication.repair import RecordReader, Repairer
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_broker.replication.statistics import ReplicationStatistics
from popwheel_broker.role.checkpoint_server import CheckpointServer
from popwheel_broker.role.departure import UNANSWERED_S_MAX, Departure
from popwheel_broker.role.leader import Leader
from popwheel_broker.role.replica_metrics import ReplicaCollector
from popwheel_broker.role.replica_server import ReplicaServer
from popwheel_broker.role.report import health, replica_report
from popwheel_broker.role.role import Role
from popwheel_broker.role.role_machine import RoleMachine
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.disk import Disk, SystemDisk
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, ReplicaReport, WatchRequest
from popwheel_common.runtime import Runtime
from popwheel_rpc import methods
from popwheel_rpc.cluster_guard import guard_by_cluster
from popwheel_rpc.membership.controller_watch import ControllerWatch
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.service import Service

_log = structlog.get_logger()


class BrokerApp:
    """Replica of a broker group; if it is the only one, the broker.

    Args:
        runtime: time, chance, and where metrics are shown.
        options: settings.
        data_dir: folder of its files.
        channels: the ways to the controller and to the other replicas of its group.
        disk: where the folder is; the machine's disk if not given.
        process: what operators are shown of it; its name alone if not given.
        constants: paces and sizes of replication; those of the product if not given.
    """

    def __init__(
        self,
        runtime: Runtime,
        options: BrokerOptions,
        data_dir: Path,
        channels: BrokerChannels,
        disk: Disk | None = None,
        process: WatchRequest | None = None,
        constants: ReplicationConstants | None = None,
    ) -> None:
        self._options = options
        self._constants = constants = constants or ReplicationConstants()
        self._folder = data_dir
        self._clock = clock = runtime.clock
        self._random = runtime.random_source
        self._controller = controller = channels.controller
        self._disk = SystemDisk() if disk is None else disk
        self.view = ClusterView()
        introduction = process or WatchRequest(process=options.name, kind=WatchRequest.BROKER, replica=options.replica)
        self.controller_watch = ControllerWatch(controller, self.view, introduction, clock, self._random)
        self._disk.make_folder(data_dir)
        self.statistics = BrokerStatistics()
        self._timer_statistics = TimerStatistics()
        self.replication_statistics = ReplicationStatistics()
        self._disk_watch = DiskWatch(self._disk, data_dir, clock, options.disk_full_share)
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._registrar: BrokerRegistrar | None = None
        self._recovery_s = 0.0
        self.role = Role()
        self.files = ReplicaStore(
            disk=self._disk,
            folder=data_dir,
            clock=clock,
            make_core=self._make_core,
            on_failure=self._fail,
            checkpoint_changes_bytes=options.checkpoint_changes_bytes,
            on_suspect_cleared=self._report_soon,
        )
        timeout_ms = constants.repair_timeout_ms
        self._peers = Peers(options.name, options.replica, channels, timeout_ms, clock)
        self.repairer = Repairer(
            group=options.name,
            log=self.files,
            peers=self._peers,
            timeout_ms=timeout_ms,
            clock=clock,
            statistics=self.replication_statistics,
        )
        self._router = Router(options.name)
        replica_server = ReplicaServer(self.role, self.files, options, self._router)
        context = BrokerContext(
            options=options,
            constants=constants,
            files=self.files,
            disk=self._disk,
            clock=clock,
            view=self.view,
            channels=channels,
            controller_watch=self.controller_watch,
            disk_watch=self._disk_watch,
            statistics=self.statistics,
            timer_statistics=self._timer_statistics,
            replication_statistics=self.replication_statistics,
            repair=self.repairer.repair,
            on_failure=self._fail,
            has_failed=self.failure.done,
        )
        self.checkpoints = CheckpointServer(context, self.role)
        self.roles = RoleMachine(
            context=context,
            role=self.role,
            peers=self._peers,
            router=self._router,
            replica_server=replica_server,
            on_role=self._report_soon,
        )
        self.departure = Departure(options, controller, clock, self._report_soon)
        replica_server.bind(self.service)
        self.checkpoints.bind(self.service)
        self.service.unary(methods.READ_RECORDS, RecordReader(options.name, self.files).read_records)
        guard_by_cluster(self.service, lambda: self.role.group.cluster_id, streams=True)
        self._collect(runtime.registry)

    def _collect(self, registry: CollectorRegistry) -> None:
        """Have everything counted be read when it is scraped."""
        options, role = self._options, self.role
        BrokerCollector(
            registry=registry,
            options=options,
            core=lambda: self.core,
            statistics=self.statistics,
            clock=self._clock,
            redelivered=lambda: self.roles.redelivered,
            usage=self._disk_watch.usage,
        )
        TimerCollector(
            registry=registry,
            options=options.timer,
            timer=lambda: self.core.timer,
            statistics=self._timer_statistics,
            knows_topic=lambda topic: self.core.topic_registry.knows_topic(topic),
        )
        ReplicaCollector(registry, role, self.files, self.checkpoints, options)
        ReplicationCollector(
            registry,
            self.replication_statistics,
            lambda: None if role.leader is None else role.leader.replication,
            lambda: None if role.follower is None else role.follower.replication,
        )

    def _make_core(self, log: CommitLog | None) -> BrokerCore:
        return BrokerCore(
            options=self._options,
            disk=self._disk,
            folder=self._folder,
            clock=self._clock,
            random_source=self._random,
            view=self.view,
            on_fired=self._timer_statistics.fire,
            log=log,
        )

    # What it is

    @property
    def service(self) -> Service:
        """popwheel.v1.Broker."""
        return self._router.service

    @property
    def core(self) -> BrokerCore:
        """State that is folded from the log, up to now."""
        return self.files.core

    @property
    def leader(self) -> Leader:
        """Services of a replica that leads."""
        assert self.role.leader is not None, "this replica does not lead"
        return self.role.leader

    def health(self) -> str | None:
        """None if it can serve, else a sentence for `/readyz`."""
        failure = self.failure.result() if self.failure.done() else None
        return health(self.role, failure, has_view=self.view.ready)

    def report(self, address: str) -> ReplicaReport:
        """Return this replica's report to the controller."""
        return replica_report(
            options=self._options,
            address=address,
            role=self.role,
            files=self.files,
            checkpoint_version=self.checkpoints.version,
            leaving=self.departure.is_announced,
        )

    @property
    def recovered(self) -> dict[str, float]:
        """Figures of `start`: what it has read again, and the time that it took."""
        return {"records": self.files.recovered_records, "seconds": self._recovery_s}

    # Begin and end

    async def start(self) -> None:
        """Recover; serve when the controller makes this replica the master.

        Raises:
            CorruptDataError: acknowledged data is damaged; nothing was changed.
            UnknownFormatError: the files are of a newer release; nothing was changed.
            OSError: the device refused.
        """
        began_s = self._clock.monotonic()
        superblock = self.files.superblock
        await superblock.load(self.files.log, self._random)
        alone = self.roles.load()
        self.view.cluster_id = self.role.group.cluster_id
        if self._options.skip_record is not None:
            await self.files.skip_record(self._options.skip_record, self.repairer.repair, self.repairer.who_may_have)
        await self.files.start(alone=alone, repair=self.repairer.repair, is_nowhere=self.repairer.is_nowhere)
        self.role.identity = superblock.contents.identity
        self._recovery_s = round(self._clock.monotonic() - began_s, 3)
        _log.info(
            "broker recovered",
            name=self._options.name,
            position=self.files.end_position,
            open_deliveries=len(self.core.state.table),
            **self.recovered,
        )
        self.view.subscribe_to_names(lambda update: self.core.cluster_changes.receive(update))
        self.view.subscribe(self._cluster_changes)
        await self.controller_watch.start()
        self.roles.start()

    def registrar(self, address: str) -> BrokerRegistrar:
        """Return the registrar that keeps this replica registered.

        Args:
            address: host:port at which proxies, other replicas and the controller reach it.
        """
        self._registrar = BrokerRegistrar(
            self._controller,
            lambda: self.report(address),
            self.roles.group_changed,
            self._random,
            self._constants.heartbeat_ms / 1000,
        )
        return self._registrar

    async def leave(self) -> None:
        """Leave before the process ends: wait until the group can do without this replica, and pass its role on."""
        if self._registrar is None or self.failure.done() or self.role.members <= {self._options.replica}:
            return
        try:
            async with asyncio.timeout(self._options.replication.leaving_ms_max / 1000):
                await self.departure.wait()
                # A group whose replicas all end keeps its master: nobody takes over, so nothing is to be waited for.
                if self.role.leader is not None and self.departure.is_announced and not self.departure.is_master:
                    async with asyncio.timeout(UNANSWERED_S_MAX):
                        await self.roles.until_leads_no_more()
        except TimeoutError:
            _log.warning("the replica ends though its group may need it", name=self._options.name)

    async def stop(self) -> None:
        """Save everything and end. The caller has seen to it that no more calls come."""
        await self.roles.stop()
        await self.controller_watch.stop()
        await self._peers.close()
        self.files.close()
        if isinstance(self._disk, SystemDisk):
            self._disk.close()

    # What comes in

    def _cluster_changes(self, update: ClusterUpdate) -> None:
        self.core.cluster_changed(update)
        topics = frozenset((*update.deleted_topics, *update.gone_topics))
        groups = frozenset((*update.deleted_groups, *update.gone_groups))
        if topics or groups:
            self.statistics.forget(topics, groups)
        if self.role.leader is not None:
            self.role.leader.cluster_changed()

    def _report_soon(self) -> None:
        if self._registrar is not None:
            self._registrar.hurry()

    def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_result(error)
