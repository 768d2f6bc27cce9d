"""When a replica that is to end may go (services/broker/popwheel_broker/role/departure.py)."""

import asyncio
from collections.abc import Iterable
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs

from popwheel_broker import app as broker_app
from popwheel_broker.role.departure import Step, next_step
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, Replica
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.manual_clock import ManualClock
from tests.unit.broker.group_world import group_of, until


def group(master: int, in_sync: Iterable[int], alive: Iterable[int], known: int = 3) -> BrokerGroup:
    return BrokerGroup(
        master=master,
        sync_state_set=in_sync,
        replicas=[Replica(number=number, alive=number in set(alive)) for number in range(known)],
    )


@pytest.mark.parametrize(
    ("me", "how", "step"),
    [
        (0, group(0, [0], [0], known=1), Step.LEAVE),  # a group of one
        (0, group(0, [0], [0]), Step.LEAVE),  # the others are dead: waiting would bring nobody
        (0, group(0, [0], [0, 1]), Step.WAIT),  # the successor catches up
        (0, group(0, [0, 1], [0, 1]), Step.SAY),
        (0, group(0, [0, 1], [0, 1, 2]), Step.WAIT),  # with a successor, but one fewer than there were
        (0, group(1, [1], [1]), Step.LEAVE),  # handed over
        (0, group(-1, [0, 1], [1]), Step.LEAVE),  # let go, with nobody in its place
        (1, group(0, [0, 1], [0, 1]), Step.SAY),  # a slave: nobody may choose it while it ends
        (1, group(0, [0, 1], [0]), Step.LEAVE),  # the controller has heard that
        (1, group(0, [0, 1], [0, 1, 2]), Step.WAIT),
        (1, group(0, [0, 2], [0, 1, 2]), Step.LEAVE),  # a slave that catches up is missed by nobody
        (1, group(1, [1], [0]), Step.WAIT),  # chosen all the same, before it was heard: it leads until another can
    ],
)
def test_a_replica_goes_when_its_group_can_do_without_it(me: int, how: BrokerGroup, step: Step) -> None:
    assert next_step(how, me) is step


async def test_a_master_waits_for_its_successor_and_the_end_of_its_lead() -> None:
    async with group_of(2, constants={"joining_ms_max": 20}) as world:
        master = await world.lead(0)
        master.alive.registrar(master.address)  # as a process has one
        await world.in_sync(0, 1)
        world._decide(sync_state_set=[0])
        leaving = asyncio.create_task(master.alive.leave())
        await world.in_sync(0, 1)
        await until(lambda: master.alive.report("").leaving)
        assert not leaving.done()
        world.elect(1)
        await leaving
        assert master.alive.role.leader is None


async def test_a_master_whose_slaves_end_too_waits_for_no_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    async with group_of(2, constants={"joining_ms_max": 20}) as world:
        master = await world.lead(0)
        master.alive.registrar(master.address)
        await world.in_sync(0, 1)
        leaving = asyncio.create_task(master.alive.leave())
        await until(lambda: master.alive.report("").leaving)
        answer = AsyncMock(return_value=group(0, [0, 1], [0]))  # the slave has said that it leaves
        monkeypatch.setattr(master.alive.departure, "_controller", Mock(call=answer))
        async with asyncio.timeout(5):
            await leaving
        assert master.alive.role.leader is not None


async def test_a_deposed_master_that_is_not_notified_waits_for_that_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_app, "UNANSWERED_S_MAX", 0.05)
    async with group_of(2, constants={"joining_ms_max": 20}) as world:
        master = await world.lead(0)
        master.alive.registrar(master.address)
        await world.in_sync(0, 1)
        leaving = asyncio.create_task(master.alive.leave())
        await until(lambda: master.alive.report("").leaving)
        answer = AsyncMock(return_value=group(1, [1], [1]))  # elected, and then the controllers are gone
        monkeypatch.setattr(master.alive.departure, "_controller", Mock(call=answer))
        async with asyncio.timeout(5):
            await leaving
        assert master.alive.role.leader is not None


async def test_while_no_controller_answers_a_replica_waits_and_not_for_ever() -> None:
    async with group_of(2, replication={"leaving_ms_max": 200}) as world:
        master = await world.lead(0)
        master.alive.registrar(master.address)
        world.controller_away = True
        await master.alive.leave()
        assert master.alive.role.leader is not None
        assert not master.alive.report("").leaving


async def test_a_replica_that_has_no_answer_for_long_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = RpcError(GrpcStatus.UNAVAILABLE, "refused")
    async with group_of(2) as world:
        app = (await world.lead(0)).alive
        clock = ManualClock()
        monkeypatch.setattr(app.departure, "_clock", clock)
        answers = [refused, refused, world.group, refused, refused, refused]
        monkeypatch.setattr(app.departure, "_controller", Mock(call=AsyncMock(side_effect=answers)))
        steps = []
        for _ in answers:
            steps.append(await app.departure.next_step())
            clock.advance(8_000)
        assert steps == [Step.WAIT, Step.WAIT, Step.LEAVE, Step.WAIT, Step.WAIT, Step.LEAVE]


async def test_why_no_controller_answers_is_said_once_until_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, hanging = RpcError(GrpcStatus.UNAVAILABLE, "refused"), RpcError(GrpcStatus.DEADLINE_EXCEEDED, "hangs")
    async with group_of(2) as world:
        app = (await world.lead(0)).alive
        answers = [refused, refused, hanging, hanging, world.group, hanging, hanging]
        monkeypatch.setattr(app.departure, "_controller", Mock(call=AsyncMock(side_effect=answers)))
        with capture_logs() as logs:
            for _ in answers:
                await app.departure.next_step()
        assert [log["why"] for log in logs if "no controller says" in log["event"]] == [
            str(refused),
            str(hanging),
            str(hanging),
        ]
