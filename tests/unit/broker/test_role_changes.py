"""Changes of roles that go wrong halfway, and what is left of a role when it is over."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.replication import superblock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, Replica
from popwheel_rpc import methods
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.broker.group_world import NAME, GroupWorld, Member, group_of, until


def is_superblock(path: Path) -> bool:
    return path.name == superblock.NAME


def fail_new_cores(member: Member, times: int) -> list[int]:
    """Have a replica fail that often to make a core; how often it has is what the list holds."""
    files = member.alive.files
    make: Callable[[CommitLog | None], BrokerCore] = files._make_core
    failed: list[int] = []

    def make_core(log: CommitLog | None) -> BrokerCore:
        if len(failed) < times:
            failed.append(1)
            raise OSError(errno.EMFILE, "too many open files")
        return make(log)

    files._make_core = make_core
    return failed


async def test_a_deposed_master_that_cannot_begin_anew_at_once_follows_with_a_new_core_all_the_same() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"1", b"2")
        await w.in_sync(0, 1)
        led = w.members[0].alive.core
        failed = fail_new_cores(w.members[0], 1)
        await w.lead(1)
        await w.in_sync(0, 1)
        assert failed and w.members[0].alive.core is not led and not w.members[0].alive.core.is_finished
        await w.put(b"3", b"4")
        await w.in_sync(0, 1)
        await w.members[1].kill()
        await w.lead(0)
        assert (await w.put(b"5")).queue_offset == 4
        assert sorted(await w.pop()) == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_deposed_master_that_cannot_begin_anew_leads_again_with_all() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"1")
        await w.in_sync(0, 1)
        failed = fail_new_cores(w.members[0], 1)
        await w.lead(1)
        await until(lambda: bool(failed))
        await w.members[1].kill()
        await w.lead(0)
        assert (await w.put(b"2")).queue_offset == 1
        assert sorted(await w.pop()) == [b"1", b"2"]


async def test_who_was_about_to_lead_when_another_was_named_follows_with_a_new_core() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"1")
        await w.in_sync(0, 1)
        slave = w.members[1]
        slave.disk.fail_syncs(1 << 20, of=is_superblock)
        w.elect(1)  # its epoch can't be written down
        await until(lambda: slave.alive.role.trouble is not None)
        slave.disk.fail_syncs(0)
        await w.lead(0)
        await w.in_sync(0, 1)
        await until(lambda: slave.alive.role.follower is not None)
        assert slave.alive.files.is_followers and not slave.alive.core.is_finished
        await w.put(b"2")
        await w.in_sync(0, 1)
        await w.members[0].kill()
        await w.lead(1)
        assert (await w.put(b"3")).queue_offset == 2
        assert sorted(await w.pop()) == [b"1", b"2", b"3"]


async def test_who_has_a_full_disk_leads_and_refuses_sends_as_any_master_does() -> None:
    """Its epoch takes no space."""
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        member = w.members[1]
        member.disk.fill(0)
        await w.members[0].kill()
        await w.lead(1)
        with pytest.raises(StatusError, match="disk is nearly full"):
            await w.put(b"1")
        assert member.alive.health() is None


async def test_who_cannot_write_down_its_epoch_says_so_and_leads_when_it_can() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"1")
        await w.in_sync(0, 1)
        member = w.members[1]
        member.disk.fail_syncs(1 << 20, of=is_superblock)
        await w.members[0].kill()
        w.elect(1)
        await until(lambda: member.alive.role.trouble is not None)
        assert "cannot take its role" in str(member.alive.health()) and "Input/output error" in str(
            member.alive.health()
        )
        assert "popwheel_replica_without_role 1.0" in member.metrics()
        with pytest.raises(StatusError, match=r"cannot take its role.*Input/output error") as refused:
            await w.put(b"2")
        assert refused.value.code == Code.HA_NOT_AVAILABLE
        member.disk.fail_syncs(0)
        async with asyncio.timeout(20):
            await member.alive.roles.until_leads()
        assert (await w.put(b"2")).queue_offset == 1
        assert sorted(await w.pop()) == [b"1", b"2"]
        assert member.alive.health() is None
        assert "popwheel_replica_without_role 0.0" in member.metrics()


async def transfer(member: Member, to: int) -> None:
    await member.channel.call(methods.HAND_OVER, pb.HandOverRequest(group=NAME, epoch=1, to=to))


def test_a_term_that_ends_is_not_gone_on_with_though_its_time_to_do_so_comes() -> None:
    clock = ManualClock()

    async def story() -> None:
        async with group_of(clock=clock) as w:
            await w.lead(0)
            await w.in_sync(0, 1)
            old = w.members[0].alive
            term = old.role.leader
            assert term is not None
            await transfer(w.members[0], 1)
            end, may_end = term.depose, asyncio.Event()

            async def end_slowly() -> None:
                await end()
                await may_end.wait()

            term.depose = end_slowly  # type: ignore[method-assign]
            w.elect(1)
            await asyncio.sleep(4)  # it would go on after three
            assert old.role.leader is term and not term._tasks
            with pytest.raises(StatusError, match="does not lead"):
                await transfer(w.members[0], 1)
            with pytest.raises(StatusError, match="is led by another replica"):
                await w.members[0].channel.call(methods.POP, pb.PopRequest(group="g", topic="t", max_messages=1))
            may_end.set()
            await w.in_sync(0, 1)

    run_virtually(clock, story())


def test_a_term_goes_on_whole_if_a_transfer_is_given_up_while_the_device_is_slow() -> None:
    clock = ManualClock()

    async def story() -> None:
        async with group_of(clock=clock) as w:
            member = await w.lead(0)
            await w.in_sync(0, 1)
            term = member.alive.role.leader
            assert term is not None
            await w.put(b"later", topic="later", due_ms=clock.wall_ms() + 10_000)
            member.disk.hold_syncs()
            asyncio.get_running_loop().call_later(5, member.disk.release_syncs)
            await asyncio.sleep(1.5)  # what saves the timer, and what saves the rest, wait for the device
            calls = member.channel
            request = pb.HandOverRequest(group=NAME, epoch=1, to=1)
            with pytest.raises(RpcError) as given_up:
                await calls.call(methods.HAND_OVER, request, timeout_s=0.5)
            assert given_up.value.status is GrpcStatus.DEADLINE_EXCEEDED
            assert await w.pop() == {}  # it is served again
            began_s = clock.monotonic()
            with pytest.raises(StatusError, match="did not stop within 2") as refused:
                await calls.call(methods.HAND_OVER, request)
            assert refused.value.code == Code.HA_NOT_AVAILABLE
            assert clock.monotonic() - began_s == pytest.approx(2.0)
            assert not term._tasks  # nothing begins while the same goes on still
            await asyncio.sleep(1.1)
            assert term._tasks and not any(task.done() for task in term._tasks)
            saved = term.upkeep._files.saved_position
            await w.put(b"1")
            await asyncio.sleep(1)
            assert term.upkeep._files.saved_position > saved
            await asyncio.sleep(9)
            assert list(await w.pop(topic="later")) == [b"later"]
            await transfer(member, 1)

    run_virtually(clock, story())


def story_of_transfers(story: Callable[[GroupWorld], Awaitable[None]]) -> None:
    """Tell it of a master with two slaves; what number 1 has is not on its device until its syncs are let go on."""
    clock = ManualClock()

    async def run() -> None:
        async with group_of(3, clock=clock) as w:
            await w.lead(0)
            await w.in_sync(0, 1, 2)
            w.members[1].disk.hold_syncs()
            waiting = asyncio.create_task(w.put(b"1"))
            await asyncio.sleep(0.1)
            try:
                await story(w)
            finally:
                w.members[1].disk.release_syncs()
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

    run_virtually(clock, run())


async def is_held(w: GroupWorld) -> bool:
    """Whether the master takes nothing for the moment."""
    try:
        async with asyncio.timeout(0.001):
            await w.put(b"x")
    except StatusError as refusal:
        assert "passes its role on" in refusal.message
        return True
    except TimeoutError:
        pass
    return False


def test_a_role_that_is_being_passed_on_is_not_passed_to_another_meanwhile() -> None:
    async def story(w: GroupWorld) -> None:
        master = w.members[0]
        first = asyncio.create_task(transfer(master, 1))
        await asyncio.sleep(0.1)
        with pytest.raises(StatusError, match="to replica 1 already") as refused:
            await transfer(master, 2)
        assert refused.value.code == Code.PRECONDITION_FAILED
        assert await is_held(w)
        w.members[1].disk.release_syncs()
        await first
        with pytest.raises(StatusError, match="to replica 1 already"):
            await transfer(master, 2)  # also when the first only waits for its new epoch
        await asyncio.sleep(2.9)
        assert await is_held(w)
        await asyncio.sleep(0.2)
        assert not await is_held(w)
        await transfer(master, 2)

    story_of_transfers(story)


def test_who_asks_for_the_same_transfer_is_answered_with_the_first_and_has_his_time() -> None:
    async def story(w: GroupWorld) -> None:
        master = w.members[0]
        asked = [asyncio.create_task(transfer(master, 1)) for _ in range(2)]
        await asyncio.sleep(0.5)
        w.members[1].disk.release_syncs()
        await asyncio.gather(*asked)
        await asyncio.sleep(2)
        await transfer(master, 1)  # whose answer was lost asks again; nobody keeps the master paused by asking
        await asyncio.sleep(0.9)
        assert await is_held(w)
        await asyncio.sleep(0.2)
        assert not await is_held(w)

    story_of_transfers(story)


@pytest.mark.parametrize("gone", [0, 1])
def test_one_of_two_who_asked_for_a_transfer_goes_and_the_master_stays_paused_for_the_other(gone: int) -> None:
    async def story(w: GroupWorld) -> None:
        master = w.members[0]
        asked = [asyncio.create_task(transfer(master, 1)) for _ in range(2)]
        await asyncio.sleep(0.5)
        asked[gone].cancel()
        await asyncio.sleep(0.1)
        assert await is_held(w)
        w.members[1].disk.release_syncs()
        await asked[1 - gone]
        assert await is_held(w)

    story_of_transfers(story)


def test_a_master_continues_when_all_who_asked_it_to_transfer_have_left_or_the_transfer_failed() -> None:
    async def story(w: GroupWorld) -> None:
        master = w.members[0]
        asked = [asyncio.create_task(transfer(master, 1)) for _ in range(2)]
        await asyncio.sleep(0.5)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert not await is_held(w)
        asked = [asyncio.create_task(transfer(master, 1))]
        await asyncio.sleep(0.5)
        asked.append(asyncio.create_task(transfer(master, 1)))
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(outcome, StatusError) and "did not catch up" in outcome.message
        assert not await is_held(w)

    story_of_transfers(story)


def test_a_transfer_that_another_epoch_overtakes_is_notified_so() -> None:
    async def story(w: GroupWorld) -> None:
        asked = asyncio.create_task(transfer(w.members[0], 1))
        await asyncio.sleep(0.5)
        w.elect(2)
        with pytest.raises(StatusError, match="does not lead epoch 1"):
            await asked

    story_of_transfers(story)


async def test_who_waits_at_a_deposed_master_is_answered_though_its_device_is_slow() -> None:
    async with group_of() as w:
        old = await w.lead(0)
        await w.in_sync(0, 1)
        files = old.alive.files
        await until(lambda: list(BrokerGroup.FromString(files.superblock.contents.group).sync_state_set) == [0, 1])
        await asyncio.sleep(0.1)  # and that is on the device: a role is taken when the one before is written down
        old.disk.hold_syncs()
        waiting = asyncio.create_task(w.put(b"1"))
        await asyncio.sleep(1.2)  # what saves waits for the device by now, too
        w.elect(1)
        try:
            async with asyncio.timeout(5):
                with pytest.raises(StatusError, match="has another master now") as answered:
                    await waiting
            assert old.alive.role.leader is not None
        finally:
            old.disk.release_syncs()
        assert answered.value.code == Code.SLAVE_PERSISTENCE_TIMEOUT
        await w.in_sync(0, 1)


def test_no_term_is_gone_on_with_in_a_replica_that_has_stopped() -> None:
    clock = ManualClock()

    async def story() -> None:
        async with group_of(clock=clock) as w:
            await w.lead(0)
            await w.in_sync(0, 1)
            term = w.members[0].alive.role.leader
            assert term is not None
            await transfer(w.members[0], 1)
            await w.members[0].stop()
            await asyncio.sleep(4)
            assert not term._tasks

    run_virtually(clock, story())


async def test_a_replica_that_cannot_save_its_progress_leads_all_the_same() -> None:
    async with group_of(1) as w:
        member = await w.lead(0)
        await w.put(b"1", b"2")
        await member.stop()
        await member.start()
        files = member.alive.files

        async def full(rows: object, head: object) -> None:
            raise OSError(errno.ENOSPC, "no space left on device")

        files._saved._append = full  # type: ignore[method-assign]
        await w.lead(0)
        given = await w.pop()
        assert sorted(given) == [b"1", b"2"]
        await w.ack(*given.values())
        assert not member.alive.failure.done()


async def test_the_way_to_a_replica_that_is_elsewhere_now_is_closed() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        app = w.members[0].alive
        assert [number for number, _ in app._peers.others()] == [1]
        assert list(app._peers._channels) == ["replica-1:1"]
        w._decide(replicas=[Replica(number=0, address="replica-0:1"), Replica(number=1, address="replica-1:2")])
        await until(lambda: not app._peers._channels)
        assert [number for number, _ in app._peers.others()] == [1]
        assert list(app._peers._channels) == ["replica-1:2"]
