"""Lite topics with many readers, and deletions of much: no turn of the loop is long, whatever clients have made."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from popwheel_broker.core import cluster_changes
from popwheel_broker.lite.lite_server import LiteServer
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.lite.subscriptions import LiteSubscriptions
from popwheel_common.contract import names
from popwheel_common.contract.put import MessageRun
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Topic, TopicType
from popwheel_rpc import methods
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.broker.lite_world import DAY_MS, PARENT, Reported, lite_world, make_parent, send, state_of
from tests.unit.broker.served_broker import running
from tests.unit.broker.world import OPTIONS, World, wire_message

READERS = 20_000


def with_readers(world: World, count: int = READERS, group: str = "g") -> None:
    subscriptions = world.core.lite.subscriptions
    for number in range(count):
        subscriptions.begin(ClientKey(group, PARENT, f"c{number}"), ("a",), 0)


def call_soon(_: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_soon(call)


async def until(ended: Callable[[], bool], step: Callable[[], object]) -> int:
    steps = 0
    while not ended():
        await asyncio.sleep(0)
        step()
        steps += 1
    return steps


async def test_messages_for_many_readers_that_do_not_poll_cost_what_they_cost_for_one() -> None:
    world = lite_world()
    world.core.lite.subscriptions.later = call_soon
    with_readers(world)
    for number in range(30):
        payload, properties = wire_message(PARENT, b"%d" % number)
        world.core.store.put_runs([MessageRun(PARENT, 0, [payload], [properties], [""], lite_topic="a")])
    with measured_turns() as turns:
        await asyncio.sleep(0)
        world.flush()
        await asyncio.sleep(0)
    assert turns.longest_s < TURN_S_MAX, str(turns)
    assert world.core.lite.subscriptions.ready == 1


def test_readers_that_poll_are_asked_in_doubling_numbers_until_one_takes_it() -> None:
    world = lite_world()
    later: list[Callable[[], None]] = []
    subscriptions = world.core.lite.subscriptions
    subscriptions.later = lambda _, call: later.append(call)
    with_readers(world, 3_000)
    reported = Reported(world, *(f"c{number}" for number in range(3_000)))
    send(world, "a1")
    seen = [reported.take()]
    while later:
        (look,) = later
        later.clear()
        look()
        seen.append(reported.take())
    counts = [len(each) for each in seen]
    assert (counts[:6], sum(counts)) == ([1, 1, 2, 4, 8, 16], 3_000)
    assert max(counts) < 1_000
    assert len({client for each in seen for client in each}) == 3_000
    send(world, "a2")
    assert len(reported.take()) == 1
    subscriptions.taken(subscriptions.groups_of(PARENT)["g"], "a")
    later.pop()()
    assert (reported.take(), later) == ({}, [])


async def test_a_message_for_many_groups_is_noted_for_some_at_a_time() -> None:
    world = lite_world()
    later: list[Callable[[], None]] = []
    world.core.lite.subscriptions.later = lambda _, call: later.append(call)
    subscriptions = world.core.lite.subscriptions
    for number in range(600):
        subscriptions.begin(ClientKey(f"g{number}", PARENT, "c"), ("a", "b", "c"), 0)
    send(world, "a1", "b1", "c1", "x1")
    assert subscriptions.ready == 0
    while later:
        before = subscriptions.ready
        later.pop()()
        assert 0 <= subscriptions.ready - before <= 600
    assert subscriptions.ready == 1_800


async def test_clients_that_are_idle_or_whose_topic_or_lite_topic_is_gone_go_some_at_a_time() -> None:
    world = lite_world(expiration_ms=DAY_MS)
    subscriptions = world.core.lite.subscriptions
    with_readers(world)
    send(world, "a1")
    reported = Reported(world)
    world.clock.advance(2 * DAY_MS)
    with measured_turns() as turns:
        steps = await until(lambda: len(reported.subscriber.lite_ends) >= 10_000, lambda: world.core.lite.step(2**60))
        assert steps >= 10_000 // 500
        await until(lambda: len(subscriptions) == READERS, lambda: world.core.lite.step(2**60))
    await asyncio.sleep(0)  # what is made in between is not measured
    with_readers(world)
    now_ms = world.clock.steady_ms()
    with measured_turns() as idle:
        await asyncio.sleep(0)
        await until(lambda: not subscriptions.end_idle(now_ms, now_ms), lambda: None)
        assert (subscriptions.clients, len(subscriptions)) == (0, 0)
    await asyncio.sleep(0)
    with_readers(world)
    with measured_turns() as deletion:
        await asyncio.sleep(0)
        world.delete_topic(PARENT)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    for each in (turns, idle, deletion):
        assert each.longest_step_s < TURN_S_MAX, str(each)
    key = ClientKey("g", PARENT, f"c{READERS // 2}")
    assert (subscriptions.get(key), subscriptions.seen(key, 0), dict(subscriptions.groups_of(PARENT))) == (
        None,
        None,
        {},
    )
    make_parent(world)
    subscriptions.begin(key, ("a", "b"), now_ms)
    while subscriptions.end_idle(0, 0):
        pass
    assert (subscriptions.clients, len(subscriptions)) == (1, 3)


def test_a_client_counts_once_whatever_comes_and_goes() -> None:
    reported: list[ClientKey] = []
    waiting: set[ClientKey] = set()
    subscriptions = LiteSubscriptions(1_000, reported.append, waiting.__contains__)
    keys = [ClientKey("g", PARENT, each) for each in "cde"]
    clients = [subscriptions.begin(each, "ab", 1)[0] for each in keys]
    group = subscriptions.groups_of(PARENT)["g"]
    subscriptions.notify_one(group, "a")
    assert reported == []
    for each in keys[:2]:
        waiting.add(each)
        subscriptions.polls(each, True)
        subscriptions.polls(each, True)
    subscriptions.notify_one(group, "a")
    assert reported == keys[:2]
    subscriptions.polls(keys[0], False)
    subscriptions.remove(clients[1], "a")
    reported.clear()
    subscriptions.notify_one(group, "a")
    assert (reported, group.count("a"), group.ready_for(clients[0]), group.ready_for(clients[1])) == ([], 2, ["a"], [])
    for each in keys:
        subscriptions.end(each)
    assert (len(subscriptions), subscriptions.ready, subscriptions.clients) == (0, 0, 0)
    assert dict(subscriptions.groups_of(PARENT)) == {}


@pytest.mark.parametrize("crashes", [False, True])
def test_deleting_a_topic_of_many_lite_topics_takes_many_steps(crashes: bool) -> None:
    """Cut off anywhere it goes on, and the log says what memory does (S6)."""
    world = lite_world()
    count = 3 * cluster_changes._AT_ONCE_MAX
    for number in range(count):
        payload, properties = wire_message(PARENT, b"x")
        world.core.store.put_runs([MessageRun(PARENT, 0, [payload], [properties], [""], lite_topic=f"u{number}")])
    world.flush()
    world.delete_topic(PARENT)
    steps = 1
    while world.core.topic_registry.can_apply_changes:
        before = world.core.store.queues.lite_topics
        if before > cluster_changes._AT_ONCE_MAX:
            with pytest.raises(StatusError) as refused:
                world.core.cluster_changes.apply((PARENT,))
            assert refused.value.code == Code.TOO_MANY_REQUESTS
        world.core.cluster_changes.apply()
        world.flush()
        steps += 1
        assert before - world.core.store.queues.lite_topics <= cluster_changes._AT_ONCE_MAX
        if crashes and steps == 2:
            expected = state_of(world)
            world.crash("process")
            assert state_of(world) == expected
            world.core.cluster_changed(ClusterUpdate(version=world.view.version, deleted_topics=[PARENT]))
    assert steps >= 3
    assert world.core.store.queues.lite_topics == 0
    make_parent(world)
    send(world, "a1")
    before_crash = state_of(world)
    world.crash("power")
    assert state_of(world) == before_crash


def test_deleting_a_topic_that_many_groups_have_read_takes_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_changes, "_PAIRS_STEP", 20)
    monkeypatch.setattr(cluster_changes, "_RETRY_TOPICS_STEP", 3)
    world = World(0, OPTIONS)
    world.add_topic("t", 2)
    for number in range(40):
        world.add_group(f"g{number}")
    world.put("t", b"a")
    world.put("t", b"b", queue_id=1)
    for number in range(40):
        assert len(world.pop(f"g{number}", "t")) == 2
    world.clock.advance(60_000)
    world.revive()
    world.flush()
    buffer, queues = world.core.state.merge_buffer, world.core.store.queues
    assert (buffer.pairs, len(queues.retry_topics("t"))) == (80, 40)
    world.delete_topic("t")
    while world.core.topic_registry.can_apply_changes:
        pairs, retries = buffer.pairs, len(queues.retry_topics("t"))
        world.core.cluster_changes.apply()
        world.flush()
        assert pairs - buffer.pairs <= 20
        assert retries - len(queues.retry_topics("t")) <= 1, "each is asked for with 40 groups, at most 20 at once"
    assert (buffer.pairs, queues.of_topic("t"), queues.retry_topics("t")) == (0, [], [])
    world.add_topic("t", 2)
    world.put("t", b"c")
    world.crash("process")
    assert [each.body for each in world.pop("g0", "t")] == [b"c"]


def test_deleting_a_group_of_many_retries_takes_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_changes, "_RETRY_TOPICS_STEP", 3)
    world = World(0, OPTIONS)
    world.add_group("g")
    for number in range(10):
        world.add_topic(f"t{number}")
        world.put(f"t{number}", b"a")
        assert len(world.pop("g", f"t{number}")) == 1
    world.clock.advance(60_000)
    world.revive()
    world.flush()
    queues = world.core.store.queues
    assert len(queues.retry_topics_of_group("g")) == 10
    world.delete_group("g")
    while world.core.topic_registry.can_apply_changes:
        retries = len(queues.retry_topics_of_group("g"))
        world.core.cluster_changes.apply()
        world.flush()
        assert retries - len(queues.retry_topics_of_group("g")) <= 2 * (3 + 1)
    assert queues.retry_topics_of_group("g") == []
    assert not world.core.topic_registry.knows_group("g")


async def test_pages_of_lite_topics_are_in_order_and_read_no_others() -> None:
    world = lite_world()
    core = world.core
    for number in range(5_000):
        core.store.ensure_queue((names.lite_topic(PARENT, f"u{number:05}"), 0))
    server = LiteServer(
        *(core.lite, core.lite_offsets, core.store, core.state.merge_buffer),
        *(cast(Any, None), core.cluster_changes.apply, world.clock),
    )
    found: list[str] = []
    request = pb.LiteTopicListRequest(topic=PARENT, limit=700)
    while True:
        answer = await server.list(cast(Any, None), request)
        found += [each.lite_topic for each in answer.lite_topics]
        if not answer.next:
            break
        request.begin = answer.next
        if len(found) == 1_400:  # what goes, and what comes behind, is as one would think
            core.cluster_changes.end_lite_topics([names.lite_topic(PARENT, each) for each in ("u01399", "u01400")])
            core.store.ensure_queue((names.lite_topic(PARENT, "u01400-more"), 0))
    wanted = [f"u{number:05}" for number in range(5_000) if number != 1_400]
    assert found == sorted([*wanted, "u01400-more"])
    assert answer.total == 4_999


async def test_a_proxy_is_notified_of_many_ends_some_at_a_time() -> None:
    async with running() as broker:
        stream = broker.channel.open(methods.NOTIFY)
        await stream.send([pb.NotifyInterest(id=1, topic="t", group="g")])
        assert (await stream.receive()) is not None
        (subscriber,) = broker.app.core.interests.subscribers
        for number in range(1_200):
            subscriber.notify_end(ClientKey("g", PARENT, "c"), f"u{number}")
        reported: list[list[str]] = []
        async with asyncio.timeout(5):
            while sum(map(len, reported)) < 1_200:
                events = await stream.receive()
                assert events is not None
                reported.append([each.lite_topic for each in events.lite_ends])
        assert [len(each) for each in reported] == [500, 500, 200]
        assert [each for some in reported for each in some] == [f"u{number}" for number in range(1_200)]
        await stream.end()


async def test_a_topic_that_is_being_revoked_refuses_its_own_sends_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Put carries the sends of many topics: the others' go on."""
    monkeypatch.setattr(cluster_changes, "_AT_ONCE_MAX", 2)
    async with running() as broker:
        updates, topics = broker.controller.updates, broker.app.view.topics
        updates.put_nowait(ClusterUpdate(version=2, topics=[Topic(name=PARENT, queues=1, id=2, type=TopicType.LITE)]))
        await until(lambda: PARENT in topics, lambda: None)

        def run(body: bytes, topic: str = PARENT, lite_topic: str = "", topic_id: int = 0) -> MessageRun:
            payload, properties = wire_message(topic, body)
            return MessageRun(topic, 0, [payload], [properties], [""], topic_id=topic_id, lite_topic=lite_topic)

        many = [run(b"%d" % number, lite_topic=f"u{number}", topic_id=2) for number in range(9)]
        assert [each.code for each in await broker.channel.call(methods.PUT, many)] == [Code.OK] * 9
        again = [run(b"t1", "t"), run(b"new", lite_topic="u1", topic_id=3), run(b"t2", "t")]
        wanted = [Code.OK, Code.TOO_MANY_REQUESTS, Code.OK]
        assert [each.code for each in await broker.channel.call(methods.PUT, again)] == wanted
        updates.put_nowait(ClusterUpdate(version=3, deleted_topics=[PARENT]))
        updates.put_nowait(ClusterUpdate(version=4, topics=[Topic(name=PARENT, queues=1, id=4, type=TopicType.LITE)]))
        queues = broker.app.core.store.queues
        await until(lambda: PARENT in topics and topics[PARENT].id == 4 and not queues.lite_topics, lambda: None)
        results = await broker.channel.call(methods.PUT, [run(b"new", lite_topic="u1", topic_id=4)])
        assert [each.code for each in results] == [Code.OK]
        assert queues.lite_topics == 1
