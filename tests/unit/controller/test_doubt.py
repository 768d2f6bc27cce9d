"""A replica that may lack what was acknowledged does not lead as long as another one may have it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from popwheel_common.clock import SystemClock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.broker_groups.group_history import GroupHistory
from popwheel_controller.http.group_routes import GroupViews
from tests.unit.controller.fake_replicas import GROUP, FakeReplica, Scene, scene, until

WORD = f"lose-messages-of-{GROUP}"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path) as made:
        yield made


async def join_silently(here: Scene, replica: FakeReplica) -> None:
    """Let a replica register that is told nothing."""
    here.machines.add(replica)
    await replica.join(here.channel)
    await until(lambda: here.app.overseer.replicas.session(GROUP, replica.report.replica) is not None)


async def test_a_suspect_master_waits_for_who_has_everything(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    for each in (master, slave):
        each.kill()
    back = master.next_life(suspect=True)
    await join_silently(here, back)
    await until(lambda: here.route() is None)
    await asyncio.sleep(0.3)
    shown = GroupViews(here.app.overseer, here.app.checkpoints, GroupHistory(1, SystemClock()), SystemClock()).one(
        GROUP
    )
    assert shown.trouble.endswith("waits for replica 1") and shown.replicas[0].doubtful
    assert not back.learned
    other = slave.next_life()
    await here.join(other)
    await until(lambda: other.leads == 2 and here.route() == ("replica-1:1", 2))
    await until(lambda: back.leads is None and bool(back.learned))


async def test_two_of_unknown_outcome_are_led_by_the_longer_log(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    for each in (master, slave):
        each.kill()
    await join_silently(here, master.next_life(suspect=True, last_epoch=1, end_position=100))
    other = slave.next_life(suspect=True, last_epoch=1, end_position=200)
    await here.join(other)
    await until(lambda: other.leads == 2)


async def test_of_two_of_unknown_outcome_none_is_chosen_by_what_one_of_them_said_before(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    for each in (master, slave):
        each.kill()
    grown = master.next_life(suspect=True, last_epoch=1, end_position=100)
    await join_silently(here, grown)
    grown.beats = False
    grown.report.end_position = 300
    other = slave.next_life(suspect=True, last_epoch=1, end_position=200)
    await join_silently(here, other)
    await until(lambda: grown.refusal is not None)
    assert other.leads is None
    grown.beats = True
    await grown.join(here.channel)
    await until(lambda: grown.leads == 2)


async def test_who_is_alone_in_the_set_is_not_delayed(here: Scene) -> None:
    master = FakeReplica(0)
    await here.join(master)
    master.kill()
    back = master.next_life(suspect=True)
    await here.join(back)
    assert back.leads == 2


async def test_an_operator_may_overrule_a_doubt(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    for each in (master, slave):
        each.kill()
    back = master.next_life(suspect=True, last_epoch=1, end_position=100)
    await join_silently(here, back)
    await until(lambda: here.route() is None)
    elect_unclean = here.app._transfers.elect_unclean
    with pytest.raises(StatusError, match="Replica 1 may have more") as refused:
        await elect_unclean(GROUP, None, "")
    assert refused.value.code == Code.BAD_REQUEST and WORD in refused.value.message
    assert (await elect_unclean(GROUP, None, WORD)).master == 0
    await until(lambda: back.leads == 2)


async def test_a_role_is_passed_on_to_a_suspect_one_when_it_has_caught_up(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    slave.kill()
    back = slave.next_life(suspect=True)
    await here.join(back)
    with pytest.raises(StatusError, match="replica 1 of broker-0 had to cut off the end of its log"):
        await here.app._transfers.switch(GROUP, 1)
    master.report.leaving = True
    await asyncio.sleep(0.2)
    assert master.leads == 1 and not master.handed_over_to
    back.report.suspect = False
    await until(lambda: back.leads == 2)


@pytest.mark.parametrize("next_process", [False, True])
async def test_who_is_not_the_process_any_more_that_registered_is_not_chosen(here: Scene, next_process: bool) -> None:
    """Its machine lost its power, so its stream did not end."""
    master, gone, other = (FakeReplica(number) for number in range(3))
    await here.led_with(master, gone, other)
    gone.report.last_epoch, gone.report.end_position = 1, 100
    await asyncio.sleep(0.1)  # until that was reported
    gone.alive = False
    if next_process:  # it answers already, and has not registered yet
        here.machines.add(gone.next_life(suspect=True))
    master.kill()
    await until(lambda: other.leads == 2)


async def test_who_registers_and_never_answers_at_its_address_is_passed_over(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    for each in (master, slave):
        each.kill()
    mute = slave.next_life()
    mute.answers = False
    await join_silently(here, mute)

    async def insist() -> None:
        while True:
            await asyncio.sleep(0.1)
            mute.cut()
            await mute.join(here.channel)

    insisting = asyncio.create_task(insist())
    back = master.next_life()
    await here.join(back)
    await until(lambda: back.leads == 2)
    insisting.cancel()
