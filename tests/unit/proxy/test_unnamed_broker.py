"""Polls that name no broker go to all of them, also where they come in step with others."""

import pytest

from services.common.pb.popwheel.v1.broker_pb2 import PopRequest
from tests.unit.proxy.virtual import LoopClock, run
from tests.unit.proxy.world import poll_request, world

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
