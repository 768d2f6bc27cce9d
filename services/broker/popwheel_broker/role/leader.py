"""Term of a master: its parts, how it starts, stops, pauses, and transfers its role."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.calls.send_admission import SendAdmission
from popwheel_broker.calls.server import BrokerServer
from popwheel_broker.delay.service import TimerService
from popwheel_broker.delay.timer_server import TimerServer
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.repaired_reads import RepairedReads
from popwheel_broker.log.timer_record import TIMER_TOPIC
from popwheel_broker.replication.log_sender import Master
from popwheel_broker.replication.replication_master import ReplicationMaster
from popwheel_broker.replication.sync_state_set import SyncStateSet
from popwheel_broker.role.reviver import Reviver
from popwheel_broker.role.upkeep import Upkeep
from popwheel_broker.transactions.checkers import Checkers
from popwheel_broker.transactions.transaction_ids import TransactionIds
from popwheel_broker.transactions.transaction_server import TransactionServer
from popwheel_broker.transactions.transaction_service import TransactionService
from popwheel_common.contract.cluster_view import store_id_of
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_common.supervision import supervised

_log = structlog.get_logger()

_VIEW_S = 1.0
"""Time for which no message is revived or fired while the view is known to be behind the log."""
_END_S = 2.0
"""Limit of the last save's wait for the other replicas; without the save a restart reads more of the log."""
_REVIVE_SHARE = 4
"""Divisor of `broker.waiting_bytes_max` for redeliveries; the rest is for sends."""


class Leader:
    """Term of a master.

    Args:
        group: the group's state that starts the term.
        context: of the replica; its log is finished for the epoch.
        on_group: called with the group's state after a change that this master asked for.
    """

    def __init__(self, group: BrokerGroup, context: BrokerContext, on_group: Callable[[BrokerGroup], None]) -> None:
        files, options, clock, on_failure = context.files, context.options, context.clock, context.on_failure
        self.epoch = group.epoch
        self.has_ended = False
        """True if it stops or has stopped; it never continues."""
        self.core = core = files.core
        self._options = options
        self._clock = clock
        self._follower = context.controller_watch
        self._on_failure = on_failure
        self._cluster_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._pausing: asyncio.Task[None] | None = None
        self._is_paused = False
        self._attending = False
        self.flusher = Flusher(core.store, options.flush, options.flush_interval_ms, on_failure)
        self.members = SyncStateSet(
            options.replica,
            group,
            core.store.log.end_position,
            clock.steady_ms(),
            options.replication,
            context.constants,
            self.flusher.advance,
        )
        master = Master(
            group=options.name,
            me=options.replica,
            epoch=group.epoch,
            log=files,
            members=self.members,
            constants=context.constants,
            clock=clock,
            statistics=context.replication_statistics,
            repair=context.repair,
        )
        self.replication = ReplicationMaster(master, context.channels.controller, self.attend, on_group, on_failure)
        self.replication.decided(group)
        self.reviver = Reviver(
            core, clock, options.waiting_bytes_max // _REVIVE_SHARE, self.flusher.commit_later, on_failure
        )
        self.timer = TimerService(
            core.timer,
            context.disk,
            clock,
            self.flusher.all_fully_synced,
            self.flusher.commit_later,
            on_failure,
        )
        self.upkeep = Upkeep(context, self.flusher, self.timer)
        reads = RepairedReads(core.store.reads, context.repair)
        timer_server = TimerServer(
            timer=core.timer,
            flusher=self.flusher,
            view=context.view,
            broker_name=options.name,
            clock=clock,
            statistics=context.timer_statistics,
            reads=reads,
        )
        admission = SendAdmission(core.store, options, context.disk_watch, self.members)
        self.checkers = Checkers()
        transaction_server = TransactionServer(
            coordinator=core.transactions,
            flusher=self.flusher,
            ids=TransactionIds(context.view, options.name),
            checkers=self.checkers,
            apply_changes=core.cluster_changes.apply,
            refusal_of_commits=admission.refusal,
            reads=reads,
        )
        self.transactions = TransactionService(
            coordinator=core.transactions,
            store=core.store,
            checkers=self.checkers,
            takes_commits=lambda: admission.refusal() is None,
            commit_later=self.flusher.commit_later,
            on_failure=on_failure,
        )
        kind_servers = (timer_server, transaction_server)
        self.server = BrokerServer(context, self.flusher, admission, kind_servers, self.reviver.due_changed)
        core.subscribe(self)

    async def start(self) -> None:
        """Start; calls may be served when this returns.

        Raises:
            OSError: the device refused.
        """
        if self.members.members != {self._options.replica}:
            self.attend()
        self.replication.start()
        self.flusher.start()
        await self.flusher.sync()  # nothing may be appended before the recovery's cut is on the device
        if self.flusher.is_alone:
            try:
                await self.timer.save()
                await self.upkeep.save()
            except (OSError, StatusError) as error:  # the disk may be full; acks are served all the same
                _log.error("the broker's progress could not be saved at the start of its term", error=str(error))
        self._begin_tasks()

    def _begin_tasks(self) -> None:
        if self._tasks or self._is_paused or self._pausing is not None:
            return
        self._tasks = [
            supervised(self._when_cluster_changes(), "broker-cluster", self._on_failure),
            supervised(self.upkeep.evict_often(), "broker-let-go", self._on_failure),
            supervised(self.upkeep.record_progress_often(), "broker-progress", self._on_failure),
            supervised(self.upkeep.save_often(), "broker-checkpoint", self._on_failure),
            supervised(self.upkeep.measure_oldest_often(), "broker-oldest", self._on_failure),
            supervised(self.upkeep.delete_expired_often(), "broker-retention", self._on_failure),
            supervised(self.upkeep.end_lite_topics_often(), "broker-lite", self._on_failure),
        ]

    def attend(self) -> None:
        """Wait for other replicas from now on: one follows, or is in the set.

        A broker without others skips this, as it costs each call a little.
        """
        if self._attending:
            return
        self._attending = True
        store = self.core.store
        self._appended()
        self.members.synced(store.log.synced_position)
        store.on_append = self._appended
        self.flusher.attend(self.members)

    def _appended(self) -> None:
        """Pass on that the log has grown."""
        self.members.appended(self.core.store.log.end_position, self._clock.steady_ms())
        self.replication.appended()

    def decided(self, group: BrokerGroup) -> None:
        """Apply a new state of the group, which this broker still leads."""
        self.replication.decided(group)
        if self.members.members != {self._options.replica}:
            self.attend()

    async def stop(self) -> None:
        """Save everything and stop, as the process does. The caller has stopped the calls before."""
        await self._end_tasks()
        with suppress(OSError):
            await self.flusher.stop()
            with suppress(TimeoutError, StatusError):
                async with asyncio.timeout(None if self.flusher.is_alone else _END_S):
                    await self.timer.save()
                    await self.upkeep.save()
        await self.replication.stop()

    async def abandon(self) -> None:
        """Stop without a save: the broker has failed."""
        self.core.unsubscribe()
        await self._end_tasks()
        await self.replication.stop()
        await self.flusher.abandon()

    async def depose(self) -> None:
        """Stop, as another replica leads: waiting callers are referred to it."""
        self._pause()
        self.core.store.ended = leads_no_more(self._options.name)
        self.flusher.depose(self.core.store.ended)  # before all that waits for the device, which may be slow
        await self._end_tasks()
        await self.replication.stop()
        await self.flusher.abandon()
        self.core.store.on_append = None
        self.core.unsubscribe()

    async def _end_tasks(self) -> None:
        self.has_ended = True
        self.server.end()
        self.core.oldest.end()
        await asyncio.shield(self._pause())

    def _pause(self) -> asyncio.Task[None]:
        """Stop background writers. The returned task completes when they have stopped.

        It runs to its end when its waiter is cancelled, as a half-done pause cannot be resumed.
        """
        self._is_paused = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if self._pausing is None:
            self._pausing = asyncio.create_task(self._end_writing(tasks), name="broker-pause")
            self._pausing.add_done_callback(self._nothing_writes)
        return self._pausing

    async def _end_writing(self, tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(
            *tasks, self.reviver.stop(), self.timer.stop(), self.transactions.stop(), return_exceptions=True
        )

    def _nothing_writes(self, pausing: asyncio.Task[None]) -> None:
        self._pausing = None
        if not pausing.cancelled():
            self._begin_tasks()

    # Transfer of the role

    async def transfer(self, to: int, wait_s: float) -> int:
        """Stop writing, and wait until another replica has the whole log; return where both logs end.

        Raises:
            StatusError: the other replica did not catch up in time; this broker continues.
        """
        until_s = self._clock.monotonic() + wait_s
        pausing = self._pause()
        await asyncio.wait({pausing}, timeout=wait_s)
        if not pausing.done():
            raise StatusError(
                Code.HA_NOT_AVAILABLE,
                f"the background writers of {self._options.name} did not stop within {wait_s} s",
            )
        self.attend()
        self.flusher.commit_later()
        end = self.core.store.log.end_position
        while self.members.synced_position_of(to) < end:
            if self._clock.monotonic() >= until_s:
                raise StatusError(
                    Code.HA_NOT_AVAILABLE, f"replica {to} of {self._options.name} did not catch up within {wait_s} s"
                )
            await asyncio.sleep(0.005)
        return end

    def resume(self) -> None:
        """Restart the background writers after a failed transfer, as soon as the earlier ones have stopped."""
        if not self.has_ended:
            self._is_paused = False
            self._begin_tasks()

    # Events

    def arrived(self, queue: ConsumeQueue) -> None:
        """Pass on that messages have become readable."""
        if queue.topic == TIMER_TOPIC:
            self.timer.arrived()
        else:
            self.server.arrived(queue)

    def due_changed(self) -> None:
        """Pass on that a delivery may be due earlier than before."""
        self.reviver.due_changed()

    def cluster_changed(self) -> None:
        """Wake the task that applies changes of topics and groups."""
        self._cluster_changed.set()

    # Cluster changes

    async def _when_cluster_changes(self) -> None:
        await self._follower.wait_ready()
        await self._catch_up_with_log()
        self.reviver.start()
        pace = Pace(self._clock)
        while True:
            self._cluster_changed.clear()
            began_s = self._clock.monotonic()
            try:
                self.core.cluster_changes.apply()
                self.flusher.commit_later()
                if not self.core.topic_registry.can_apply_changes:
                    self.timer.start()  # only now are deleted topics known
                    self.transactions.start()
                has_more = self.core.cluster_changes.record_settings()
                self.flusher.commit_later()
            except StatusError as error:
                _log.error("a change of topics or groups could not be applied, trying again", error=str(error))
                await asyncio.sleep(1)
                continue
            if has_more or self.core.topic_registry.can_apply_changes:
                await pace.let_others(self._clock.monotonic() - began_s)
            else:
                await self._cluster_changed.wait()

    async def _catch_up_with_log(self) -> None:
        """Wait for the cluster state of the previous master: it may have stored messages of new topics."""
        names, view = self.core.topic_registry, self._follower.view
        known = names.known_version

        def is_behind() -> bool:
            return view.store_id != store_id_of(known) or view.named < known

        if not known or not is_behind():
            return
        self._follower.renew()
        with suppress(TimeoutError):
            async with asyncio.timeout(_VIEW_S):
                while is_behind():
                    self._cluster_changed.clear()
                    await self._cluster_changed.wait()
        if view.store_id != store_id_of(known):
            _log.error(
                "the controllers have lost the store that the broker's log is of; its messages are kept, and are "
                "delivered when topics and groups exist again: popwheel admin cluster recover",
                version=view.named,
                log=known,
            )
        elif view.named < known:
            _log.warning(
                "the controller has an older cluster state than the broker's log, newer topics and groups are kept",
                version=view.named,
                log=known,
            )


def leads_no_more(name: str) -> StatusError:
    """Return the answer to callers that wait at a deposed broker.

    It is not HA_NOT_AVAILABLE, which says that nothing was done and lets a proxy send messages to another group.
    """
    return StatusError(
        Code.SLAVE_PERSISTENCE_TIMEOUT,
        f"the broker {name} has another master now; whether this call took effect is unknown here, try it again",
    )
