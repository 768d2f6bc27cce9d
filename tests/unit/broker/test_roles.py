"""Two replicas of one broker group: one leads, the other follows, and they change (S3, S4, S5, T2, P3)."""

import asyncio

import pytest

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.rpc import methods
from tests.unit.broker.group_world import group_of, until


async def test_a_slave_has_what_was_answered_and_leads_on() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(20):
            assert (await world.put(b"%d" % number)).queue_offset == number
        assert first.log_bytes() == second.log_bytes()[: len(first.log_bytes())]
        given = await world.pop(10)
        assert set(await world.ack(*list(given.values())[:5])) == {Code.OK}
        await first.kill()
        await world.lead(1)
        # What was acknowledged does not come again (P3), what is given out stays hidden and its handles are good.
        assert set(await world.ack(*list(given.values())[5:9])) == {Code.OK}
        assert await world.ack(*list(given.values())[:1]) == [Code.INVALID_RECEIPT_HANDLE]
        rest = await world.pop()
        assert sorted(rest, key=int) == [b"%d" % number for number in range(10, 20)]
        assert (await world.put(b"20")).queue_offset == 20


async def test_a_deposed_master_cuts_what_nobody_else_has_and_follows() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(b"both")
        second.reachable = False
        world.controller_away = True
        await second.alive.following.stop()  # type: ignore[union-attr]
        end = first.end
        waiting = asyncio.create_task(world.put(b"only the first"))
        await until(lambda: first.end > end)
        assert not waiting.done(), "a member of the set has not got it"
        channel = world.channel
        first.reachable = False
        second.reachable, world.controller_away = True, False
        await world.lead(1)
        assert (await world.put(b"second")).queue_offset == 1
        with pytest.raises(StatusError) as refused:
            first.reachable = True
            first.hear(world.group)
            await waiting
        assert refused.value.code == Code.SLAVE_PERSISTENCE_TIMEOUT, "it was written, so whether it stays is in doubt"
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()
        with pytest.raises(StatusError) as refused:
            await channel.call(methods.PULL, pb.PullRequest(group="g", topic="t", queue_id=0, max_messages=1))
        assert refused.value.code == Code.HA_NOT_AVAILABLE
        await second.kill()
        await world.lead(0)
        assert sorted(await world.pop()) == [b"both", b"second"]


async def test_timers_go_on_at_the_new_master_each_once() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        now_ms = world.clock.wall_ms()
        for number in range(10):
            body = b"%d" % number
            await world.put(body, topic="later", due_ms=now_ms + 300 + 150 * number)
        await until(lambda: len(second.alive.core.timer.state.pending.by_topic()) == 1)
        given: list[bytes] = []
        while len(given) < 3:
            given += await world.pop(topic="later")
            await asyncio.sleep(0.01)
        await first.kill()
        await world.lead(1)
        async with asyncio.timeout(10):
            while len(given) < 10:
                given += await world.pop(topic="later")
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        given += await world.pop(topic="later")
        assert sorted(given) == [b"%d" % number for number in range(10)]


async def test_a_send_that_is_tried_again_is_stored_once() -> None:
    async with group_of(2) as world:
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(5):
            await world.put(b"%d" % number)
        await world.members[0].kill()
        await world.lead(1)
        assert (await world.put(b"3", again=True)).queue_offset == 3
        assert (await world.put(b"5", again=True)).queue_offset == 5
        assert (await world.put(b"5", again=True)).queue_offset == 5
        assert (await world.put(b"4", b"5", b"6", again=True)).queue_offset == 4
        assert sorted(await world.pop()) == [b"%d" % number for number in range(7)]
        due_ms = world.clock.wall_ms() + 60_000
        handle = (await world.put(b"later", topic="later", due_ms=due_ms)).recall_handles
        again = await world.put(b"later", topic="later", due_ms=due_ms, again=True)
        assert list(again.recall_handles) == list(handle)
        assert world.members[1].alive.core.timer.state.pending.total == 1


async def test_a_role_is_handed_over() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(10):
            await world.put(b"%d" % number)
        answer = await world.channel.call(methods.HAND_OVER, pb.HandOverRequest(group="broker-0", epoch=1, to=1))
        assert answer.end_position == first.end == second.end
        with pytest.raises(StatusError) as refused:
            await world.put(b"no")
        assert refused.value.code == Code.HA_NOT_AVAILABLE
        await world.lead(1)
        assert (await world.put(b"10")).queue_offset == 10
        await world.in_sync(0, 1)
        await second.stop()
        await world.lead(0)
        assert len(await world.pop()) == 11


async def test_a_wiped_replica_gets_everything() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await second.stop()
        await world.lead(0)
        for number in range(300):
            await world.put(b"%d" % number + bytes(1000))
        given = await world.pop(32)
        await world.ack(*given.values())
        await second.start()
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()
        await first.kill()
        await world.lead(1)
        left = 0
        while found := await world.pop(32):
            left += len(found)
        assert left == 300 - 32


async def test_too_few_replicas_refuse_sends() -> None:
    replication = {"min_in_sync_replicas": 2, "absence_ms_max": 100, "heartbeat_ms": 50, "silence_ms_max": 1000}
    async with group_of(2, replication=replication) as world:
        second = world.members[1]
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(b"1")
        await second.stop()
        await until(lambda: list(world.group.sync_state_set) == [0])
        with pytest.raises(StatusError, match="min_in_sync_replicas") as refused:
            await world.put(b"2")
        assert refused.value.code == Code.HA_NOT_AVAILABLE
        await second.start()
        await world.in_sync(0, 1)
        assert (await world.put(b"2")).queue_offset == 1
