"""A look at a topic: from an offset, a time or near the end on, by key and tag; and at what comes meanwhile."""

from typing import Any

import pytest

from popwheel_common.contract import names
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.broker.served_broker import Broker, refused, running


async def browse(broker: Broker, limit: int = 1000, topic: str = "t", **asked: Any) -> list[bytes]:
    """All pages."""
    found: list[bytes] = []
    request = pb.MessageListRequest(topic=topic, browse=True, until_ms=1 << 62, limit=limit, **asked)
    while True:
        answer = await broker.channel.call(methods.MESSAGE_LIST, request)
        assert len(answer.messages) <= limit
        found += [Message.FromString(each.message).body for each in answer.messages]
        if not answer.next:
            return found
        request.begin = answer.next


async def tail(broker: Broker, before: pb.MessageTailResponse | None, **asked: Any) -> pb.MessageTailResponse:
    places = () if before is None else before.places
    request = pb.MessageTailRequest(topic="t", places=places, **{"limit": 50, **asked})
    return await broker.channel.call(methods.MESSAGE_TAIL, request)


def bodies(answer: pb.MessageTailResponse) -> list[bytes]:
    return [Message.FromString(each.message).body for each in answer.messages]


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_all_queues_are_looked_through_and_nothing_is_taken(limit: int) -> None:
    async with running() as broker:
        for number in range(6):
            await broker.put(b"%d" % number, queue_id=number % 3)
        for _ in range(2):
            assert await browse(broker, limit) == [b"0", b"3", b"1", b"4", b"2", b"5"]
        assert await browse(broker, limit, queue_id=1) == [b"1", b"4"]
        assert await browse(broker, limit, queue_id=1, offset=1) == [b"4"]
        assert await browse(broker, limit, offset=1) == [b"3", b"4", b"5"]
        assert await browse(broker, limit, offset=9) == await browse(broker, limit, queue_id=9) == []
        assert await browse(broker, limit, last=1) == [b"3", b"4", b"5"]
        assert await browse(broker, limit, topic="nothing") == []
        assert len(await broker.pop()) == 4, "the third queue is beyond those of the topic"


async def test_by_key_tag_and_time() -> None:
    async with running() as broker:
        await broker.put(b"a", tag="red", keys=("1", "2"))
        broker.clock.advance(1_000)
        since_ms = broker.clock.wall_ms()
        await broker.put(b"b", tag="blue", keys=("2",))
        await broker.put(b"c", tag="red")
        assert await browse(broker, tag="red") == [b"a", b"c"]
        assert await browse(broker, key="2") == [b"a", b"b"]
        assert await browse(broker, key="2", tag="red") == [b"a"]
        assert await browse(broker, since_ms=since_ms) == [b"b", b"c"]
        assert await browse(broker, since_ms=since_ms, tag="re") == []


async def test_names_pass_the_gate() -> None:
    async with running() as broker:
        await broker.put(b"1")
        for handle in await broker.pop():
            request = pb.DeadLetterRequest(group="g", topic="t", receipt_handle=handle)
            await broker.channel.call(methods.DEAD_LETTER, request)
        assert await browse(broker, topic=names.dead_letter_topic("g")) == [b"1"]
        assert await browse(broker, topic=names.retry_topic("g", "t")) == []
        await refused(browse(broker, topic="rmq_sys_wheel_timer"), Code.ILLEGAL_TOPIC, "cannot be pulled from")
        await refused(browse(broker, lite_topic="a+b"), Code.ILLEGAL_LITE_TOPIC, "not a name")
        of_system = pb.MessageTailRequest(topic="rmq_sys_wheel_timer")
        await refused(broker.channel.call(methods.MESSAGE_TAIL, of_system), Code.ILLEGAL_TOPIC, "cannot be pulled from")


async def test_what_comes_is_seen_once() -> None:
    async with running() as broker:
        empty = await tail(broker, None)
        assert (bodies(empty), empty.begun) == ([], True)
        await broker.put(b"0")
        seen = await tail(broker, empty)
        assert (bodies(seen), seen.passed_over, seen.begun) == ([b"0"], 0, False)
        assert bodies(await tail(broker, None)) == []
        await broker.put(b"1", queue_id=1)
        await broker.put(b"2")
        await broker.put(b"3", queue_id=1)
        seen = await tail(broker, seen)
        assert bodies(seen) == [b"1", b"2", b"3"]
        assert bodies(await tail(broker, seen)) == []


async def test_what_is_too_much_is_counted() -> None:
    async with running() as broker:
        await broker.put(b"before")
        begun = await tail(broker, None)
        for number in range(700):
            await broker.put(b"%d" % number, queue_id=number % 2, tag="red" if number % 10 else "blue")
        with measured_turns() as turns:
            seen = await tail(broker, begun)
        assert turns.longest_s < TURN_S_MAX, str(turns)
        assert bodies(seen) == [b"%d" % number for number in range(650, 700)]
        assert seen.passed_over == 650
        blue = await tail(broker, begun, tag="blue")
        assert bodies(blue)[-1] == b"690"
        assert (len(blue.messages), blue.passed_over) == (25, 700 - 256)
        none = await tail(broker, begun, limit=0)
        assert (bodies(none), none.passed_over) == ([], 700)


async def test_long_messages_are_passed_over() -> None:
    async with running() as broker:
        await broker.put(b"before")
        begun = await tail(broker, None)
        for number in range(5):
            await broker.put(bytes(100_000 + number))  # and twice as many in its id
        seen = await tail(broker, begun)
        assert (len(seen.messages), seen.passed_over) == (3, 2)


async def test_one_message_that_is_longer_than_a_look_is_shown_alone() -> None:
    async with running() as broker:
        await broker.put(b"before")
        begun = await tail(broker, None)
        await broker.put(bytes(1_000_000))
        assert [len(each) for each in bodies(await tail(broker, begun))] == [1_000_000]


async def test_a_queue_that_is_shorter_than_before_is_looked_at_from_its_end() -> None:
    """A new master may lack what was reported as stored to nobody."""
    async with running() as broker:
        await broker.put(b"0")
        begun = await tail(broker, None)
        begun.places[0].offset = 5
        seen = await tail(broker, begun)
        assert (bodies(seen), seen.passed_over, [each.offset for each in seen.places]) == ([], 0, [1])
