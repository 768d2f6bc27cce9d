"""Records that rot at one replica and are mended from the other, whoever meets them."""

import asyncio
from contextlib import suppress

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.unit.broker.group_world import damage, group_of, until


async def test_a_record_that_is_found_damaged_at_the_start_is_mended() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(10):
            await world.put(b"body-%d" % number)
        await until(lambda: second.alive.files.saved_position == second.end)
        await second.kill()
        damage(second, b"body-4")
        await second.start()
        assert second.alive.replication_statistics.repaired_records == 1
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()


async def test_what_has_rotted_since_the_last_checkpoint_is_mended_and_not_cut_off_as_torn() -> None:
    """S5: a member of the set that had synced more may be chosen with what is left."""
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(10):
            await world.put(b"body-%d" % number)
        await second.kill()
        damage(second, b"body-4")
        damage(second, b"body-7")
        end = first.end
        await second.start()
        assert second.end == end
        assert second.alive.replication_statistics.repaired_records == 2
        assert first.log_bytes() == second.log_bytes()


async def test_a_tail_that_nobody_else_has_is_cut_off() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(10):
            await world.put(b"body-%d" % number)
        await second.kill()
        await first.kill()
        damage(second, b"body-4")
        await second.start()
        assert b"body-3" in second.log_bytes()
        assert b"body-4" not in second.log_bytes()
        assert b"body-5" not in second.log_bytes()
        await first.start()


async def test_a_record_that_is_met_damaged_is_mended_and_delivered() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(10):
            await world.put(b"body-%d" % number)
        damage(first, b"body-4")
        given: dict[bytes, str] = {}
        async with asyncio.timeout(10):
            while len(given) < 10:
                with suppress(StatusError):  # it stands still for a moment
                    given |= await world.pop(1)
                await asyncio.sleep(0.01)
        assert first.log_bytes() == second.log_bytes()


async def test_what_is_met_damaged_while_nobody_can_help_is_mended_when_somebody_can() -> None:
    """L2, T3: neither a queue nor a delayed message stands still for ever because the other replica was away."""
    async with group_of(2, replication={"absence_ms_max": 100}) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(b"body-now")
        await world.put(b"body-later", due_ms=world.clock.wall_ms() + 600)
        await second.stop()
        await until(lambda: list(world.group.sync_state_set) == [0])
        damage(first, b"body-now")
        damage(first, b"body-later")
        with pytest.raises(StatusError, match="stands still at a damaged record"):
            await world.pop()
        await until(lambda: bool(first.alive.core.timer.state.damaged))
        await second.start()
        await world.in_sync(0, 1)
        given: dict[bytes, str] = {}
        async with asyncio.timeout(20):
            while len(given) < 2:
                with suppress(StatusError):
                    given |= await world.pop()
                await asyncio.sleep(0.01)
        assert sorted(given) == [b"body-later", b"body-now"]


async def test_a_send_that_is_tried_again_has_what_it_meets_damaged_mended() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        for number in range(10):
            await world.put(b"body-%d" % number)
        for number in (4, 7):
            damage(first, b"body-%d" % number)
        assert (await world.put(b"body-4", again=True)).queue_offset == 4
        assert (await world.put(b"body-10", again=True)).queue_offset == 10
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()


async def test_a_send_that_is_tried_again_is_refused_if_damage_hides_what_is_there() -> None:
    async with group_of(1) as world:
        await world.lead(0)
        for number in range(10):
            await world.put(b"body-%d" % number)
        damage(world.members[0], b"body-4")
        end = world.members[0].end
        refused = await world.put(b"body-7", again=True)
        assert refused.code == Code.INTERNAL_ERROR
        assert "is unknown now" in refused.error
        assert world.members[0].end == end
        assert (await world.put(b"body-10")).code == Code.OK


async def test_a_recall_has_a_damaged_record_mended_and_is_decided_then() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        due_ms = world.clock.wall_ms() + 60_000
        handles = [
            (await world.put(b"body-%d" % number, topic="later", due_ms=due_ms)).references[0] for number in range(5)
        ]
        damage(first, b"body-2")
        request = pb.RecallRequest(topic="later", recall_handle=handles[2])
        await world.channel.call(methods.RECALL, request)
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()
        damage(first, b"body-3")
        await second.stop()
        await until(lambda: list(world.group.sync_state_set) == [0])
        with pytest.raises(StatusError, match="checksum") as refused:
            await world.channel.call(methods.RECALL, pb.RecallRequest(topic="later", recall_handle=handles[3]))
        assert refused.value.code == Code.INTERNAL_ERROR


async def test_a_master_that_was_deposed_and_has_not_learned_of_it_cannot_say_that_a_message_is_not_there() -> None:
    """Seed 106256 of the simulator of broker groups: it told a client so of a message that its successor held."""
    async with group_of(2) as world:
        await world.lead(0)
        await world.in_sync(0, 1)
        deposed = world.members[0]
        deposed.reachable = False
        await world.lead(1)
        due_ms = world.clock.wall_ms() + 60_000
        handle = (await world.put(b"later", topic="later", due_ms=due_ms)).references[0]
        request = pb.RecallRequest(topic="later", recall_handle=handle)
        with pytest.raises(StatusError, match="leads no more") as reported:
            await deposed.channel.call(methods.RECALL, request)
        assert reported.value.code == Code.HA_NOT_AVAILABLE
        await world.channel.call(methods.RECALL, request)


async def test_a_recall_whose_record_is_mended_as_another_takes_the_lead_writes_nothing() -> None:
    async with group_of(2) as world:
        first, second = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        due_ms = world.clock.wall_ms() + 60_000
        handle = (await world.put(b"body", topic="later", due_ms=due_ms)).references[0]
        await world.in_sync(0, 1)
        damage(first, b"body")
        asked, answer = asyncio.Event(), asyncio.Event()

        async def ask_slowly() -> None:
            asked.set()
            await answer.wait()

        first.alive.repairer._peers.ask = ask_slowly  # type: ignore[method-assign]
        recalling = asyncio.create_task(
            world.channel.call(methods.RECALL, pb.RecallRequest(topic="later", recall_handle=handle))
        )
        await asked.wait()
        await world.lead(1)
        await until(lambda: first.alive.role.leader is None)
        answer.set()
        with pytest.raises(StatusError) as doubt:
            await recalling
        assert doubt.value.code == Code.SLAVE_PERSISTENCE_TIMEOUT
        await world.in_sync(0, 1)
        assert first.log_bytes() == second.log_bytes()


async def test_a_record_that_a_new_master_finds_damaged_is_mended() -> None:
    async with group_of(3) as world:
        _, second, third = world.members
        await world.lead(0)
        await world.in_sync(0, 1, 2)
        await second.alive.role.follower.stop()  # type: ignore[union-attr]
        second.alive.files.commit = lambda position: None  # type: ignore[method-assign]
        second.alive.role.follower.start()  # type: ignore[union-attr]
        await world.in_sync(0, 1, 2)
        for number in range(10):
            await world.put(b"body-%d" % number)
        second.alive.files._fold._appended.clear()
        damage(second, b"body-4")
        await world.members[0].kill()
        await world.lead(1)
        assert len(await world.pop()) == 10
        assert second.alive.replication_statistics.repaired_records == 1
        await world.in_sync(1, 2)
        assert second.log_bytes() == third.log_bytes()
