"""Two replicas of one broker group: one leads, the other follows, and they change (S3, S4, S5, T2, P3)."""

import asyncio

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_rpc import methods
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.broker.group_world import GroupWorld, Member, group_of, until


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
        # What was acknowledged does not come again (P3), what is delivered stays hidden and its handles are good.
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
        await second.alive.role.follower.stop()  # type: ignore[union-attr]
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
            first.learn(world.group)
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


def test_timers_go_on_at_the_new_master_each_once() -> None:
    clock = ManualClock()

    async def story() -> None:
        async with group_of(2, clock) as world:
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

    run_virtually(clock, story())


async def test_a_send_that_is_tried_again_is_stored_once() -> None:
    async with group_of(2) as world:
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(5):
            await world.put(b"%d" % number)
        await world.members[0].kill()
        await world.lead(1)
        assert "popwheel_broker_kept_for_tries 0.0" in world.members[1].metrics()
        assert (await world.put(b"3", again=True)).queue_offset == 3
        assert "popwheel_broker_kept_for_tries 6.0" in world.members[1].metrics()
        assert (await world.put(b"5", again=True)).queue_offset == 5
        assert (await world.put(b"5", again=True)).queue_offset == 5
        assert (await world.put(b"4", b"5", b"6", again=True)).queue_offset == 4
        assert (await world.put(b"6")).queue_offset == 6, "the first try, which a network held back until now"
        assert (await world.put(b"6", b"7")).queue_offset == 6
        outcome_unknown = [await world.put(*bodies) for bodies in ((b"5", b"8"), (b"9", b"6"), (b"6", b"5"))]
        assert {result.code for result in outcome_unknown} == {Code.SLAVE_PERSISTENCE_TIMEOUT}, (
            "one offset tells of none"
        )
        for number in range(10):
            assert (await world.put(b"%d" % number, again=True)).queue_offset == number
        assert sorted(await world.pop()) == [b"%d" % number for number in range(10)]
        due_ms = world.clock.wall_ms() + 60_000
        handle = (await world.put(b"later", topic="later", due_ms=due_ms)).references
        again = await world.put(b"later", topic="later", due_ms=due_ms, again=True)
        assert list(again.references) == list(handle)
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
    replication = {"min_in_sync_replicas": 2, "absence_ms_max": 100}
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


@pytest.mark.parametrize("ack_mode", ["sync_state_set", "master"])
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_all_modes_replicate(ack_mode: str, flush: str) -> None:
    replication = {"ack_mode": ack_mode}
    async with group_of(2, replication=replication, flush=flush) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(50):
            assert (await world.put(b"%d" % number)).queue_offset == number
        await world.ack(*(await world.pop(20)).values())
        await world.in_sync(0, 1)
        await until(lambda: first.alive.files.high_watermark == second.alive.files.high_watermark == first.end)
        await first.kill()
        await world.lead(1)
        assert len(await world.pop()) == 30


FAST_ACKS = {"ack_mode": "master"}


async def parted(world: GroupWorld) -> tuple[Member, Member]:
    """The first of two leads and has acknowledged what the second has not; both."""
    first, second = world.members
    await world.lead(0)
    await world.in_sync(0, 1)
    await world.put(b"both")
    await world.in_sync(0, 1)
    await second.alive.role.follower.stop()  # type: ignore[union-attr]
    for number in range(10):
        await world.put(b"lost %d" % number)
    return first, second


async def lead_the_other(world: GroupWorld) -> None:
    """The second leads, and the first has not learned of it."""
    world.members[0].reachable = False
    await world.lead(1)
    for number in range(3):
        await world.put(b"new %d" % number)


async def test_what_was_folded_of_a_cut_end_is_made_anew() -> None:
    """With ack_mode=master a deposed master has folded, and delivered, what is cut off."""
    async with group_of(2, replication=FAST_ACKS) as world:
        first, second = await parted(world)
        assert len(await world.pop()) == 11
        await lead_the_other(world)
        first.reachable = True
        first.learn(world.group)
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()
        await world.lead(0)
        assert sorted(await world.pop()) == [b"both", b"new 0", b"new 1", b"new 2"]


async def test_a_log_is_cut_when_there_is_room_to_say_so() -> None:
    """Seed 51371 of the simulator of broker groups: the process ended instead."""
    async with group_of(2, replication=FAST_ACKS) as world:
        first, second = await parted(world)
        await first.alive.role.leader.upkeep.save()  # type: ignore[union-attr]
        await lead_the_other(world)
        first.disk.fill(0)
        first.reachable = True
        first.learn(world.group)
        await until(lambda: first.alive.role.follower is not None)
        await asyncio.sleep(0.3)
        assert not first.alive.failure.done() and first.end > second.end
        first.disk.fill(1 << 30)
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()
        await world.lead(0)
        assert sorted(await world.pop()) == [b"both", b"new 0", b"new 1", b"new 2"]


async def test_what_a_call_has_done_is_well_when_it_is_tried_again_and_for_no_other_call() -> None:
    """P7: an earlier call of the client itself is not taken for an earlier try of this one."""
    async with group_of(2) as world:
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(3):
            await world.put(b"%d" % number)
        handles = [(await world.pop(1)).popitem()[1] for _ in range(3)]

        async def ack(call: int, again: bool) -> list[int]:
            request = pb.AckRequest(group="g", topic="t", receipt_handles=handles[:1], call=call, is_retry=again)
            answer = await world.channel.call(methods.ACK, request)
            return [result.code for result in answer.results] or [Code.OK]

        async def change(call: int, again: bool) -> str:
            request = pb.ChangeInvisibleRequest(
                group="g", topic="t", receipt_handle=handles[1], invisible_ms=60_000, call=call, is_retry=again
            )
            return (await world.channel.call(methods.CHANGE_INVISIBLE, request)).receipt_handle

        async def dead_letter(call: int, again: bool) -> None:
            request = pb.DeadLetterRequest(group="g", topic="t", receipt_handle=handles[2], call=call, is_retry=again)
            await world.channel.call(methods.DEAD_LETTER, request)

        assert await ack(71, again=False) == [Code.OK]
        changed = await change(72, again=False)
        await dead_letter(73, again=False)
        for _ in range(2):
            assert await ack(71, again=True) == [Code.OK]
            assert await ack(81, again=True) == await ack(71, again=False) == [Code.INVALID_RECEIPT_HANDLE]
            assert await change(72, again=True) == changed
            await dead_letter(73, again=True)
            for refused in (change(82, again=True), change(72, again=False), dead_letter(83, again=True)):
                with pytest.raises(StatusError) as error:
                    await refused
                assert error.value.code == Code.INVALID_RECEIPT_HANDLE
            if world.members[0].app is not None:
                await world.members[0].kill()
                await world.lead(1)  # it knows by the log


async def test_what_was_not_confirmed_by_others_is_not_folded_at_the_start() -> None:
    """Also by one that was alone in the set: it may have grown since, and another may have been elected."""
    async with group_of(2, checkpoint_interval_ms=600_000) as world:
        first, second = world.members
        await second.stop()
        await world.lead(0)
        for number in range(10):
            await world.put(b"%d" % number)
        await first.kill()
        learned, world.group = world.group, BrokerGroup()
        await first.start()
        files = first.alive.files
        assert list(first.alive.role.group.sync_state_set) == [0]
        assert files.high_watermark == files.saved_position < files.end_position
        world.group = learned
        await world.lead(0)
        assert len(await world.pop()) == 10


async def test_a_new_master_folds_nothing_that_is_not_on_its_device() -> None:
    replication = {"ack_mode": "master"}
    async with group_of(2, replication=replication) as world:
        _, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        files = second.alive.files
        sync, fold = files.sync, files._fold._fold
        not_synced: list[int] = []

        async def no_sync() -> None:
            pass

        def folded(end: int) -> bool:
            if end > files.synced_position:
                not_synced.append(end)
            return fold(end)

        files.sync = no_sync  # type: ignore[method-assign]
        for number in range(3):
            await world.put(b"%d" % number)
        await until(lambda: second.end == world.members[0].end)
        files.sync = sync  # type: ignore[method-assign]
        files._fold._fold = folded  # type: ignore[method-assign]
        await world.lead(1)
        assert not_synced == []
        assert len(await world.pop()) == 3


async def test_all_die_and_come_back() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(100):
            await world.put(b"%d" % number)
        acked = await world.pop(30)
        await world.ack(*acked.values())
        for member in world.members:
            await member.kill("process")
        for member in world.members:
            await member.start()
        await world.lead(1)
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()
        left: set[bytes] = set()
        while found := await world.pop():
            left |= set(found)
        assert left == {b"%d" % number for number in range(100)} - set(acked)


async def test_a_master_that_is_elected_again_goes_on_with_what_was_written() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(b"1")
        second.reachable = False
        world.controller_away = True
        await second.alive.role.follower.stop()  # type: ignore[union-attr]
        end = first.end
        waiting = asyncio.create_task(world.put(b"2"))
        await until(lambda: first.end > end)
        world.controller_away = False
        await world.lead(0)
        await until(lambda: first.alive.role.leader is not None and first.alive.role.leader.epoch == 2)
        with pytest.raises(StatusError) as doubt:
            await waiting
        assert doubt.value.code == Code.SLAVE_PERSISTENCE_TIMEOUT
        await first.alive.roles.until_leads()
        assert (await world.put(b"2", again=True)).queue_offset == 1
        assert (await world.put(b"3")).queue_offset == 2
        assert sorted(await world.pop()) == [b"1", b"2", b"3"]
        second.reachable = True
        await second.stop()
        await second.start()
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()


async def test_a_slave_that_was_begun_anew_and_loses_power_begins_again() -> None:
    retention = {"hours": 0.00001, "interval_ms": 10}
    async with group_of(2, retention=retention, log={"segment_bytes": 4096}) as world:
        first, second = world.members
        await second.stop()
        await world.lead(0)
        for number in range(60):
            await world.put(b"%d" % number + bytes(500))
        await until(lambda: first.alive.files.start_position > 0)
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55):
            await second.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            await second.kill("power")
        await second.start()
        await world.in_sync(0, 1)
        assert second.alive.replication_statistics.checkpoints_taken + second.alive.files.start_position > 0
        await first.kill()
        await world.lead(1)
        assert (await world.put(b"last")).queue_offset == 60
