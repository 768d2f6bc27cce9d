"""Lite topics as clients see them at a proxy: sends, subscriptions, receives, and what is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from popwheel_common.contract.put import MessageRun, PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import ClientType, Code, MessageType
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import LiteSubscriptionAction as Action
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.send.send_queues import place_of
from tests.unit.proxy.fake_broker import FakeBroker
from tests.unit.proxy.world import CLIENT, World, message, poll_request, turns, until, world

SESSIONS = d.Resource(name="Sessions")
GROUP = d.Resource(name="group")
ANNA = CLIENT
BERT = CLIENT | {"x-mq-client-id": "client-2"}
QUOTA = Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


@asynccontextmanager
async def lite_world(*brokers: str, **options: Any) -> AsyncIterator[World]:
    async with world(*brokers, **options) as w:
        w.controller.add_topic("Sessions", TopicType.LITE)
        w.controller.add_topic("plain")
        await until(lambda: {"Sessions", "plain"} <= w.app.view.topics.keys())
        yield w


def lite(name: str, body: bytes = b"body", **more: Any) -> d.Message:
    return message("Sessions", body, message_type=MessageType.LITE, lite_topic=name, **more)


async def sync(
    w: World,
    action: Action.ValueType,
    *names: str,
    metadata: dict[str, str] = ANNA,
    topic: str = "Sessions",
    option: d.OffsetOption | None = None,
) -> d.Status:
    request = pb.SyncLiteSubscriptionRequest(
        action=action, topic=d.Resource(name=topic), group=GROUP, lite_topic_set=names, offset_option=option
    )
    answer = await w.channel.call(protocol.SYNC_LITE_SUBSCRIPTION, request, metadata=metadata)
    return answer.status


def poll_lite(wait_s: float = 20.0, **more: Any) -> pb.ReceiveMessageRequest:
    return poll_request(wait_s, message_queue=d.MessageQueue(topic=SESSIONS, broker=d.Broker(name="b1")), **more)


def known(w: World, client: str = "client-1", name: str = "b1") -> set[str] | None:
    return w.brokers[name].lite_readers.get(("group", "Sessions", client))


def settings(kind: ClientType.ValueType) -> d.Settings:
    entry = d.SubscriptionEntry(topic=SESSIONS)
    return d.Settings(client_type=kind, subscription=d.Subscription(group=GROUP, subscriptions=[entry]))


def runs_of(w: FakeBroker) -> list[MessageRun]:
    return [run for asked in w.asked("Put") for run in asked]  # type: ignore[attr-defined]


async def test_names_that_the_python_client_spells_out_are_taken_both_ways() -> None:
    async with lite_world() as w:
        python = {**ANNA, "x-mq-language": "PYTHON"}
        await sync(w, Action.PARTIAL_ADD, *"user-7", metadata=python)
        assert known(w) == {*"user-7", "user-7"}
        await sync(w, Action.COMPLETE_ADD, "user-7", "x", "y", metadata=python)
        assert known(w) == {"user-7", "x", "y"}
        await sync(w, Action.PARTIAL_REMOVE, *"user-7", metadata=python)
        assert known(w) == {"x", "y"}
        await sync(w, Action.PARTIAL_ADD, *"de")
        assert known(w) == {"x", "y", "d", "e"}


async def test_a_lite_topic_has_one_broker_and_one_queue() -> None:
    async with lite_world("a", "b", "c") as w:
        for number in range(30):
            sent = await w.send(lite(f"user-{number % 10}"))
            assert sent.status.code == Code.OK
        for name, each in w.brokers.items():
            for run in runs_of(each):
                assert (run.topic, run.queue_id, bool(run.topic_id)) == ("Sessions", 0, True)
                assert place_of("Sessions", run.lite_topic, ("a", "b", "c"), 1) == (name, 0)
        assert sum(len(each.topics) for each in w.brokers.values()) == 10
        assert sum(len(runs_of(each)) for each in w.brokers.values()) == 30


async def test_messages_of_several_lite_topics_in_one_send_are_runs_of_their_own() -> None:
    async with lite_world() as w:
        sent = await w.send(lite("x"), lite("y"), lite("x"))
        assert [entry.offset for entry in sent.entries] == [0, 0, 1]
        w.broker.put_results = [PutResult(Code.LITE_TOPIC_QUOTA_EXCEEDED, "too many lite topics")]
        refused = await w.send(lite("z"), lite("z"))
        assert refused.status.code == Code.LITE_TOPIC_QUOTA_EXCEEDED


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (lite(""), Code.ILLEGAL_LITE_TOPIC),
        (lite("a b"), Code.ILLEGAL_LITE_TOPIC),
        (lite("a+b"), Code.ILLEGAL_LITE_TOPIC),
        (lite("*"), Code.ILLEGAL_LITE_TOPIC),
        (lite("a" * 65), Code.ILLEGAL_LITE_TOPIC),
        (lite("a", priority=1), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (lite("a", message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("Sessions"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("Sessions", message_type=MessageType.LITE), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("plain", message_type=MessageType.LITE, lite_topic="a"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("plain", lite_topic="a"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("Sessions+a", message_type=MessageType.LITE, lite_topic="a"), Code.ILLEGAL_TOPIC),
    ],
)
async def test_what_is_no_lite_message_is_refused(sent: d.Message, code: Code.ValueType) -> None:
    async with lite_world() as w:
        answer = await w.send(sent)
        assert answer.status.code == code
        assert w.broker.calls == []
        too_long = len(sent.system_properties.lite_topic) > 64
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "lite_topic_length_max"}) == too_long


async def test_each_client_gets_the_lite_topics_that_it_reads() -> None:
    async with lite_world("a", "b") as w:
        assert (await sync(w, Action.PARTIAL_ADD, "x", "y")).code == Code.OK
        assert (await sync(w, Action.COMPLETE_ADD, "z", metadata=BERT)).code == Code.OK
        for name in ("a", "b"):
            assert known(w, name=name) == {"x", "y"}
            assert known(w, "client-2", name) == {"z"}
        anna, bert = w.poll(poll_lite()), w.poll(poll_lite(), BERT)
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 2)
        await w.send(lite("z", b"for bert"))
        assert (await bert).bodies == [b"for bert"]
        await w.send(lite("y", b"for anna"))
        got = await anna
        assert got.bodies == [b"for anna"]
        assert got.messages[0].topic == SESSIONS
        assert got.messages[0].system_properties.lite_topic == "y"
        (asked,) = {
            (p.topic, p.lite, p.client_id) for b in w.brokers.values() for p in pops(b) if p.client_id[-1] == "1"
        }
        assert asked == ("Sessions", True, "client-1")


def pops(each: FakeBroker) -> list[broker.PopRequest]:
    return each.asked("Pop")  # type: ignore[return-value]


async def test_what_waited_before_is_given_on_subscribing() -> None:
    async with lite_world() as w:
        await w.send(lite("x", b"1"))
        await w.send(lite("x", b"2"))
        poll = w.poll(poll_lite())
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1)
        await turns()
        assert not poll.done(), "it reads nothing yet"
        await sync(w, Action.PARTIAL_ADD, "x")
        assert (await poll).bodies == [b"1"]
        assert (await w.receive(poll_lite(0.0))).code == Code.MESSAGE_NOT_FOUND
        await w.ack(*(await poll).handles)
        assert (await w.receive(poll_lite())).bodies == [b"2"]


async def test_what_is_read_can_be_changed() -> None:
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x", "y")
        await sync(w, Action.PARTIAL_REMOVE, "x", "never")
        assert known(w) == {"y"}
        await sync(w, Action.COMPLETE_ADD)
        assert known(w) == set()
        await sync(w, Action.PARTIAL_ADD, "z")
        assert w.metric("popwheel_proxy_lite_readers") == w.metric("popwheel_proxy_lite_subscriptions") == 1
        await sync(w, Action.COMPLETE_REMOVE)
        assert known(w) is None
        assert w.metric("popwheel_proxy_lite_readers") == 0


async def test_a_client_that_stops_reads_nothing_more() -> None:
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        await sync(w, Action.PARTIAL_ADD, "x", metadata=BERT)
        stop = pb.NotifyClientTerminationRequest(group=GROUP)
        assert (await w.channel.call(protocol.NOTIFY_CLIENT_TERMINATION, stop, metadata=ANNA)).status.code == Code.OK
        await until(lambda: known(w) is None)
        assert known(w, "client-2") == {"x"}


@pytest.mark.parametrize(
    ("option", "reported"),
    [
        (d.OffsetOption(policy=d.OffsetOption.MAX), broker.LiteOffset(policy=broker.LITE_MAX)),
        (d.OffsetOption(policy=d.OffsetOption.LAST), broker.LiteOffset(policy=broker.LITE_LAST)),
        (d.OffsetOption(offset=7), broker.LiteOffset(offset=7)),
        (d.OffsetOption(tail_n=3), broker.LiteOffset(tail=3)),
        (d.OffsetOption(timestamp=5), broker.LiteOffset(timestamp_ms=5)),
        (d.OffsetOption(), None),
    ],
)
async def test_where_a_group_begins_is_notified_to_brokers_with_what_is_added(
    option: d.OffsetOption, reported: broker.LiteOffset | None
) -> None:
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x", option=option)
        asked: list[Any] = w.broker.asked("SyncLite")
        if reported is None:
            assert [each.action for each in asked] == [broker.LITE_ADD, broker.LITE_SET]
            return
        assert [each.action for each in asked] == [broker.LITE_ADD, broker.LITE_SET, broker.LITE_ADD]
        assert (asked[0].offset, asked[2].offset) == (reported, reported)
        assert (list(asked[1].lite_topics), asked[1].HasField("offset")) == ([], False)


async def test_what_cannot_be_subscribed_to_is_refused_by_name() -> None:
    async with lite_world() as w:
        for names, code in (
            (["a b"], Code.ILLEGAL_LITE_TOPIC),
            (["*"], Code.ILLEGAL_LITE_TOPIC),
            (map(str, range(2001)), QUOTA),
        ):
            assert (await sync(w, Action.PARTIAL_ADD, *names)).code == code
        for topic, code in (("plain", Code.BAD_REQUEST), ("none", Code.TOPIC_NOT_FOUND), ("%DLQ%g", Code.BAD_REQUEST)):
            assert (await sync(w, Action.PARTIAL_ADD, "a", topic=topic)).code in (code, Code.TOPIC_NOT_FOUND)
        negative = d.OffsetOption(offset=-1)
        assert (await sync(w, Action.PARTIAL_ADD, "a", option=negative)).code == Code.ILLEGAL_OFFSET
        late = d.OffsetOption(tail_n=1)
        assert (await sync(w, Action.COMPLETE_ADD, "a", option=late)).code == Code.BAD_REQUEST
        assert (await sync(w, Action.ValueType(9), "a")).code == Code.BAD_REQUEST
        assert w.broker.calls == []
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "lite_subscriptions_max"}) == 1


async def test_a_broker_without_room_leaves_things_as_they_were() -> None:
    async with lite_world("a", "b") as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        w.brokers["b"].sync_error = StatusError(QUOTA, "no room")
        assert (await sync(w, Action.PARTIAL_ADD, "y")).code == QUOTA
        assert (await sync(w, Action.COMPLETE_ADD, "y", "z")).code == QUOTA
        w.brokers["b"].sync_error = None
        await until(lambda: known(w, name="a") == {"x"})
        assert known(w, name="b") == {"x"}


async def test_a_broker_that_forgot_its_readers_is_notified_again_by_those_who_poll() -> None:
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x", "y")
        w.broker.forget_readers()
        poll = w.poll(poll_lite())
        await until(lambda: known(w) == {"x", "y"})
        await w.send(lite("y", b"1"))
        assert (await poll).bodies == [b"1"]
        assert w.metric("popwheel_proxy_lite_repeats_total") == 2


async def test_a_broker_whose_stream_broke_is_notified_again() -> None:
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        poll = w.poll(poll_lite())
        await until(lambda: len(w.broker.interests) == 1)
        w.broker.forget_readers()
        stream = w.app._notifications._links["b1"].stream
        assert stream is not None
        stream.cancel()
        await until(lambda: known(w) == {"x"})
        await w.send(lite("x", b"1"))
        assert (await poll).bodies == [b"1"]


async def test_what_is_notified_again_says_when_the_client_said_it() -> None:
    """It may have said something else to another proxy since."""
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        asked: list[Any] = w.broker.asked("SyncLite")
        said_ms = asked[-1].said_ms
        w.broker.forget_readers()
        poll = w.poll(poll_lite())
        await until(lambda: known(w) == {"x"})
        again: Any = w.broker.asked("SyncLite")[-1]
        assert (again.action, again.is_repeat, again.said_ms) == (broker.LITE_SET, True, said_ms)
        await w.send(lite("x", b"1"))
        await poll
        await sync(w, Action.COMPLETE_ADD, "y")
        last: Any = w.broker.asked("SyncLite")[-1]
        assert not last.is_repeat and last.said_ms > said_ms > 0


async def test_a_broker_that_comes_is_notified_of_all_readers() -> None:
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        await sync(w, Action.PARTIAL_ADD, "y", metadata=BERT)
        w.controller.add_broker("b2")
        await until(lambda: "b2" in w.brokers and known(w, "client-2", "b2") == {"y"})
        assert known(w, name="b2") == {"x"}


async def test_a_broker_that_was_away_learns_what_a_reader_it_still_knows_reads_now() -> None:
    async with lite_world("a", "b") as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        w.controller.remove_broker("b", is_known=True)
        await until(lambda: "b" not in w.app._brokers.led)
        assert (await sync(w, Action.COMPLETE_ADD, "y")).code == Code.OK
        assert known(w, name="b") == {"x"}
        w.controller.add_broker("b")
        await until(lambda: known(w, name="b") == {"y"})


async def test_a_broker_that_could_not_be_notified_when_it_was_back_is_reported_with_the_next_sign_of_life() -> None:
    async with lite_world("a", "b") as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        w.controller.remove_broker("b", is_known=True)
        await until(lambda: "b" not in w.app._brokers.led)
        assert (await sync(w, Action.COMPLETE_ADD, "y")).code == Code.OK
        w.brokers["b"].sync_error = StatusError(QUOTA, "no room")
        w.controller.add_broker("b")
        await until(lambda: w.metric("popwheel_proxy_lite_failures_total") == 1)
        w.brokers["b"].sync_error = None
        w.clock.shift_s += 40
        await w.channel.call(protocol.HEARTBEAT, pb.HeartbeatRequest(), metadata=ANNA)
        await until(lambda: known(w, name="b") == {"y"})


async def test_brokers_learn_of_readers_that_live_and_the_others_are_forgotten() -> None:
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        await sync(w, Action.PARTIAL_ADD, "y", metadata=BERT)
        w.broker.forget_readers()
        w.clock.shift_s += 40
        await w.channel.call(protocol.HEARTBEAT, pb.HeartbeatRequest(), metadata=ANNA)
        w.clock.shift_s += 30
        await until(lambda: known(w) == {"x"})
        await until(lambda: w.metric("popwheel_proxy_lite_readers") == 1)
        assert known(w, "client-2") in (None, {"y"})


async def test_consumers_of_another_kind_are_refused_by_name() -> None:
    async with lite_world() as w:
        stream = w.channel.open(protocol.TELEMETRY, metadata=ANNA)
        await stream.send((pb.TelemetryCommand(settings=settings(ClientType.SIMPLE_CONSUMER)),))
        assert await stream.receive()
        refused = await w.receive(poll_lite())
        assert (refused.code, "LitePushConsumer" in refused.status.message) == (Code.BAD_REQUEST, True)
        beat = pb.HeartbeatRequest(client_type=ClientType.LITE_SIMPLE_CONSUMER)
        await w.channel.call(protocol.HEARTBEAT, beat, metadata=BERT)
        assert (await w.receive(poll_request(), BERT)).code == Code.BAD_REQUEST
        filtered = poll_lite(filter_expression=d.FilterExpression(expression="a"))
        assert (await w.receive(filtered, BERT)).code == Code.ILLEGAL_FILTER_EXPRESSION
        pull = pb.QueryOffsetRequest(message_queue=d.MessageQueue(topic=SESSIONS, id=0, broker=d.Broker(name="b1")))
        answer = await w.channel.call(protocol.QUERY_OFFSET, pull, metadata=ANNA)
        assert (answer.status.code, "read by offset" in answer.status.message) == (Code.BAD_REQUEST, True)
        assert w.broker.calls == []


async def test_consumers_are_notified_their_quota() -> None:
    async with lite_world() as w:
        for kind, quota in ((ClientType.LITE_PUSH_CONSUMER, 2000), (ClientType.PUSH_CONSUMER, 0)):
            stream = w.channel.open(protocol.TELEMETRY, metadata=ANNA)
            await stream.send((pb.TelemetryCommand(settings=settings(kind)),))
            answer = await stream.receive()
            assert answer is not None
            reported = answer.settings.subscription
            assert (reported.lite_subscription_quota, reported.max_lite_topic_size) == (quota, 64 if quota else 0)
            await stream.end()


async def test_a_client_is_notified_that_a_lite_topic_of_its_has_ended() -> None:
    async with lite_world("a", "b") as w:
        stream = w.channel.open(protocol.TELEMETRY, metadata=ANNA)
        await stream.send((pb.TelemetryCommand(settings=settings(ClientType.LITE_PUSH_CONSUMER)),))
        assert await stream.receive()
        await sync(w, Action.PARTIAL_ADD, "x", "y")
        await until(lambda: all(each.watchers for each in w.brokers.values()))
        home, _ = place_of("Sessions", "x", ("a", "b"), 1)
        end = broker.LiteTopicEnd(group="group", topic="Sessions", client_id="client-1", lite_topic="x")
        for name in sorted(w.brokers, key=lambda name: name == home):  # the other one may hold old messages of it
            await w.brokers[name].watchers[0].stream.send((broker.NotifyEvents(lite_ends=[end]),))
        while (command := await stream.receive()) is not None:
            if command.HasField("notify_unsubscribe_lite_command"):
                break
        assert command is not None
        assert command.notify_unsubscribe_lite_command.lite_topic == "x"
        await until(lambda: w.metric("popwheel_proxy_lite_subscriptions") == 1)
        assert w.metric("popwheel_proxy_lite_ends_notified_total") == 1


async def test_a_message_of_a_lite_topic_can_be_suspended_and_no_other() -> None:
    async with lite_world() as w:
        await sync(w, Action.PARTIAL_ADD, "x")
        await w.send(lite("x"))
        (handle,) = (await w.receive(poll_lite())).handles
        change = pb.ChangeInvisibleDurationRequest(
            group=GROUP, topic=SESSIONS, receipt_handle=handle, invisible_duration=Duration(seconds=5), suspend=True
        )
        answer = await w.channel.call(protocol.CHANGE_INVISIBLE_DURATION, change, metadata=ANNA)
        assert answer.status.code == Code.OK
        (asked,) = w.broker.asked("ChangeInvisible")
        assert isinstance(asked, broker.ChangeInvisibleRequest)
        assert (asked.topic, asked.suspend) == ("Sessions", True)
        change.topic.name = "plain"
        answer = await w.channel.call(protocol.CHANGE_INVISIBLE_DURATION, change, metadata=ANNA)
        assert answer.status.code == Code.UNSUPPORTED


async def test_push_consumers_poll_each_broker_once() -> None:
    async with lite_world("a", "b") as w:
        w.controller.add_group("ordered", fifo=True)
        await until(lambda: "ordered" in w.app.view.groups)
        request = pb.QueryAssignmentRequest(topic=SESSIONS, group=d.Resource(name="ordered"))
        answer = await w.channel.call(protocol.QUERY_ASSIGNMENT, request, metadata=ANNA)
        queues = [(each.message_queue.broker.name, each.message_queue.id) for each in answer.assignments]
        assert queues == [("a", -1), ("b", -1)]
