"""The simulated machine's disk: `MemoryDisk` with syncs that take their time."""

import asyncio
import random
from pathlib import Path
from typing import Any

from tests.harness.memory_disk import MemoryDisk
from tests.sim.trace import Trace


class SimDisk(MemoryDisk):
    """A disk that is as slow as it is told to be and notes the syncs it has refused.

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
        self.refused_syncs: list[Path] = []

    def wipe(self) -> None:
        """Another, empty volume is in its place; whoever had files open here must be dead."""
        self._names.clear()
        self._synced_names.clear()
        self._name_changes.clear()
        self._folders.clear()

    async def sync_folder(self, path: Path) -> None:
        life = self.life
        await asyncio.sleep(self._delays.random() * self.sync_s_max)
        self.check_life(life)
        await super().sync_folder(path)

    async def sync_inode(self, path: Path, inode: Any, life: int) -> None:
        """Bring to the device what was written before the call, not what is written while it lasts."""
        changes = inode.changes
        await asyncio.sleep(self._delays.random() * self.sync_s_max)
        self.check_life(life)
        if self._failing_syncs > 0 and self._sync_fails_for(path):
            self.refused_syncs.append(path)
            self._trace.add("disk", "sync refused", path.name)
            await super().sync_inode(path, inode, life)
        inode.sync(changes)
