"""The file `mastercheckpoint`: a slave writes the master's progress down before it says that it has it."""

import asyncio
from pathlib import Path

from popwheel_broker.replication import master_checkpoint
from popwheel_broker.replication.master_checkpoint import MasterCheckpoint
from popwheel_common.disk import Disk, File, to_its_end
from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaCheckpoint

NAME = "mastercheckpoint"

_APPENDED_BYTES_MIN = 256 * 1024
_ENTRIES_PER_BLOCK = 2000


class MasterCheckpointFile:
    """Holds the master's progress, in memory and on the device.

    Differences are appended; once more was appended than the whole takes, the file is written anew.

    Args:
        disk: where the file is.
        folder: its folder.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._path = folder / NAME
        self._storing = asyncio.Lock()
        self._whole_bytes = 0
        self._bytes = 0
        """0: the file is to be written anew."""
        self.checkpoint = MasterCheckpoint()

    @property
    def size_bytes(self) -> int:
        """Size of the file, in bytes."""
        return self._bytes

    def load(self) -> None:
        """Take up what the file holds, as far as it is whole.

        Raises:
            UnknownFormatError: it was written by a release that this one does not know.
        """
        if not self._disk.exists(self._path):
            return
        file = self._disk.open(self._path)
        try:
            size = file.size()
            found, self._bytes = master_checkpoint.decode(file.read(0, size))
        finally:
            file.close()
        for each in found:
            self.checkpoint.take(each)
        self._whole_bytes = self._bytes
        if self._bytes < size:
            self._bytes = 0  # nothing may be appended behind what is damaged

    async def store(self, given: ReplicaCheckpoint) -> bool:
        """Store a checkpoint; it is on the device when this returns. Return False if it was stored before.

        Once begun it runs to its end, whoever waits.

        Raises:
            StatusError: it is refused (`MasterCheckpoint.check`); nothing was changed.
            OSError: the device refused; the earlier checkpoint is unchanged.
        """
        async with self._storing:
            self.checkpoint.check(given)
            if self.checkpoint.is_applied(given):
                return False
            await to_its_end(self._write(given))
            return True

    async def _write(self, given: ReplicaCheckpoint) -> None:
        block = master_checkpoint.encode(given)
        appended = self._bytes - self._whole_bytes
        if self._bytes and given.base_version and appended < max(self._whole_bytes, _APPENDED_BYTES_MIN):
            await self._append(block)
        elif not given.base_version:
            await self._replace([block])
        else:
            await self._write_anew(block)
        self.checkpoint.take(given)

    async def _append(self, block: bytes) -> None:
        at, self._bytes = self._bytes, 0  # unless all goes well
        file = self._disk.open(self._path)
        try:
            file.write(at, [block])
            await file.sync()
        finally:
            file.close()
        self._bytes = at + len(block)

    async def _write_anew(self, block: bytes) -> None:
        """Write the whole checkpoint, and a difference behind it."""
        blocks: list[bytes] = []
        for part in self.checkpoint.parts(_ENTRIES_PER_BLOCK):
            blocks.append(master_checkpoint.encode(part))
            await asyncio.sleep(0)
        await self._replace([*blocks, block])

    async def _replace(self, blocks: list[bytes]) -> None:
        new = self._path.with_name(self._path.name + ".new")
        file: File = self._disk.open(new)
        try:
            file.truncate(0)
            file.write(0, blocks)
            await file.sync()
        finally:
            file.close()
        self._disk.replace(new, self._path)
        await self._disk.sync_folder(self._path.parent)
        self._bytes = self._whole_bytes = sum(map(len, blocks))
