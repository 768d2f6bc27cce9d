"""What is saved of the core: the checkpoint on the device, and from where on it needs the log."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from services.broker import checkpoint as checkpoint_file
from services.broker.checkpoint import Checkpoint
from services.broker.core import BrokerCore
from services.broker.log_epochs import LogEpochs
from services.broker.store.commit_log import CommitLog
from services.broker.store.message_store import MessageStore, StoreCheckpoint
from services.common.disk import Disk, replace_file, to_its_end
from services.common.errors import CorruptDataError


class SavedCheckpoint:
    """The checkpoint that was saved last, and its file.

    Args:
        disk: where the file is.
        path: its name.
        on_failure: told if the device has failed.
    """

    def __init__(self, disk: Disk, path: Path, on_failure: Callable[[Exception], None]) -> None:
        self._disk = disk
        self._path = path
        self._on_failure = on_failure
        self.checkpoint = Checkpoint()
        """What was saved last."""
        self.needed_from = 0
        """Of the log: what the checkpoint that is saved needs stands from here on; 0 as long as that is not known."""
        self.is_certain = True
        """Whether the device has `checkpoint`; if not, what was to be saved after it may be there in its place."""

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._disk.exists(self._path)

    def load(self, log: CommitLog) -> Checkpoint:
        """What the file says. In a new folder there is none; then all that is there counts as synced.

        Args:
            log: what the checkpoint is of.

        Raises:
            CorruptDataError: it is damaged, or lost.
            UnknownFormatError: it was written by a release that this one does not know.
        """
        self.checkpoint = self._load(log)
        return self.checkpoint

    def _load(self, log: CommitLog) -> Checkpoint:
        if not self.exists:
            if log.start_position > 0:
                raise CorruptDataError(
                    f"the checkpoint file is lost, and the log begins at {log.start_position}: what was before it "
                    "(how far the queues and groups are, names) is told nowhere else. Restore the file from a backup; "
                    "or give this replica an empty volume, if another one of its group has everything"
                )
            # The first checkpoint is written before the first message, so without one nothing may be cut off.
            return Checkpoint(store=StoreCheckpoint(synced_position=log.end_position))
        file = self._disk.open(self._path)
        try:
            return checkpoint_file.decode(file.read(0, file.size()))
        finally:
            file.close()

    async def save(self, core: BrokerCore, epochs: LogEpochs, settle: Callable[[], Awaitable[None]]) -> None:
        """Save how far a core is, if it can be saved now; nothing else saves, cuts the log or makes the core anew
        meanwhile (see `ReplicaStore`).

        Raises:
            OSError: the device refused; for good, if queues could not be synced.
        """
        if not core.can_be_saved:
            return
        try:
            needed = await core.store.reads.run(core.expiry.needed_from)
        except CorruptDataError:
            needed = self.needed_from  # whoever deletes segments tells of it
        checkpoint = core.checkpoint()
        needed = checkpoint.store.position if needed is None else min(needed, checkpoint.store.position)
        self.needed_from = min(self.needed_from, needed)  # until this is saved the device may have either
        await to_its_end(self._write_index(core.store))
        try:
            await settle()
        except OSError as error:
            self._on_failure(error)
            raise
        await epochs.save()  # a restart reads on behind where they began
        store = core.synced(checkpoint).store
        # By this a file of epochs is known that is older than what the checkpoint covers.
        epoch = max(1, epochs.history.last_epoch(store.position))
        await self.write(replace(checkpoint, store=replace(store, epoch=epoch)))
        self.needed_from = needed
        await core.store.index.merge(store.position)

    async def _write_index(self, store: MessageStore) -> None:
        try:
            await store.write_index()
        except OSError as error:
            if store.index.failed is not None:
                self._on_failure(error)
            raise

    async def write(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint in place of the one before; it is on the device when this returns.

        Raises:
            OSError: the device refused; it may have either, and it may be tried again.
        """
        await to_its_end(self._replace(checkpoint))

    async def _replace(self, checkpoint: Checkpoint) -> None:
        self.is_certain = False
        await replace_file(self._disk, self._path, checkpoint_file.encode(checkpoint))
        self.checkpoint = checkpoint
        self.is_certain = True
