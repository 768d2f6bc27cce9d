"""The epochs of a replica's log, from the superblock, and from the log's records that are newer."""

import structlog

from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.message_store import StoreCheckpoint
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_broker.replication.superblock import Superblock
from popwheel_common.errors import CorruptDataError

_log = structlog.get_logger()


class LogEpochs:
    """Epochs of a log. A change is written to the file by the next `save`.

    Args:
        superblock: says who did, as far as it is not older than the log.
        log: the log.
    """

    def __init__(self, superblock: Superblock, log: CommitLog) -> None:
        self._superblock = superblock
        self._log = log
        self._is_unsaved = False
        self.history = EpochHistory()
        """History as known now."""

    def load(self, saved: StoreCheckpoint) -> bool:
        """Take up what the superblock says; whether that is all up to the checkpoint, else it is to be learned."""
        history = EpochHistory(self._superblock.contents.epochs)
        if not history:
            return False
        if history.latest < saved.epoch and saved.position <= self._log.end_position:
            _log.error("the superblock is older than the checkpoint, the epochs are learned from the log")
            return False
        self.history = history
        return True

    def set(self, history: EpochHistory) -> None:
        """Set the history."""
        self.history = history
        self._is_unsaved = True

    def begin(self, epoch: int, position: int) -> None:
        """An epoch begins (see `EpochHistory`)."""
        self.history.begin(epoch, position)
        self._is_unsaved = True

    def cut(self, position: int) -> bool:
        """Apply a cut of the log at `position`; return whether any epoch was removed (see `EpochHistory`)."""
        gone = self.history.cut(position)
        self._is_unsaved |= gone
        return gone

    def record(self, found: StoredRecord) -> None:
        """Record the epoch of a record, which may be new."""
        if found.epoch > self.history.latest:
            self.begin(found.epoch, found.position)

    def begins_unknown(self, position: int) -> bool:
        """Return whether the record at a position is of an epoch that the history does not know.

        Such an epoch began there or before.
        """
        try:
            return next(self._log.records(position, position + 1)).epoch > self.history.latest
        except (CorruptDataError, StopIteration):
            self._log.damaged.discard(position)
            return False  # there is none, or it is torn or damaged, with which the scan deals

    def learn(self, synced_position: int) -> None:
        """Add the epochs that only the log's records have; a segment that begins and ends in one is not read.

        Raises:
            CorruptDataError: a record before `synced_position` is damaged. What was learned up to there is recorded.
        """
        log = self._log
        segments = [(start, end) for start, end in log.segments() if end > start]
        try:
            for index, (start, end) in enumerate(segments):
                last = index + 1 == len(segments)
                self.record(next(log.records(start, start + 1)))
                if last or next(log.records(end, end + 1)).epoch > self.history.latest:
                    for found in log.records(start, end):
                        self.record(found)
        except CorruptDataError:
            if min(log.damaged, default=0) < synced_position:
                raise
            log.damaged.clear()  # a torn tail, with which the scan deals

    async def save(self) -> None:
        """Record the changes; they are on the device when this returns.

        A master does so before the first record of its epoch.

        Raises:
            OSError: the device refused; it may be tried again.
        """
        if self._is_unsaved:
            epochs = tuple(self.history)
            await self._superblock.change(epochs=epochs)
            self._is_unsaved = tuple(self.history) != epochs
