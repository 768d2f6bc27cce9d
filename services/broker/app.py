"""A broker's life: recover, serve, save, end."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from services.broker import checkpoint as checkpoint_file
from services.broker.checkpoint import Checkpoint
from services.broker.core import BrokerCore
from services.broker.flusher import Flusher
from services.broker.metrics import BrokerCollector, BrokerStatistics
from services.broker.options import BrokerOptions
from services.broker.reviver import Reviver
from services.broker.server import BrokerServer
from services.broker.store.consume_queue import ConsumeQueue
from services.broker.store.message_store import StoreCheckpoint
from services.broker.supervised import supervised
from services.broker.timer.delay import TIMER_TOPIC
from services.broker.timer.service import TimerService
from services.broker.timer.timer_metrics import TimerCollector, TimerStatistics
from services.broker.timer.timer_server import TimerServer
from services.common.clock import Clock
from services.common.cluster import ClusterView
from services.common.disk import Disk, SystemDisk, replace_file
from services.common.errors import CorruptDataError, StatusError
from services.common.pb.popwheel.v1.controller_pb2 import BrokerGroup, ClusterUpdate, ReplicaReport, WatchRequest
from services.rpc.follow import ControllerFollower
from services.rpc.registration import BrokerRegistrar
from services.rpc.service import Channel, Service

_log = structlog.get_logger()

_CHECKPOINT_NAME = "checkpoint"
_DISK_LOOK_INTERVAL_S = 0.5
_DISK_LOOK_BYTES_MIN = 1024 * 1024
_LET_GO_INTERVAL_S = 1.0
_SAVE_LOOK_INTERVAL_S = 1.0


class BrokerApp:
    """One broker.

    Args:
        options: settings.
        data_dir: folder of its files.
        clock: the time.
        random_source: which queue a pop begins with.
        registry: where its metrics go.
        controller: the way to the controller.
        disk: where the folder is; the machine's disk if not given.
        process: what operators are shown of it; its name alone if not given.
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
    ) -> None:
        self._options = options
        self._controller = controller
        self._folder = data_dir
        self._clock = clock
        self._disk = SystemDisk() if disk is None else disk
        self._disk_looked_at_s = -_DISK_LOOK_INTERVAL_S
        self._disk_full = False
        self._disk_look_at_position = 0
        self._damage_told: set[ConsumeQueue] = set()
        self.view = ClusterView()
        self.follower = ControllerFollower(
            controller, self.view, process or WatchRequest(process=options.name, kind=WatchRequest.BROKER), clock
        )
        self._disk.make_folder(data_dir)
        self.statistics = BrokerStatistics()
        self.timer_statistics = TimerStatistics()
        self.core = BrokerCore(
            options,
            self._disk,
            data_dir,
            clock,
            random_source,
            self.view,
            self._arrived,
            self._due_changed,
            self.timer_statistics.fire,
        )
        self.flusher = Flusher(self.core.store, options.flush, options.flush_interval_ms, self._fail)
        self.reviver = Reviver(self.core, clock, self.flusher.confirm_later, self._fail)
        self.timer = TimerService(
            self.core.timer,
            self._disk,
            clock,
            options.timer.flush_interval_ms,
            options.timer.clean_interval_ms,
            self.flusher.sync,
            self.flusher.confirm_later,
            self._fail,
        )
        self.server = BrokerServer(
            self.core,
            self.flusher,
            options,
            clock,
            self.statistics,
            self._disk_is_full,
            self.reviver.due_changed,
            TimerServer(
                self.core.timer,
                self.core.store,
                self.flusher,
                self.view,
                options.name,
                clock,
                self.timer_statistics,
            ),
        )
        BrokerCollector(
            registry,
            options,
            self.core,
            self.statistics,
            clock,
            lambda: self.reviver.redelivered,
            lambda: self._disk.usage(self._folder),
        )
        TimerCollector(registry, options.timer, self.core.timer, self.timer_statistics, self.core.knows_topic)
        self._tasks: list[asyncio.Task[None]] = []
        self._saving = asyncio.Lock()
        self._cluster_changed = asyncio.Event()
        self._group = BrokerGroup()
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    @property
    def service(self) -> Service:
        """popwheel.v1.Broker."""
        return self.server.service

    def health(self) -> str | None:
        """None if it can serve, else a sentence for `/readyz`.

        A full disk or a damaged queue is for alerts: all but sends, or all other queues, go on.
        """
        if self.failure.done():
            return f"the broker has stopped: {self.failure.result()}"
        if not self.view.ready:
            return "the broker has not heard of the controller yet"
        return None

    def registrar(self, address: str) -> BrokerRegistrar:
        """What keeps this replica registered.

        Args:
            address: host:port at which proxies, other replicas and the controller reach it.
        """

        def report() -> ReplicaReport:
            log = self.core.store.log
            return ReplicaReport(
                group=self._options.name,
                replica=self._options.replica,
                address=address,
                epoch=self._group.epoch,
                last_epoch=self.core.store.epoch if log.end_position else 0,
                end_position=log.end_position,
                confirmed_position=self.core.store.confirmed_position,
                sync_state_set=self._group.sync_state_set,
                version=self._group.version,
            )

        return BrokerRegistrar(self._controller, report, self._heard, self._options.replication.heartbeat_ms / 1000)

    def _heard(self, group: BrokerGroup) -> None:
        self._group = group

    async def start(self) -> None:
        """Recover and begin to serve.

        Raises:
            CorruptDataError: acknowledged data is damaged; nothing was changed.
            UnknownFormatError: the files are of a newer release; nothing was changed.
        """
        path = self._folder / _CHECKPOINT_NAME
        began_s = self._clock.monotonic()
        checkpoint = self._load(path)
        if self.core.store.must_remake_queues(checkpoint.store):
            # Said first: the process may end before the new files are on the device, and the next one must know.
            checkpoint = replace(checkpoint, store=replace(checkpoint.store, remade=True))
            await replace_file(self._disk, path, checkpoint_file.encode(checkpoint))
        self.core.recover(checkpoint)
        await self.flusher.sync()
        await self.timer.save()  # also so that nothing follows what recovery cut off before that is on the device
        await self._save()
        _log.info(
            "broker recovered",
            name=self._options.name,
            position=self.core.store.log.end_position,
            open_check_points=len(self.core.state.table),
            seconds=round(self._clock.monotonic() - began_s, 3),
        )
        self.view.subscribe(self._cluster_changes)
        self.flusher.start()
        await self.follower.start()
        self._tasks = [
            supervised(self._when_cluster_changes(), "broker-cluster", self._fail),
            supervised(self._every(_LET_GO_INTERVAL_S, self._let_go), "broker-let-go", self._fail),
            supervised(self._save_often(), "broker-checkpoint", self._fail),
            supervised(self._delete_expired_often(), "broker-retention", self._fail),
        ]

    async def stop(self) -> None:
        """Save everything and end. The caller has seen to it that no more calls come."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.reviver.stop()
        await self.timer.stop()
        await self.follower.stop()
        if self.failure.done():
            await self.flusher.abandon()
        else:
            with suppress(OSError):
                await self.flusher.stop()
                await self.timer.save()
                await self._save()
        self.core.store.close()
        if isinstance(self._disk, SystemDisk):
            self._disk.close()

    def _load(self, path: Path) -> Checkpoint:
        if not self._disk.exists(path):
            # The first checkpoint is written before the first message, so without one nothing may be cut off.
            end = self.core.store.log.end_position
            return Checkpoint(store=StoreCheckpoint(synced_position=end))
        file = self._disk.open(path)
        try:
            return checkpoint_file.decode(file.read(0, file.size()))
        finally:
            file.close()

    async def _save(self) -> None:
        async with self._saving:
            checkpoint, files = self.core.checkpoint()
            try:
                await self.flusher.sync()
                for file in files:
                    await file.sync()
            except OSError as error:
                # What the queues' files hold can't be told any more, whatever a later sync says: no checkpoint may
                # count on them, and the next process makes them again from the log.
                self._fail(error)
                raise
            finally:
                for file in files:
                    file.close()
            data = checkpoint_file.encode(self.core.synced(checkpoint))
            await replace_file(self._disk, self._folder / _CHECKPOINT_NAME, data)

    async def _save_often(self) -> None:
        saved_position = -1
        interval_s = self._options.checkpoint_interval_ms / 1000
        look_s = min(interval_s, _SAVE_LOOK_INTERVAL_S)
        waited_s = 0.0
        while not self.failure.done():
            await asyncio.sleep(look_s)
            waited_s += look_s
            position = self.core.store.log.end_position
            much_is_new = position - max(saved_position, 0) >= self._options.checkpoint_bytes
            if position == saved_position or self.failure.done() or not (waited_s >= interval_s or much_is_new):
                continue
            waited_s = 0.0
            try:
                self.core.rewrite_lagging()
                await self._save()
                saved_position = position
            except (OSError, StatusError) as error:
                if not self.failure.done():
                    _log.error("the broker's progress could not be saved, trying again", error=str(error))

    def _let_go(self) -> None:
        self.core.state.merge_buffer.let_go(self._clock.steady_ms())
        for queue, damage in self.core.popping.damaged.items():
            if queue not in self._damage_told:
                self._damage_told.add(queue)
                _log.error(
                    "a queue stands still at a damaged record", topic=queue.topic, queue=queue.queue_id, why=damage
                )

    async def _delete_expired_often(self) -> None:
        while True:
            await asyncio.sleep(self._options.retention.interval_ms / 1000)
            removed = 0
            try:
                while not self.failure.done() and self.core.delete_expired():
                    removed += 1
                    await self.flusher.sync()
            except (OSError, CorruptDataError) as error:
                _log.error("old segments could not be deleted, trying again", error=str(error))
            if removed:
                _log.info("old segments deleted", segments=removed, log_begins_at=self.core.store.log.start_position)

    async def _every(self, interval_s: float, action: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                action()
            except OSError as error:
                _log.error("housekeeping failed, trying again", error=str(error))

    async def _when_cluster_changes(self) -> None:
        await self.follower.wait_ready()
        self.reviver.start()
        while True:
            self._cluster_changed.clear()
            try:
                self.core.settle()
                self.flusher.confirm_later()
                self.timer.start()  # only now is it known which topics are gone
            except StatusError as error:
                _log.error("a change of topics or groups could not be taken in, trying again", error=str(error))
                await asyncio.sleep(1)
                continue
            await self._cluster_changed.wait()

    def _cluster_changes(self, update: ClusterUpdate) -> None:
        self.core.cluster_changed(update.deleted_topics, update.deleted_groups)
        if update.deleted_topics or update.deleted_groups:
            self.statistics.forget(frozenset(update.deleted_topics), frozenset(update.deleted_groups))
        self._cluster_changed.set()

    def _arrived(self, queue: ConsumeQueue) -> None:
        if queue.topic == TIMER_TOPIC:
            self.timer.arrived()
        else:
            self.server.arrived(queue)

    def _due_changed(self) -> None:
        self.reviver.due_changed()

    def _disk_is_full(self) -> bool:
        """Whether sends are to be refused; looked at now and then, and when much was written since."""
        now_s = self._clock.monotonic()
        position = self.core.store.log.end_position
        if now_s - self._disk_looked_at_s >= _DISK_LOOK_INTERVAL_S or position >= self._disk_look_at_position:
            usage = self._disk.usage(self._folder)
            left_bytes = usage.free_bytes - int((1.0 - self._options.disk_full_share) * usage.total_bytes)
            self._disk_looked_at_s = now_s
            self._disk_look_at_position = position + max(_DISK_LOOK_BYTES_MIN, left_bytes // 4)
            full = left_bytes < 0
            if full != self._disk_full:
                _log.warning("disk nearly full, sends are refused" if full else "disk has space again")
            self._disk_full = full
        return self._disk_full

    def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_result(error)
