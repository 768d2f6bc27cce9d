"""Master and slaves over links that lose, hold up, repeat and damage; in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.broker.replica.statistics import ReplicationStatistics
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.broker_pb2 import EpochStart, LogChunk, ReplicateProgress
from services.common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from services.rpc.local import LocalChannel
from services.rpc.methods import REPLICATE
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.broker.replica.memory_log import damaged_at
from tests.unit.broker.replica.replicas import GROUP, World

KIB = 1024


def in_world(work: Callable[[World], Awaitable[None]], count: int = 2, **options: Any) -> None:
    """Run a story in virtual time, in a world of its own."""
    clock = ManualClock()

    async def story() -> None:
        world = World(clock, count, **options)
        try:
            async with asyncio.timeout(3600):
                await work(world)
        finally:
            await world.stop()

    run_virtually(clock, story())


def test_a_slave_follows_joins_the_set_and_holds_what_is_acknowledged() -> None:
    async def story(world: World) -> None:
        master = world.replicas[0]
        master.lead(world.controller.state)
        end = master.write(10)
        assert master.members is not None
        assert master.members.confirmed_position == end
        world.replicas[1].follow(0, 1)
        await world.until(lambda: master.members is not None and master.members.members == {0, 1}, 200)
        assert master.followed == 1
        end = master.write()
        assert master.members.held_position < end
        await world.until_equal(200)
        assert master.members.confirmed_position == master.members.held_position == end
        assert master.master is not None
        assert [(lag.replica, lag.behind_bytes, lag.behind_ms) for lag in master.master.lags()] == [(1, 0, 0)]
        slave = world.replicas[1]
        assert slave.log.outline() == master.log.outline()
        assert slave.log.folded == master.log.positions()
        assert slave.slave is not None
        assert slave.slave.is_connected
        assert (slave.slave.behind_bytes, slave.slave.behind_ms) == (0, 0)

    in_world(story)


def test_what_is_appended_goes_at_once() -> None:
    """No timer stands between an append and its acknowledgement."""

    async def story(world: World) -> None:
        master = await world.begin()
        await asyncio.sleep(5)
        now_s = world.clock.monotonic()
        end = master.write()
        while master.members is None or master.members.confirmed_position < end:
            assert world.clock.monotonic() == now_s
            await asyncio.sleep(0)

    in_world(story)


def test_received_is_reported_before_it_is_synced_and_chunks_come_during_a_sync() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        slave = world.replicas[1]
        before = master.log.end_position
        slave.log.syncs_go_on.clear()
        for _ in range(5):
            end = master.write()
            await world.until(lambda end=end: master.members.held_position == end, 50)  # type: ignore[union-attr,misc]
        assert master.members is not None
        assert master.members.confirmed_position == before
        assert slave.log.confirmed_position == before, "a slave folds no further than what is confirmed"
        syncs = slave.log.syncs
        slave.log.syncs_go_on.set()
        await world.until_equal()
        assert slave.log.syncs <= syncs + 1, "one sync for all that came during the last"

    in_world(story)


def test_small_appends_go_together_while_a_piece_is_under_way() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        before = master.statistics.sent_chunks
        for _ in range(100):
            master.write()
        await world.until_equal()
        assert master.statistics.sent_chunks - before <= 2

    in_world(story)


def test_a_slave_catches_up_with_much_in_pieces() -> None:
    async def story(world: World) -> None:
        master = world.replicas[0]
        master.lead(world.controller.state)
        master.write(300, b"z" * 1000)
        world.replicas[1].follow(0, 1)
        await world.until_equal()
        assert master.statistics.sent_chunks >= 300 * KIB // (16 * KIB)

    in_world(story, chunk_bytes=16 * KIB, coalesce_bytes=4 * KIB, window_bytes=64 * KIB, joining_bytes=32 * KIB)


def test_a_record_larger_than_chunk_and_window_goes_through() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        master.write(1, b"z" * 100 * KIB)
        master.write(3, b"z" * 10 * KIB)
        await world.until_equal()

    in_world(story, chunk_bytes=8 * KIB, window_bytes=16 * KIB, joining_bytes=8 * KIB)


def test_a_slave_that_takes_nothing_has_no_more_than_the_window_under_way_and_holds_up_no_other() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        world.link(2, 0).hold()
        for _ in range(200):
            end = master.write(1, b"z" * KIB)
            await world.until(lambda end=end: world.replicas[1].log.synced_position == end)  # type: ignore[misc]
        assert master.statistics.sent_bytes - end <= 64 * KIB + 2 * KIB
        assert master.statistics.window_waits == 1
        assert master.members is not None
        await world.until(lambda: master.members.members == {0, 1}, 5000)  # type: ignore[union-attr]
        assert master.members.confirmed_position == end
        world.link(2, 0).release()
        await world.until_equal()
        await world.until(lambda: master.members.members == {0, 1, 2})  # type: ignore[union-attr]

    in_world(story, 3, chunk_bytes=16 * KIB, window_bytes=64 * KIB, joining_bytes=32 * KIB, coalesce_bytes=8 * KIB)


def test_a_slave_with_a_slow_device_takes_no_more_than_it_may_leave_unsynced() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        slave = world.replicas[1]
        slave.log.syncs_go_on.clear()
        before = slave.log.end_position
        for _ in range(100):
            master.write(1, b"z" * KIB)
            await asyncio.sleep(0.001)
        await asyncio.sleep(2.5)  # nothing may be taken for silence meanwhile
        assert slave.log.end_position - before <= 16 * KIB + 8 * KIB + 2 * KIB
        assert slave.statistics.sync_waits == 1
        assert slave.statistics.streams_broken == 0
        slave.log.syncs_go_on.set()
        await world.until_equal()

    in_world(
        story,
        unsynced_bytes_max=16 * KIB,
        chunk_bytes=4 * KIB,
        window_bytes=8 * KIB,
        joining_bytes=8 * KIB,
        lag_ms_max=99_000,
    )


def test_a_broken_stream_comes_back_before_it_costs_the_membership() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        for _ in range(5):
            master.write(3)
            world.link(1, 0).break_off()
            master.write(3)
            await world.until_equal(400)
        assert len(world.controller.asked) == 1
        assert world.link(1, 0).opened == 6
        assert world.replicas[1].statistics.streams_broken == 5

    in_world(story)


def test_a_slave_that_is_gone_leaves_the_set_after_half_a_second_and_sends_go_on() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        await world.replicas[1].stop()
        end = master.write()
        assert master.members is not None
        await asyncio.sleep(0.45)
        assert master.members.confirmed_position < end
        await world.until(lambda: master.members.confirmed_position == end, 300)  # type: ignore[union-attr]
        assert list(world.controller.state.sync_state_set) == [0]
        world.replicas[1].follow(0, 1)
        await world.until_equal()
        await world.until(lambda: master.members.members == {0, 1})  # type: ignore[union-attr]

    in_world(story)


def test_without_a_controller_a_silent_member_stops_acknowledging() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        world.controller.reachable = False
        await world.replicas[1].stop()
        end = master.write()
        await asyncio.sleep(60)
        assert master.members is not None
        assert master.members.confirmed_position < end
        world.controller.reachable = True
        await world.until(lambda: master.members.confirmed_position == end, 1000)  # type: ignore[union-attr]

    in_world(story)


def test_a_change_whose_answer_was_lost_is_asked_for_again() -> None:
    async def story(world: World) -> None:
        master = world.replicas[0]
        master.lead(world.controller.state)
        world.controller.lose_answers = 1
        world.replicas[1].follow(0, 1)
        await world.until(lambda: len(world.controller.asked) == 2)
        assert [each.version for each in world.controller.asked] == [1, 1]
        assert master.members is not None
        end = master.write()
        await world.until_equal()
        # Refused the second time, so only the registration stream can tell.
        state = world.controller.state
        master.members.decided(state.version, state.sync_state_set, world.clock.steady_ms())
        assert master.members.members == {0, 1}
        assert master.members.confirmed_position == end

    in_world(story)


def test_another_volume_than_the_recorded_one_counts_for_nothing() -> None:
    """Two processes claim one number: what the one has must not make the other one a member of the set."""

    async def story(world: World) -> None:
        master = await world.begin()
        assert master.master is not None and master.members is not None
        controller = world.controller
        await world.until(lambda: master.members.members == {0, 1})  # type: ignore[union-attr]
        for identity, members in ((b"another", {0}), (b"identity", {0, 1})):
            state = BrokerGroup()
            state.CopyFrom(controller.state)
            state.version += 1
            del state.sync_state_set[:], state.replicas[:]
            state.sync_state_set.append(0)
            state.replicas.add(number=1, address="replica-1:1", identity=identity)
            controller.state = state
            master.master.decided(state)
            master.write()
            await asyncio.sleep(5)
            assert master.members.members == members

    in_world(story)


def test_a_half_open_link_is_noticed_at_both_ends() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        slave = world.replicas[1]
        assert slave.slave is not None and master.master is not None
        world.link(1, 0).hold()
        await world.until(lambda: not slave.slave.is_connected, 2600)  # type: ignore[union-attr]
        await world.until(lambda: master.master.followers == 0, 1000)  # type: ignore[union-attr]
        assert slave.slave.behind_ms >= 1000
        await world.until(lambda: master.members.members == {0}, 1000)  # type: ignore[union-attr]
        master.write()
        world.link(1, 0).release()
        await world.until_equal()
        await world.until(lambda: master.members.members == {0, 1})  # type: ignore[union-attr]

    in_world(story)


def test_idle_replicas_stay_connected() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        await asyncio.sleep(300)
        assert world.link(1, 0).opened == 1
        assert master.members is not None and master.members.members == {0, 1}

    in_world(story)


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
        assert old.members.confirmed_position == same
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


def test_a_slave_deletes_what_its_master_has_deleted() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        master.write(30)
        await world.until_equal()
        await master.log.delete_before(master.log.positions()[10])
        await world.until(lambda: world.replicas[1].log.start_position == master.log.start_position, 2000)

    in_world(story)


def test_a_second_stream_of_a_replica_takes_the_place_of_the_first() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        world.link(1, 0).hold()
        first = world.replicas[1].slave
        assert first is not None and master.master is not None
        other = world.replicas[1]
        stopping = asyncio.create_task(first.stop())
        await stopping
        world.link(1, 0).release()
        other.follow(0, 1)
        master.write()
        await world.until_equal()
        assert master.master.followers == 1
        assert master.members is not None and master.members.members == {0, 1}

    in_world(story)


def test_a_master_refuses_who_does_not_belong_to_it_or_says_what_cannot_be() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        end = master.write(5)
        await world.until_equal()
        good = ReplicateProgress(group=GROUP, replica=2, epoch=1, epochs=[EpochStart(epoch=1)], end_position=end)
        for changes, code in (
            ({"group": "broker-1"}, Code.BAD_REQUEST),
            ({"replica": 0}, Code.BAD_REQUEST),
            ({"epoch": 0}, Code.PRECONDITION_FAILED),
            ({"epoch": 2}, Code.PRECONDITION_FAILED),
            ({"epochs": [EpochStart(epoch=2), EpochStart(epoch=1)]}, Code.BAD_REQUEST),
        ):
            first = ReplicateProgress(**{**{name.name: value for name, value in good.ListFields()}, **changes})
            assert await refusal(world, [first]) == code, changes
        for end_position, synced_position in ((end + 1, 0), (end, end + 1)):
            second = ReplicateProgress(end_position=end_position, synced_position=synced_position)
            assert await refusal(world, [good, second]) == Code.PRECONDITION_FAILED
        assert master.master is not None and master.members is not None
        assert (master.master.followers, set(master.members.members)) == (1, {0, 1})
        leading = master.master
        await leading.stop()
        assert await refusal(world, [good]) == Code.HA_NOT_AVAILABLE

    in_world(story)


async def refusal(world: World, words: list[ReplicateProgress]) -> int:
    """With what code a master ends the stream of a replica that says this."""
    channel = LocalChannel(world.replicas[0].service, clock=world.clock)
    stream = channel.open(REPLICATE)
    await stream.send(words)
    with pytest.raises(StatusError) as refused:
        while await stream.receive() is not None:
            pass
    await channel.close()
    return refused.value.code


def test_more_slaves_than_the_limit_are_refused() -> None:
    async def story(world: World) -> None:
        master = world.replicas[0]
        master.lead(world.controller.state)
        world.replicas[1].follow(0, 1)
        await world.until(lambda: master.members.members == {0, 1})  # type: ignore[union-attr]
        world.replicas[2].follow(0, 1)
        await asyncio.sleep(3)
        assert master.statistics.refused_followers > 0
        assert master.master is not None and master.master.followers == 1

    in_world(story, 3, followers_max=1)


def test_a_full_disk_of_a_slave_costs_its_membership_only() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        slave = world.replicas[1]
        slave.log.full = True
        end = master.write()
        await world.until(lambda: master.members.confirmed_position == end)  # type: ignore[union-attr]
        assert not slave.failures
        slave.log.full = False
        await world.until_equal()

    in_world(story)


def test_a_failed_sync_of_a_slave_ends_it() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        slave = world.replicas[1]
        slave.log.failing_syncs = 1
        end = master.write()
        await world.until(lambda: bool(slave.failures))
        assert isinstance(slave.failures[0], OSError)
        assert slave.log.synced_position < end
        await asyncio.sleep(5)
        assert world.link(1, 0).opened == 1

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


def test_everything_is_counted() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        master.write(4)
        await world.until_equal()
        size = len(master.log.data)
        assert (master.statistics.sent_bytes, world.replicas[1].statistics.received_bytes) == (size, size)
        assert master.statistics.set_changes == 1
        assert master.statistics.resent_bytes == 0
        assert ReplicationStatistics().sent_bytes == 0

    in_world(story)
