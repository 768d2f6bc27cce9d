"""Samples of what goes through a broker, and batches of groups and topics."""

from typing import Any

from popwheel_broker.calls.activity_counts import ActivityCounts
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic
from popwheel_rpc import methods
from tests.unit.broker.group_world import until
from tests.unit.broker.served_broker import Broker, refused, running
from tests.unit.broker.world import INVISIBLE_MS, wire_message


async def sample(broker: Broker, since: int = 0, **asked: Any) -> pb.SampleActivityResponse:
    request = pb.SampleActivityRequest(since=since, **{"topics_max": 1_000, "groups_max": 1_000} | asked)
    return await broker.channel.call(methods.SAMPLE_ACTIVITY, request)


async def delayed(broker: Broker, after_ms: int, topic: str = "t") -> None:
    payload, properties = wire_message(topic, b"%d" % after_ms)
    due_ms = broker.clock.wall_ms() + after_ms
    run = MessageRun(topic, 0, [payload], [properties], [""], PutKind.AT_TIME, [due_ms])
    results = await broker.channel.call(methods.PUT, [run])
    assert results[0].code == Code.OK


def test_rows_are_of_what_was_used_since_the_last_interval_began() -> None:
    counts = ActivityCounts(3)
    counts.row("a").messages_in += 2
    counts.row("b").messages_out += 1
    used = counts.take()
    assert [(name, row.messages_in, row.messages_out) for name, row in used.rows.items()] == [("a", 2, 0), ("b", 0, 1)]
    assert used.is_whole
    counts.row("a").messages_in += 5
    counts.row("gone").messages_in += 5
    counts.forget(["gone", "never"])
    used = counts.take()
    assert (used.messages_in("a"), used.messages_in("gone")) == (5, 0)
    assert counts.take().rows == {}


def test_of_names_beyond_the_limit_nothing_is_counted_and_that_is_said() -> None:
    counts = ActivityCounts(2)
    for name in "abc":
        counts.row(name).messages_in += 1
    assert len(counts) == 2
    used = counts.take()
    assert ([*used.rows], used.is_whole) == (["a", "b"], False)
    counts.row("c").messages_in += 1
    assert counts.take().is_whole


async def test_a_sample_counts_from_the_one_before() -> None:
    async with running() as broker:
        for _ in range(3):
            await broker.put(b"1")
        first = await sample(broker)
        assert (first.interval_ms, first.totals.messages_in) == (0, 0)
        assert [(each.name, each.messages_in) for each in first.topics] == [("t", 0)]
        broker.clock.advance(10_000)
        await broker.put(b"2")
        await broker.pop(2)
        second = await sample(broker, first.number)
        assert second.interval_ms == 10_000
        assert (second.totals.messages_in, second.totals.messages_out) == (1, 2)
        (topic,) = second.topics
        (group,) = second.groups
        assert (topic.name, topic.messages_in, topic.messages_out, topic.lag) == ("t", 1, 2, 4)
        assert (group.name, group.messages_in, group.messages_out, group.lag, group.in_flight) == ("g", 1, 2, 4, 2)
        assert second.all_topics and second.all_groups
        again = await sample(broker, first.number)
        assert (again.interval_ms, again.totals.messages_in) == (0, 0), "another has asked meanwhile"


async def test_another_term_knows_nothing_of_numbers_before() -> None:
    async with running() as broker:
        before = await sample(broker)
    async with running() as broker:
        broker.clock.advance(1_000)
        assert (await sample(broker, before.number + 1)).interval_ms == 0


async def test_a_look_changes_nothing_and_has_the_oldest_groups() -> None:
    async with running() as broker:
        await broker.put(b"1")
        await broker.pop()
        first = await sample(broker)
        broker.clock.advance(5_000)
        await broker.put(b"2")
        assert (await sample(broker, first.number, peek=True, topics_max=0)).number == first.number
        found = await sample(broker, first.number)
        assert (found.interval_ms, found.totals.messages_in) == (5_000, 1)


async def test_a_sample_is_bounded_and_says_so() -> None:
    async with running() as broker:
        names = [f"t{number}" for number in range(7)]
        broker.controller.updates.put_nowait(
            ClusterUpdate(version=2, topics=[Topic(name=name, queues=1, id=9) for name in names])
        )
        for name in names:
            for _ in range(2 if name == "t3" else 1):
                await broker.put(b"1", topic=name)
        found = await sample(broker, topics_max=3)
        assert len(found.topics) == 3
        assert "t3" in [each.name for each in found.topics]
        assert not found.all_topics


async def test_totals_say_how_the_broker_stands() -> None:
    async with running() as broker:
        await broker.put(b"1")
        await broker.pop()
        await delayed(broker, 60_000)
        totals = (await sample(broker)).totals
        assert (totals.lag, totals.in_flight, totals.delayed, totals.stored, totals.dead_letters) == (1, 1, 1, 1, 0)
        assert totals.disk_full_share > totals.disk_used_share >= 0
        assert totals.poisoned_max == broker.app.core._options.quarantine_max


async def test_groups_are_described_all_at_once() -> None:
    async with running() as broker:
        broker.controller.updates.put_nowait(ClusterUpdate(version=2, groups=[Group(name="idle", id=7)]))
        for number in range(5):
            await broker.put(b"%d" % number)
        await broker.ack(*(await broker.pop(2))[:1])
        broker.clock.advance(INVISIBLE_MS)
        core = broker.app.core
        for delivery, indexes in core.state.table.take_due(core.pop_clock.now_ms(), 10):
            core.acks.redeliver([(delivery, index) for index in indexes], attempted=True)
        await broker.put(b"x")  # makes what was redelivered readable
        answer = await broker.channel.call(methods.DESCRIBE_GROUPS, pb.DescribeGroupsRequest(groups=["g", "idle"]))
        group, idle = answer.groups
        assert (group.name, group.waiting, group.retrying, group.in_flight, group.topics) == ("g", 4, 1, 0, 1)
        assert (idle.name, idle.waiting, idle.retrying, idle.in_flight, idle.topics, idle.lag_ms) == (
            "idle",
            0,
            0,
            0,
            0,
            0,
        )
        many = pb.DescribeGroupsRequest(groups=["g"] * 101)
        await refused(broker.channel.call(methods.DESCRIBE_GROUPS, many), Code.BAD_REQUEST, "at most 100")
        await refused(
            broker.channel.call(methods.DESCRIBE_GROUPS, pb.DescribeGroupsRequest(groups=["a b"])),
            Code.ILLEGAL_CONSUMER_GROUP,
            "a b",
        )


async def test_topics_are_described_all_at_once() -> None:
    async with running() as broker:
        for number in range(3):
            await broker.put(b"%d" % number)
        await broker.pop(1)
        await delayed(broker, 60_000)
        answer = await broker.channel.call(methods.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(topics=["t", "none"]))
        topic, none = answer.topics
        assert (topic.name, topic.stored, topic.delayed, topic.groups) == ("t", 3, 1, 1)
        assert (none.name, none.stored, none.delayed, none.groups) == ("none", 0, 0, 0)
        await refused(
            broker.channel.call(methods.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(topics=["a b"])),
            Code.ILLEGAL_TOPIC,
            "a b",
        )


async def test_timers_are_counted_by_given_bounds_of_all_topics_or_one() -> None:
    async with running() as broker:
        broker.controller.updates.put_nowait(ClusterUpdate(version=2, topics=[Topic(name="u", queues=1, id=9)]))
        for after_ms in (30_000, 90_000, 3_000_000, 100_000_000):
            await delayed(broker, after_ms)
        await delayed(broker, 30_000, "u")
        bounds = [60_000, 600_000, 90_000_000]

        async def counts(topic: str) -> tuple[int, list[int]]:
            request = pb.TimerHistogramRequest(topic=topic, bounds_ms=bounds)
            answer = await broker.channel.call(methods.TIMER_HISTOGRAM, request)
            return answer.pending, list(answer.counts)

        state = broker.app.core.timer.state
        await until(lambda: state.commit_queue_offset == 5)  # a moment later they are in the wheel
        assert await counts("") == (5, [2, 1, 1, 1])
        assert await counts("t") == (4, [1, 1, 1, 1])
        assert await counts("u") == (1, [1, 0, 0, 0])
        assert await counts("none") == (0, [0, 0, 0, 0])
        for wrong in ([0], [5, 5], [5, 4], list(range(1, 102))):
            await refused(
                broker.channel.call(methods.TIMER_HISTOGRAM, pb.TimerHistogramRequest(bounds_ms=wrong)),
                Code.BAD_REQUEST,
                "bounds_ms",
            )
