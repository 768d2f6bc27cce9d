"""Checkpoint sync at whole replicas: what a master tells, what a slave takes, what a new master makes of it."""

import asyncio
import gc
import weakref

import pytest

from popwheel_broker.replication.master_checkpoint import MasterCheckpoint, take_over_offsets
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.broker.group_world import NAME, GroupWorld, Member, group_of, until


async def fetch(member: Member, epoch: int, known_version: int = 0) -> pb.ReplicaCheckpoint:
    request = pb.FetchCheckpointRequest(group=NAME, epoch=epoch, known_version=known_version)
    return await member.channel.call(methods.FETCH_CHECKPOINT, request)


async def store(member: Member, checkpoint: pb.ReplicaCheckpoint) -> int:
    return (await member.channel.call(methods.STORE_CHECKPOINT, checkpoint)).version


async def pair(world: GroupWorld) -> tuple[Member, Member]:
    """A master and a slave that is in sync."""
    master = await world.lead(0)
    await world.in_sync(0, 1)
    return master, world.members[1]


async def test_a_slave_has_what_its_master_reports_also_after_a_crash() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        await world.put(b"a", b"b", b"c")
        popped = await world.pop(2)
        await world.ack(*popped.values())
        checkpoint = await fetch(master, 1)
        assert (checkpoint.epoch, checkpoint.base_version, checkpoint.rest_from) == (1, 0, 0)
        assert checkpoint.high_watermark == master.end
        assert {name.name for name in checkpoint.topics} == {"t", "later"}
        assert [(each.group, each.topic, list(each.popped)) for each in checkpoint.offsets] == [("g", "t", [2])]
        assert len(checkpoint.revive_offsets) == 8
        assert await store(slave, checkpoint) == checkpoint.version
        await world.pop(1)
        difference = await fetch(master, 1, checkpoint.version)
        assert difference.base_version == checkpoint.version < difference.version
        assert [(each.topic, list(each.popped)) for each in difference.offsets] == [("t", [3])]
        assert not difference.topics
        await store(slave, difference)
        await slave.kill("power")
        await slave.start()
        held = slave.alive.checkpoints.file.checkpoint
        assert held.latest.version == difference.version == slave.alive.report("x:1").checkpoint_version
        assert dict(held.offsets) == {("g", "t", 0): (3, 3)}


async def test_what_does_not_go_into_one_message_comes_in_parts() -> None:
    async with group_of(constants={"checkpoint_entries_max": 1}) as world:
        master, slave = await pair(world)
        for topic in ("t", "later"):
            await world.put(b"a", topic=topic)
            await world.pop(topic=topic)
        part = await fetch(master, 1)
        await store(slave, part)
        assert part.rest_from
        assert not slave.alive.checkpoints.file.checkpoint.is_complete
        while part.rest_from:
            part = await fetch(master, 1, part.rest_from)
            await store(slave, part)
        assert {key[1] for key in slave.alive.checkpoints.file.checkpoint.offsets} == {"t", "later"}
        assert slave.alive.checkpoints.file.checkpoint.is_complete


async def test_an_offset_that_is_set_by_hand_after_a_look_is_not_undone_by_the_rest_of_it() -> None:
    async with group_of(constants={"checkpoint_entries_max": 1}) as world:
        master, slave = await pair(world)
        await world.put(*[b"%d" % number for number in range(6)])
        await world.put(b"z", topic="later")

        async def set_offset(topic: str, offset: int) -> None:
            request = pb.UpdateOffsetRequest(group="g", topic=topic, queue_id=0, offset=offset)
            await world.channel.call(methods.UPDATE_OFFSET, request)

        await set_offset("later", 1)
        await fetch(master, 1)
        await set_offset("t", 6)
        given = [await fetch(master, 1)]
        await store(slave, given[0])
        await set_offset("t", 3)
        reported = {}
        while given[-1].rest_from:
            given.append(await fetch(master, 1, given[-1].rest_from))
            await store(slave, given[-1])
            reported.update({each.topic: list(each.committed) for each in given[-1].offsets})
        assert reported["t"] == [3]
        assert {each.scanned_position for each in given} == {given[0].scanned_position}
        assert given[0].scanned_position < given[-1].high_watermark
        await set_offset("t", 0)
        await world.in_sync(0, 1)
        await world.lead(1)
        assert len(await world.pop()) == 6


async def test_only_the_master_of_an_epoch_reports_and_only_slaves_store() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        checkpoint = await fetch(master, 1)
        for member, epoch in ((slave, 1), (master, 2), (master, 0)):
            with pytest.raises(StatusError) as caught:
                await fetch(member, epoch)
            assert caught.value.code == Code.PRECONDITION_FAILED
        other = pb.ReplicaCheckpoint(group="another", epoch=1, version=1)
        for member, given in ((master, checkpoint), (slave, other)):
            with pytest.raises(StatusError) as caught:
                await store(member, given)
            assert caught.value.code == Code.PRECONDITION_FAILED
        assert slave.alive.checkpoints.file.checkpoint.latest.epoch == 0
        assert 'popwheel_replica_checkpoints_total{outcome="refused"} 1.0' in slave.metrics()


async def test_a_checkpoint_of_an_epoch_that_is_over_is_refused_though_none_of_the_new_one_has_come() -> None:
    async with group_of(3) as world:
        master = await world.lead(0)
        await world.in_sync(0, 1, 2)
        late = await fetch(master, 1)
        await world.lead(1)
        await world.in_sync(0, 1, 2)
        await until(lambda: world.members[2].alive.role.group.epoch == 2)
        with pytest.raises(StatusError, match="epoch 1 is over") as caught:
            await store(world.members[2], late)
        assert caught.value.code == Code.PRECONDITION_FAILED
        assert world.members[2].alive.checkpoints.version == 0


def test_a_slaves_timer_lets_go_what_its_master_has_left_out() -> None:
    clock = ManualClock()

    async def story() -> None:
        async with group_of(clock=clock, timer={"flush_interval_ms": 20}) as world:
            master, slave = await pair(world)
            due_ms = world.clock.wall_ms() + 3000
            handle = (await world.put(b"a", topic="later", due_ms=due_ms)).references[0]
            await world.channel.call(methods.RECALL, pb.RecallRequest(topic="later", recall_handle=handle))
            await until(lambda: bool(slave.alive.core.timer.state.recalled))
            slaves = slave.alive.core.timer.state

            async def is_ended() -> bool:
                checkpoint = await fetch(master, 1)
                await store(slave, checkpoint)
                return checkpoint.timer.last_read_time_ms > due_ms

            while not await is_ended():
                await world.put(b"b", topic="later", due_ms=world.clock.wall_ms() + 20)
                await asyncio.sleep(0.02)
            await until(lambda: not slaves.recalled and slaves.commit_read_time_ms > due_ms)

    run_virtually(clock, story())


async def test_nothing_is_kept_of_the_progress_of_a_term_that_is_over() -> None:
    async with group_of() as world:
        master, _ = await pair(world)
        await world.put(b"a")
        await world.pop()
        await fetch(master, 1)
        progress = weakref.ref(master.alive.core.state.merge_buffer)
        await world.lead(1)
        await until(lambda: master.alive.core.state.merge_buffer is not progress())
        gc.collect()
        assert progress() is None


async def test_a_master_that_is_chosen_once_more_is_watched_once() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        await world.put(b"a")
        await world.pop()
        before = await fetch(master, 1)
        progress = master.alive.core.state.merge_buffer
        watched = len(progress._watched)
        world.elect(0)
        await until(lambda: (leader := master.alive.role.leader) is not None and leader.epoch == 2)
        after = await fetch(master, 2, before.version)
        assert (master.alive.core.state.merge_buffer, len(progress._watched)) == (progress, watched)
        assert (after.epoch, after.base_version, len(after.offsets)) == (2, before.version, 0)
        assert await store(slave, await fetch(master, 2)) > after.version


async def test_a_new_master_goes_on_where_filters_had_let_the_old_one_pass() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        await world.put(b"a", b"b", b"c")
        passed = pb.PopRequest(
            group="g",
            topic="t",
            queue_id=-1,
            max_messages=8,
            invisible_ms=60_000,
            filter=pb.Filter(kind=pb.TAG, expression="nobody-has-it"),
        )
        await world.channel.call(methods.POP, passed)
        await store(slave, await fetch(master, 1))
        await world.put(b"d")
        await world.lead(1)
        progress = slave.alive.core.state.merge_buffer.of("g", slave.alive.core.store.queues["t", 0])
        assert (progress.committed, progress.popped) == (3, 3)
        assert set(await world.pop()) == {b"d"}


@pytest.mark.parametrize("why", ["set by hand", "more of the log", "another topic", "in parts", "of an older core"])
async def test_where_it_might_take_a_message_away_the_checkpoint_is_not_used(why: str) -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        await world.put(b"a", b"b", b"c")
        checkpoint = await fetch(master, 1)
        del checkpoint.offsets[:]
        checkpoint.offsets.add(group="g", topic="t", queue_ids=[0], committed=[3], popped=[3])
        if not checkpoint.groups:
            checkpoint.groups.add(name="g", id=1)
        if why == "set by hand":
            await world.channel.call(
                methods.UPDATE_OFFSET, pb.UpdateOffsetRequest(group="g", topic="t", queue_id=0, offset=1)
            )
        elif why == "more of the log":
            checkpoint.high_watermark += 1_000_000
        elif why == "another topic":
            for name in checkpoint.topics:
                name.id += 100
        elif why == "in parts":
            checkpoint.rest_from = checkpoint.version - 1
        await store(slave, checkpoint)
        if why == "of an older core":
            held = MasterCheckpoint()
            checkpoint.scanned_position = slave.alive.core.begun_position - 1
            held.take(checkpoint)
            assert take_over_offsets(slave.alive.core, held) == 0
            return
        await world.lead(1)
        assert set(await world.pop()) == ({b"b", b"c"} if why == "set by hand" else {b"a", b"b", b"c"})


async def test_a_checkpoint_of_a_topic_that_holds_less_here_moves_no_further_than_its_end() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        await world.put(b"a", b"b")
        checkpoint = await fetch(master, 1)
        del checkpoint.offsets[:]
        checkpoint.offsets.add(group="g", topic="t", queue_ids=[0], committed=[99], popped=[99])
        await store(slave, checkpoint)
        await world.lead(1)
        await world.put(b"c")
        assert set(await world.pop()) == {b"c"}


async def test_the_age_is_that_of_what_is_in_flight() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        assert slave.alive.checkpoints.age_s is None
        checkpoint = await fetch(master, 1)
        checkpoint.time_ms -= 10_000
        await store(slave, checkpoint)
        age_s = slave.alive.checkpoints.age_s
        assert age_s is not None
        assert 10 <= age_s < 20
        assert "popwheel_replica_checkpoint_age_seconds" in slave.metrics()
