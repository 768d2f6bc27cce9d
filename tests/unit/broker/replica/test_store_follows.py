"""The real store as a slave's log: over bad links, through power losses and rot, it becomes what its master's is."""

import asyncio
import itertools
import random
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.log_receiver import Slave
from popwheel_broker.replication.metrics import ReplicationCollector
from popwheel_broker.replication.repair import Repairer
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_broker.replication.replication_slave import ReplicationSlave
from popwheel_common.contract.cluster_view import ClusterView
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.replica.replicas import GROUP, KnownPeers, World
from tests.unit.broker.world import with_small_timer

FOLDER = Path("/slave")
OPTIONS = with_small_timer(BrokerOptions.model_validate({"log": {"segment_bytes": 16_384, "index_entries_max": 64}}))


async def test_what_cannot_be_folded_later_is_reported() -> None:
    world = World(ManualClock(), 2)
    slave = StoreSlave(world, MemoryDisk(random.Random(1)))

    calls = itertools.count()

    def does_not_fit_later() -> bool:
        if next(calls):
            raise ValueError("it does not fit")
        return True

    slave.files._fold._fold_some = does_not_fit_later  # type: ignore[method-assign]
    slave.files.commit(0)
    async with asyncio.timeout(5.0):
        while not slave.failures:
            await asyncio.sleep(0)
    assert [str(error) for error in slave.failures] == ["it does not fit"]
    slave.files.close()


class StoreSlave:
    """Replica 1, with files."""

    def __init__(self, world: World, disk: MemoryDisk) -> None:
        self.world = world
        self.disk = disk
        self.failures: list[Exception] = []
        disk.make_folder(FOLDER)
        self.files = ReplicaStore(disk, FOLDER, world.clock, self._make_core, self.failures.append, 1024, lambda: None)
        self.slave: ReplicationSlave | None = None
        self.statistics = world.replicas[1].statistics
        self.repairer = Repairer(
            GROUP, self.files, KnownPeers(lambda: [(0, world.link(1, 0).channel())]), 100, world.clock, self.statistics
        )

    def _make_core(self, log: CommitLog | None) -> BrokerCore:
        return BrokerCore(
            OPTIONS,
            self.disk,
            FOLDER,
            self.world.clock,
            random.Random(1),
            ClusterView(),
            lambda topic, late_ms: None,
            log,
        )

    async def start(self, epoch: int) -> None:
        await self.files.superblock.load(self.files.log, random.Random(1))
        await self.files.start(alone=False, repair=self.repairer.repair, is_nowhere=self.repairer.is_nowhere)
        slave = Slave(
            *(GROUP, 1, b"identity", epoch, self.files, self.world.constants),
            *(self.world.clock, self.statistics, self.repairer.repair, self.failures.append),
        )
        self.slave = ReplicationSlave(slave, self.world.link(1, 0).channel)
        self.slave.start()

    async def stop(self) -> None:
        assert self.slave is not None
        await self.slave.stop()
        self.files.stop_folding()

    def data(self) -> bytes:
        log = self.files.log
        return b"".join(log.read(start, end - start) for start, end in log.segments())


def rot(disk: MemoryDisk, dice: random.Random) -> None:
    """Let a bit of the log change."""
    folder = FOLDER / "commitlog"
    name = dice.choice(disk.list(folder))
    size = len(disk.files()[folder / name])
    if size:
        disk.flip_bit(folder / name, dice.randrange(8 * size))


async def story(world: World, seed: int, steps: int) -> None:
    dice = random.Random(seed)
    disk = MemoryDisk(dice)
    master, link = world.replicas[0], world.link(1, 0)
    master.lead(world.controller.state)
    slave = StoreSlave(world, disk)
    await slave.start(1)
    for _ in range(steps):
        master.write(dice.randrange(1, 6), b"z" * dice.choice([10, 900, 3000]))
        await asyncio.sleep(dice.choice([0, 0.001, 0.1, 0.6]))
        what = dice.randrange(10)
        if what == 0:
            link.break_off()
        elif what == 1:
            link.hold()
        elif what == 2:
            link.release()
        elif what in (3, 4):
            was_connected = slave.slave is not None and slave.slave.is_connected
            await slave.stop()
            disk.crash("power" if what == 3 else "process")
            if was_connected and dice.random() < 0.5:
                link.release()
                rot(disk, dice)
            slave = StoreSlave(world, disk)
            await slave.start(world.controller.state.epoch)
        elif what == 5:
            await slave.files.save(slave.files.sync)
        elif what == 6:
            # The master crashes, and what it alone had is lost; it leads again.
            assert master.members is not None
            await slave.stop()
            kept = master.members.high_watermark if dice.random() < 0.7 else dice.choice([0, *master.log.positions()])
            await master.stop()
            master.log.cut_off(kept)
            master.log.folded.clear()
            master.log.high_watermark = master.log.start_position
            master.lead(world.controller.elect(0))
            slave.files.close()
            disk.crash("process")
            slave = StoreSlave(world, disk)
            await slave.start(world.controller.state.epoch)
    link.release()
    master.write(3)
    await world.until(
        lambda: slave.files.high_watermark == slave.files.synced_position == master.log.end_position, 60_000
    )
    assert not slave.failures
    assert slave.data() == bytes(master.log.data)
    queue = slave.files.core.store.queue("t", 0)
    assert queue is not None
    entries = [queue.read(offset, 1)[0] for offset in range(queue.max_offset)]
    assert [each.position for each in entries] == master.log.positions()
    await slave.stop()
    slave.files.close()


@given(st.integers(0, 2**32), st.integers(1, 20))
@settings(max_examples=60)
@example(0, 1)
def test_the_store_of_a_slave_becomes_its_masters(seed: int, steps: int) -> None:
    clock = ManualClock()

    async def run() -> None:
        world = World(
            clock, chunk_bytes=8192, window_bytes=16_384, joining_bytes=8192, coalesce_bytes=1000, lag_ms_max=500
        )
        try:
            await story(world, seed, steps)
        finally:
            await world.stop()

    run_virtually(clock, run())


def test_a_good_record_that_does_not_fit_ends_the_broker() -> None:
    """It is not repaired over and over, whoever meets it: the one who confirms, or the fold that goes on by itself."""
    clock = ManualClock()

    async def run() -> None:
        world = World(clock)
        master = world.replicas[0]
        master.lead(world.controller.state)
        slave = StoreSlave(world, MemoryDisk(random.Random(1)))
        await slave.start(1)
        master.write(1)
        await world.until(lambda: slave.files.high_watermark == master.log.end_position)
        position = master.log.end_position
        slave.files.core.store.queues["t", 0].max_offset = 8
        for _ in range(5):
            master.write(1)
            await asyncio.sleep(1)
        assert "which goes on with 8" in str(slave.failures[0])
        assert slave.files.high_watermark == position
        await slave.stop()
        slave.files.close()
        await world.stop()

    run_virtually(clock, run())


def test_metrics_show_both_ends() -> None:
    clock = ManualClock()

    async def run() -> None:
        world = World(clock)
        master = await world.begin()
        slave = world.replicas[1]
        registry, other = CollectorRegistry(), CollectorRegistry()
        ReplicationCollector(registry, master.statistics, lambda: master.master, lambda: None)
        ReplicationCollector(other, slave.statistics, lambda: None, lambda: slave.slave)
        slave.log.syncs_go_on.clear()
        master.write(10)
        await asyncio.sleep(0.5)
        shown = generate_latest(registry).decode()
        size = len(master.log.data)
        for line in (
            f"popwheel_replication_sent_bytes_total {size}.0",
            f'popwheel_replication_lag_bytes{{replica="1"}} {size}.0',
            'popwheel_replication_lag_seconds{replica="1"} 0.5',
            "popwheel_replication_followers 1.0",
            "popwheel_replication_under_way_bytes 0.0",
            "popwheel_replication_unsafe_bytes 0.0",
            "popwheel_replication_connected 0.0",
        ):
            assert line in shown
        shown = generate_latest(other).decode()
        for line in (
            f"popwheel_replication_received_bytes_total {size}.0",
            "popwheel_replication_connected 1.0",
            f"popwheel_replication_behind_bytes {size}.0",
            "popwheel_replication_behind_seconds 0.5",
        ):
            assert line in shown
        slave.log.syncs_go_on.set()
        await world.stop()

    run_virtually(clock, run())
