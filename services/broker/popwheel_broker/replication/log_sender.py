"""The master's end of one Replicate stream: sends a slave the log as it grows, and receives its progress."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.epochs import EpochHistory, JoinPlan, LogOutline, join_plan
from popwheel_broker.replication.epochs import EpochStart as Start
from popwheel_broker.replication.replica_log import ReplicaLog
from popwheel_broker.replication.statistics import ReplicationStatistics
from popwheel_broker.replication.sync_state_set import SyncStateSet
from popwheel_common.clock import Clock
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import EpochStart, LogChunk, ReplicateProgress
from popwheel_rpc.service import Stream

_CHECKPOINT_PART_BYTES = 1024 * 1024
_JOINING_SILENCES = 15
"""A slave that cuts its log or starts anew may be silent for this multiple of `silence_ms_max`."""


@dataclass(frozen=True, slots=True)
class Master:
    """State that all senders of a master share.

    Args:
        group: name of the broker group.
        me: number of this replica.
        epoch: that it leads.
        log: its log.
        members: its sync-state set.
        constants: paces and sizes.
        clock: the time.
        statistics: what is counted.
        repair: has a damaged record at a position of the log mended; whether it was.
    """

    group: str
    me: int
    epoch: int
    log: ReplicaLog
    members: SyncStateSet
    constants: ReplicationConstants
    clock: Clock
    statistics: ReplicationStatistics
    repair: Callable[[int], Awaitable[bool]]


class SendWindow:
    """Positions of one slave.

    While nothing is under way, whatever is there goes at once. While something is, less than `coalesce_bytes` waits for
    the slave's word, so that under load many small appends are one piece, as many as come within one way there and
    back. At most `window_bytes` are under way, and one record more.

    Args:
        position: where the slave's log goes on.
        constants: sizes.
    """

    __slots__ = ("_chunk_bytes", "_coalesce_bytes", "_window_bytes", "received_position", "sent_position")

    def __init__(self, position: int, constants: ReplicationConstants) -> None:
        self._chunk_bytes = constants.chunk_bytes
        self._coalesce_bytes = constants.coalesce_bytes
        self._window_bytes = constants.window_bytes
        self.sent_position = position
        self.received_position = position

    @property
    def under_way(self) -> int:
        """Bytes that were sent, and that the slave has not spoken of."""
        return self.sent_position - self.received_position

    @property
    def is_full(self) -> bool:
        """True if nothing may be sent until the slave reports."""
        return self.under_way >= self._window_bytes

    def room(self, end_position: int) -> int:
        """Return how many bytes to send now to a slave of a log that reaches to `end_position`; 0: none."""
        waiting = end_position - self.sent_position
        if waiting <= 0:
            return 0
        under_way = self.sent_position - self.received_position
        if under_way:
            if waiting < self._coalesce_bytes:
                return 0
            waiting = min(waiting, self._window_bytes - under_way)
        return max(0, min(waiting, self._chunk_bytes))

    def sent(self, position: int) -> None:
        """Everything before `position` was sent."""
        assert position >= self.sent_position, "a slave was sent less than before"
        self.sent_position = position

    def received(self, position: int) -> None:
        """Record that the slave has everything before `position`."""
        self.received_position = max(self.received_position, min(position, self.sent_position))


class LogSender:
    """Serves one slave for as long as its stream lasts.

    Args:
        master: whose end this is.
        first: what the slave said first.
        stream: to the slave.
        sent_before: up to where the slave was sent the log by an earlier stream.
        on_member: called when the slave's progress may be a reason to change the set.
        on_sent: called when records were sent, which are to be committed sooner or later.
    """

    def __init__(
        self,
        master: Master,
        first: ReplicateProgress,
        stream: Stream[ReplicateProgress, LogChunk],
        sent_before: int,
        on_member: Callable[[], None],
        on_sent: Callable[[], None],
    ) -> None:
        self.replica = first.replica
        self.identity = first.identity
        self.connected = False
        self._master = master
        self._stream = stream
        self._log = log = master.log
        self._plan = plan_for(log, first)
        self._window = SendWindow(self._plan.position, master.constants)
        self._sent_before = sent_before
        self._on_member = on_member
        self._on_sent = on_sent
        self._sent_watermark = -1
        self._wanted = asyncio.Event()
        self._must_speak = False
        now_ms = master.clock.steady_ms()
        self._spoke_ms = now_ms
        self._received_ms = now_ms
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._was_full = False

    @property
    def plan(self) -> JoinPlan:
        """Plan of how the slave joins the log."""
        return self._plan

    @property
    def sent_position(self) -> int:
        """Position up to which the log was sent to the slave."""
        return self._window.sent_position

    @property
    def under_way_bytes(self) -> int:
        """Number of bytes sent that the slave has not reported."""
        return self._window.under_way

    async def run(self) -> None:
        """Serve until the slave ends the stream.

        Raises:
            StatusError: it cannot continue, or is to end.
            StreamClosedError: the slave has gone.
        """
        tasks = [
            asyncio.create_task(self._send_all(), name=f"replicate-to-{self.replica}"),
            asyncio.create_task(self._receive_all(), name=f"progress-of-{self.replica}"),
        ]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            await self._over
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, error: StatusError) -> None:
        """End the stream with an error."""
        if not self._over.done():
            self._over.set_exception(error)
            self._over.exception()  # nobody may be waiting for it any more

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    # Sending

    def appended(self) -> None:
        """Wake the sender: the log has grown."""
        if not self._wanted.is_set() and self._window.room(self._log.end_position):
            self._wanted.set()

    def send_watermark(self) -> None:
        """Send the slave the high watermark, unless it has it."""
        if self._sent_watermark < self._master.members.fully_synced_position:
            self._must_speak = True
            self._wanted.set()

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat if one is due; end the stream of a slave that is silent for too long."""
        constants = self._master.constants
        if now_ms - self._spoke_ms >= constants.heartbeat_ms:
            self._must_speak = True
            self._wanted.set()
        limit_ms = constants.silence_ms_max * (1 if self.connected else _JOINING_SILENCES)
        if now_ms - self._received_ms >= limit_ms:
            self.end(
                StatusError(
                    Code.HA_NOT_AVAILABLE,
                    f"replica {self.replica} has sent nothing for {now_ms - self._received_ms} ms; its stream ends",
                )
            )

    # Receiving

    async def _receive_all(self) -> None:
        master, window = self._master, self._window
        while (progress := await self._stream.receive()) is not None:
            if self._over.done():
                return  # it has left: later reports, perhaps from another volume, must not count
            now_ms = self._received_ms = master.clock.steady_ms()
            end, synced = progress.end_position, progress.synced_position
            if end > window.sent_position or synced > end:
                raise StatusError(
                    Code.PRECONDITION_FAILED,
                    f"replica {self.replica} says that it has the log up to {end}, of that {synced} on its device, "
                    f"but it was sent no more than {window.sent_position}",
                )
            window.received(end)
            if not self.connected:
                # Only now it has dropped what is not of this log.
                self.connected = True
                master.members.connected(self.replica, end, synced, now_ms)
                self._on_member()
            elif master.members.progress(self.replica, end, synced, now_ms):
                self._on_member()
            if not self._wanted.is_set() and window.room(self._log.end_position):
                self._wanted.set()

    # Sending

    async def _send_all(self) -> None:
        await self._send_first()
        log, window, wanted = self._log, self._window, self._wanted
        while True:
            room = window.room(log.end_position)
            if room:
                await self._send_records(room)
            elif self._must_speak:
                await self._send(self._chunk())
            else:
                self._record_full()
                wanted.clear()
                await wanted.wait()

    def _record_full(self) -> None:
        is_full = self._window.is_full and self._log.end_position > self._window.sent_position
        if is_full and not self._was_full:
            self._master.statistics.window_waits += 1
        self._was_full = is_full

    async def _send_first(self) -> None:
        """Send the slave the position where its log continues, and the checkpoint if it must start anew."""
        master, plan = self._master, self._plan
        epochs = [EpochStart(epoch=each.epoch, position=each.position) for each in self._log.epochs]
        first = self._chunk()
        first.first = True
        first.cut_position = plan.position
        first.epochs.extend(epochs)
        if not plan.anew:
            await self._send(first)
            return
        master.statistics.checkpoints_sent += 1
        chunk = first
        for part in self._log.checkpoint_file():
            for start in range(0, len(part), _CHECKPOINT_PART_BYTES):
                chunk.checkpoint = part[start : start + _CHECKPOINT_PART_BYTES]
                chunk.checkpoint_continues = True
                await self._send(chunk)
                chunk = self._chunk()
        await self._send(chunk)  # and that was all

    async def _send_records(self, room: int) -> None:
        window, statistics = self._window, self._master.statistics
        position = window.sent_position
        try:
            data = await self._log.read(position, room)
        except CorruptDataError as error:
            statistics.checks_failed += 1
            if not await self._master.repair(position):
                raise StatusError(Code.INTERNAL_ERROR, f"{error}, and no other replica has it") from error
            return
        except ValueError as error:
            raise StatusError(
                Code.NOT_FOUND, f"the log at {position} was deleted before the slave had it ({error}); begin anew"
            ) from error
        end = position + len(data)
        chunk = self._chunk()
        chunk.position = position
        chunk.data = data
        window.sent(end)
        statistics.sent_bytes += len(data)
        statistics.sent_chunks += 1
        if position < self._sent_before:
            statistics.resent_bytes += min(end, self._sent_before) - position
        self._on_sent()
        await self._send(chunk)
        if len(data) >= self._master.constants.coalesce_bytes:
            await asyncio.sleep(0)  # a slave that has much to catch up with must not keep others waiting

    def _chunk(self) -> LogChunk:
        """Return a message without records: the watermark and where the master is."""
        master, log = self._master, self._log
        self._must_speak = False
        self._sent_watermark = committed = master.members.fully_synced_position
        return LogChunk(
            epoch=master.epoch,
            position=self._window.sent_position,
            high_watermark=committed,
            start_position=log.start_position,
            time_ms=master.clock.wall_ms(),
            end_position=log.end_position,
        )

    async def _send(self, chunk: LogChunk) -> None:
        self._spoke_ms = self._master.clock.steady_ms()
        await self._stream.send([chunk])


def plan_for(log: ReplicaLog, first: ReplicateProgress) -> JoinPlan:
    """Return the plan by which a slave joins a master's log, given its first message.

    Raises:
        StatusError: its report is impossible.
    """
    try:
        epochs = EpochHistory(Start(each.epoch, each.position) for each in first.epochs)
    except ValueError as error:
        raise StatusError(Code.BAD_REQUEST, f"the epochs of replica {first.replica} are impossible: {error}") from error
    return join_plan(
        LogOutline(log.start_position, log.end_position, log.epochs),
        LogOutline(first.start_position, first.end_position, epochs),
    )
