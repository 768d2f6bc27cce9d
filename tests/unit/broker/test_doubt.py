"""A replica that cut off the end of its log, and could not ask every other one for it, says so until it has all."""

import asyncio
from dataclasses import replace

import pytest

from popwheel_broker.log.timer_record import TIMER_TOPIC
from popwheel_broker.replication.superblock import NAME, SLOT_BYTES, decode, encode
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.group_world import FOLDER, GroupWorld, Member, group_of, until
from tests.unit.broker.replica.replicas import World

RARELY_MS = 600_000
"""The last checkpoint knows of nothing that was put."""


async def two_of_which_one_rots(world: GroupWorld) -> Member:
    """Messages are in both logs, then both processes end, and the last of the slave's rots; the slave."""
    master, slave = world.members
    await world.lead(0)
    await world.in_sync(0, 1)
    for number in range(10):
        await world.put(b"%d" % number)
    await world.in_sync(0, 1)
    await until(lambda: slave.alive.files.synced_position == master.end)
    for member in (master, slave):
        await member.kill()
    rot(slave.disk)
    return slave


def rot(disk: MemoryDisk) -> None:
    """Let a bit rot in the log's last record."""
    folder = FOLDER / "commitlog"
    path = max(folder / name for name in disk.list(folder))
    disk.flip_bit(path, 8 * (len(disk.files()[path].rstrip(b"\0")) - 3))


def forget_group(disk: MemoryDisk) -> None:
    """Let a superblock say nothing of the group."""
    slot = decode(disk.files()[FOLDER / NAME][:SLOT_BYTES])
    assert slot is not None
    sequence, said = slot
    disk.open(FOLDER / NAME).write(0, [encode(replace(said, group=b""), sequence) * 2])


def suspect(member: Member) -> bool:
    return member.alive.report(member.address).suspect


async def test_who_cuts_what_nobody_could_be_asked_for_is_of_unknown_outcome_until_it_has_followed_a_master() -> None:
    async with group_of(2, checkpoint_interval_ms=RARELY_MS) as world:
        slave = await two_of_which_one_rots(world)
        await slave.start()
        assert suspect(slave) and "popwheel_replica_suspect 1.0" in slave.metrics()
        await slave.kill("power")
        await slave.start()  # nothing is to be cut any more
        assert suspect(slave)
        master = world.members[0]
        assert slave.end > 0
        await master.start()
        assert not suspect(master) and slave.end < master.end
        await world.lead(0)
        await until(lambda: not suspect(slave))
        assert slave.alive.files.synced_position >= 10 and slave.log_bytes() == master.log_bytes()
        await slave.kill("power")
        await slave.start()
        assert not suspect(slave)


async def test_a_tail_is_asked_for_though_a_queue_is_damaged_as_well() -> None:
    """The timer reads the end of the log before all else, and notes what it cannot read."""
    async with group_of(2, checkpoint_interval_ms=RARELY_MS) as world:
        master, slave = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(b"later", topic="later", due_ms=world.clock.wall_ms() + 3_600_000)
        await world.in_sync(0, 1)
        await until(lambda: slave.alive.files.high_watermark == master.end)
        following = slave.alive.role.follower
        assert following is not None
        await following.save()
        for number in range(10):
            await world.put(b"%d" % number)
        await world.in_sync(0, 1)
        await until(lambda: slave.alive.files.high_watermark == master.end)
        assert following._timer is not None
        await following._timer.save()
        for member in (master, slave):
            await member.kill()
        rot(slave.disk)
        for path in [path for path in slave.disk.files() if path.parent.parent.name == TIMER_TOPIC]:
            slave.disk.flip_bit(path, 16)
        await slave.start()
        assert suspect(slave) and slave.end > 0


async def test_who_may_not_know_another_replica_at_its_next_start_tries_to_write_it_down_again() -> None:
    async with group_of(2) as world:
        await world.lead(0)
        await world.in_sync(0, 1)
        slave = world.members[1]
        three = BrokerGroup.FromString(world.group.SerializeToString())
        three.version += 1
        three.replicas.add(number=2, address="elsewhere")
        slave.disk.fail_syncs(2, of=lambda path: path.name == NAME)
        slave.alive.roles.group_changed(three)
        superblock = slave.alive.files.superblock
        await until(lambda: len(BrokerGroup.FromString(superblock.contents.group).replicas) == 3)


async def test_a_master_that_cannot_write_down_who_else_there_is_goes_on() -> None:
    async with group_of(2) as world:
        master = await world.lead(0)
        await world.in_sync(0, 1)
        more = BrokerGroup.FromString(world.group.SerializeToString())
        more.version += 1
        more.replicas.add(number=2, address="elsewhere")
        master.disk.fail_syncs(1 << 20, of=lambda path: path.name == NAME)
        master.alive.roles.group_changed(more)
        leading = master.alive.role.leader
        assert leading is not None
        await until(lambda: master.alive.report(master.address).version == more.version)
        await asyncio.sleep(0.05)
        assert master.alive.health() is None and master.alive.role.trouble is None
        assert (await world.put(b"1")).code == Code.OK
        master.disk.fail_syncs(0)


async def test_who_has_lost_word_of_its_group_does_not_take_itself_for_alone() -> None:
    async with group_of(2, checkpoint_interval_ms=RARELY_MS) as world:
        slave = await two_of_which_one_rots(world)
        forget_group(slave.disk)
        await slave.start()
        assert suspect(slave)


async def test_doubt_ends_when_it_is_made_master() -> None:
    async with group_of(2, checkpoint_interval_ms=RARELY_MS) as world:
        slave = await two_of_which_one_rots(world)
        await slave.start()
        await world.lead(1)
        assert not suspect(slave)
        await slave.kill("power")
        await slave.start()
        assert not suspect(slave)


async def test_what_others_have_is_mended_and_leaves_no_doubt() -> None:
    async with group_of(2, checkpoint_interval_ms=RARELY_MS) as world:
        slave = await two_of_which_one_rots(world)
        await world.members[0].start()
        await slave.start()
        assert not suspect(slave) and slave.end == world.members[0].end


@pytest.mark.parametrize("knows", [True, False], ids=["knows where it was", "has heard of no group"])
async def test_another_one_is_asked_where_it_is_now(knows: bool) -> None:
    """By the controller's word: who cannot start does not register, and so did not hear that others had moved."""
    async with group_of(2, checkpoint_interval_ms=RARELY_MS) as world:
        slave = await two_of_which_one_rots(world)
        if not knows:
            forget_group(slave.disk)
        world.members[0].port = 2
        await world.members[0].start()
        world._decide(replicas=world.places())
        await slave.start()
        assert not suspect(slave) and slave.end == world.members[0].end


@pytest.mark.parametrize("another_answers", [False, True])
async def test_what_no_other_has_is_torn_and_cut_without_doubt(another_answers: bool) -> None:
    async with group_of(2, checkpoint_interval_ms=RARELY_MS) as world:
        master, slave = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(b"both")
        await world.in_sync(0, 1)
        world.controller_away = True
        await slave.kill()
        assert master.alive.role.leader is not None
        end = master.end
        await slave.start()
        await until(lambda: slave.end == end)
        await master.kill()
        disk = master.disk
        folder = FOLDER / "commitlog"
        path = max(folder / name for name in disk.list(folder))
        file = disk.open(path)
        file.write(file.size(), [b"torn"])
        file.close()
        if another_answers:
            answers = slave.alive.roles._replica_server
            answers._options = answers._options.model_copy(update={"replica": 7})
        await master.start()
        assert master.end == end and suspect(master) is another_answers


async def test_the_doubt_is_on_the_device_before_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async with group_of(2, checkpoint_interval_ms=RARELY_MS) as world:
        slave = await two_of_which_one_rots(world)
        size = {path: len(data) for path, data in slave.disk.files().items() if path.parent.name == "commitlog"}

        class Died(BaseException):
            """The process ends here."""

        def die(self: object, position: int) -> None:
            raise Died

        with monkeypatch.context() as patch:
            patch.setattr("popwheel_broker.log.commit_log.CommitLog.cut", die)
            with pytest.raises(Died):
                await slave.start()
        assert slave.app is not None
        await slave.kill("power")
        kept = slave.disk.files()
        assert {path: len(kept[path]) for path in size} == size
        rotten = max(size)
        slave.disk.flip_bit(rotten, 8 * (size[rotten] - 3))  # it could be read again: the doubt stays all the same
        await slave.start()
        assert suspect(slave)


def test_doubt_ends_when_all_is_on_the_device_that_the_master_had_as_the_stream_began() -> None:
    clock = ManualClock()

    async def story() -> None:
        world = World(clock)
        master, slave = world.replicas
        master.lead(world.controller.state)
        end = master.write(50)
        slave.log.syncs_go_on.clear()
        slave.follow(0, 1)
        await world.until(lambda: slave.log.end_position == end)
        await asyncio.sleep(1)
        assert slave.log.doubt_ended_at == []
        slave.log.syncs_go_on.set()
        await world.until(lambda: slave.log.doubt_ended_at != [])
        assert slave.log.doubt_ended_at[0] >= end
        await world.stop()

    run_virtually(clock, story())
