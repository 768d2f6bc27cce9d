"""The simulated machine's disk: `MemoryDisk` with syncs that take their time."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.memory_disk import MemoryDisk, end_for
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
        super().end_sync(path, inode, changes, life)
