"""Chunks that are lost, repeated, late or damaged; epochs that end, logs that part, records that rot."""

import asyncio

import pytest

from popwheel_common.pb.popwheel.v1.broker_pb2 import LogChunk
from tests.unit.broker.replica.memory_log import damaged_at
from tests.unit.broker.replica.replicas import World, in_world

KIB = 1024


def test_chunks_that_come_twice_are_passed_over() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        world.link(1, 0).on_chunk = lambda chunk: [chunk, chunk]
        master.write(20)
        await world.until_equal()
        assert world.replicas[1].statistics.repeated_bytes > 0
        assert world.link(1, 0).opened == 1

    in_world(story)


def test_a_chunk_that_is_lost_or_late_has_the_stream_begin_again() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        link = world.link(1, 0)
        lost = 0

        def lose_some(chunk: LogChunk) -> list[LogChunk]:
            nonlocal lost
            if chunk.data and lost < 3:
                lost += 1
                return []
            return [chunk]

        link.on_chunk = lose_some
        for _ in range(100):
            master.write(3, b"z" * KIB)
            await asyncio.sleep(0.01)
        await world.until_equal()
        assert lost == 3
        assert link.opened > 1
        assert master.statistics.resent_bytes > 0

    in_world(story, coalesce_bytes=1, window_bytes=64 * KIB, chunk_bytes=4 * KIB, joining_bytes=32 * KIB)


def test_a_lost_chunk_with_nothing_behind_it_is_noticed_too() -> None:
    """The slave's word that it is there still says where its log ends."""

    async def story(world: World) -> None:
        master = await world.begin()
        lost: list[LogChunk] = []

        def lose_one(chunk: LogChunk) -> list[LogChunk]:
            if chunk.data and not lost:
                lost.append(chunk)
                return []
            return [chunk]

        world.link(1, 0).on_chunk = lose_one
        master.write()
        await world.until_equal(3000)

    in_world(story)


def test_damage_on_the_way_is_never_stored() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        damaged = 0

        def damage_some(chunk: LogChunk) -> list[LogChunk]:
            nonlocal damaged
            if not chunk.data or damaged >= 3:
                return [chunk]
            damaged += 1
            changed = LogChunk()
            changed.CopyFrom(chunk)
            data = bytearray(chunk.data)
            data[len(data) // 2] ^= 1
            changed.data = bytes(data)
            return [changed]

        world.link(1, 0).on_chunk = damage_some
        master.write(20)
        await world.until_equal()
        assert world.replicas[1].statistics.checks_failed == 3

    in_world(story)


def test_words_of_another_epoch_are_not_taken() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        end = master.log.end_position

        def other_epoch(chunk: LogChunk) -> list[LogChunk]:
            changed = LogChunk()
            changed.CopyFrom(chunk)
            changed.epoch = 7
            return [changed]

        world.link(1, 0).on_chunk = other_epoch
        master.write()
        await asyncio.sleep(5)
        slave = world.replicas[1]
        assert slave.log.end_position == end
        assert world.link(1, 0).opened > 2
        world.link(1, 0).on_chunk = None
        await world.until_equal()

    in_world(story)


def test_a_master_that_restarts_is_followed_again() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        master.write(10)
        world.link(1, 0).up = False
        await master.stop()
        await asyncio.sleep(1)
        world.link(1, 0).up = True
        state = world.controller.elect(0)
        master.lead(state)
        await asyncio.sleep(2)
        slave = world.replicas[1]
        assert slave.slave is not None
        assert not slave.slave.is_connected, "it follows the epoch before still, and is refused"
        await slave.slave.stop()
        slave.follow(0, state.epoch)
        master.write(10)
        await world.until_equal()
        assert [each.epoch for each in slave.log.epochs] == [1, 2]

    in_world(story)


def test_after_a_failover_the_old_master_drops_what_it_alone_had() -> None:
    async def story(world: World) -> None:
        old = await world.begin()
        new = world.replicas[1]
        old.write(5)
        await world.until_equal()
        same = old.log.end_position
        world.link(1, 0).hold()
        old.write(7)
        assert old.members is not None
        assert old.members.high_watermark == same
        await new.stop()
        await old.stop()
        state = world.controller.elect(1)
        new.lead(state)
        new.write(3)
        old.follow(1, state.epoch)
        await world.until_equal()
        assert old.log.cuts == [same]
        assert old.statistics.cut_bytes == 7 * (len(new.log.data) - same) // 3
        assert old.log.outline() == new.log.outline()
        assert old.log.folded == new.log.folded

    in_world(story)


def test_a_slave_that_is_too_old_begins_anew() -> None:
    async def story(world: World) -> None:
        master = world.replicas[0]
        master.lead(world.controller.state)
        master.write(50)
        await master.log.delete_before(master.log.positions()[20])
        master.log.checkpoint = bytes(range(256)) * 10_000
        world.replicas[1].follow(0, 1)
        await world.until(lambda: master.members.members == {0, 1})  # type: ignore[union-attr]
        slave = world.replicas[1].log
        assert slave.installed == [master.log.checkpoint]
        assert slave.outline() == master.log.outline()
        assert master.statistics.checkpoints_sent == world.replicas[1].statistics.checkpoints_taken == 1
        world.link(1, 0).break_off()
        master.write(3)
        await world.until_equal()
        assert len(slave.installed) == 1

    in_world(story)


def test_a_log_that_is_deleted_under_a_slave_that_catches_up_has_it_begin_anew() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        world.link(1, 0).hold()
        master.write(500, b"z" * KIB)
        await world.until(lambda: master.members.members == {0})  # type: ignore[union-attr]
        await master.log.delete_before(master.log.positions()[300])
        world.link(1, 0).release()
        await world.until(lambda: bool(world.replicas[1].log.installed))
        await world.until_equal()
        assert world.link(1, 0).opened == 2

    in_world(
        story,
        chunk_bytes=16 * KIB,
        window_bytes=64 * KIB,
        joining_bytes=32 * KIB,
        lag_ms_max=500,
        silence_ms_max=60_000,
    )


@pytest.mark.parametrize("anew", [False, True])
def test_who_stops_in_the_middle_of_a_cut_or_of_beginning_anew_ends_it_first(anew: bool) -> None:
    async def story(world: World) -> None:
        master, slave = world.replicas
        slave.log.epochs.begin(1, 0)
        slave.log.write(5)
        master.lead(world.controller.elect(0))
        master.write(3)
        if anew:
            await master.log.delete_before(master.log.positions()[1])
        slave.log.changes_go_on.clear()
        slave.follow(0, 2)
        await world.until(lambda: bool(slave.log.cuts or slave.log.installed))
        await asyncio.sleep(5)
        assert world.link(1, 0).opened == 1, "it takes as long as it takes"
        stopping = asyncio.create_task(slave.stop())
        await asyncio.sleep(5)
        assert not stopping.done()
        slave.log.changes_go_on.set()
        await stopping
        assert slave.log.end_position == (master.log.start_position if anew else 0)
        slave.follow(0, 2)
        await world.until(lambda: slave.log.outline() == master.log.outline())
        assert len(slave.log.cuts) + len(slave.log.installed) == 1

    in_world(story)


def test_a_record_that_is_damaged_at_the_master_is_repaired_from_a_slave() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        world.replicas[2].log.full = True
        master.write(10)
        await world.until(lambda: world.replicas[1].log.synced_position == master.log.end_position)
        position = master.log.positions()[4]
        master.log.damage(position)
        world.replicas[2].log.full = False
        await world.until_equal()
        assert master.log.mended == [position]
        assert master.statistics.repaired_records == 1
        assert not damaged_at(master.log, position)

    in_world(story, 3)


def test_a_record_that_nobody_has_is_never_sent() -> None:
    async def story(world: World) -> None:
        master = world.replicas[0]
        master.lead(world.controller.state)
        master.write(10)
        position = master.log.positions()[4]
        master.log.damage(position)
        world.replicas[1].follow(0, 1)
        await asyncio.sleep(30)
        assert world.replicas[1].log.end_position == position
        assert master.statistics.irreparable >= 1
        assert master.members is not None and master.members.members == {0}

    in_world(story)


def test_what_rots_at_a_slave_before_it_is_folded_is_repaired_from_the_master() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        slave = world.replicas[1]
        slave.log.syncs_go_on.clear()
        master.write(5)
        await world.until(lambda: slave.log.end_position == master.log.end_position)
        position = slave.log.positions()[0]
        slave.log.damage(position)
        slave.log.syncs_go_on.set()
        await world.until_equal()
        assert slave.log.mended == [position]
        assert not slave.failures

    in_world(story)
