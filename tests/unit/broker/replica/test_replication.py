"""Master and slaves over links that lose, hold up, repeat and damage; in virtual time."""

import asyncio

import pytest

from popwheel_broker.replication.statistics import ReplicationStatistics
from popwheel_broker.replication.sync_state_set import SetChange
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import EpochStart, ReplicateProgress
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import REPLICATE
from tests.unit.broker.replica.replicas import GROUP, World, in_world

KIB = 1024


def test_a_slave_follows_joins_the_set_and_holds_what_is_acknowledged() -> None:
    async def story(world: World) -> None:
        master = world.replicas[0]
        master.lead(world.controller.state)
        end = master.write(10)
        assert master.members is not None
        assert master.members.high_watermark == end
        world.replicas[1].follow(0, 1)
        await world.until(lambda: master.members is not None and master.members.members == {0, 1}, 200)
        assert master.followed == 1
        end = master.write()
        assert master.members.replicated_position < end
        await world.until_equal(200)
        assert master.members.high_watermark == master.members.replicated_position == end
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
        while master.members is None or master.members.high_watermark < end:
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
            await world.until(lambda end=end: master.members.replicated_position == end, 50)  # type: ignore[union-attr,misc]
        assert master.members is not None
        assert master.members.high_watermark == before
        assert slave.log.high_watermark == before, "a slave folds no further than what is confirmed"
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
        assert master.members.high_watermark == end
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


def test_a_slave_that_waits_for_its_device_goes_on_when_a_save_has_synced_for_it() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        slave, log = world.replicas[1], world.replicas[1].log
        log.syncs_go_on.clear()
        begun = log.syncs
        master.write(1, b"z" * KIB)
        await asyncio.sleep(0.01)
        master.write(32, b"z" * KIB)
        await asyncio.sleep(0.01)
        assert (log.syncs, slave.statistics.sync_waits) == (begun + 1, 1), "it covers only the first of what was taken"
        world.link(1, 0).hold()  # the report of that sync does not leave
        log.syncs_go_on.set()
        await asyncio.sleep(0.01)
        assert log.synced_position < log.end_position - 16 * KIB
        await log.sync()  # as a save does
        world.link(1, 0).release()
        await world.until_equal()
        assert slave.statistics.streams_broken == 0

    in_world(
        story,
        unsynced_bytes_max=16 * KIB,
        chunk_bytes=64 * KIB,
        window_bytes=128 * KIB,
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
        assert master.members.high_watermark < end
        await world.until(lambda: master.members.high_watermark == end, 300)  # type: ignore[union-attr]
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
        assert master.members.high_watermark < end
        world.controller.reachable = True
        await world.until(lambda: master.members.high_watermark == end, 1000)  # type: ignore[union-attr]

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
        assert master.members.high_watermark == end

    in_world(story)


def test_an_error_that_nobody_expects_while_the_set_is_kept_is_reported() -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        assert master.members is not None

        def due(now_ms: int) -> SetChange | None:
            raise ValueError("nobody expects this")

        master.members.due = due  # type: ignore[method-assign]
        await world.until(lambda: len(master.failures) > 0)
        assert [str(error) for error in master.failures] == ["nobody expects this"]

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
        await world.until(lambda: master.members.high_watermark == end)  # type: ignore[union-attr]
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
