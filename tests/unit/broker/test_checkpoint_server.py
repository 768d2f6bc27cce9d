"""Checkpoint sync at whole replicas: what a master returns, and what a slave applies."""

import asyncio

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.broker.group_world import NAME, GroupWorld, Member, group_of, until


async def fetch(member: Member, epoch: int) -> pb.ReplicaCheckpoint:
    return await member.channel.call(methods.FETCH_CHECKPOINT, pb.FetchCheckpointRequest(group=NAME, epoch=epoch))


async def store(member: Member, checkpoint: pb.ReplicaCheckpoint) -> int:
    return (await member.channel.call(methods.STORE_CHECKPOINT, checkpoint)).version


async def pair(world: GroupWorld) -> tuple[Member, Member]:
    """A master and a slave that is in sync."""
    master = await world.lead(0)
    await world.in_sync(0, 1)
    await until(lambda: world.members[1].alive.role.group.epoch == 1)
    return master, world.members[1]


async def test_a_slave_has_what_its_master_returns() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        await world.put(b"a", b"b", b"c")
        first = await fetch(master, 1)
        assert (first.epoch, first.version, first.high_watermark) == (1, 1, master.end)
        assert await store(slave, first) == first.version
        second = await fetch(master, 1)
        await store(slave, second)
        assert await store(slave, second) == second.version  # its answer was lost
        checkpoints = slave.alive.checkpoints
        assert (checkpoints.epoch, checkpoints.version, checkpoints.stored) == (1, 2, 2)
        assert slave.alive.report("x:1").checkpoint_version == 2


async def test_a_checkpoint_has_one_size_however_many_offsets_there_are() -> None:
    async with group_of() as world:
        master, _ = await pair(world)
        before = (await fetch(master, 1)).ByteSize()
        for topic in ("t", "later"):
            await world.put(*[b"%d" % number for number in range(20)], topic=topic)
            await world.pop(topic=topic)
        assert (await fetch(master, 1)).ByteSize() <= before + 4


async def test_only_the_master_of_an_epoch_reports_and_only_its_slaves_take() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        checkpoint = await fetch(master, 1)
        for member, epoch in ((slave, 1), (master, 2), (master, 0)):
            with pytest.raises(StatusError) as caught:
                await fetch(member, epoch)
            assert caught.value.code == Code.PRECONDITION_FAILED
        other = pb.ReplicaCheckpoint(group="another", epoch=1, version=1)
        later = pb.ReplicaCheckpoint(group=NAME, epoch=2, version=1)
        for member, given in ((master, checkpoint), (slave, other), (slave, later)):
            with pytest.raises(StatusError) as caught:
                await store(member, given)
            assert caught.value.code == Code.PRECONDITION_FAILED
        with pytest.raises(StatusError) as caught:
            await store(slave, pb.ReplicaCheckpoint(group=NAME, epoch=1))
        assert caught.value.code == Code.BAD_REQUEST
        assert slave.alive.checkpoints.epoch == 0
        assert 'popwheel_replica_checkpoints_total{outcome="refused"} 3.0' in slave.metrics()


async def test_an_older_version_is_refused() -> None:
    async with group_of() as world:
        master, slave = await pair(world)
        late = await fetch(master, 1)
        await store(slave, await fetch(master, 1))
        with pytest.raises(StatusError, match="older than 2") as caught:
            await store(slave, late)
        assert caught.value.code == Code.PRECONDITION_FAILED


async def test_a_checkpoint_of_an_epoch_that_is_over_is_refused_though_none_of_the_new_one_has_come() -> None:
    async with group_of(3) as world:
        master = await world.lead(0)
        await world.in_sync(0, 1, 2)
        late = await fetch(master, 1)
        await world.lead(1)
        await world.in_sync(0, 1, 2)
        await until(lambda: world.members[2].alive.role.group.epoch == 2)
        with pytest.raises(StatusError, match="follows epoch 2") as caught:
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
