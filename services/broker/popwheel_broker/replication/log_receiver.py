"""The slave's end of one Replicate stream: appends the log, syncs it, and reports its progress.

These run concurrently. Chunks are written as they arrive, and reported as received. A sync runs whenever records are
not on the device yet, while further chunks arrive, and is reported. Confirmed records are folded after the report has
left. An idle slave sends heartbeats. Silence ends the stream.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_broker.replication.epochs import EpochStart as Start
from popwheel_broker.replication.lag import PositionTimes
from popwheel_broker.replication.replica_log import ReplicaLog
from popwheel_broker.replication.statistics import ReplicationStatistics
from popwheel_common.clock import Clock
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.popwheel.v1.broker_pb2 import EpochStart, LogChunk, ReplicateProgress
from popwheel_rpc.service import ClientStream

_log = structlog.get_logger()


class LinkError(Exception):
    """Failure of a stream: the master's message does not fit, or none arrived in time."""


@dataclass(frozen=True, slots=True)
class Slave:
    """Slave that follows.

    Args:
        group: name of its broker group.
        replica: its number.
        identity: of its data folder.
        epoch: of the master that it follows.
        log: its log.
        constants: paces and sizes.
        clock: the time.
        statistics: what is counted.
        repair: repairs a damaged record of the log, if another replica has it.
        on_failure: called when the broker must stop: its device has failed, or its log is damaged.
    """

    group: str
    replica: int
    identity: bytes
    epoch: int
    log: ReplicaLog
    constants: ReplicationConstants
    clock: Clock
    statistics: ReplicationStatistics
    repair: Callable[[int], Awaitable[bool]]
    on_failure: Callable[[Exception], None]


class MasterLag:
    """Lag of a slave behind its master, over all streams of the epoch. It is not known until the first chunk."""

    def __init__(self) -> None:
        self.end_position = 0
        """End of the master's log, as last received."""
        self.received_ms = 0
        """Time when it was received."""
        self._times = PositionTimes()

    def received(self, end_position: int, now_ms: int) -> None:
        """Record the end of the master's log that it has sent."""
        self.end_position = end_position
        self.received_ms = now_ms
        self._times.record(end_position, now_ms)

    def behind_bytes(self, position: int) -> int:
        """Return how many bytes the master had beyond a position."""
        return max(0, self.end_position - position)

    def behind_ms(self, position: int, now_ms: int) -> int:
        """Return for how long the master has had a record beyond a position."""
        return self._times.behind_ms(position, self.end_position, now_ms)


class LogReceiver:
    """Follows a master for as long as a stream lasts.

    Args:
        slave: who follows.
        stream: to the master.
        lag: gets the positions that the master sends.
    """

    def __init__(self, slave: Slave, stream: ClientStream[LogChunk, ReplicateProgress], lag: MasterLag) -> None:
        self._slave = slave
        self._stream = stream
        self._lag = lag
        self._log = slave.log
        self._unsynced = asyncio.Event()
        self._synced = asyncio.Event()
        self._received_ms = self._spoke_ms = slave.clock.steady_ms()
        self._master_start = 0
        self._complete_at = 0
        self._is_busy = False
        self._repaired = -1
        """Position of the record that was repaired last."""
        self.joined = False
        """True once the master has let this slave join its log."""

    async def run(self) -> None:
        """Follow until the stream ends, in whatever way.

        Raises:
            LinkError: what came does not fit, or nothing came.
            StatusError, RpcError, StreamClosedError: the master has ended it, or is gone.
            CorruptDataError: damage, on the way or at the master.
            OSError: the device has failed.
        """
        tasks = [
            asyncio.create_task(self._receive_all(), name="replicate-receive"),
            asyncio.create_task(self._sync_often(), name="replicate-sync"),
            asyncio.create_task(self._speak_often(), name="replicate-speak"),
            asyncio.create_task(self._listen_for_silence(), name="replicate-silence"),
            asyncio.create_task(self._delete_old_often(), name="replicate-delete"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Taking chunks

    async def _receive_all(self) -> None:
        slave, log, stream = self._slave, self._log, self._stream
        await stream.send([self._introduction()])
        await self._join()
        await self._delete_old()  # on a full disk the stream may end with the first chunk
        await self._report()
        self._unsynced.set()
        while (chunk := await stream.receive()) is not None:
            self._received(chunk)
            if self._take(chunk):
                await self._report()
                await asyncio.sleep(0)  # the report leaves before the fold
                if log.end_position - log.synced_position > slave.constants.unsynced_bytes_max:
                    await self._wait_for_sync()
            await self._commit(chunk.high_watermark)

    async def _wait_for_sync(self) -> None:
        """Take no more until the device has caught up; the master then sends no more either."""
        slave, log = self._slave, self._log
        slave.statistics.sync_waits += 1
        self._is_busy = True
        while log.end_position - log.synced_position > slave.constants.unsynced_bytes_max:
            self._synced.clear()
            await self._synced.wait()
        self._is_busy = False
        self._received_ms = slave.clock.steady_ms()

    def _introduction(self) -> ReplicateProgress:
        slave, log = self._slave, self._log
        return ReplicateProgress(
            group=slave.group,
            replica=slave.replica,
            identity=slave.identity,
            epoch=slave.epoch,
            epochs=[EpochStart(epoch=each.epoch, position=each.position) for each in log.epochs],
            start_position=log.start_position,
            end_position=log.end_position,
            synced_position=log.synced_position,
        )

    async def _join(self) -> None:
        """Join the master's log: drop the records that it does not have, or everything."""
        log, statistics = self._log, self._slave.statistics
        first = await self._next()
        if not first.first:
            raise LinkError("the master's first word is not a first one")
        checkpoint = [first.checkpoint]
        part = first
        while part.checkpoint_continues:
            part = await self._next()
            checkpoint.append(part.checkpoint)
        self._is_busy = True
        position = first.position
        self._complete_at = first.end_position
        if first.checkpoint:
            _log.warning(
                "this replica begins anew with its master's checkpoint",
                at=position,
                dropped_from=log.start_position,
                dropped_to=log.end_position,
            )
            try:
                epochs = EpochHistory(Start(each.epoch, each.position) for each in first.epochs).up_to(position)
            except ValueError as error:
                raise LinkError(f"the master's epochs are impossible: {error}") from error
            await _to_its_end(log.install(b"".join(checkpoint), position, epochs))
            statistics.checkpoints_taken += 1
        elif first.cut_position != position or not log.start_position <= position <= log.end_position:
            raise LinkError(
                f"the master goes on at {position} and cuts at {first.cut_position}, but this log is from "
                f"{log.start_position} to {log.end_position}"
            )
        elif position < log.end_position or log.epochs != log.epochs.up_to(position):
            # An epoch of its own that wrote nothing goes, too: the master's next record would be refused as older.
            if position < log.end_position:
                statistics.cut_bytes += log.end_position - position
                _log.warning(
                    "this log parts from its master's and is cut off there",
                    at=position,
                    dropped=log.end_position - position,
                )
            try:
                await _to_its_end(log.cut(position))
            except CorruptDataError as error:
                self._slave.on_failure(error)  # the core cannot be rebuilt; the next process repairs the record
                raise
        if log.end_position != position:
            raise LinkError(f"the log ends at {log.end_position}, not at {position}")
        self._is_busy = False
        self._received_ms = self._slave.clock.steady_ms()
        self.joined = True
        _log.info("this replica follows its master", epoch=self._slave.epoch, at=position, its_end=first.end_position)

    async def _next(self) -> LogChunk:
        chunk = await self._stream.receive()
        if chunk is None:
            raise LinkError("the master ended the stream")
        self._received(chunk)
        return chunk

    def _received(self, chunk: LogChunk) -> None:
        if chunk.epoch != self._slave.epoch:
            raise LinkError(f"a chunk of epoch {chunk.epoch} arrived, though epoch {self._slave.epoch} is followed")
        self._received_ms = self._slave.clock.steady_ms()
        self._lag.received(chunk.end_position, self._received_ms)
        self._master_start = chunk.start_position

    def _take(self, chunk: LogChunk) -> bool:
        """Append a chunk's records; False if there are none, or they are here already."""
        log, statistics = self._log, self._slave.statistics
        position, data = chunk.position, chunk.data
        end = log.end_position
        statistics.received_bytes += len(data)
        if position + len(data) <= end:
            statistics.repeated_bytes += len(data)
            return False
        if position != end:
            raise LinkError(f"records for {position} came, but the log ends at {end}")
        try:
            log.append_raw(position, data)
        except CorruptDataError:
            statistics.checks_failed += 1
            raise
        assert log.end_position == position + len(data), "the log ends elsewhere than what was received (S4)"
        self._unsynced.set()
        return True

    async def _commit(self, position: int) -> None:
        log, slave = self._log, self._slave
        while True:
            try:
                log.commit(position)
                return
            except CorruptDataError as error:
                # A record was good on arrival and is damaged now. If it is good and does not fit, no repair helps; a
                # later call may report that, as the log folds by itself, too.
                slave.statistics.checks_failed += 1
                damaged = log.high_watermark
                if damaged == self._repaired or not await slave.repair(damaged):
                    slave.on_failure(error)
                    raise
                self._repaired = damaged
            except (StatusError, ValueError) as error:
                slave.on_failure(error)  # another stream would only bring the same
                raise

    # Syncing

    async def _sync_often(self) -> None:
        log = self._log
        while True:
            await self._unsynced.wait()
            self._unsynced.clear()
            if log.synced_position < log.end_position:
                await log.sync()
            self._synced.set()  # also for a sync by a save meanwhile, which reports nothing
            if self.joined:
                await self._report()
            if self.joined and log.synced_position >= self._complete_at:
                await log.clear_suspect()  # whatever was acknowledged without this slave, the master had as it came

    # Saying how far it is

    async def _report(self) -> None:
        self._spoke_ms = self._slave.clock.steady_ms()
        log = self._log
        await self._stream.send([ReplicateProgress(end_position=log.end_position, synced_position=log.synced_position)])

    async def _speak_often(self) -> None:
        """Send the master a heartbeat."""
        constants = self._slave.constants
        while True:
            await asyncio.sleep(constants.heartbeat_ms / 1000)
            if self.joined and self._slave.clock.steady_ms() - self._spoke_ms >= constants.heartbeat_ms:
                await self._report()

    async def _listen_for_silence(self) -> None:
        """End the stream when nothing comes any more; by itself, as nothing may be sent then either."""
        constants = self._slave.constants
        while True:
            await asyncio.sleep(constants.heartbeat_ms / 1000)
            silent_ms = self._slave.clock.steady_ms() - self._received_ms
            if silent_ms >= constants.silence_ms_max and not self._is_busy:
                raise LinkError(f"the master has sent nothing for {silent_ms} ms")

    async def _delete_old_often(self) -> None:
        """Delete what the master has deleted; by itself, as it waits for the device."""
        while True:
            await asyncio.sleep(self._slave.constants.heartbeat_ms / 1000)
            if self.joined:
                await self._delete_old()

    async def _delete_old(self) -> None:
        if self._log.start_position < self._master_start:
            try:
                await self._log.delete_before(self._master_start)
            except (OSError, CorruptDataError) as error:
                _log.error("old segments could not be deleted, trying again", error=str(error))


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do something that must not be left half done: a cancellation waits until it is through."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # whoever is in a hurry cancels twice
                await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the log could not be brought in line with its master's", error=str(error))
        raise
