"""Lite topics at the broker: each in order by itself, read by those who say so, gone when they are over (P6)."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.consume import group_progress
from popwheel_broker.consume.delivery import Delivery, Origin
from popwheel_broker.consume.group_progress import ProgressPlace
from popwheel_broker.consume.in_flight import InFlight, InFlightPlace
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.log.consume_queue import LiteQueue
from popwheel_broker.options import LiteOptions
from popwheel_common.contract import names
from popwheel_common.contract.names import Kind, Use
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Topic, TopicType
from popwheel_rpc import methods
from popwheel_rpc.service import Method
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import CrashKind
from tests.unit.broker.lite_world import (
    DAY_MS,
    PARENT,
    Reported,
    ack,
    lapse,
    lite_world,
    make_parent,
    names_of,
    pop,
    put,
    read,
    send,
    state_of,
    step,
    take_all,
)
from tests.unit.broker.served_broker import Broker, running
from tests.unit.broker.world import INVISIBLE_MS, OPTIONS, attempts, handles, wire_message

_STORED_YEARS_AT = 26
"""In the header of a record: the byte of its time that counts years."""


def test_each_lite_topic_delivers_one_message_at_a_time() -> None:
    world = lite_world()
    send(world, "a1", "b1", "a2", "c1", "b2")
    read(world, "ab")
    first = pop(world)
    assert sorted(names_of(first)) == ["a1", "b1"]
    assert {each.topic.name for each in first} == {PARENT}
    assert pop(world) == []
    ack(world, *(each for each in first if each.body == b"b1"))
    assert names_of(pop(world)) == ["b2"]
    assert pop(world) == []


def test_what_is_not_acknowledged_comes_again_before_its_successors_and_dies_at_the_limit() -> None:
    world = lite_world()
    send(world, "a1", "a2", "b1")
    read(world, "ab")
    seen = []
    for _ in range(3):
        messages = pop(world)
        (message,) = (each for each in messages if each.body == b"a1")
        seen.append(message.system_properties.delivery_attempt)
        ack(world, *(each for each in messages if each is not message))
        lapse(world)
    assert seen == [1, 2, 3]
    ((_, dead),) = world.held("%DLQ%g")
    assert Message.FromString(dead.payload).body == b"a1"
    letter = Message.FromString(dead.payload + b"\x1a" + _length(dead.system_properties) + dead.system_properties)
    assert letter.system_properties.dead_letter_queue.topic == PARENT
    assert names_of(pop(world)) == ["a2"]


def _length(data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([len(data)])


def test_a_change_of_the_invisible_time_keeps_the_place_and_a_suspension_is_no_attempt() -> None:
    world = lite_world(max_attempts=2)
    send(world, "a1", "a2")
    read(world, "a")
    for suspends, attempt in ((True, 1), (True, 1), (False, 1), (True, 2)):
        (message,) = pop(world)
        assert (names_of([message]), attempts([message])) == (["a1"], [attempt])
        (handle,) = handles([message])
        world.core.acks.change_invisible("g", PARENT, handle, 1000, suspends=suspends)
        assert pop(world) == []
        world.crash("process")
        read(world, "a")
        lapse(world)
    (message,) = pop(world)
    (handle,) = handles([message])
    world.core.acks.dead_letter("g", PARENT, handle)
    world.flush()
    assert len(world.held("%DLQ%g")) == 1
    assert take_all(world) == ["a2"]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("made", [0, 2])
@given(changes=st.lists(st.sampled_from(("suspend", "change", "release", "lapse", "rewrite")), min_size=1, max_size=8))
@settings(max_examples=10)
def test_a_suspension_counts_no_attempt_however_often_it_is_said(made: int, crashes: bool, changes: list[str]) -> None:
    """Memory and log say the same (S6), and a message that never failed is no dead letter (P5)."""
    world = lite_world(max_attempts=made + len(changes) + 2)
    send(world, "a1")
    read(world, "a")
    for _ in range(made):
        pop(world)
        lapse(world)
    failed = made
    handle, is_suspended = "", False
    for change in (*changes, "lapse"):
        if not handle:
            (message,) = pop(world)
            assert attempts([message]) == [failed + 1]
            (handle,), is_suspended = handles([message]), False
        if change in ("suspend", "change"):
            suspends = change == "suspend"
            handle = world.core.acks.change_invisible("g", PARENT, handle, INVISIBLE_MS, suspends=suspends)
            is_suspended |= suspends
        elif change == "rewrite":
            world.core.acks.rewrite(world.core.state.table.of_group("g"))
        else:
            if change == "release":
                world.core.acks.release("g", PARENT, [handle], attempted=True)
            else:
                lapse(world)
            failed += not is_suspended
            handle = ""
        world.flush()
        if crashes:
            before = state_of(world)
            world.crash("process")
            assert state_of(world) == before
            read(world, "a")
    assert world.held("%DLQ%g") == []
    assert attempts(pop(world)) == [failed + 1]


@pytest.mark.parametrize(("stored", "made"), [(0xFFFF, 0), (0xFFFE, 0), (0x8000, 0), (0, 0), (7, 7)])
def test_what_an_older_release_wrote_of_suspensions_is_no_failure(stored: int, made: int) -> None:
    """It wrote one attempt less for each time, also below -1."""
    delivery = Delivery(*(8, "g", "t", 0, 0, 5, 6, 1, 2, 3, 4, (5,)), replaces=Origin(16, 0), lines=(1,), attempts=(0,))
    body = bytearray(delivery.encode())
    body[-12:-10] = stored.to_bytes(2, "big")
    found = Delivery.decode(bytes(body), 0)
    assert (found.attempts, found.is_suspended) == ((made,), stored >= 0x8000)


def test_two_clients_compete_and_two_groups_do_not() -> None:
    world = lite_world()
    world.add_group("h")
    send(world, "a1")
    read(world, "a", "c")
    read(world, "a", "d")
    read(world, "a", "e", group="h")
    assert names_of(pop(world, "d")) == ["a1"]
    assert pop(world, "c") == []
    assert names_of(pop(world, "e", group="h")) == ["a1"]
    lapse(world)
    assert names_of(pop(world, "c")) == ["a1"]


def test_a_client_that_is_not_known_is_notified_so_and_one_that_was_idle_is_forgotten() -> None:
    world = lite_world()
    send(world, "a1")
    request = pb.PopRequest(group="g", topic=PARENT, queue_id=-1, max_messages=1, client_id="c", lite=True)
    subscriptions = world.core.lite.subscriptions
    assert world.core.lite.pops.pop(request, 0).is_unknown_client
    read(world, "ab")
    assert (subscriptions.clients, len(subscriptions), subscriptions.ready) == (1, 3, 1)
    reported = Reported(world, "c")
    world.clock.advance(1000)
    now_ms = world.clock.steady_ms()
    assert subscriptions.end_idle(now_ms, now_ms) is False
    assert subscriptions.clients == 1
    world.core.interests.cancel_all(reported.subscriber)
    assert subscriptions.end_idle(now_ms, now_ms) is False
    assert subscriptions.clients == 1
    assert subscriptions.end_idle(now_ms + 1, now_ms + 1) is False
    assert (subscriptions.clients, len(subscriptions), subscriptions.ready) == (0, 0, 0)
    assert world.core.lite.pops.pop(request, 0).is_unknown_client


def test_a_message_wakes_one_client_of_those_that_read_it_and_the_others_if_it_does_not_come() -> None:
    world = lite_world()
    later = []
    world.core.lite.subscriptions.later = lambda _, call: later.append(call)
    for client in "cde":
        read(world, "a" if client != "e" else "b", client)
    reported = Reported(world, "c", "d", "e")
    send(world, "a1")
    assert reported.take() == {0: 1}
    later.pop()()
    assert reported.take() == {1: 1}
    (message,) = pop(world, "c")
    send(world, "a2")  # which waits for the first one
    assert reported.take() == {}
    ack(world, message)
    assert reported.take() == {0: 1}
    (message,) = pop(world, "d")
    later.pop()()
    assert reported.take() == {}
    lapse(world)
    assert reported.take() == {1: 1}
    assert later != []


def test_new_subscriptions_are_notified_of_what_waits_already() -> None:
    world = lite_world()
    send(world, "a1", "b1")
    read(world, "")
    reported = Reported(world, "c")
    read(world, "ax")
    assert reported.take() == {0: 1}
    assert names_of(pop(world)) == ["a1"]
    read(world, "xb")
    assert reported.take() == {0: 1}
    assert names_of(pop(world)) == ["b1"]
    assert world.core.lite.subscriptions.groups_of(PARENT)["g"].count("a") == 0


@pytest.mark.parametrize("kind", ["process", "power"])
def test_all_but_the_subscriptions_is_the_same_after_a_crash(kind: CrashKind) -> None:
    world = lite_world()
    send(world, "a1", "b1", "a2", "c1")
    read(world, "abc")
    first = pop(world)
    world.save()
    ack(world, first[0])
    lapse(world)
    send(world, "d1")
    before = state_of(world)
    world.crash(kind)
    assert state_of(world) == before
    read(world, "abcd")
    assert sorted(take_all(world)) == sorted({"a1", "b1", "c1", "a2", "d1"} - set(names_of(first[:1])))


def test_offsets_can_be_set_as_a_client_subscribes() -> None:
    world = lite_world()
    send(world, "a1", "a2", "a3", "b1")
    world.clock.advance(1000)
    since_ms = world.clock.wall_ms()
    send(world, "a4", "a5")
    core = world.core
    read(world, "a")
    cases = [
        (pb.LiteOffset(policy=pb.LITE_MAX), []),
        (pb.LiteOffset(policy=pb.LITE_MIN), ["a1", "a2", "a3", "a4", "a5"]),
        (pb.LiteOffset(tail=2), ["a4", "a5"]),
        (pb.LiteOffset(offset=1), ["a2", "a3", "a4", "a5"]),
        (pb.LiteOffset(timestamp_ms=since_ms), ["a4", "a5"]),
        (pb.LiteOffset(offset=1_000_000), []),
        (pb.LiteOffset(policy=pb.LITE_LAST), []),
    ]
    for option, expected in cases:
        delivered = pop(world)  # what a client has at that moment is void
        core.lite_offsets.set("g", core.lite_offsets.wanted("g", PARENT, ["a", "x"], option))
        world.flush()
        if option.WhichOneof("kind") != "policy" or option.policy != pb.LITE_LAST:
            assert all(code != Code.OK for code in world.ack("g", PARENT, *handles(delivered)))
        before = state_of(world)
        world.crash("process")
        core = world.core
        assert state_of(world) == before
        read(world, "a")
        assert take_all(world) == expected


def test_a_lite_topic_ends_when_nothing_came_for_long_and_clients_are_reported() -> None:
    world = lite_world(expiration_ms=DAY_MS)
    send(world, "a1", "a2", "b1")
    read(world, "ab")
    reported = Reported(world, "c")
    (message, _) = pop(world)
    lapse(world)
    world.clock.advance(DAY_MS // 2)
    send(world, "b2")
    step(world)
    assert world.core.store.queues.lite_topics == 2
    world.save()
    world.clock.advance(DAY_MS // 2)
    step(world)
    assert world.core.store.queues.lite_topics == 1
    assert list(reported.subscriber.lite_ends) == [(ClientKey("g", PARENT, "c"), "a")]
    assert world.core.state.table.message_group_queues.has("g", names.lite_topic(PARENT, "a")) is False
    before = state_of(world)
    world.crash("power")
    assert state_of(world) == before
    send(world, "a3")
    read(world, "ab")
    assert sorted(take_all(world)) == ["a3", "b1", "b2"]
    queue = world.core.store.queues.get(names.lite_topic(PARENT, "a"), 0)
    assert queue is not None and queue.begin_offset >= 2  # no offset names two messages (S3)
    assert message.body == b"a1"


def test_a_lite_topic_whose_last_message_retention_took_costs_nothing_any_more_and_keeps_its_readers() -> None:
    world = lite_world()
    send(world, "a1")
    read(world, "a")
    reported = Reported(world, "c")
    ack(world, *pop(world))
    while not world.core.store.log.start_position:
        send(world, *("b1",) * 20)
        world.save()
        world.clock.advance(4 * DAY_MS)
        world.retain()
    step(world)
    assert world.core.lite.emptied == 1
    assert world.core.state.merge_buffer.get("g", world.core.store.queues.of_topic("Sessions+b")[0]) is None
    assert world.core.store.queue("Sessions+a", 0) is None
    assert list(reported.subscriber.lite_ends) == []
    reported.take()
    send(world, "a2")
    assert reported.take() == {0: 1}
    assert names_of(pop(world)) == ["a2"]


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_lite_topic_does_not_end_while_a_message_is_on_its_way(is_empty: bool) -> None:
    """A message that was answered to a sender may be confirmed a moment after the round has looked (S1)."""
    world = lite_world(expiration_ms=DAY_MS)
    send(world, "a1")
    world.clock.advance(2 * DAY_MS)
    if is_empty:
        while not world.core.store.log.start_position:
            send(world, *("b1",) * 20)
            world.save()
            world.clock.advance(4 * DAY_MS)
            world.retain()
    put(world, "a2")
    for _ in range(4):
        world.core.lite.step(world.clock.wall_ms())
    assert world.core.store.queue("Sessions+a", 0) is not None
    world.flush()
    read(world, "a")
    assert take_all(world) == (["a2"] if is_empty else ["a1", "a2"])
    world.clock.advance(2 * DAY_MS)
    step(world)
    assert world.core.store.queue("Sessions+a", 0) is None


def test_a_lite_topic_whose_last_message_has_rotted_does_not_expire_by_what_its_header_says() -> None:
    """Bytes that nobody has checked delete nothing (S7): the message may be young."""
    world = lite_world(expiration_ms=DAY_MS)
    send(world, "a1")
    world.save()
    (entry,) = world.core.store.queues["Sessions+a", 0].read(0, 1)
    world.crash("process")
    (path,) = (each for each in world.disk.files() if each.suffix == ".log")
    world.disk.flip_bit(path, 8 * (entry.position + _STORED_YEARS_AT))
    queue = world.core.store.queues["Sessions+a", 0]
    assert isinstance(queue, LiteQueue)
    assert world.core.lite.last_ms(queue) < world.clock.wall_ms() - DAY_MS
    step(world)
    world.clock.advance(2 * DAY_MS)
    step(world)
    assert (world.core.store.queue("Sessions+a", 0), world.core.lite.ended) == (queue, 0)
    world.disk.flip_bit(path, 8 * (entry.position + _STORED_YEARS_AT))
    step(world)
    assert world.core.lite.expired == 1


def test_deleting_the_topic_ends_all_its_lite_topics() -> None:
    world = lite_world()
    send(world, "a1", "a2", "b1", "c1")
    read(world, "abc")
    pop(world, count=2)
    lapse(world)
    world.save()
    world.delete_topic(PARENT)
    world.core.cluster_changes.apply()
    world.flush()
    core = world.core
    assert (core.store.queues.lite_topics, len(core.lite.subscriptions), core.state.merge_buffer.pairs) == (0, 0, 0)
    assert len(core.state.table.message_group_queues) == 0
    make_parent(world)
    core.cluster_changes.apply()
    send(world, "a3")
    before = state_of(world)
    world.crash("power")
    assert state_of(world) == before
    read(world, "abc")
    assert take_all(world) == ["a3"]


def test_a_lite_topic_too_many_is_refused_and_gives_room_when_it_ends() -> None:
    world = lite_world(OPTIONS.model_copy(update={"lite": LiteOptions(topics_max=4, subscriptions_max=10)}), DAY_MS)
    send(world, "a1", "b1")
    with pytest.raises(StatusError) as refused:
        send(world, "c1")
    assert refused.value.code == Code.LITE_TOPIC_QUOTA_EXCEEDED
    assert "2 of them of Sessions" in refused.value.message
    assert "broker.lite.topics_max" in refused.value.message
    send(world, "a2")
    # What one topic hoards leaves room for another one's.
    payload, properties = wire_message("Others", b"o1")
    other = MessageRun("Others", 0, [payload], [properties], [""], lite_topic="o")
    world.core.store.put_runs([other])
    world.core.cluster_changes.end_lite_topics(["Others+o"])
    world.clock.advance(DAY_MS)
    step(world)
    send(world, "c1")
    with pytest.raises(StatusError) as refused:
        read(world, "abcdefgh")
    assert refused.value.code == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert len(world.core.lite.subscriptions) == 0
    read(world, "abc")
    assert len(world.core.lite.subscriptions) == 4


def test_stored_names_are_no_names_for_clients() -> None:
    stored = names.lite_topic(PARENT, "user-7")
    assert names.kind_of(stored) is Kind.LITE
    assert (names.client_topic(stored), names.lite_of(stored)) == (PARENT, "user-7")
    assert (names.client_topic("%RETRY%g+t"), names.lite_of("%RETRY%g+t")) == ("%RETRY%g+t", "")
    for use in Use:
        with pytest.raises(StatusError) as refused:
            names.topic(stored, use)
        assert refused.value.code == Code.ILLEGAL_TOPIC
    for text in ("", "a" * 65, "a+b", "a b", "é"):
        with pytest.raises(StatusError) as refused:
            names.checked_lite_topic(text)
        assert refused.value.code == Code.ILLEGAL_LITE_TOPIC
    assert names.is_storable(names.lite_topic("t" * 127, "l" * 64))


async def call(broker: Broker, method: Method[Any, Any], request: Any) -> Any:
    return await broker.channel.call(method, request)


async def test_over_the_wire() -> None:
    """As a proxy sees it: sends, subscriptions, notifications, pops, acks, ends and the list."""
    clock = ManualClock()
    async with running(clock=clock) as broker:
        topic = Topic(name=PARENT, queues=1, id=2, type=TopicType.LITE, lite_expiration_ms=DAY_MS)
        broker.controller.updates.put_nowait(ClusterUpdate(version=2, topics=[topic]))
        async with asyncio.timeout(5):
            while PARENT not in broker.app.view.topics:
                await asyncio.sleep(0)
        limit = broker.app.core.store.queues
        runs = [_run("a"), _run(""), _run("b"), _run("c")]
        runs[1].topic, limit._lite_limit = "t", 4
        results = await call(broker, methods.PUT, runs)
        assert [each.code for each in results] == [Code.OK] * 3 + [Code.LITE_TOPIC_QUOTA_EXCEEDED]
        runs = [_run("a", is_retry=True), _run("a")]  # an earlier try has stored it
        assert [each.queue_offset for each in await call(broker, methods.PUT, runs)] == [0, 1]
        broker.app.core.view.ready = False  # as after a start while the controller is away
        assert [each.code for each in await call(broker, methods.PUT, [_run("b")])] == [Code.OK]
        broker.app.core.view.ready = True
        for bad, code in (("a+b", Code.ILLEGAL_LITE_TOPIC), ("", Code.BAD_REQUEST)):
            with pytest.raises(StatusError) as refused:
                await call(broker, methods.PUT, [_run(bad or "a", due_ms=() if bad else (1,))])
            assert refused.value.code == code

        stream = broker.channel.open(methods.NOTIFY)
        interest = pb.NotifyInterest(id=1, topic=PARENT, group="g", lite_client_id="c")
        await stream.send([interest])
        (event,) = await _reported(stream)
        assert (event.refused, event.unknown_client) == (True, True)
        sync = pb.SyncLiteRequest(group="g", topic=PARENT, client_id="c", action=pb.LITE_ADD, lite_topics=["a"])
        assert (await call(broker, methods.SYNC_LITE, sync)).unknown_client
        sync.action = pb.LITE_SET
        assert not (await call(broker, methods.SYNC_LITE, sync)).unknown_client
        await stream.send([interest])
        (event,) = await _reported(stream)
        assert (event.refused, event.waiting) == (False, 1)
        sync.action, sync.lite_topics[:] = pb.LITE_ADD, ["b"]
        sync.offset.policy = pb.LITE_MAX
        await call(broker, methods.SYNC_LITE, sync)
        pop_it = pb.PopRequest(group="g", topic=PARENT, max_messages=8, invisible_ms=1000, client_id="c", lite=True)
        answer = await call(broker, methods.POP, pop_it)
        assert [Message.FromString(each).system_properties.queue_offset for each in answer.messages] == [0]
        ack_it = pb.AckRequest(group="g", topic=PARENT, receipt_handles=answer.handles)
        assert not (await call(broker, methods.ACK, ack_it)).results
        (event,) = await _reported(stream)  # of the second one
        assert event.waiting == 1

        stale = pb.SyncLiteRequest(
            group="g", topic=PARENT, client_id="c", action=pb.LITE_SET, is_repeat=True, said_ms=6
        )
        sync = pb.SyncLiteRequest(
            group="g", topic=PARENT, client_id="c", action=pb.LITE_SET, lite_topics=["a", "b"], said_ms=7
        )
        for each in (sync, stale):  # of two proxies, the one that the client has left
            await call(broker, methods.SYNC_LITE, each)
            assert "popwheel_lite_subscriptions 3.0" in broker.metrics()

        listed = await call(broker, methods.LITE_TOPIC_LIST, pb.LiteTopicListRequest(topic=PARENT, limit=1, group="g"))
        (entry,) = listed.lite_topics
        assert (entry.lite_topic, entry.waiting, entry.readers, entry.max_offset) == ("a", 1, 1, 2)
        assert entry.last_ms == clock.wall_ms()
        assert (listed.next, listed.total) == ("a", 2)
        rest = pb.LiteTopicListRequest(topic=PARENT, limit=5, begin=listed.next)
        assert [each.lite_topic for each in (await call(broker, methods.LITE_TOPIC_LIST, rest)).lite_topics] == ["b"]
        metrics = broker.metrics()
        for line in ("popwheel_lite_topics 2.0", "popwheel_lite_clients 1.0", "popwheel_lite_subscriptions 3.0"):
            assert line in metrics
        assert 'rocketmq_consumer_ready_messages{consumer_group="g",topic="Sessions"} 1.0' in metrics
        assert "Sessions+" not in metrics

        clock.advance(DAY_MS)
        while not broker.app.core.lite.step(clock.wall_ms()):
            pass
        events = await stream.receive()
        assert events is not None
        assert {each.lite_topic for each in events.lite_ends} == {"a", "b"}
        assert {(each.group, each.topic, each.client_id) for each in events.lite_ends} == {("g", PARENT, "c")}
        sync.action = pb.LITE_END
        await call(broker, methods.SYNC_LITE, sync)
        assert len(broker.app.core.lite.subscriptions) == 0
        await stream.end()


def _run(lite_topic: str, *, is_retry: bool = False, due_ms: tuple[int, ...] = ()) -> MessageRun:
    body = b"again" if is_retry else lite_topic.encode()
    payload, properties = wire_message(PARENT, lite_topic.encode() if is_retry else body)
    kind = PutKind.AT_TIME if due_ms else PutKind.NOW
    return MessageRun(PARENT, 0, [payload], [properties], [""], kind, due_ms, is_retry, lite_topic=lite_topic)


async def _reported(stream: Any) -> list[pb.NotifyEvent]:
    async with asyncio.timeout(5):
        events = await stream.receive()
    assert events is not None
    return list(events.events)


def test_operators_see_what_is_delivered_and_what_waits_and_redrive_no_dead_letters() -> None:
    world = lite_world(max_attempts=1)
    send(world, "a1", "a2", "b1")
    read(world, "ab")
    pop(world)
    core = world.core
    found, rest = InFlight(core.state.table, core.acks.messages, core.store).step(PARENT, "g", InFlightPlace(), 8)
    assert (sorted(each.topic for each in found), rest) == (["Sessions+a", "Sessions+b"], None)
    stored = core.store.queues.lite_names(PARENT, "", 8)
    rows, _ = group_progress.rows(core.state, core.store, "g", stored, ProgressPlace(), 8)
    assert [(each.queue.topic, each.next_offset, each.in_flight) for each in rows] == [
        ("Sessions+a", 1, 1),
        ("Sessions+b", 1, 1),
    ]
    lapse(world)
    assert len(world.held("%DLQ%g")) == 2
    assert core.dead_letters.redrive("g", 8, 100, 1 << 20) == (0, 2, 0)
