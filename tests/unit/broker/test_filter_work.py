"""The work of filters is bounded for each turn of the loop, whatever they ask, whatever messages hold, and however many
poll with them.
"""

import asyncio
from collections.abc import Sequence

import pytest

from popwheel_broker.options import BrokerOptions, PopOptions
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.put import MessageRun
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message, Resource, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import ClientStream
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.broker.served_broker import Broker, running
from tests.unit.broker.test_notify import registered
from tests.unit.broker.world import INVISIBLE_MS, tag_filter

TERMS = 249
"""Comparisons of a filter that has as many tokens as it may."""
LONG = 16_000
POLLS = 30
COSTLY = {
    "many comparisons": (" OR ".join(["a<1"] * TERMS), "9" * 60),
    "many decimals": (" OR ".join(["a<1.5"] * TERMS), "9" * 40 + ".5e99999"),
    "many truth values": (" OR ".join(["a=TRUE"] * TERMS), "ü" * (LONG // 2)),
    "many searches": (" OR ".join(["a CONTAINS 'bb'"] * 190), "ab" * (LONG // 2)),
    "long searches": (" OR ".join([f"a CONTAINS '{'a' * 49}b{'a' * 49}'"] * 33), "a" * LONG),
    "no number": ("a > 1", "1" * LONG + "x"),
    "a long number": (" OR ".join(["a<1"] * TERMS), "9" * LONG),
}


def sql(expression: str) -> pb.Filter:
    return pb.Filter(kind=pb.SQL92, expression=expression)


async def send(broker: Broker, value: str, count: int, *, begin: int = 0) -> None:
    payload = Message(topic=Resource(name="t"), body=b"x", user_properties={"a": value}).SerializeToString()
    for at in range(begin, begin + count, 10):
        ids = range(at, min(at + 10, begin + count))
        properties = [SystemProperties(message_id=f"{number:034}").SerializeToString() for number in ids]
        run = MessageRun("t", 0, [payload] * len(ids), properties, [""] * len(ids))
        await broker.channel.call(methods.PUT, [run])


async def pop(broker: Broker, expression: str, group: str = "g") -> PopAnswer:
    request = pb.PopRequest(
        group=group, topic="t", queue_id=-1, max_messages=32, invisible_ms=INVISIBLE_MS, filter=sql(expression)
    )
    answer: PopAnswer = await broker.channel.call(methods.POP, request)
    return answer


async def drained(broker: Broker, expression: str, group: str) -> int:
    """Pops until nothing waits; how many messages came."""
    found = 0
    while True:
        answer = await pop(broker, expression, group)
        found += len(answer.messages)
        if not answer.messages and not answer.waiting:
            return found


@pytest.mark.parametrize("kind", COSTLY)
async def test_a_backlog_is_looked_through_in_short_turns(kind: str) -> None:
    """Several groups at once, each with a filter of its own, over messages that are costly to look at."""
    expression, value = COSTLY[kind]
    async with running() as broker:
        await send(broker, value, 40)
        with measured_turns() as turns:
            filters = [f"{expression} OR a='{number}'" for number in range(4)]
            found = await asyncio.gather(
                *(drained(broker, each, f"group-{number}") for number, each in enumerate(filters))
            )
        assert found == [0] * len(filters)
        assert turns.longest_s <= TURN_S_MAX, str(turns)


async def test_filters_of_many_pops_at_once_are_read_in_short_turns() -> None:
    async with running() as broker:
        filters = [" OR ".join([f"a<{number}"] * TERMS) for number in range(100, 180)]
        with measured_turns() as turns:
            await asyncio.gather(*(pop(broker, each) for each in filters))
        assert turns.longest_s <= TURN_S_MAX, str(turns)


NotifyStream = ClientStream[pb.NotifyEvents, pb.NotifyInterest]


async def notified(stream: NotifyStream, count: int) -> dict[int, int]:
    """Messages by interest that a Notify stream speaks of, until it has named a number of interests."""
    found: dict[int, int] = {}
    while len(found) < count:
        said = await stream.receive()
        assert said is not None
        for event in said.events:
            found[event.id] = found.get(event.id, 0) + event.waiting
    return found


@pytest.mark.parametrize("kind", COSTLY)
async def test_arrivals_are_looked_at_in_short_turns_and_nobody_sleeps_on(kind: str) -> None:
    """Many polls wait with costly filters; the last of each ten passes what arrives."""
    expression, value = COSTLY[kind]
    options = BrokerOptions(pop=PopOptions(notify_filter_bytes_max=1 << 30))
    async with running(options=options) as broker, registered(broker) as stream, asyncio.timeout(30):
        with measured_turns() as turns:
            for number in range(POLLS):
                passes = f"b IS NULL OR {expression}" if number % 10 == 9 else f"({expression}) AND b='{number}'"
                await stream.send([pb.NotifyInterest(id=number, topic="t", group=f"g-{number}", filter=sql(passes))])
            await notified(stream, POLLS)
            await send(broker, value, 2)
            woken = await notified(stream, POLLS // 10)
        assert set(woken) == set(range(9, POLLS, 10)), "nobody is woken for nothing"
        assert turns.longest_s <= TURN_S_MAX, str(turns)


async def test_a_filter_that_many_groups_share_is_asked_once_for_each_message() -> None:
    async with running() as broker, registered(broker) as stream, asyncio.timeout(5):
        for number in range(50):
            await stream.send([pb.NotifyInterest(id=number, topic="t", group=f"g-{number}", filter=sql("a = 7"))])
        await notified(stream, 50)
        await send(broker, "7", 1)
        woken = await notified(stream, 50)
        assert set(woken.values()) == {1}
        assert broker.app.core.pops.sql_scan.arrivals.passed == 1


async def test_many_tags_and_many_polls_are_compared_in_short_turns() -> None:
    async with running() as broker, registered(broker) as stream, asyncio.timeout(30):
        for number in range(2_000):
            wanted = tag_filter(f"tag-{number}")
            await stream.send([pb.NotifyInterest(id=number, topic="t", group=f"g-{number}", filter=wanted)])
        await notified(stream, 2_000)
        with measured_turns() as turns:
            await send_tags(broker, [f"tag-{number}" for number in range(1_000)])
            woken = await notified(stream, 1_000)
        assert set(woken) == set(range(1_000))
        assert turns.longest_s <= TURN_S_MAX, str(turns)


async def send_tags(broker: Broker, tags: Sequence[str]) -> None:
    payload = Message(topic=Resource(name="t"), body=b"x").SerializeToString()
    own = [SystemProperties(message_id=f"{tag:>34}", tag=tag).SerializeToString() for tag in tags]
    await broker.channel.call(methods.PUT, [MessageRun("t", 0, [payload] * len(tags), own, list(tags))])
