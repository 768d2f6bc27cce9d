"""Polls that name no broker go to all of them, also where they come in step with others."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest
from popwheel_proxy.receive import notifications
from tests.unit.proxy.virtual import LoopClock, run
from tests.unit.proxy.world import poll_request, turns, until, world

BROKERS = ("b1", "b2", "b3", "b4")


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 8])
def test_each_group_asks_every_broker_in_the_end(groups: int) -> None:
    """In one turn for all, each of two groups would get every second one of four brokers, and no other."""

    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock(), poll_mode="plain") as w:
            for _ in range(40):
                for number in range(groups):
                    request = poll_request(wait_s=5.0, broker="")
                    request.group.name = f"group{number}"
                    await w.receive(request)
            asked = {name: broker.asked("Pop") for name, broker in w.brokers.items()}
            for number in range(groups):
                of_group = [
                    sum(isinstance(each, PopRequest) and each.group == f"group{number}" for each in requests)
                    for requests in asked.values()
                ]
                assert sum(of_group) == 40
                assert min(of_group) >= 5, of_group

    run(body())


def test_polls_of_one_group_go_round_the_brokers_however_many_others_poll_in_between() -> None:
    """In one turn for all, one of three brokers was not asked for minutes."""

    async def body() -> None:
        async with world("b1", "b2", "b3", clock=LoopClock(), poll_mode="plain") as w:
            others = poll_request(wait_s=0.0, broker="")
            others.group.name = "others"
            for _ in range(12):
                for _ in range(20):
                    await w.receive(others)
                await w.receive(poll_request(wait_s=5.0, broker=""))
            asked = [
                sum(isinstance(each, PopRequest) and each.group == "group" for each in broker.asked("Pop"))
                for broker in w.brokers.values()
            ]
            assert asked == [4, 4, 4]

    run(body())


def test_polls_that_do_not_wait_ask_all_brokers_alike_if_each_reaches_some_only() -> None:
    """The first by name were asked by each poll, and the last by few."""

    async def slow() -> None:
        await asyncio.sleep(0.15)

    async def body() -> None:
        async with world(*BROKERS, clock=LoopClock()) as w:
            for broker in w.brokers.values():
                broker.pop_gate = cast("asyncio.Event", SimpleNamespace(wait=slow))
            for _ in range(20):
                await w.receive(poll_request(wait_s=0.0, broker=""))
            asked = [len(broker.asked("Pop")) for broker in w.brokers.values()]
            assert sum(asked) == 40, "each poll has time for two"
            assert min(asked) >= 8, asked

    run(body())


@pytest.mark.parametrize("mode", ["notify", "plain"])
def test_all_brokers_learn_once_a_minute_what_a_group_reads_wherever_it_is_polled(mode: str) -> None:
    """Messages at the others count as its lag, also if it never waits for anything and polls only one."""

    async def body() -> None:
        async with world("b1", "b2", clock=LoopClock(), poll_mode=mode) as w:
            for _ in range(3):
                await w.receive(poll_request(wait_s=0.0, broker="b1"))
            await turns()
            assert [broker.readers for broker in w.brokers.values()] == [[("group", "orders")]] * 2
            await asyncio.sleep(61)
            await w.receive(poll_request(wait_s=0.0, broker="b1"))
            await turns()
            assert [broker.readers for broker in w.brokers.values()] == [[("group", "orders")] * 2] * 2

    run(body())


async def test_a_group_reads_a_topic_that_is_made_anew_and_too_many_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        await w.receive(poll_request(wait_s=0.0))
        w.controller.delete_group("group")
        await until(lambda: "group" not in w.app.view.groups)
        w.controller.add_group("group")
        await until(lambda: "group" in w.app.view.groups)
        await w.receive(poll_request(wait_s=0.0))
        await turns()
        assert w.broker.readers == [("group", "orders")] * 2
        monkeypatch.setattr(notifications, "_READERS_MAX", 1)
        w.controller.add_topic("others")
        await until(lambda: "others" in w.app.view.topics)
        request = poll_request(wait_s=0.0)
        request.message_queue.topic.name = "others"
        await w.receive(request)
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "readers_max"}) == 1
        assert w.broker.readers == [("group", "orders")] * 2
