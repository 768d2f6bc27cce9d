"""Sends with a message group: one queue for each, one after another, and what is refused."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageType
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, TopicType
from popwheel_proxy.send.send_queues import SendQueues, place_of
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.proxy.replicas import Groups, groups
from tests.unit.proxy.test_failover import runs_of
from tests.unit.proxy.virtual import now, run
from tests.unit.proxy.world import World, message, turns, until, world

BROKERS = ("a", "b", "c")


def of(line: str, number: int, topic: str = "ordered") -> d.Message:
    return message(topic, message_id=f"{line}-{number}", message_type=MessageType.FIFO, message_group=line)


def ids_at(w: Groups, name: str) -> list[str]:
    stored = w.logs[name].topics.get("ordered", ())
    return [d.SystemProperties.FromString(each.system_properties).message_id for each in stored]


async def ordered_topic(w: World) -> None:
    w.controller.add_topic("ordered", TopicType.FIFO)
    await until(lambda: "ordered" in w.app.view.topics)


def test_a_message_group_stays_where_it_is_when_a_broker_comes() -> None:
    lines = [f"line {number}" for number in range(3000)]
    before = {line: place_of("t", line, BROKERS, 8) for line in lines}
    counts = Counter(before.values())
    assert len(counts) == 24
    assert max(counts.values()) < 2 * min(counts.values())
    after = {line: place_of("t", line, (*BROKERS, "d"), 8) for line in lines}
    moved = {line for line in lines if after[line] != before[line]}
    assert {after[line][0] for line in moved} == {"d"}
    assert 0.2 < len(moved) / len(lines) < 0.3
    assert before == {line: place_of("t", line, tuple(reversed(BROKERS)), 8) for line in lines}
    assert any(place_of("u", line, BROKERS, 8) != before[line] for line in lines)


async def test_work_of_a_message_group_goes_one_after_another_and_no_other_waits() -> None:
    send_queues, gates, done = SendQueues(10), {name: asyncio.Event() for name in ("a1", "a2", "b1")}, list[str]()

    async def work(name: str) -> str:
        await gates[name].wait()
        done.append(name)
        return name

    calls = [asyncio.create_task(send_queues.run_in_order("t", name[0], None, partial(work, name))) for name in gates]
    await turns()
    assert (send_queues.waiting, len(send_queues)) == (1, 2)
    gates["a2"].set()
    gates["b1"].set()
    await turns()
    assert done == ["b1"]
    gates["a1"].set()
    assert await asyncio.gather(*calls) == ["a1", "a2", "b1"]
    assert done == ["b1", "a1", "a2"]
    assert (send_queues.waiting, len(send_queues)) == (0, 0)


async def test_one_that_is_given_up_lets_nobody_past_the_one_before() -> None:
    send_queues, gate, done = SendQueues(10), asyncio.Event(), list[int]()

    async def work(number: int) -> None:
        if number == 0:
            await gate.wait()
        done.append(number)

    calls = [
        asyncio.create_task(send_queues.run_in_order("t", "a", None, partial(work, number))) for number in range(3)
    ]
    await turns()
    calls[1].cancel()
    await turns()
    assert (done, send_queues.waiting) == ([], 1)
    gate.set()
    await asyncio.wait(calls)
    assert done == [0, 2]
    assert len(send_queues) == 0


async def test_one_that_fails_lets_the_next_go() -> None:
    send_queues = SendQueues(10)

    async def fail() -> None:
        raise StatusError(Code.INTERNAL_ERROR, "no")

    async def work() -> int:
        return 7

    failing = asyncio.create_task(send_queues.run_in_order("t", "a", None, fail))
    assert await send_queues.run_in_order("t", "a", None, work) == 7
    with pytest.raises(StatusError):
        await failing
    assert len(send_queues) == 0


async def test_who_waits_for_too_long_is_notified_and_so_is_one_too_many() -> None:
    send_queues, gate = SendQueues(2), asyncio.Event()

    async def work() -> None:
        await gate.wait()

    first = asyncio.create_task(send_queues.run_in_order("t", "a", None, work))
    await turns()
    with pytest.raises(StatusError) as late:
        await send_queues.run_in_order("t", "a", 0.31, work)
    assert late.value.code == Code.PROXY_TIMEOUT
    second = asyncio.create_task(send_queues.run_in_order("t", "a", None, work))
    await turns()
    with pytest.raises(StatusError) as refused:
        await send_queues.run_in_order("t", "a", None, work)
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    other = asyncio.create_task(send_queues.run_in_order("u", "a", None, work))
    gate.set()
    await asyncio.gather(first, second, other)
    assert len(send_queues) == 0


async def test_sends_of_a_message_group_go_to_one_queue_in_their_order() -> None:
    async with world("a", "b") as w:
        await ordered_topic(w)
        for number in range(5):
            for line in "xyz":
                assert (await w.send(of(line, number))).status.code == Code.OK
        places: dict[str, set[tuple[str, int]]] = {}
        for name, broker in w.brokers.items():
            stored = [
                d.SystemProperties.FromString(each.system_properties) for each in broker.topics.get("ordered", ())
            ]
            for each, kept in zip(broker.topics.get("ordered", ()), stored, strict=True):
                places.setdefault(kept.message_group, set()).add((name, each.queue_id))
            for line in "xyz":
                ids = [each.message_id for each in stored if each.message_group == line]
                assert ids in ([], [f"{line}-{number}" for number in range(5)])
        assert [len(each) for each in places.values()] == [1, 1, 1]


async def test_one_request_may_hold_several_message_groups() -> None:
    async with world() as w:
        w.controller.add_topic("mixed", TopicType.MIXED)
        await until(lambda: "mixed" in w.app.view.topics)
        asked = [of("x", 0, "mixed"), message("mixed", message_id="plain"), of("y", 0, "mixed"), of("x", 1, "mixed")]
        answer = await w.send(*asked)
        assert [entry.message_id for entry in answer.entries] == ["x-0", "plain", "y-0", "x-1"]
        assert answer.status.code == Code.OK
        ids = [d.SystemProperties.FromString(each.system_properties).message_id for each in w.broker.topics["mixed"]]
        assert sorted(ids) == ["plain", "x-0", "x-1", "y-0"]
        assert ids.index("x-0") < ids.index("x-1")


async def test_the_next_message_waits_while_a_put_is_under_way() -> None:
    async with world() as w:
        await ordered_topic(w)
        w.broker.put_gate.clear()
        first = asyncio.create_task(w.send(of("x", 0)))
        await until(lambda: len(w.broker.asked("Put")) == 1)
        second = asyncio.create_task(w.send(of("x", 1)))
        await until(lambda: w.metric("popwheel_proxy_waiting_in_send_queues") == 1)
        w.broker.put_error = RpcError(GrpcStatus.INTERNAL, "broken")
        w.broker.put_gate.set()
        assert (await first).status.code != Code.OK
        assert (await second).status.code != Code.OK
        w.broker.put_error = None
        assert (await w.send(of("x", 2))).status.code == Code.OK


def test_a_message_group_waits_for_its_broker_and_goes_to_no_other() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            w.controller.add_topic("ordered", TopicType.FIFO)
            await until(lambda: "ordered" in w.app.view.topics)
            queues = w.app.view.topics["ordered"].queues
            line = next(each for each in "abcdefghij" if place_of("ordered", each, ("a", "b"), queues)[0] == "a")
            await w.kill_master("a")
            sends = [asyncio.create_task(w.send(of(line, number))) for number in range(3)]
            await asyncio.sleep(1.0)
            assert not any(one.done() for one in sends)
            w.elect("a", 1)
            began = now()
            assert [(await one).status.code for one in sends] == [Code.OK] * 3
            assert now() - began < 0.1
            assert ids_at(w, "a") == [f"{line}-{number}" for number in range(3)]
            assert ids_at(w, "b") == []

    run(scenario())


def test_a_message_group_goes_to_no_other_broker_as_long_as_its_own_may_come_back() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            w.controller.add_topic("ordered", TopicType.FIFO)
            await until(lambda: "ordered" in w.app.view.topics)
            queues = w.app.view.topics["ordered"].queues
            line = next(each for each in "abcdefghij" if place_of("ordered", each, ("a", "b"), queues)[0] == "a")
            info = w.controller.brokers["a"]
            w.controller.remove_broker("a", is_known=True)
            await until(lambda: "a" not in w.app._brokers.names)
            waiting = asyncio.create_task(w.send(of(line, 0)))
            await asyncio.sleep(1.0)
            assert not waiting.done()
            w.controller.brokers["a"] = info
            w.controller.publish(ClusterUpdate(brokers=[info]))
            assert (await waiting).status.code == Code.OK
            w.controller.remove_broker("a", is_known=True)
            await until(lambda: "a" not in w.app._brokers.names)
            assert (await w.send(of(line, 1))).status.code == Code.HA_NOT_AVAILABLE
            assert (ids_at(w, "a"), ids_at(w, "b")) == ([f"{line}-0"], [])
            w.controller.publish(ClusterUpdate(departed_brokers=["a"]))  # an operator has it forgotten
            await until(lambda: w.app._brokers.homes == ("b",))
            assert (await w.send(of(line, 2))).status.code == Code.OK
            assert ids_at(w, "b") == [f"{line}-2"]

    run(scenario())


def test_a_put_of_unknown_outcome_is_not_overtaken() -> None:
    async def scenario() -> None:
        async with groups("a", "b") as w:
            w.controller.add_topic("ordered", TopicType.FIFO)
            await until(lambda: "ordered" in w.app.view.topics)
            queues = w.app.view.topics["ordered"].queues
            line = next(each for each in "abcdefghij" if place_of("ordered", each, ("a", "b"), queues)[0] == "a")
            w.replicas["a"][0].answers_lost = 1
            sends = [asyncio.create_task(w.send(of(line, number))) for number in range(5)]
            assert [(await one).status.code for one in sends] == [Code.OK] * 5
            assert ids_at(w, "a") == [f"{line}-{number}" for number in range(5)]
            assert sum(one.is_retry for one in runs_of(w, "a")) == 1

    run(scenario())


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (message("ordered", message_type=MessageType.FIFO), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("ordered"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (of("x", 0, "orders"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("ordered", message_type=MessageType.FIFO, message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        (message("ordered", message_type=MessageType.FIFO, message_group=""), Code.ILLEGAL_MESSAGE_GROUP),
        (message("ordered", message_type=MessageType.FIFO, message_group="a\x07"), Code.ILLEGAL_MESSAGE_GROUP),
        (message("ordered", message_type=MessageType.FIFO, message_group="a" * 65), Code.ILLEGAL_MESSAGE_GROUP),
        (
            message("ordered", message_type=MessageType.FIFO, message_group="a", priority=1),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
    ],
)
async def test_what_can_keep_no_order_is_refused(bad: d.Message, code: int) -> None:
    async with world() as w:
        await ordered_topic(w)
        assert (await w.send(bad)).status.code == code
        assert w.broker.topics == {}
