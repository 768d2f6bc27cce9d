"""A replica's life: recover, be told who leads, lead or follow, save, end."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from services.broker.calls.metrics import BrokerCollector, BrokerStatistics
from services.broker.calls.router import Router
from services.broker.calls.server import BrokerServer
from services.broker.files import replica_files
from services.broker.files.disk_watch import DiskWatch
from services.broker.files.replica_store import ReplicaStore
from services.broker.options import BrokerOptions
from services.broker.replica.metrics import ReplicationCollector
from services.broker.replica.peers import Peers
from services.broker.replica.repair import RecordReader, Repairer
from services.broker.replica.statistics import ReplicationStatistics
from services.broker.role.checkpoint_server import CheckpointServer
from services.broker.role.departure import Step, next_step
from services.broker.role.follower import Follower
from services.broker.role.leader import Leader
from services.broker.role.replica_metrics import ReplicaCollector
from services.broker.role.replica_server import ReplicaServer
from services.broker.role.reviver import Reviver
from services.broker.state.core import BrokerCore
from services.broker.store.commit_log import CommitLog
from services.broker.store.consume_queue import ConsumeQueue
from services.broker.store.flusher import Flusher
from services.broker.supervision import supervised
from services.broker.timer.service import TimerService
from services.broker.timer.timer_metrics import TimerCollector, TimerStatistics
from services.common.clock import Clock
from services.common.cluster import ClusterView
from services.common.disk import Disk, SystemDisk
from services.common.errors import CorruptDataError, StatusError
from services.common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    ClusterUpdate,
    DescribeBrokerGroupRequest,
    Replica,
    ReplicaReport,
    WatchRequest,
)
from services.rpc import methods
from services.rpc.follow import ControllerFollower
from services.rpc.registration import BrokerRegistrar
from services.rpc.service import Channel, Service
from services.rpc.status import RpcError

_log = structlog.get_logger()

_TRY_AGAIN_S = 1.0
_ASK_AGAIN_S = 0.05
_ASK_S_MAX = 3.0
_UNANSWERED_S_MAX = 15.0
"""Longer than it takes until another controller leads."""


class BrokerApp:
    """One replica of a broker group; if it is the only one, the broker.

    Args:
        options: settings.
        data_dir: folder of its files.
        clock: the time.
        random_source: which queue a pop begins with.
        registry: where its metrics go.
        controller: the way to the controller.
        disk: where the folder is; the machine's disk if not given.
        process: what operators are shown of it; its name alone if not given.
        to_replica: makes the way to another replica of the group, from its address; none can be reached if not given.
    """

    def __init__(
        self,
        options: BrokerOptions,
        data_dir: Path,
        clock: Clock,
        random_source: random.Random,
        registry: CollectorRegistry,
        controller: Channel,
        disk: Disk | None = None,
        process: WatchRequest | None = None,
        to_replica: Callable[[str], Channel] | None = None,
    ) -> None:
        self._options = options
        self._folder = data_dir
        self._clock = clock
        self._random = random_source
        self._controller = controller
        self._to_replica = to_replica
        self._disk = SystemDisk() if disk is None else disk
        self.view = ClusterView()
        introduction = process or WatchRequest(process=options.name, kind=WatchRequest.BROKER, replica=options.replica)
        self.follower = ControllerFollower(controller, self.view, introduction, clock, random_source)
        self._disk.make_folder(data_dir)
        self.statistics = BrokerStatistics()
        self.timer_statistics = TimerStatistics()
        self._disk_watch = DiskWatch(self._disk, data_dir, clock, options.disk_full_share)
        self._leading: Leader | None = None
        self._following: Follower | None = None
        self.router = Router(options.name)
        self.files = ReplicaStore(
            self._disk, data_dir, clock, self._make_core, self._fail, options.checkpoint_changes_bytes
        )
        self.files.on_doubt_ended = self._report_soon
        self.replication_statistics = ReplicationStatistics()
        timeout_ms = options.replication.repair_timeout_ms
        self._peers = Peers(options.name, options.replica, to_replica, controller, timeout_ms, clock)
        self.repairer = Repairer(
            options.name,
            self.files,
            self._peers,
            timeout_ms,
            clock,
            self.replication_statistics,
        )
        self.identity = b""
        self._group = BrokerGroup()
        self._kept_numbers: frozenset[int] = frozenset()
        self._has_heard = False
        self._group_changed = asyncio.Event()
        self._leads = asyncio.Event()
        self._leads_no_more = asyncio.Event()
        self._leaving = False
        self._unanswered: str | None = None
        self._unanswered_since_s = 0.0
        self._trouble: str | None = None
        self._registrar: BrokerRegistrar | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._redelivered_before = 0
        self._replica_server = ReplicaServer(self, options, self.router)
        self._replica_server.bind(self.router.service)
        self.checkpoints = CheckpointServer(self, options, self._disk, data_dir, clock)
        self.checkpoints.bind(self.router.service)
        self.service.unary(methods.READ_RECORDS, RecordReader(options.name, self.files).read_records)
        BrokerCollector(
            registry,
            options,
            lambda: self.core,
            self.statistics,
            clock,
            self._redelivered,
            self._disk_watch.usage,
        )
        TimerCollector(
            registry,
            options.timer,
            lambda: self.core.timer,
            self.timer_statistics,
            lambda topic: self.core.knows_topic(topic),
        )
        ReplicaCollector(registry, self, options)
        ReplicationCollector(
            registry,
            self.replication_statistics,
            lambda: None if self._leading is None else self._leading.replication,
            lambda: None if self._following is None else self._following.replication,
        )
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def _make_core(self, log: CommitLog | None) -> BrokerCore:
        return BrokerCore(
            self._options,
            self._disk,
            self._folder,
            self._clock,
            self._random,
            self.view,
            self._arrived,
            self._due_changed,
            self.timer_statistics.fire,
            log,
        )

    # What it is

    @property
    def service(self) -> Service:
        """popwheel.v1.Broker."""
        return self.router.service

    @property
    def core(self) -> BrokerCore:
        """What is folded from the log, up to now."""
        return self.files.core

    @property
    def group(self) -> BrokerGroup:
        """The state of the group that was heard last."""
        return self._group

    @property
    def leading(self) -> Leader | None:
        """The mastership, if this replica leads."""
        return self._leading

    @property
    def following(self) -> Follower | None:
        """What keeps up with the master, if this replica follows one."""
        return self._following

    @property
    def flusher(self) -> Flusher:
        """Of the mastership."""
        return self._mastership().flusher

    @property
    def reviver(self) -> Reviver:
        """Of the mastership."""
        return self._mastership().reviver

    @property
    def timer(self) -> TimerService:
        """Of the mastership."""
        return self._mastership().timer

    @property
    def server(self) -> BrokerServer:
        """Of the mastership."""
        return self._mastership().server

    @property
    def trouble(self) -> str | None:
        """Why it could not take its role when it last tried, as with a full disk; it tries again every second."""
        return self._trouble

    def _mastership(self) -> Leader:
        assert self._leading is not None, "this replica does not lead"
        return self._leading

    def health(self) -> str | None:
        """None if it can serve, else a sentence for `/readyz`.

        A full disk or a damaged queue is for alerts: all but sends, or all other queues, go on.
        """
        if self.failure.done():
            return f"the broker has stopped: {self.failure.result()}"
        if self._trouble is not None:
            return f"the broker cannot take its role, it tries again: {self._trouble}"
        if not self.view.ready:
            return "the broker has not heard of the controller yet"
        if self._leading is None and self._following is None:
            return "the broker has not been told yet whether it leads, or whom it follows"
        return None

    # Begin and end

    async def start(self) -> None:
        """Recover; it serves when it was told to lead.

        Raises:
            CorruptDataError: acknowledged data is damaged; nothing was changed.
            UnknownFormatError: the files are of a newer release; nothing was changed.
            OSError: the device refused.
        """
        began_s = self._clock.monotonic()
        self._group = replica_files.load_group(self._disk, self._folder)
        self._peers.know(self._group)
        # Not by the sync-state set: it may have grown at this replica's wish, and the answer never came.
        # A lost file says nothing of others.
        self._kept_numbers = _numbers(self._group)
        alone = self._kept_numbers == {self._options.replica}
        self.checkpoints.load()
        await self.files.start(alone=alone, repair=self.repairer.repair, is_nowhere=self.repairer.is_nowhere)
        self.identity = await replica_files.identity(self._disk, self._folder, self._random)
        _log.info(
            "broker recovered",
            name=self._options.name,
            position=self.files.end_position,
            open_check_points=len(self.core.state.table),
            seconds=round(self._clock.monotonic() - began_s, 3),
        )
        self.view.subscribe_to_names(lambda update: self.core.names_told(update))
        self.view.subscribe(self._cluster_changes)
        await self.follower.start()
        self._tasks = [supervised(self._take_roles(), "broker-roles", self._fail)]

    def registrar(self, address: str) -> BrokerRegistrar:
        """What keeps this replica registered.

        Args:
            address: host:port at which proxies, other replicas and the controller reach it.
        """
        self._registrar = BrokerRegistrar(
            self._controller,
            lambda: self.report(address),
            self.hear,
            self._random,
            self._options.replication.heartbeat_ms / 1000,
        )
        return self._registrar

    def report(self, address: str) -> ReplicaReport:
        """What this replica says of itself to the controller."""
        files, leading, group = self.files, self._leading, self._group
        return ReplicaReport(
            group=self._options.name,
            replica=self._options.replica,
            address=address,
            identity=self.identity,
            epoch=group.epoch,
            last_epoch=files.last_epoch,
            end_position=files.end_position,
            confirmed_position=files.confirmed_position,
            sync_state_set=group.sync_state_set,
            version=group.version,
            leaving=self._leaving,
            checkpoint_version=0 if leading is not None else self.checkpoints.version,
            following=[] if leading is None else leading.replication.lags(),
            leading=leading is not None and leading.epoch == group.epoch,
            doubtful=self.files.is_doubtful,
            acks_alone=self._options.replication.ack_mode == "master",
        )

    async def leave(self) -> None:
        """Before the process ends: wait until the group can do without this replica, and pass its role on."""
        if self._registrar is None or self.failure.done() or _numbers(self._group) <= {self._options.replica}:
            return
        try:
            async with asyncio.timeout(self._options.replication.leaving_ms_max / 1000):
                while (step := await self._next_step()) is not Step.GO:
                    self._say_whether_it_leaves(step is Step.SAY)
                    await asyncio.sleep(_ASK_AGAIN_S)
                if self._leaving and self._leading is not None:
                    await self._leads_no_more.wait()
        except TimeoutError:
            _log.warning("the replica ends though its group may need it", name=self._options.name)

    async def _next_step(self) -> Step:
        """What to do next before the process ends; while no controller answers that is not known. Where none does for
        longer nobody could take over, and all may have been told to end.
        """
        request = DescribeBrokerGroupRequest(group=self._options.name)
        try:
            group = await self._controller.call(methods.DESCRIBE_BROKER_GROUP, request, timeout_s=_ASK_S_MAX)
        except (StatusError, RpcError) as error:
            now_s = self._clock.monotonic()
            if self._unanswered is None:
                self._unanswered_since_s = now_s
            if str(error) != self._unanswered:
                self._unanswered = str(error)
                _log.warning("whether the replica may go is not known", name=self._options.name, why=str(error))
            return Step.STAY if now_s - self._unanswered_since_s < _UNANSWERED_S_MAX else Step.GO
        self._unanswered = None
        return next_step(group, self._options.replica)

    def _say_whether_it_leaves(self, leaves: bool) -> None:
        if self._leaving != leaves:
            self._leaving = leaves
            _log.info("the replica is to end", name=self._options.name, says_so=leaves)
            self._report_soon()

    async def stop(self) -> None:
        """Save everything and end. The caller has seen to it that no more calls come."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._replica_server.stop_waiting()
        if self._following is not None:
            await self._following.stop()
            if not self.failure.done():
                with suppress(OSError):
                    await self._following.save()
        if self._leading is not None:
            if self.failure.done():
                await self._leading.abandon()
            else:
                await self._leading.stop()
        await self.follower.stop()
        await self._peers.close()
        self.files.close()
        if isinstance(self._disk, SystemDisk):
            self._disk.close()

    # Roles

    def hear(self, group: BrokerGroup) -> None:
        """The controller has told the group's state; what is older than what is known is passed over."""
        known = self._group
        if group.version < known.version or (group.version == known.version and self._has_heard):
            return
        self._group = group
        self._peers.hear(group)
        self._has_heard = True
        self._group_changed.set()

    async def until_leads(self) -> None:
        """Return when this replica leads."""
        await self._leads.wait()

    async def _take_roles(self) -> None:
        mended: set[int] = set()
        while True:
            await self._group_changed.wait()
            self._group_changed.clear()
            if self.failure.done():
                return
            try:
                await self._take_role(self._group)
                self._trouble = None
            except CorruptDataError as error:
                damaged = self.files.log.damaged - mended
                mended |= damaged
                self.files.log.damaged.clear()
                if not [position for position in sorted(damaged) if await self.repairer.repair(position)]:
                    self._fail(error)
                    return
                self._group_changed.set()
            except (OSError, StatusError) as error:
                _log.error("the role could not be taken, trying again", name=self._options.name, error=str(error))
                if self._leading is None and self._following is None:
                    self._trouble = str(error)
                    self.router.refuse(f"cannot take its role at this moment: {error}")
                await asyncio.sleep(_TRY_AGAIN_S)
                self._group_changed.set()

    async def _take_role(self, group: BrokerGroup) -> None:
        await self._peers.forget_gone()
        leading = self._leading
        if group.master == self._options.replica and group.epoch > 0:
            if leading is not None and leading.epoch == group.epoch:
                try:  # first: a replica that may be asked into the set is known at the next start
                    await self._keep(group)
                finally:
                    leading.decided(group)  # a master with a full disk goes on, and tries to write it down again
            else:
                await self._keep(group)
                await self._lead(group)
            return
        if leading is not None:
            await self._lead_no_more()  # first: who waits for an answer need not wait for the device
        if not self.files.is_followers:  # also if this replica was about to lead, or this has failed before
            await self.files.unfinish()
            _log.info("the broker leads no more", name=self._options.name, replica=self._options.replica)
        master = next((each for each in group.replicas if each.number == group.master), None)
        if self._following is not None and (master is None or not self._following.is_of(group.epoch, master.address)):
            await self._following.stop()
            self._following = None
        if master is None:
            self.router.refuse("has no master at this moment, one is being chosen")
        else:
            self.router.refuse(f"is led by another replica, at {master.address}")
            if self._following is None:
                self._follow(group, master)
        await self._keep(group)

    async def _lead(self, group: BrokerGroup) -> None:
        began_s = self._clock.monotonic()
        self.router.expect()
        if self._following is not None:
            await self._following.stop()
            self._following = None
        if self._leading is not None:
            await self._end_leading(self._leading)
        await self.files.finish(group.epoch)
        await self.files.end_doubt()  # whoever was to be waited for was: what is here is what counts now
        self.checkpoints.take_over()
        leading = Leader(
            group,
            self.files,
            self._options,
            self._disk,
            self._clock,
            self.view,
            self.follower,
            self._disk_watch,
            self.statistics,
            self.timer_statistics,
            self._controller,
            self.replication_statistics,
            self.repairer.repair,
            self.hear,
            self._fail,
        )
        self._leading = leading
        try:
            await leading.start()
        except BaseException:
            self._leading = None
            await leading.abandon()
            raise
        self.router.open(leading.server.service, leading.replication.replicate)
        self._leads_no_more.clear()
        self._leads.set()
        self._report_soon()
        _log.info(
            "the broker leads",
            name=self._options.name,
            replica=self._options.replica,
            epoch=group.epoch,
            position=self.files.end_position,
            seconds=round(self._clock.monotonic() - began_s, 3),
        )

    async def _lead_no_more(self) -> None:
        self._leads.clear()
        self.router.refuse("is led by another replica now")
        await self._end_leading(self._mastership())
        self._leads_no_more.set()

    async def _end_leading(self, leading: Leader) -> None:
        self._replica_server.stop_waiting()
        await leading.depose()
        self._redelivered_before += leading.reviver.redelivered
        self._leading = None

    def _follow(self, group: BrokerGroup, master: Replica) -> None:
        if self._to_replica is None:
            _log.error("there is no way to other replicas of this broker", name=self._options.name)
            return
        self._following = Follower(
            self._options,
            self.files,
            self._disk,
            self._clock,
            self.identity,
            group.epoch,
            master.address,
            partial(self._to_replica, master.address),
            self.replication_statistics,
            self.repairer.repair,
            self._fail,
        )
        self._following.start()
        _log.info(
            "the broker follows",
            name=self._options.name,
            replica=self._options.replica,
            epoch=group.epoch,
            master=master.address,
        )

    async def _keep(self, group: BrokerGroup) -> None:
        """Write down what was heard; a controller that has lost its state is told of it.

        Raises:
            OSError: it was not, and a start would not know of one of the replicas: it might take itself for alone.
        """
        numbers = _numbers(group)
        try:
            await replica_files.save_group(self._disk, self._folder, group)
        except OSError as error:
            if not numbers <= self._kept_numbers:
                raise
            _log.error("the state of the broker's group could not be written down", error=str(error))
        else:
            self._kept_numbers = numbers

    def _report_soon(self) -> None:
        if self._registrar is not None:
            self._registrar.hurry()

    # What comes in

    def _cluster_changes(self, update: ClusterUpdate) -> None:
        self.core.cluster_changed(
            update.version, update.deleted_topics, update.deleted_groups, is_snapshot=update.snapshot
        )
        if update.deleted_topics or update.deleted_groups:
            self.statistics.forget(frozenset(update.deleted_topics), frozenset(update.deleted_groups))
        if self._leading is not None:
            self._leading.cluster_changed()

    def _arrived(self, queue: ConsumeQueue) -> None:
        if self._leading is not None:
            self._leading.arrived(queue)

    def _due_changed(self) -> None:
        if self._leading is not None:
            self._leading.due_changed()

    def _redelivered(self) -> int:
        return self._redelivered_before + (0 if self._leading is None else self._leading.reviver.redelivered)

    def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_result(error)


def _numbers(group: BrokerGroup) -> frozenset[int]:
    return frozenset(replica.number for replica in group.replicas)
