"""One term of a master: what it makes, how it begins, ends, pauses, and passes its role on."""

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
from popwheel_common.contract.cluster_view import incarnation_of
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_common.supervision import supervised

_log = structlog.get_logger()

_VIEW_S = 1.0
"""Time for which nothing is revived or fired while the view is known to be behind the log's cluster state."""
_END_S = 2.0
"""Time that the last save may wait for the other replicas; without it a restart reads more of the log."""
_REVIVE_SHARE = 4
"""Divisor of `broker.waiting_bytes_max` for redeliveries; the rest is for sends."""


class Leader:
    """One term of a master.

    Args:
        group: the group's state that says so.
        context: of the replica; the log is finished.
        on_group: told of the group's state when it has changed at this master's wish.
    """

    def __init__(self, group: BrokerGroup, context: BrokerContext, on_group: Callable[[BrokerGroup], None]) -> None:
        files, options, clock, on_failure = context.files, context.options, context.clock, context.on_failure
        self.epoch = group.epoch
        self.has_ended = False
        """It ends, or has: it never goes on again."""
        self.core = core = files.core
        self._options = options
        self._clock = clock
        self._follower = context.controller_follower
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
            core, clock, options.waiting_bytes_max // _REVIVE_SHARE, self.flusher.confirm_later, on_failure
        )
        self.timer = TimerService(
            core.timer,
            context.disk,
            clock,
            self.flusher.all_replicated,
            self.flusher.confirm_later,
            on_failure,
        )
        self.upkeep = Upkeep(context, self.flusher, self.timer)
        timer_server = TimerServer(
            timer=core.timer,
            flusher=self.flusher,
            view=context.view,
            broker_name=options.name,
            clock=clock,
            statistics=context.timer_statistics,
            repair=context.repair,
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
            repair=context.repair,
        )
        self.transactions = TransactionService(
            coordinator=core.transactions,
            store=core.store,
            checkers=self.checkers,
            takes_commits=lambda: admission.refusal() is None,
            confirm_later=self.flusher.confirm_later,
            on_failure=on_failure,
        )
        kind_servers = (timer_server, transaction_server)
        self.server = BrokerServer(context, self.flusher, admission, kind_servers, self.reviver.due_changed)
        core.subscribe(self)

    async def start(self) -> None:
        """Begin; when this returns it may be served.

        Raises:
            OSError: the device refused.
        """
        if self.members.members != {self._options.replica}:
            self.attend()
        self.replication.start()
        self.flusher.start()
        await self.flusher.sync()  # nothing may follow what recovery cut off before that is on the device
        if self.flusher.is_alone:
            try:
                await self.timer.save()
                await self.upkeep.save()
            except (OSError, StatusError) as error:  # the disk is full, perhaps: acks go on all the same
                _log.error("the broker's progress could not be saved as it began to lead", error=str(error))
        self._begin_tasks()

    def _begin_tasks(self) -> None:
        if self._tasks or self._is_paused or self._pausing is not None:
            return
        self._tasks = [
            supervised(self._when_cluster_changes(), "broker-cluster", self._on_failure),
            supervised(self.upkeep.let_go_often(), "broker-let-go", self._on_failure),
            supervised(self.upkeep.save_often(), "broker-checkpoint", self._on_failure),
            supervised(self.upkeep.look_for_oldest_often(), "broker-oldest", self._on_failure),
            supervised(self.upkeep.delete_expired_often(), "broker-retention", self._on_failure),
            supervised(self.upkeep.end_lite_topics_often(), "broker-lite", self._on_failure),
        ]

    def attend(self) -> None:
        """Another replica follows, or is to be waited for: from now on its progress counts.

        A broker that is alone does without all this: it costs each call a little.
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
        """The log has grown."""
        self.members.appended(self.core.store.log.end_position, self._clock.steady_ms())
        self.replication.appended()

    def decided(self, group: BrokerGroup) -> None:
        """The group's state has changed, and this broker goes on leading it."""
        self.replication.decided(group)
        if self.members.members != {self._options.replica}:
            self.attend()

    async def stop(self) -> None:
        """Save everything and end, as the process does. The caller has seen to it that no more calls come."""
        await self._end_tasks()
        with suppress(OSError):
            await self.flusher.stop()
            with suppress(TimeoutError, StatusError):
                async with asyncio.timeout(None if self.flusher.is_alone else _END_S):
                    await self.timer.save()
                    await self.upkeep.save()
        await self.replication.stop()

    async def abandon(self) -> None:
        """End without saving anything: the broker has failed."""
        self.core.unsubscribe()
        await self._end_tasks()
        await self.replication.stop()
        await self.flusher.abandon()

    async def depose(self) -> None:
        """End, as another leads: those who wait for an answer are told to ask the other one."""
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
        """Have nothing write by itself. What is given back ends when nothing does; it goes on though nobody waits for
        it any more, as half of a pause could not be gone on from.
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

    # Passing the role on

    async def transfer(self, to: int, wait_s: float) -> int:
        """Write nothing more, and wait until another replica has all; where both logs end.

        Raises:
            StatusError: it did not get there in time; this broker goes on.
        """
        until_s = self._clock.monotonic() + wait_s
        pausing = self._pause()
        await asyncio.wait({pausing}, timeout=wait_s)
        if not pausing.done():
            raise StatusError(
                Code.HA_NOT_AVAILABLE,
                f"what {self._options.name} brings to its device by itself did not end within {wait_s} s",
            )
        self.attend()
        self.flusher.confirm_later()
        end = self.core.store.log.end_position
        while self.members.synced_position_of(to) < end:
            if self._clock.monotonic() >= until_s:
                raise StatusError(
                    Code.HA_NOT_AVAILABLE, f"replica {to} of {self._options.name} did not catch up within {wait_s} s"
                )
            await asyncio.sleep(0.005)
        return end

    def go_on(self) -> None:
        """The role was not passed on: write again, as soon as nothing goes on of what wrote before."""
        if not self.has_ended:
            self._is_paused = False
            self._begin_tasks()

    # What comes in

    def arrived(self, queue: ConsumeQueue) -> None:
        """Messages have become readable."""
        if queue.topic == TIMER_TOPIC:
            self.timer.arrived()
        else:
            self.server.arrived(queue)

    def due_changed(self) -> None:
        """Something may come due earlier than before."""
        self.reviver.due_changed()

    def cluster_changed(self) -> None:
        """Topics or groups have changed."""
        self._cluster_changed.set()

    # What the cluster brings about

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
                self.flusher.confirm_later()
                if not self.core.names.can_be_settled:
                    self.timer.start()  # only now is it known which topics are gone
                    self.transactions.start()
                has_more = self.core.cluster_changes.note_settings()
                self.flusher.confirm_later()
            except StatusError as error:
                _log.error("a change of topics or groups could not be taken in, trying again", error=str(error))
                await asyncio.sleep(1)
                continue
            if has_more or self.core.names.can_be_settled:
                await pace.let_others(self._clock.monotonic() - began_s)
            else:
                await self._cluster_changed.wait()

    async def _catch_up_with_log(self) -> None:
        """Hear of the cluster what the master before had heard: it may have put messages into topics that are new."""
        names, view = self.core.names, self._follower.view
        known = names.known_version

        def is_behind() -> bool:
            return view.incarnation != incarnation_of(known) or view.named < known

        if not known or not is_behind():
            return
        self._follower.renew()
        with suppress(TimeoutError):
            async with asyncio.timeout(_VIEW_S):
                while is_behind():
                    self._cluster_changed.clear()
                    await self._cluster_changed.wait()
        if view.incarnation != incarnation_of(known):
            _log.error(
                "the controllers have lost the state of the cluster that the broker's log is of; what the log holds is "
                "kept, and goes on when topics and groups are there again: popwheel admin cluster recover",
                version=view.named,
                log=known,
            )
        elif view.named < known:
            _log.warning(
                "the controller tells of an older state of the cluster than the broker's log, what is younger is kept",
                version=view.named,
                log=known,
            )


def leads_no_more(name: str) -> StatusError:
    """The answer to those who wait at a broker that was deposed: not HA_NOT_AVAILABLE, which says that nothing was done
    and lets a proxy send messages to another group.
    """
    return StatusError(
        Code.SLAVE_PERSISTENCE_TIMEOUT,
        f"the broker {name} has another master now; whether this has come about can't be told here, ask again",
    )
