"""Counts of what a deletion of a topic or a group takes away."""

import asyncio

import pytest

from popwheel_broker.calls.use_server import UseServer
from popwheel_common.clock import SystemClock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import Group
from popwheel_rpc import methods
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.broker.served_broker import Broker, running
from tests.unit.broker.test_notify import change, registered


async def use(broker: Broker, topic: str = "", group: str = "") -> pb.DescribeUseResponse:
    return await broker.channel.call(methods.DESCRIBE_USE, pb.DescribeUseRequest(topic=topic, group=group))


async def test_what_hangs_on_a_topic_and_on_a_group_is_counted() -> None:
    async with running() as broker:
        assert await use(broker, topic="t") == pb.DescribeUseResponse()
        for number in range(10):
            await broker.put(b"%d" % number, queue_id=number % 2)
        handles = await broker.pop(4)
        await broker.ack(handles[0])
        found = await use(broker, topic="t")
        assert (found.unread, found.in_flight, [*found.others], found.others_total) == (6, 3, ["g"], 1)
        found = await use(broker, group="g")
        assert (found.unread, found.in_flight, [*found.others], found.dead_letters) == (6, 3, ["t"], 0)
        assert found.polling_proxies == 0
        async with registered(broker, (1, "t", "g"), (2, "t", "g")) as stream, registered(broker, (1, "t", "g")):
            await stream.receive()
            assert (await use(broker, topic="t")).polling_proxies == 2
            assert (await use(broker, group="g")).polling_proxies == 2
        request = pb.DeadLetterRequest(group="g", topic="t", receipt_handle=handles[1])
        await broker.channel.call(methods.DEAD_LETTER, request)
        assert (await use(broker, group="g")).dead_letters == 1


async def test_queues_that_a_group_never_read_count_as_unread() -> None:
    async with running() as broker:
        await broker.put(b"1", queue_id=0)
        await broker.ack(*await broker.pop())
        await broker.put(b"2", queue_id=1)
        assert (await use(broker, topic="t")).unread == (await use(broker, group="g")).unread == 1


async def test_a_group_that_polled_an_empty_topic_and_died_is_counted_with_all_that_came_since() -> None:
    async with running() as broker:
        assert await broker.pop() == []
        found = await use(broker, topic="t")
        assert (found.unread, [*found.others], found.others_total) == (0, ["g"], 1)
        for number in range(60):
            await broker.put(b"%d" % number, queue_id=number % 2)
        for found, other in ((await use(broker, topic="t"), "g"), (await use(broker, group="g"), "t")):
            assert (found.unread, [*found.others], found.others_total) == (60, [other], 1)


async def test_who_reads_dead_letters_can_be_asked_for() -> None:
    async with running() as broker:
        assert await use(broker, topic="%DLQ%g") == pb.DescribeUseResponse()


async def test_many_groups_that_read_an_empty_topic_are_counted_in_short_turns() -> None:
    async with running() as broker:
        core = broker.app.core
        core.topic_registry.readers.record({f"g-{number}": ["empty"] for number in range(30_000)})
        server = UseServer(core, SystemClock())
        call = None
        with measured_turns() as turns:
            counting = server.describe(call, pb.DescribeUseRequest(topic="empty"))  # type: ignore[arg-type]
            found = await asyncio.create_task(counting)
        assert (found.others_total, found.others[0], len(found.others)) == (30_000, "g-0", 20)
        assert turns.longest_s < TURN_S_MAX, str(turns)


async def test_other_groups_of_a_topic_are_counted_too() -> None:
    async with running() as broker:
        await change(broker, groups=[Group(name="h", max_attempts=2, id=5)])
        await broker.put(b"1")
        await broker.ack(*await broker.pop())
        request = pb.PopRequest(group="h", topic="t", queue_id=-1, max_messages=1, invisible_ms=60_000)
        await broker.channel.call(methods.POP, request)
        await broker.put(b"2")
        found = await use(broker, topic="t")
        assert (found.unread, found.in_flight, [*found.others], found.others_total) == (2, 1, ["g", "h"], 2)


async def test_one_of_both_is_asked_for_or_only_how_much_room_there_is() -> None:
    async with running() as broker:
        with pytest.raises(StatusError) as caught:
            await use(broker, "t", "g")
        assert caught.value.code == Code.BAD_REQUEST
        before = (await use(broker)).queues_room
        queues = broker.app.core.store.queues
        assert before > 0 and before == queues._limit - len(queues)
        await broker.put(b"1")
        assert (await use(broker)).queues_room == before - 1
        queues._limit = 0
        assert (await use(broker)).queues_room == 0


async def test_many_groups_and_queues_are_counted_in_short_turns() -> None:
    async with running() as broker:
        core = broker.app.core
        for number in range(100):
            core.store.queues.take_up("wide", number)
        queues = core.store.queues.of_topic("wide")
        for number in range(600):
            for queue in queues[number % 50 :: 2]:
                core.state.merge_buffer.commit(f"g-{number}", queue, 0)
        server = UseServer(core, SystemClock())
        call = None
        with measured_turns() as turns:
            counting = server.describe(call, pb.DescribeUseRequest(topic="wide"))  # type: ignore[arg-type]
            found = await asyncio.create_task(counting)
        assert (found.others_total, len(found.others)) == (600, 20)
        assert turns.longest_s < TURN_S_MAX, str(turns)
