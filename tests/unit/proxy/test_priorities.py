"""Topics of type PRIORITY at a proxy: where messages go, what is refused, and how such a topic looks to clients."""

import asyncio

import pytest

from popwheel_common.contract.priority import level_of
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageType
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from tests.unit.proxy.replicas import groups
from tests.unit.proxy.test_failover import runs_of
from tests.unit.proxy.virtual import run
from tests.unit.proxy.world import CLIENT, World, message, poll_request, until, world

TOPIC = "urgent"
LEVELS = 4


def of(priority: int, number: int = 0, topic: str = TOPIC) -> d.Message:
    return message(topic, message_id=f"{priority}-{number}", message_type=MessageType.PRIORITY, priority=priority)


async def urgent(w: World) -> None:
    w.controller.add_topic(TOPIC, TopicType.PRIORITY, LEVELS)
    await until(lambda: TOPIC in w.app.view.topics)


@pytest.mark.parametrize(("priority", "level"), [(0, 0), (1, 1), (3, 3), (4, 3), (2**31 - 1, 3), (-5, 0)])
def test_levels(priority: int, level: int) -> None:
    assert level_of(priority, LEVELS) == level


async def test_each_message_goes_into_the_queue_of_its_level() -> None:
    async with world() as w:
        await urgent(w)
        for priority in (0, 2, 9):
            assert (await w.send(of(priority))).status.code == Code.OK
        # As Node sends a priority of 0, and as anybody sends an ordinary message.
        assert (await w.send(message(TOPIC, message_id="0-1", priority=0))).status.code == Code.OK
        assert (await w.send(message(TOPIC, message_id="0-2"))).status.code == Code.OK
        assert (await w.send(message(TOPIC, message_id="1-1", message_type=0, priority=1))).status.code == Code.OK
        many = await w.send(*(of(priority, number) for number in range(10, 13) for priority in (1, 3)))
        assert [entry.status.code for entry in many.entries] == [Code.OK] * 6
        assert [entry.message_id for entry in many.entries] == ["1-10", "3-10", "1-11", "3-11", "1-12", "3-12"]
        stored = w.broker.topics[TOPIC]
        kept = [d.SystemProperties.FromString(each.system_properties) for each in stored]
        for each, properties in zip(stored, kept, strict=True):
            assert each.queue_id == level_of(properties.priority, LEVELS)
            assert properties.message_id.startswith(f"{properties.priority}-")


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (message(TOPIC, message_type=MessageType.PRIORITY), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (of(-1), Code.BAD_REQUEST),
        (message(TOPIC, priority=1), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(TOPIC, priority=-1), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (
            message(TOPIC, message_type=MessageType.PRIORITY, priority=1, message_group="g"),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (
            message(TOPIC, message_type=MessageType.PRIORITY, priority=1, lite_topic="l"),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (
            message(TOPIC, message_type=MessageType.FIFO, priority=1, message_group="g"),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (message(TOPIC, message_type=MessageType.TRANSACTION), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (of(1, topic="orders"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("orders", priority=0), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
async def test_what_has_no_level_is_refused(bad: d.Message, code: int) -> None:
    async with world() as w:
        await urgent(w)
        answer = await w.send(bad)
        assert answer.status.code == code
        assert answer.status.message
        assert (await w.send(of(1), bad)).status.code == code
        assert w.broker.topics == {}


async def test_a_delivery_time_and_a_priority_are_refused() -> None:
    async with world() as w:
        await urgent(w)
        bad = of(1)
        bad.system_properties.delivery_timestamp.GetCurrentTime()
        assert (await w.send(bad)).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_a_mixed_topic_has_no_levels() -> None:
    async with world() as w:
        w.controller.add_topic("mixed", TopicType.MIXED)
        await until(lambda: "mixed" in w.app.view.topics)
        answer = await w.send(of(1, topic="mixed"))
        assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert "PRIORITY" in answer.status.message


def test_a_level_is_the_same_at_the_broker_that_takes_over() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            w.controller.add_topic(TOPIC, TopicType.PRIORITY, LEVELS)
            await until(lambda: TOPIC in w.app.view.topics)
            await w.kill_master("a")
            sends = [asyncio.create_task(w.send(of(2, number))) for number in range(6)]
            assert [(await one).status.code for one in sends] == [Code.OK] * 6
            assert {one.queue_id for one in (*runs_of(w, "a"), *runs_of(w, "b"))} == {2}
            assert len(w.logs["b"].topics[TOPIC]) == 6

    run(scenario())


async def test_how_it_looks_to_clients() -> None:
    async with world() as w:
        await urgent(w)
        w.controller.add_group("orderly", fifo=True)
        await until(lambda: "orderly" in w.app.view.groups)
        route = await w.channel.call(
            protocol.QUERY_ROUTE, pb.QueryRouteRequest(topic=d.Resource(name=TOPIC)), metadata=CLIENT
        )
        assert [queue.id for queue in route.message_queues] == list(range(LEVELS))
        assert list(route.message_queues[0].accept_message_types) == [MessageType.PRIORITY, MessageType.NORMAL]
        retries = pb.QueryRouteRequest(topic=d.Resource(name=f"%RETRY%orderly+{TOPIC}"))
        route = await w.channel.call(protocol.QUERY_ROUTE, retries, metadata=CLIENT)
        assert [queue.id for queue in route.message_queues] == list(range(LEVELS))
        request = pb.QueryAssignmentRequest(topic=d.Resource(name=TOPIC), group=d.Resource(name="orderly"))
        assigned = await w.channel.call(protocol.QUERY_ASSIGNMENT, request, metadata=CLIENT)
        assert [each.message_queue.id for each in assigned.assignments] == [-1]
        poll = poll_request(0.0)
        poll.message_queue.topic.name = TOPIC
        assert (await w.receive(poll)).status.code == Code.MESSAGE_NOT_FOUND
        pops = [each for each in w.broker.asked("Pop") if isinstance(each, PopRequest)]
        assert {each.levels for each in pops} == {LEVELS}
