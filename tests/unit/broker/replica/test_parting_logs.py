"""Whatever the replicas went through before: who follows ends up with its master's log (S4), and nothing acked is lost.

Epoch after epoch another replica is elected from the sync-state set; links break, hold up, repeat and damage; power
fails. The rules of the election are those of the controller: only from the set, the most complete log.
"""

import asyncio
import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from popwheel_broker.log.record import HEADER_BYTES
from popwheel_broker.replication.sync_state_set import SyncStateSet
from popwheel_common.pb.popwheel.v1.broker_pb2 import LogChunk
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.broker.replica.memory_log import common_prefix
from tests.unit.broker.replica.replicas import Replica, World

COUNT = 3


class Story:
    """One run, with everything drawn from one random source."""

    def __init__(self, seed: int, epochs: int) -> None:
        self.random = random.Random(seed)
        self.epochs = epochs
        self.clock = ManualClock()
        self.acknowledged = b""

    async def run(self) -> None:
        self.world = world = World(
            self.clock,
            COUNT,
            chunk_bytes=4096,
            coalesce_bytes=self.random.choice([1, 500, 4096]),
            window_bytes=16_384,
            joining_bytes=8192,
            unsynced_bytes_max=self.random.choice([4096, 100_000]),
            lag_ms_max=self.random.choice([200, 1000]),
        )
        try:
            state = world.controller.state
            for _ in range(self.epochs):
                await self.epoch(state.master, state.epoch)
                state = self.elect()
            await self.heal(state.master, state.epoch)
        finally:
            await world.stop()

    async def epoch(self, master: int, epoch: int) -> None:
        world, dice = self.world, self.random
        leading = world.replicas[master]
        leading.lead(world.controller.state)
        others = [each for each in world.replicas if each is not leading]
        for each in others:
            if dice.random() < 0.8:
                each.follow(master, epoch)
        for _ in range(dice.randrange(12)):
            leading.write(dice.randrange(1, 8), b"z" * dice.choice([10, 500, 3000]), synced=dice.random() < 0.7)
            await asyncio.sleep(dice.choice([0, 0, 0.001, 0.01, 0.3]))
            self.mishap(dice.choice(others), master)
            self.note_acknowledged(leading)
        self.note_acknowledged(leading)
        await world.stop_replicas()
        self.note_acknowledged_state(leading)
        for each in world.replicas:
            assert not each.failures
            if dice.random() < 0.3:
                each.log.power_loss()

    def mishap(self, slave: Replica, master: int) -> None:
        link, dice = self.world.link(slave.number, master), self.random
        what = dice.randrange(8)
        if what == 0:
            link.break_off()
        elif what == 1:
            link.hold()
        elif what == 2:
            link.release()
        elif what == 3:
            slave.log.syncs_go_on.clear()
        elif what == 4:
            slave.log.syncs_go_on.set()
        elif what == 5:
            link.on_chunk = self.mangle
        elif what == 6:
            link.on_chunk = None

    def mangle(self, chunk: LogChunk) -> list[LogChunk]:
        what = self.random.randrange(6)
        if what == 0:
            return []
        if what == 1:
            return [chunk, chunk]
        if what == 2 and chunk.data:
            changed = LogChunk()
            changed.CopyFrom(chunk)
            data = bytearray(chunk.data)
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            changed.data = bytes(data)
            return [changed]
        return [chunk]

    def note_acknowledged(self, leading: Replica) -> None:
        members = leading.members
        assert isinstance(members, SyncStateSet)
        acknowledged = bytes(leading.log.data[: members.high_watermark])
        assert acknowledged.startswith(self.acknowledged)
        self.acknowledged = acknowledged

    def note_acknowledged_state(self, leading: Replica) -> None:
        for number in self.world.controller.state.sync_state_set:
            assert bytes(self.world.replicas[number].log.data).startswith(self.acknowledged), number

    def elect(self) -> BrokerGroup:
        replicas = [self.world.replicas[number] for number in self.world.controller.state.sync_state_set]
        living = [each for each in replicas if self.random.random() < 0.7] or replicas
        best = max(living, key=lambda each: (each.log.epochs.last_epoch(each.log.end_position), each.log.end_position))
        return self.world.controller.elect(best.number)

    async def heal(self, master: int, epoch: int) -> None:
        world = self.world
        world.heal_links()
        leading = world.replicas[master]
        assert bytes(leading.log.data).startswith(self.acknowledged)
        leading.lead(world.controller.state)
        before = {each.number: (common_prefix(each.log, leading.log), len(each.log.cuts)) for each in world.replicas}
        for each in world.replicas:
            each.log.syncs_go_on.set()
            if each is not leading:
                each.follow(master, epoch)
        leading.write(2)
        await world.until_equal(30_000)
        for each in world.replicas:
            assert each.log.outline() == leading.log.outline()
            assert each.log.folded == leading.log.positions()
            same, cuts = before[each.number]
            # Two different records may begin with the same few bytes.
            assert all(cut <= same < cut + HEADER_BYTES for cut in each.log.cuts[cuts:])
        await world.until(lambda: set(world.controller.state.sync_state_set) == set(range(COUNT)))


@given(st.integers(0, 2**32), st.integers(1, 5))
@settings(max_examples=60)
@example(0, 1)
def test_who_follows_gets_its_masters_log_and_nothing_acknowledged_is_lost(seed: int, epochs: int) -> None:
    story = Story(seed, epochs)
    run_virtually(story.clock, story.run())
