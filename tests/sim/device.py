"""The simulated machine's disk: `MemoryDisk` with syncs that take their time."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from popwheel_common.cold_reads import Range
from popwheel_common.disk import QUICK_SYNC_S
from tests.harness.memory_disk import MemoryDisk, end_for
from tests.sim.trace import Trace


class SimDisk(MemoryDisk):
    """A disk that is as slow as it is asked to be and notes the syncs it has refused.

    Args:
        random_source: of faults and delays.
        trace: told of refused syncs.
    """

    def __init__(self, random_source: random.Random, trace: Trace) -> None:
        super().__init__(random_source)
        self._delays = random_source
        self._trace = trace
        self.sync_s_max = 0.0
        """How long a sync takes at the most."""
        self.read_s_max = 0.0
        """How long the device takes at the most to read what is not in memory."""
        self.lies = False
        """Whether syncs say that all is well, and bring nothing to the device."""
        self.refused_syncs: list[Path] = []

    @property
    def may_refuse(self) -> bool:
        """Whether it is to refuse something yet."""
        return self._failing_writes > 0 or self._failing_syncs > 0

    def make_good(self) -> None:
        """Lie no more: all that was said to be on the device is there."""
        self.lies = False
        for inode in self._names.values():
            inode.sync(inode.changes)
        self._synced_names = dict(self._names)
        self._name_changes.clear()

    def overwrite(self, path: Path, at: int, data: bytes) -> None:
        """Have other bytes in a file, on the device and in what is read."""
        inode = self._names[str(path)]
        for contents in (inode.written, inode.synced):
            end = min(len(contents), at + len(data))
            if at < end:
                contents[at:end] = data[: end - at]

    def put(self, path: Path, contents: bytes | None) -> None:
        """Have another file under a name, or none; whoever had it open here must be dead."""
        name = str(path)
        self._name_changes = [each for each in self._name_changes if name not in (each.made, each.removed)]
        for names in (self._names, self._synced_names):
            names.pop(name, None)
        if contents is not None:
            self.make_folder(path.parent)
            self.open(path).close()
            inode = self._names[name]
            inode.written[:] = inode.synced[:] = contents  # whatever the disk refuses at the moment
            self._used_bytes_most += len(contents)
            self._synced_names[name] = inode

    def wipe(self) -> None:
        """Another, empty volume is in its place; whoever had files open here must be dead."""
        self._names.clear()
        self._synced_names.clear()
        self._name_changes.clear()
        self._folders.clear()

    async def fetch(self, ranges: Sequence[Range]) -> Sequence[bytes]:
        await asyncio.sleep(self._delays.random() * self.read_s_max)
        return self.read_ranges(ranges)

    @property
    def is_quick(self) -> bool:
        """As quick as it happens to be: it does within its virtual time what a machine's loop waits for."""
        return self._delays.random() * max(self.sync_s_max, 2 * QUICK_SYNC_S) <= QUICK_SYNC_S

    async def _through(self, sync: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        synced: asyncio.Future[None] = loop.create_future()
        # A callback of the process that has called: dead or paused, it does not come to it.
        loop.call_later(self._delays.random() * self.sync_s_max, end_for, synced, sync)
        await synced

    def end_sync(self, path: Path, inode: Any, changes: int, life: int) -> None:
        if self._failing_syncs > 0 and self._sync_fails_for(path) and life == self.life:
            self.refused_syncs.append(path)
            self._trace.add("disk", "sync refused", path.name)
        if not self.lies:
            super().end_sync(path, inode, changes, life)

    def end_folder_sync(self, begun: Sequence[Any], life: int) -> None:
        if not self.lies:
            super().end_folder_sync(begun, life)
