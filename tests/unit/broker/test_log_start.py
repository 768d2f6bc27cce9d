"""Where a log begins: retention takes what nothing needs any more, and what else is gone is missed at a start."""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from popwheel_broker.consume.delivery import REVIVE_QUEUES
from popwheel_broker.replication.superblock import NAME
from popwheel_common.errors import CorruptDataError
from tests.unit.broker.group_world import FOLDER, GroupWorld, Member, group_of, until
from tests.unit.broker.index_bytes import rot_entry

OPTIONS: dict[str, Any] = {
    "checkpoint_interval_ms": 60_000,
    "log": {"segment_bytes": 4096, "index_entries_max": 64},
    "retention": {"hours": 1e-6, "interval_ms": 10},
}


async def fill(world: GroupWorld, count: int = 20) -> None:
    """Some segments of messages."""
    for number in range(count):
        await world.put(b"%d" % number * 500)


async def save(member: Member) -> None:
    assert member.alive.role.leader is not None
    await member.alive.role.leader.timer.save()
    await member.alive.role.leader.upkeep.save()


def put(member: Member, path: Path, data: bytes) -> None:
    file = member.disk.open(path)
    file.truncate(0)
    file.write(0, [data])
    file.close()


def segments(member: Member) -> list[str]:
    return sorted(path.name for path in member.disk.files() if path.parent == FOLDER / "commitlog")


async def begins_later(member: Member) -> None:
    """Retention has deleted something, and is done for now."""
    await until(lambda: member.alive.files.start_position > 0)
    start = -1
    while start < member.alive.files.start_position:
        start = member.alive.files.start_position
        await asyncio.sleep(0.1)


async def test_retention_leaves_what_the_last_checkpoint_needs() -> None:
    """A delivery was open then, so a start reads it again, though it was acknowledged since."""
    async with group_of(1, **OPTIONS) as world:
        member = await world.lead(0)
        member.alive.core.expiry.to_relocate = deque  # type: ignore[method-assign]
        await world.put(b"1")
        given = await world.pop()
        await fill(world)
        await save(member)
        await world.ack(*given.values())
        await fill(world)
        await asyncio.sleep(0.2)
        assert member.alive.files.start_position == 0
        await member.kill()
        await member.start()
        await world.lead(0)
        await save(member)
        await begins_later(member)


@pytest.mark.parametrize("kind", ["process", "power"])
async def test_a_log_begins_where_retention_has_left_it(kind: str) -> None:
    async with group_of(2, **OPTIONS | {"checkpoint_interval_ms": 50}) as world:
        await world.lead(0)
        await world.in_sync(0, 1)
        for _ in range(5):
            await fill(world, 10)
            for member in world.members:
                await begins_later(member)
                start = member.alive.files.start_position
                await member.kill("power" if kind == "power" else "process")
                await member.start()
                assert member.alive.files.start_position <= start or kind == "process"
            await world.lead(0)
            await world.in_sync(0, 1)


async def test_oldest_segments_that_are_lost_are_missed() -> None:
    async with group_of(1, **OPTIONS | {"retention": {"hours": 1}}) as world:
        member = await world.lead(0)
        await fill(world)
        await save(member)
        await member.kill()
        before = member.disk.files()
        first = FOLDER / "commitlog" / segments(member)[0]
        member.disk.remove(first)
        for _ in range(2):
            with pytest.raises(CorruptDataError, match="its oldest segments are lost"):
                await member.start()
            member.app = None
        assert member.disk.files() == {path: held for path, held in before.items() if path != first}
        put(member, first, before[first])
        await member.start()


async def test_a_log_that_has_lost_its_end_is_refused_with_nothing_changed() -> None:
    """Its queues are good: they are not made again."""
    async with group_of(1, **OPTIONS | {"retention": {"hours": 1}}) as world:
        member = await world.lead(0)
        await fill(world)
        await save(member)
        await member.kill()
        last = FOLDER / "commitlog" / segments(member)[-1]
        put(member, last, member.disk.files()[last].rstrip(b"\0")[:-10])
        before = member.disk.files()
        with pytest.raises(CorruptDataError, match="known to be good up to"):
            await member.start()
        member.app = None
        assert member.disk.files() == before


async def test_a_checkpoint_that_is_lost_is_missed_when_the_log_does_not_report_it_all() -> None:
    async with group_of(1, **OPTIONS) as world:
        member = await world.lead(0)
        await fill(world)
        await member.stop()
        path = FOLDER / "checkpoint"
        checkpoint = member.disk.files()[path]
        member.disk.remove(path)
        await member.start()  # the log begins at its beginning: all is in it
        await world.lead(0)
        await save(member)
        await begins_later(member)
        await member.kill()
        checkpoint = member.disk.files()[path]
        member.disk.remove(path)
        for _ in range(2):
            with pytest.raises(CorruptDataError, match="checkpoint file is lost"):
                await member.start()
            member.app = None
        assert path not in member.disk.files()
        put(member, path, checkpoint)
        await member.start()


@pytest.mark.parametrize("topic", ["rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_test"])
@pytest.mark.parametrize("byte", [2, 7])
async def test_a_queue_that_is_found_damaged_at_a_start_is_made_again(topic: str, byte: int) -> None:
    async with group_of(1, **OPTIONS | {"retention": {"hours": 1}}) as world:
        member = await world.lead(0)
        await world.put(b"1", b"2")
        given = await world.pop()
        assert len(given) == 2
        due_ms = world.clock.wall_ms() + 1000
        await world.put(b"later", topic="later", due_ms=due_ms)
        await world.ack(given[b"1"])
        await save(member)
        entries = [queue.read(0, 1)[0] for queue in member.alive.core.store.queues if queue.topic == topic]
        await member.kill()
        member.disk.remove(FOLDER / "timer" / "timercheck")
        for entry in entries:
            rot_entry(member.disk, entry, 8 * byte)
        with capture_logs() as logs:
            await member.start()
        assert any("made again" in entry["event"] for entry in logs)
        await world.lead(0)
        assert {each.group for each in member.alive.core.state.table} == {"g"}
        assert await world.ack(given[b"2"]) == [20000]
        found: dict[bytes, str] = {}
        async with asyncio.timeout(5):
            while not found:
                await asyncio.sleep(0.01)
                found = await world.pop(topic="later")
        assert list(found) == [b"later"]
        await member.stop()
        with capture_logs() as logs:
            await member.start()
        assert not any("made again" in entry["event"] for entry in logs)


async def test_a_damaged_record_that_a_queue_leads_to_is_refused_with_nothing_changed() -> None:
    """Nobody has it, so queues that were made again would lack it, too: they stay, and the log is not read."""
    async with group_of(1, **OPTIONS | {"retention": {"hours": 1}}) as world:
        member = await world.lead(0)
        await world.put(b"1")
        assert await world.pop()
        await fill(world)
        await save(member)
        core = member.alive.core
        queues = [core.store.queue(core.revive_topic, number) for number in range(REVIVE_QUEUES)]
        entries = [entry for queue in queues if queue is not None for entry in queue.read(0, 1)]
        position = next(entry.position for entry in entries if entry.position > 0)  # of the CK, which is open
        await member.kill()
        member.disk.flip_bit(FOLDER / "commitlog" / segments(member)[0], 8 * (position + 30))
        before = member.disk.files()
        for _ in range(2):
            with pytest.raises(CorruptDataError, match=f"at {position}"):
                await member.start()
            member.app = None
        assert member.disk.files() == before
        member.disk.flip_bit(FOLDER / "commitlog" / segments(member)[0], 8 * (position + 30))
        await member.start()


async def test_retention_frees_a_disk_that_is_full_to_the_last_byte() -> None:
    """Something else on it has filled it between two looks of the retention; no save has succeeded since."""
    async with group_of(1, **OPTIONS | {"retention": {"hours": 1000, "interval_ms": 10}}) as world:
        member = await world.lead(0)
        await fill(world)
        await save(member)
        member.disk.fill(0)
        await until(lambda: member.alive.files.start_position > 0)
        start = member.alive.files.start_position
        await until(lambda: member.disk.usage(FOLDER).free_bytes > 0)
        await member.kill("power")
        await member.start()
        assert member.alive.files.start_position <= start


async def test_a_superblock_that_says_that_less_was_deleted_is_refused() -> None:
    async with group_of(1, **OPTIONS) as world:
        member = await world.lead(0)
        path = FOLDER / NAME
        old = member.disk.files()[path]
        await fill(world)
        await save(member)
        await begins_later(member)
        await member.kill()
        latest = member.disk.files()[path]
        assert latest != old
        put(member, path, old)
        with pytest.raises(CorruptDataError, match="its oldest segments are lost"):
            await member.start()
        member.app = None
        put(member, path, latest)
        await member.start()
        assert member.disk.files()[path] == latest


async def test_retention_goes_on_while_a_save_waits_for_other_replicas() -> None:
    async with group_of(1, **OPTIONS | {"retention": {"hours": 1000, "interval_ms": 10}}) as world:
        member = await world.lead(0)
        await fill(world)
        await save(member)
        waiting = asyncio.create_task(member.alive.files.save(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        member.disk.fill(0)
        await until(lambda: member.alive.files.start_position > 0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_slave_whose_disk_is_full_deletes_what_its_master_has_deleted_and_goes_on() -> None:
    """Each of its streams ends at once, as the first records do not fit."""
    async with group_of(2, **OPTIONS) as world:
        master = await world.lead(0)
        await world.in_sync(0, 1)
        slave = world.members[1]
        await fill(world)
        await world.in_sync(0, 1)
        await until(lambda: slave.alive.files.high_watermark == master.end)
        assert slave.alive.role.follower is not None
        await slave.alive.role.follower.save()
        slave.disk.fill(0)
        await world.put(b"does not fit" * 300)  # a segment more
        await until(lambda: list(world.group.sync_state_set) == [0])
        assert slave.alive.files.start_position == 0
        await save(master)
        await begins_later(master)
        await world.in_sync(0, 1)
        assert slave.alive.files.start_position > 0
