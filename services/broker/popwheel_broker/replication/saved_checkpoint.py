"""Saved state of the core: the checkpoint on the device, and from where on it needs the log."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_broker.core.checkpoint import (
    BEGIN,
    SLOT_BYTES,
    SLOTS,
    Checkpoint,
    CheckpointFrames,
    CheckpointReader,
    Row,
)
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.message_store import MessageStore, StoreCheckpoint
from popwheel_broker.replication.log_epochs import LogEpochs
from popwheel_common.disk import Disk, File, to_its_end
from popwheel_common.errors import CorruptDataError

_PART_BYTES = 1024 * 1024


class SavedCheckpoint:
    """The checkpoint that was saved last, and its file.

    Args:
        disk: where the file is.
        path: its name.
        changes_bytes_min: bytes of changes that the file takes at least before it is rewritten; it takes as many as its
            content had at the last rewrite, if that is more.
        on_failure: called if the device has failed.
    """

    def __init__(self, disk: Disk, path: Path, changes_bytes_min: int, on_failure: Callable[[Exception], None]) -> None:
        self._disk = disk
        self._path = path
        self._changes_bytes_min = changes_bytes_min
        self._on_failure = on_failure
        self._frames: CheckpointFrames | None = None
        """Frames that the next save continues; None: the file is to be written anew."""
        self._is_behind = False
        """True if changes were taken from the core that are in no file: then the full state is to be saved."""
        self._whole_end = 0
        self._slot = 0
        self.head = Checkpoint()
        """Last saved checkpoint, without its rows."""
        self.needed_from = 0
        """Position of the log from which on the saved checkpoint needs it; 0 as long as that is not known."""
        self._is_certain = False
        """True if the device has `head`; if not, what was to be saved after it may be there in its place.

        That is not known of what a process before has left, so the first save writes the file anew.
        """

    @property
    def exists(self) -> bool:
        """True if there is a file."""
        return self._disk.exists(self._path)

    @property
    def size_bytes(self) -> int:
        """Size of the file; 0 if it is to be written anew."""
        return 0 if self._frames is None else self._frames.end

    def load(self, log: CommitLog) -> Checkpoint:
        """Load the file for a core that begins with it: what is saved from now on is what changes from there.

        In a new folder there is none; then all that is there counts as synced.

        Args:
            log: what the checkpoint is of.

        Raises:
            CorruptDataError: it is damaged, or lost.
            UnknownFormatError: it was written by a release that this one does not know.
        """
        self._is_behind = False
        if self.exists:
            return self._read()
        if log.start_position > 0:
            raise CorruptDataError(
                f"the checkpoint file is lost, and the log begins at {log.start_position}: what was before it "
                "(progress of queues and groups, names) is stored nowhere else. Restore the file from a backup; "
                "or give this replica an empty volume, if another one of its group has everything"
            )
        # The first checkpoint is written before the first message, so without one nothing may be cut off.
        self.head = Checkpoint(store=StoreCheckpoint(synced_position=log.end_position))
        return self.head

    def _read(self) -> Checkpoint:
        file = self._disk.open(self._path)
        try:
            reader = CheckpointReader(file.read(0, file.size()))
        finally:
            file.close()
        for _ in reader.steps():
            pass
        self.head = reader.checkpoint.head
        self._frames = reader.frames if self._is_certain else None
        self._whole_end = self.size_bytes
        return reader.checkpoint

    async def save(self, core: BrokerCore, epochs: LogEpochs, until_safe: Callable[[], Awaitable[None]]) -> None:
        """Save how far a core is, if it can be saved now; nothing else saves, cuts the log or makes the core anew
        meanwhile (see `ReplicaStore`).

        Raises:
            OSError: the device refused; for good, if queues could not be synced.
        """
        if not core.is_loaded:
            return
        whole = self._new_file() if self._is_outgrown else None
        try:
            if whole is not None:
                # What changes from here on follows behind all that is there, so it is all of one moment in the end.
                self._is_behind = True
                core.take_changes()
                await whole.add(core.rows())
            await self._save(core, epochs, until_safe, whole)
        finally:
            if whole is not None:
                whole.close()

    @property
    def _is_outgrown(self) -> bool:
        if self._frames is None or self._is_behind:
            return True
        return self._frames.end - self._whole_end > max(self._changes_bytes_min, self._whole_end - BEGIN)

    async def _save(
        self,
        core: BrokerCore,
        epochs: LogEpochs,
        until_safe: Callable[[], Awaitable[None]],
        whole: "_NewFile | None",
    ) -> None:
        try:
            needed = await core.store.reads.run(core.expiry.needed_from)
        except CorruptDataError:
            needed = self.needed_from  # the deletion of segments reports it
        self._is_behind = True  # until this is saved
        changes = core.checkpoint()
        position = changes.head.store.position
        needed = position if needed is None else min(needed, position)
        self.needed_from = min(self.needed_from, needed)  # until this is saved the device may have either
        await to_its_end(self._write_index(core.store))
        try:
            await until_safe()
        except OSError as error:
            self._on_failure(error)
            raise
        await epochs.save()  # a restart reads on behind where they began
        head = core.synced(changes.head)
        # By this a file of epochs is known that is older than what the checkpoint covers.
        head = replace(head, store=replace(head.store, epoch=max(1, epochs.history.last_epoch(position))))
        if whole is None:
            await to_its_end(self._append(changes.rows(), head))
        else:
            await whole.add(changes.rows())
            await to_its_end(self._replace(whole, head))
        self._is_behind = False
        self.needed_from = needed
        await core.store.index.merge(position)

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
        whole = self._new_file()
        try:
            await whole.add(checkpoint.rows())
            await to_its_end(self._replace(whole, checkpoint.head))
        finally:
            whole.close()

    async def amend(self, head: Checkpoint) -> None:
        """Change the head of the last save. Raises as `write` does."""
        await to_its_end(self._append((), head))

    async def ascertain(self) -> None:
        """Have the device hold for certain what `head` says. Raises as `write` and `load` do."""
        if not self._is_certain:
            await self.write(self._read() if self.exists else self.head)

    async def _append(self, rows: Iterable[Row], head: Checkpoint) -> None:
        frames, self._frames = self._frames, None  # unless all goes well
        if frames is None:
            there = self._read()
            await self.write(replace(there, store=replace(head.store, queues=there.store.queues)))
            return
        self._is_certain = False
        file = self._disk.open(self._path)
        try:
            begin = frames.end
            if file.size() > begin:
                file.truncate(begin)  # a save that never finished
            await _write_frames(file, frames, rows)
            _write_last(file, frames, head)
            await file.sync()
            self._slot = (self._slot + 1) % SLOTS
            file.write(self._slot * SLOT_BYTES, [checkpoint_file.slot(frames.end)])
            await file.sync()
        finally:
            file.close()
        self._frames, self.head, self._is_certain = frames, head, True

    def _new_file(self) -> "_NewFile":
        return _NewFile(self._disk, self._path.with_name(self._path.name + ".new"))

    async def _replace(self, whole: "_NewFile", head: Checkpoint) -> None:
        self._frames, self._is_certain = None, False
        await whole.finish(head)
        self._disk.replace(whole.path, self._path)
        await self._disk.sync_folder(self._path.parent)
        self._frames, self.head, self._is_certain = whole.frames, head, True
        self._whole_end = whole.frames.end

    def parts(self) -> Iterator[bytes]:
        """Yield the last saved file, in parts, for a follower without a log.

        Raises:
            CorruptDataError: it is damaged.
        """
        if self._frames is None:
            yield checkpoint_file.encode(self._read())
            return
        at, end = BEGIN, self._frames.end
        file = self._disk.open(self._path)  # what is written in its place meanwhile is another file
        try:
            yield checkpoint_file.slot(end) * SLOTS
            while at < end:
                yield file.read(at, min(_PART_BYTES, end - at))
                at += _PART_BYTES
        finally:
            file.close()


class _NewFile:
    """A file that is written anew, to take the place of the one that is there.

    Args:
        disk: where it is.
        path: its name until then.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self.frames = CheckpointFrames()
        self._file = disk.open(path)
        self._file.truncate(0)

    async def add(self, rows: Iterable[Row]) -> None:
        """Write rows, some at a time, so that other tasks run meanwhile. Raises OSError."""
        await _write_frames(self._file, self.frames, rows)

    async def finish(self, head: Checkpoint) -> None:
        """Write what makes it valid, and bring it to the device. Raises OSError."""
        _write_last(self._file, self.frames, head)
        self._file.write(0, [checkpoint_file.slot(self.frames.end) * SLOTS])
        await self._file.sync()

    def close(self) -> None:
        """Close it."""
        self._file.close()


async def _write_frames(file: File, frames: CheckpointFrames, rows: Iterable[Row]) -> None:
    at = frames.end
    for frame in frames.of(rows):
        file.write(at, [frame])
        at = frames.end
        await asyncio.sleep(0)


def _write_last(file: File, frames: CheckpointFrames, head: Checkpoint) -> None:
    at = frames.end
    file.write(at, [frames.last(head)])
