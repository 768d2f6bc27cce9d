"""A replica's files on a disk in memory, and the log of a master for them."""

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.raw_records import checked_records
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.epochs import EpochStart
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_common.contract.cluster_view import ClusterView
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.world import with_small_timer

FOLDER = Path("/replica")
OPTIONS = with_small_timer(BrokerOptions.model_validate({"log": {"segment_bytes": 4096, "index_entries_max": 64}}))
COUNT = 40


class Store:
    """A replica's files on a disk, and the log of a master of three epochs.

    Args:
        seed: of the disk's faults.
        disk: where the files are; a new one if not given.
    """

    def __init__(self, seed: int = 0, disk: MemoryDisk | None = None) -> None:
        self.disk = MemoryDisk(random.Random(seed)) if disk is None else disk
        self.clock = ManualClock()
        self.failures: list[Exception] = []
        self.make()

    def make(self) -> None:
        self.disk.make_folder(FOLDER)
        self.files = ReplicaStore(
            self.disk, FOLDER, self.clock, self._make_core, self.failures.append, 1024, lambda: None
        )

    def _make_core(self, log: Any) -> BrokerCore:
        return BrokerCore(
            OPTIONS,
            self.disk,
            FOLDER,
            self.clock,
            random.Random(1),
            ClusterView(),
            lambda topic, late_ms: None,
            log,
        )

    async def start(self, *, alone: bool = False) -> None:
        await self.load()
        await self.files.start(alone=alone, repair=no_repair, is_nowhere=no_repair)

    async def load(self) -> None:
        await self.files.superblock.load(self.files.log, random.Random(1))

    async def again(self) -> None:
        """A new process."""
        self.make()
        await self.start()

    async def take(self, data: bytes, confirmed: int = 0) -> None:
        """Append and sync, and fold what is confirmed."""
        self.files.append_raw(self.files.end_position, data)
        await self.files.sync()
        self.files.commit(confirmed)
        while self.files.high_watermark < confirmed:
            await asyncio.sleep(0)

    async def give_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin something, and cancel it while it waits for the device."""
        self.disk.hold_syncs()
        task = asyncio.create_task(work)
        await self.disk.until_stored()
        task.cancel()
        self.disk.release_syncs()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


async def no_repair(position: int) -> bool:
    return False


async def log_of_a_master() -> tuple[bytes, list[int], list[EpochStart]]:
    """Its records, where each stands (the end included), and its epochs."""
    master = Store()
    await master.start(alone=True)
    for epoch in (1, 2, 3):
        await master.files.finish(epoch)
        for number in range(COUNT):
            master.files.core.store.put([Record(RecordKind.MESSAGE, "t", number % 2, b"x" * 100, b"")])
        await master.files.sync()
    log = master.files.log
    data = b"".join(log.read(start, end - start) for start, end in log.segments())
    positions = [found.position for found in checked_records(0, data)]
    return data, [*positions, len(data)], list(master.files.epochs)
