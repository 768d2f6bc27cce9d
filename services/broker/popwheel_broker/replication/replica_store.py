"""Store of a replica, whatever its role: the log, its epochs, and the core that is folded from it.

A core is folded as far as the log is known to stay: a master's to its end, a slave's as far as it is committed. So
records that are cut off were as a rule never folded. If they were (an unclean election, `ack_mode: master`), the core
is rebuilt, from an earlier checkpoint or from the whole log.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from popwheel_broker.core.checkpoint import Checkpoint, CheckpointReader
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.raw_records import bare_records, checked_records, whole_bytes
from popwheel_broker.log.record import HEADER_BYTES, RECORD_BYTES_MAX, length_at
from popwheel_broker.log.refusals import disk_refusal
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_broker.replication.log_cleaner import LogCleaner
from popwheel_broker.replication.log_epochs import LogEpochs
from popwheel_broker.replication.log_fold import LogFold
from popwheel_broker.replication.record_skip import RecordSkip
from popwheel_broker.replication.recovery import Recovery
from popwheel_broker.replication.saved_checkpoint import SavedCheckpoint
from popwheel_broker.replication.superblock import Superblock
from popwheel_common.clock import Clock
from popwheel_common.disk import Disk
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import TimerProgress

_log = structlog.get_logger()

_CHECKPOINT_NAME = "checkpoint"


class FilesSubscriber(Protocol):
    """Notifications that a follower wants at once."""

    def folded(self) -> None:
        """Records were folded into the core."""

    async def rest(self) -> None:
        """Stop the work on the log and the core: the log is about to be cut, or the core to be replaced."""

    def resume(self) -> None:
        """Continue with the log, and with `core` as it is now."""


class ReplicaStore:
    """The files of a replica, and the state made of them (`replication.replica_log.ReplicaLog`).

    Args:
        disk: where its files are.
        folder: their folder.
        clock: for how long the loop may be kept busy.
        make_core: makes a core that is fresh, on a log or on the one of its own files.
        on_failure: called if the device has failed, or the log is damaged.
        checkpoint_changes_bytes: see `SavedCheckpoint`.
        on_suspect_cleared: called when `is_suspect` becomes False.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        clock: Clock,
        make_core: Callable[[CommitLog | None], BrokerCore],
        on_failure: Callable[[Exception], None],
        checkpoint_changes_bytes: int,
        on_suspect_cleared: Callable[[], None],
    ) -> None:
        self._reads = disk.reads
        self._make_core = make_core
        self._on_failure = on_failure
        self._saving = asyncio.Lock()
        self._disk = disk
        self._folder = folder
        self._former_queues = folder / "consumequeue"
        """Folder in which releases before the index files had the queues' entries: a folder for each queue."""
        self._former_progress = folder / "mastercheckpoint"
        """File in which release 0.1.0 had the progress of groups at its master, which the log has now."""
        self.superblock = Superblock(disk, folder)
        """Superblock, to be loaded before `start`."""
        self._saved = SavedCheckpoint(disk, folder / _CHECKPOINT_NAME, checkpoint_changes_bytes, on_failure)
        self._subscriber: FilesSubscriber | None = None
        self._on_suspect_cleared = on_suspect_cleared
        self.is_followers = True
        """True if a follower may use the core; if not, `unfinish` makes it so."""
        self._is_whole = True
        self.recovered_records = 0
        """Number of records that `start` has read again: those that the checkpoint does not cover."""
        self.core = make_core(None)
        self.log = self.core.store.log
        self._epochs = LogEpochs(self.superblock, self.log)
        self._cleaner = LogCleaner(lambda: self.core, self.log, self.superblock, self._saved)
        self._fold = LogFold(lambda: self.core, self.log, disk.reads, clock, self._folded, on_failure)

    def subscribe(self, subscriber: FilesSubscriber) -> None:
        """Notify a follower of changes of the log and the core, in place of the one before."""
        self._subscriber = subscriber

    def unsubscribe(self) -> None:
        """Notify no follower any more."""
        self._subscriber = None

    def timer_progressed(self, high_watermark: int, progress: TimerProgress) -> None:
        """Apply the progress of the master's timer at a high watermark."""
        self.core.timer.progress(high_watermark, progress)
        self._folded()

    def _folded(self) -> None:
        if self._subscriber is not None:
            self._subscriber.folded()

    # What it is

    @property
    def start_position(self) -> int:
        """Position of the oldest record."""
        return self.log.start_position

    @property
    def end_position(self) -> int:
        """Position behind the newest record; records before it survive the end of the process."""
        return self.log.end_position

    @property
    def synced_position(self) -> int:
        """Position before which all is on the device."""
        return self.log.synced_position

    @property
    def high_watermark(self) -> int:
        """Position before which the sync-state set has all, and all is folded into the core: the high watermark."""
        return self.core.store.high_watermark

    @property
    def epochs(self) -> EpochHistory:
        """Epochs of the log."""
        return self._epochs.history

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record of the log; 0 if it is empty."""
        return self.epochs.last_epoch(self.end_position) if self.end_position > self.start_position else 0

    @property
    def is_suspect(self) -> bool:
        """True if acknowledged messages may be missing.

        This or an earlier start cut off the log's end, and not every other replica could be asked for it. It outlives
        the process.
        """
        return self.superblock.contents.is_suspect

    # Begin and end

    async def start(
        self,
        *,
        alone: bool,
        repair: Callable[[int], Awaitable[bool]],
        is_nowhere: Callable[[int], Awaitable[bool]],
    ) -> None:
        """Recover the log, and fold it.

        Args:
            alone: nobody else can have been master since, so all that is there stays.
            repair: has a damaged record at a position of the log mended; whether it was.
            is_nowhere: whether the repair failed and all other replicas say that they do not have the record.

        Raises:
            CorruptDataError: acknowledged data is damaged; nothing was changed.
            UnknownFormatError: the files are of a newer release; nothing was changed.
            OSError: the device refused.
        """
        if self.superblock.contents.is_installing:
            await self._begin_at(0, Checkpoint(), EpochHistory())
        recovery = Recovery(self.core, self._remake_core, self._saved, self._epochs, self._mark_suspect)
        await recovery.run(alone=alone, repair=repair, is_nowhere=is_nowhere)
        self.recovered_records = recovery.records
        if not self.log.segment_count:
            # Lest a loss of power takes the first segment and leaves the next: that is taken for damage.
            self.log.reset(0)
        await self._disk.remove_folder(self._former_queues)
        if self._disk.exists(self._former_progress):
            self._disk.remove(self._former_progress)
        await self.sync()
        if not self._saved.exists:
            # Before the first record: where there is no checkpoint, all that is there counts as synced.
            await self._saved.write(self._saved.head)

    async def skip_record(
        self,
        position: int,
        repair: Callable[[int], Awaitable[bool]],
        who_may_have: Callable[[int], Awaitable[list[str]]],
    ) -> None:
        """Skip a damaged record before `start`. See `RecordSkip.skip`, which also says what is raised."""
        if self.superblock.contents.is_installing:
            return  # the log is dropped at once
        saved = self._saved.load(self.log)
        if not self._epochs.load(saved.store):
            self._epochs.learn(saved.store.synced_position)
        skip = RecordSkip(self.log, saved, self._epochs.history, self._disk, self._folder)
        await skip.skip(position, repair, who_may_have)

    async def _mark_suspect(self, position: int) -> None:
        _log.error(
            "the end of the log is cut off, though not every other replica could be asked for it: until this one has "
            "caught up with a master, it leads only if all of the sync-state set are there and none of them is certain",
            at=position,
            dropped=self.log.end_position - position,
        )
        await self.superblock.change(is_suspect=True)

    async def clear_suspect(self) -> None:
        """End the suspicion: all acknowledged messages are here (see `ReplicaLog`)."""
        if self.is_suspect:
            await self.superblock.change(is_suspect=False)
            _log.info("this replica has everything again", position=self.end_position)
            self._on_suspect_cleared()

    async def finish(self, epoch: int) -> None:
        """Begin an epoch: fold the rest of the log, and leave it to be written.

        Raises:
            CorruptDataError: a record is damaged; it may be tried again when it was mended.
            OSError: the device refused; it may be tried again.
            StatusError: the disk is full; it may be tried again.
        """
        self.stop_folding()
        await self.sync()  # folded records count as committed
        if not self._is_whole:
            async with self._saving:
                await self._begin_anew()
        self.is_followers = False
        try:
            await self._fold.fold_all()
        except CorruptDataError:
            self._is_whole = False  # it may have met the damage with a record half folded
            raise
        if epoch > self.epochs.latest:
            self._epochs.begin(epoch, self.end_position)
        await self._epochs.save()
        self.core.store.epoch = epoch
        self.core.store.ended = None
        if not self.core.is_finished:
            try:
                self.core.finish()
            except CorruptDataError:
                self._is_whole = False
                raise

    async def unfinish(self) -> None:
        """End the epoch: drop the core that was written to, and restart with the saved one.

        Raises as `finish` does.
        """
        await self.sync()
        async with self._saving:
            await self._begin_anew()

    def stop_folding(self) -> None:
        """Fold no more by itself."""
        self._fold.stop()

    def close(self) -> None:
        """Close all files; nothing is saved."""
        self.stop_folding()
        self.core.close()
        self.log.close()

    # What a slave does with it

    async def read(self, position: int, bytes_max: int) -> bytes:
        """Whole, checked records from `position` on (see `ReplicaLog`)."""
        return await self._reads.run(lambda: self._read_in_memory(position, bytes_max))

    def _read_in_memory(self, position: int, bytes_max: int) -> bytes:
        data = self.log.read(position, max(bytes_max, HEADER_BYTES))
        length = length_at(data, 0)
        if length > len(data) and len(data) >= HEADER_BYTES:
            data = self.log.read(position, min(length, RECORD_BYTES_MAX))
        return whole_bytes(position, data)

    def append_raw(self, position: int, data: bytes) -> None:
        """Write whole records of the master at the end (see `ReplicaLog`)."""
        if position != self.end_position:
            raise ValueError(f"records for {position} do not continue the log, which ends at {self.end_position}")
        try:
            with RECORD_STEP:
                records = kept = checked_records(position, data)
        except RecordFaultError as fault:
            # The log is taken over as bytes all the same; the fold reads it again, and passes over what fails there.
            self.core.not_checked(position, fault)
            records, kept = bare_records(position, data), []
        epochs = None
        for found in records:
            if found.epoch != self.epochs.latest:
                epochs = epochs or EpochHistory(self.epochs)
                epochs.record(found.epoch, found.position)
        try:
            self.log.append_raw([found.length for found in records], data)
        except OSError as error:
            raise disk_refusal(error) from error
        if epochs is not None:
            self._epochs.set(epochs)
        if kept:
            self._fold.appended(kept, len(data))

    async def sync(self) -> None:
        """Bring all that was appended up to now to the device (see `ReplicaLog`)."""
        try:
            await self._epochs.save()
        except OSError as error:  # the records have them, too, and a save of a checkpoint waits for it
            _log.error("the epochs could not be recorded, trying again", error=str(error))
        try:
            await self.log.sync()
        finally:  # also when the waiter was cancelled
            self._check_log()

    def _check_log(self) -> None:
        if self.log.stopped is not None:
            self._on_failure(OSError(self.log.stopped))

    def commit(self, position: int) -> None:
        """Fold what is before `position`, as far as it is here (see `ReplicaLog`)."""
        self._fold.commit(position)

    async def cut(self, position: int) -> None:
        """Drop all from `position` on, durably (see `ReplicaLog`)."""
        self.stop_folding()
        async with self._saving:
            if position < self.end_position:
                is_below_saved = await self._say_cut(position)
                await self._rest()
                await self._cut(position, is_below_saved)
            if self._epochs.cut(position):
                await self._epochs.save()

    async def _say_cut(self, position: int) -> bool:
        """Said first, or a crash in between would leave a log that is shorter than it was known to be.

        Returns:
            Whether what was saved is of more than what is left.

        Raises:
            StatusError: the disk is full; nothing is cut, and it may be tried again.
        """
        try:
            await self._saved.ascertain()
            saved = self._saved.head
            is_below_saved = saved.store.reached > position
            if is_below_saved:
                if self.start_position == 0:
                    self._saved.needed_from = 0
                    await self._saved.write(Checkpoint())
            elif saved.store.synced_position > position:
                await self._saved.amend(replace(saved, store=replace(saved.store, synced_position=position)))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            sentence = "the disk is full, so the log cannot be brought in line with its master's; free some space"
            raise StatusError(Code.INTERNAL_ERROR, sentence) from error
        return is_below_saved

    async def _cut(self, position: int, is_below_saved: bool) -> None:
        _log.warning("the log parts from its master's, its end is cut off", at=position, end=self.end_position)
        self._fold.cut(position)
        if is_below_saved and self.start_position > 0:
            # What was made of the log is void, and without its beginning it can't be made again.
            await self._begin_at(0, Checkpoint(), EpochHistory())
            return
        knows_more = await self.core.timer.cut_off(0 if is_below_saved else position)
        async with self.log.at_rest:
            self.log.cut(position)
        await self.sync()
        if is_below_saved or knows_more or self.core.folded_position > position or self.core.is_finished:
            await self._begin_anew()
        elif self._subscriber is not None:
            self._subscriber.resume()

    async def install(self, checkpoint: bytes, position: int, epochs: EpochHistory) -> None:
        """Drop all, and begin with a master's checkpoint and an empty log at `position` (see `ReplicaLog`)."""
        reader = CheckpointReader(checkpoint)
        for _ in reader.steps():
            await asyncio.sleep(0)
        decoded = reader.checkpoint
        decoded = replace(decoded, store=replace(decoded.store, remade=True, synced_position=position))
        async with self._saving:
            await self._begin_at(position, decoded, EpochHistory(epochs))

    async def _begin_at(self, position: int, checkpoint: Checkpoint, epochs: EpochHistory) -> None:
        """Drop all, and begin with a checkpoint and an empty log. A start after a crash in between drops all again."""
        await self._rest()
        await self.superblock.change(is_installing=True)
        self._fold.cut(0)
        self._saved.needed_from = 0
        await self.core.timer.cut_off(0)
        async with self.log.at_rest:
            self.log.reset(position)
        self._epochs.set(epochs)
        await self.sync()
        await self._saved.write(checkpoint)
        await self._begin_anew()
        await self.superblock.change(epochs=tuple(self.epochs), log_start=position, is_installing=False)

    async def delete_before(self, position: int) -> None:
        """Delete the oldest segment as the master has (see `ReplicaLog`)."""
        if await self._cleaner.delete_before(position):
            await self.sync()  # the next one may go

    async def delete_expired(self) -> int:
        """Delete the oldest segment if it is past its time (see `LogCleaner`)."""
        return await self._cleaner.delete_expired()

    async def mend(self, position: int, data: bytes) -> None:
        """Write records in place of damaged bytes (see `ReplicaLog`)."""
        for found in bare_records(position, data):  # what they say may fail by itself, and is of no matter here
            begin = found.position - position
            try:
                await self.log.mend(found.position, data[begin : begin + found.length])
            finally:
                self._check_log()

    # What is saved

    def checkpoint_file(self) -> Iterator[bytes]:
        """Yield a checkpoint file for a follower without a log (see `ReplicaLog`)."""
        return self._saved.parts()

    @property
    def saved_position(self) -> int:
        """Position of the log up to where the core is saved: a restart reads on from there."""
        return self._saved.head.store.position

    async def save(self, until_safe: Callable[[], Awaitable[None]]) -> None:
        """Save how far the core is.

        Args:
            until_safe: returns when what the core is made of is on the device, and will not be cut off any more.

        Raises:
            OSError: the device refused, now, or the last time the epochs were to be written down.
        """
        async with self._saving:
            await self._saved.save(self.core, self._epochs, until_safe)

    async def _begin_anew(self) -> None:
        self.is_followers = self._is_whole = False
        await self._rest()
        self._remake_core()
        try:
            self.core.begin(self._saved.load(self.log))
        except CorruptDataError as error:
            self._on_failure(error)
            raise
        self.is_followers = self._is_whole = True
        if self._subscriber is not None:
            self._subscriber.resume()

    async def _rest(self) -> None:
        """Stop folds and saves during a change of the log and the core; the caller restarts them.

        A save meanwhile would depend on records that are cut off.
        """
        self.stop_folding()
        if self._subscriber is not None:
            await self._subscriber.rest()

    def _remake_core(self) -> BrokerCore:
        before = self.core
        before.close()
        self.core = self._make_core(self.log)
        self.core.inherit(before)
        return self.core
