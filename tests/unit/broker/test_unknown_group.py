"""Groups that the controller does not know: one that has lost its state must not cost messages, and one that was
deleted gets nothing anew.
"""

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import Group
from popwheel_rpc import methods
from tests.unit.broker.core_world import world_of
from tests.unit.broker.served_broker import running
from tests.unit.broker.test_notify import change
from tests.unit.broker.world import INVISIBLE_MS


def test_messages_of_a_group_that_the_controller_does_not_know_come_again() -> None:
    world = world_of()
    world.put("t", b"1")
    assert world.bodies(world.pop("g", "t")) == [b"1"]
    group = world.view.groups.pop("g")
    world.clock.advance(60_000)
    assert world.revive() == 1
    world.flush()
    world.view.groups["g"] = group
    found = world.pop("g", "t")
    assert world.bodies(found) == [b"1"]


async def test_a_group_that_was_deleted_is_given_nothing_anew() -> None:
    """Its progress is forgotten, so all that is stored would come again to a poll that was there before."""
    async with running() as broker:

        async def pop(group: str, group_id: int) -> int:
            request = pb.PopRequest(
                group=group, topic="t", queue_id=-1, max_messages=32, invisible_ms=INVISIBLE_MS, group_id=group_id
            )
            return len((await broker.channel.call(methods.POP, request)).handles)

        await broker.put(b"1")
        assert await pop("g", 1) == 1
        await change(broker, deleted_groups=["g"])
        with pytest.raises(StatusError, match="the consumer group g was deleted") as caught:
            await pop("g", 1)
        assert caught.value.code == Code.CONSUMER_GROUP_NOT_FOUND
        assert await pop("h", broker.app.view.named + 1) == 1, "it was made just now, as far as is known here"
        assert await pop("i", 5_000_000_000) == 1, "another state of the controllers made it, and was lost"
        assert await pop("j", 0) == 1, "a proxy of an earlier release does not say it"
        await change(broker, groups=[Group(name="g", max_attempts=2, id=broker.app.view.version + 1)])
        assert await pop("g", 1) == 1, "it was made again"
