"""Cleaner of a replica's log: it deletes the oldest segments, as far as nothing needs them any more."""

from collections.abc import Callable

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.replication.saved_checkpoint import SavedCheckpoint
from popwheel_broker.replication.superblock import Superblock


class LogCleaner:
    """Deletes one segment at a time.

    Args:
        core: what it is now.
        log: the log that it is folded from.
        superblock: records a deletion before it is made.
        saved: the checkpoint, which needs the log from a position on.
    """

    def __init__(
        self, core: Callable[[], BrokerCore], log: CommitLog, superblock: Superblock, saved: SavedCheckpoint
    ) -> None:
        self._core = core
        self._log = log
        self._superblock = superblock
        self._saved = saved

    async def delete_before(self, position: int) -> int:
        """Delete the oldest segment as the master has; 1 if it went. Raises as `delete_expired` does."""

        def bound() -> int:
            needed = self._core().timer.needed_from()
            return position if needed is None else min(position, needed)

        return await self._delete_before(bound)

    async def delete_expired(self) -> int:
        """Delete the oldest segment if it is past its time; 1 if it went. To be called again after a sync.

        Raises:
            OSError: the device refused; it may be tried again.
            CorruptDataError: the log, or a queue, is damaged.
        """
        return await self._delete_before(lambda: self._core().expiry.expired_before())

    async def _delete_before(self, bound: Callable[[], int]) -> int:
        """Delete the oldest segment if `bound` allows it, and no checkpoint on the device may need it.

        A cut or a new core meanwhile does not change that.
        """

        def start() -> int:
            if not self._core().is_loaded:
                # It has still to read what its checkpoint covers: index files are made again.
                return self._log.start_position
            return self._log.removable_before(min(bound(), self._saved.needed_from))

        reads = self._core().store.reads
        position = await reads.run(start)
        if position == self._log.start_position:
            return 0
        if position > self._superblock.contents.log_start:
            await self._superblock.change(log_start=position)
        # More may be needed since.
        return await reads.run(lambda: self._delete_oldest(min(position, start())))

    def _delete_oldest(self, position: int) -> int:
        return self._core().store.delete_before(position)
