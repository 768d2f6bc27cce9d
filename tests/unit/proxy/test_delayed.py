"""Delayed messages among fakes: which are taken, how they travel to the broker, and how they are recalled."""

import asyncio

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_common.contract import recall_handle
from popwheel_common.contract.put import MessageRun, PutResult
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageType
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.unit.proxy.fake_controller import KEY
from tests.unit.proxy.world import CLIENT, World, message, until, world

LAST_SECOND = 253_402_300_799


def delayed(topic: str = "later", seconds: int = 100, nanos: int = 0, **more: object) -> d.Message:
    """A message with a delivery time."""
    time = Timestamp(seconds=seconds, nanos=nanos)
    return message(topic, **{"message_type": MessageType.DELAY, "delivery_timestamp": time, **more})  # type: ignore[arg-type]


async def add_topics(w: World) -> None:
    """A topic of each type that takes delayed messages."""
    w.controller.add_topic("later", TopicType.DELAY)
    w.controller.add_topic("mixed", TopicType.MIXED)
    await until(lambda: "mixed" in w.app.view.topics)


async def recall(w: World, handle: str, topic: str = "later") -> pb.RecallMessageResponse:
    """Ask for a message back."""
    request = pb.RecallMessageRequest(topic=d.Resource(name=topic), recall_handle=handle)
    return await w.channel.call(protocol.RECALL_MESSAGE, request, metadata=CLIENT)


def runs_of(w: World) -> list[list[MessageRun]]:
    """The runs of each Put."""
    return [request for request in w.broker.asked("Put") if isinstance(request, list)]


@pytest.mark.parametrize(
    ("sent", "due_ms"),
    [
        (delayed(), 100_000),
        (delayed("mixed"), 100_000),
        (delayed(message_type=MessageType.MESSAGE_TYPE_UNSPECIFIED), 100_000),
        (delayed(nanos=1_000_000), 100_001),
        (delayed(nanos=1), 100_001),  # rounded up, as none may come early
        (delayed(nanos=999_999_999), 101_000),
        (delayed(seconds=0), 0),
        (delayed(seconds=LAST_SECOND), LAST_SECOND * 1000),
    ],
)
async def test_a_delayed_message_is_stored_with_its_time(sent: d.Message, due_ms: int) -> None:
    async with world() as w:
        await add_topics(w)
        answer = await w.send(sent)
        assert answer.status.code == Code.OK, answer
        (entry,) = answer.entries
        ((handle, timer),) = w.broker.timers.items()
        assert (entry.status.code, entry.message_id, entry.recall_handle) == (Code.OK, "01" + "A" * 32, handle)
        assert (timer.topic, timer.due_ms) == (sent.topic.name, due_ms)
        assert timer.message.system_properties.delivery_timestamp == sent.system_properties.delivery_timestamp
        assert w.broker.topics == {}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (delayed("orders"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (delayed(message_type=MessageType.NORMAL), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (delayed("mixed", message_type=MessageType.NORMAL), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("later"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("later", message_type=MessageType.DELAY), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (delayed(message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (delayed("mixed", message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (delayed(lite_topic="l"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (delayed(priority=1), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (delayed(seconds=-1), Code.ILLEGAL_DELIVERY_TIME),
        (delayed(seconds=-(2**63)), Code.ILLEGAL_DELIVERY_TIME),
        (delayed(nanos=-1), Code.ILLEGAL_DELIVERY_TIME),
        (delayed(nanos=1_000_000_000), Code.ILLEGAL_DELIVERY_TIME),
        (delayed(seconds=LAST_SECOND + 1), Code.ILLEGAL_DELIVERY_TIME),
        (delayed(seconds=2**63 - 1), Code.ILLEGAL_DELIVERY_TIME),
    ],
)
async def test_each_rule_has_its_code_and_nothing_is_stored(bad: d.Message, code: int) -> None:
    async with world() as w:
        await add_topics(w)
        for answer in (await w.send(bad), await w.send(delayed(), bad)):
            assert answer.status.code == code, answer
            assert answer.status.message
        assert w.broker.timers == {}
        assert w.broker.topics == {}


async def test_an_old_client_knows_the_code() -> None:
    async with world() as w:
        await add_topics(w)
        old = {"x-mq-client-id": "rust", "x-mq-client-version": "5.0.0"}
        assert (await w.send(delayed(seconds=-1), metadata=old)).status.code == Code.ILLEGAL_DELIVERY_TIME


async def test_delayed_and_other_messages_of_one_request_go_apart() -> None:
    async with world() as w:
        await add_topics(w)
        sent = [
            message("mixed", message_id="a"),
            delayed("mixed", 100, message_id="b"),
            message("mixed", message_id="c"),
            delayed("mixed", 99, message_id="d"),
            delayed("later", 98, message_id="e"),
        ]
        answer = await w.send(*sent)
        assert answer.status.code == Code.OK
        assert [entry.message_id for entry in answer.entries] == list("abcde")
        shown = [w.broker.timers[entry.recall_handle].due_ms if entry.recall_handle else 0 for entry in answer.entries]
        assert shown == [0, 100_000, 0, 99_000, 98_000]
        assert [entry.offset for entry in answer.entries] == [0, 0, 1, 0, 0]
        assert len(w.broker.topics["mixed"]) == 2


async def test_a_refused_delivery_time_does_not_harm_the_others_of_a_request() -> None:
    async with world() as w:
        await add_topics(w)
        w.broker.put_results = [PutResult(Code.ILLEGAL_DELIVERY_TIME, "too far ahead")]
        answer = await w.send(delayed("mixed"), message("mixed"))
        assert answer.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in answer.entries] == [Code.ILLEGAL_DELIVERY_TIME, Code.OK]


async def test_delayed_sends_join_a_put_but_no_run() -> None:
    async with world() as w:
        w.controller.add_topic("mixed", TopicType.MIXED, queues=1)
        await until(lambda: "mixed" in w.app.view.topics)
        sends = [
            w.send(message("mixed")),
            w.send(delayed("mixed", 1)),
            w.send(delayed("mixed", 2), delayed("mixed", 3)),
        ]
        answers = await asyncio.gather(*sends, w.send(message("mixed")))
        assert {answer.status.code for answer in answers} == {Code.OK}
        (runs,) = runs_of(w)
        assert sorted((len(run.payloads), list(run.times_ms)) for run in runs) == [
            (1, [1000]),
            (2, []),
            (2, [2000, 3000]),
        ]
        offsets = [answer.entries[0].offset for answer in (answers[0], answers[3])]
        assert offsets == [0, 1]


async def test_a_refusal_of_one_delayed_send_is_not_that_of_another() -> None:
    async with world() as w:
        await add_topics(w)
        w.broker.put_results = [PutResult(Code.TOO_MANY_REQUESTS, "full"), PutResult(Code.OK, references=["h"])]
        first, second = await asyncio.gather(w.send(delayed()), w.send(delayed()))
        assert (first.status.code, first.status.message) == (Code.TOO_MANY_REQUESTS, "full")
        assert (second.status.code, second.entries[0].recall_handle) == (Code.OK, "h")


async def test_a_broker_that_takes_nothing_back_gives_no_handles() -> None:
    async with world() as w:
        await add_topics(w)
        w.broker.put_results = [PutResult(Code.OK, references=["", ""])]
        answer = await w.send(delayed(), delayed())
        assert [(entry.status.code, entry.recall_handle) for entry in answer.entries] == [(Code.OK, "")] * 2


async def test_a_topic_made_on_first_use_takes_delayed_and_other_messages() -> None:
    async with world(auto_create_topics=True) as w:
        answer = await w.send(delayed("fresh"), message("fresh"))
        assert answer.status.code == Code.OK
        assert (len(w.broker.timers), len(w.broker.topics["fresh"])) == (1, 1)


async def test_a_message_is_recalled_at_the_broker_that_has_it() -> None:
    async with world("b1", "b2") as w:
        await add_topics(w)
        handles = [(await w.send(delayed())).entries[0].recall_handle for _ in range(2)]
        assert {recall_handle.broker_name(handle) for handle in handles} == {"b1", "b2"}
        for handle in handles:
            answer = await recall(w, handle)
            assert (answer.status.code, answer.message_id) == (Code.OK, "01" + "A" * 32)
            again = await recall(w, handle)
            assert (again.status.code, again.message_id) == (Code.MESSAGE_NOT_FOUND, "")
        assert [len(one.asked("Recall")) for one in w.brokers.values()] == [2, 2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StatusError(Code.PRECONDITION_FAILED, "too late"), Code.PRECONDITION_FAILED),
        (StatusError(Code.UNSUPPORTED, "recall is off"), Code.UNSUPPORTED),
        (NotProcessedError("connection refused"), Code.HA_NOT_AVAILABLE),
        (RpcError(GrpcStatus.UNAVAILABLE, "connection lost"), Code.PROXY_TIMEOUT),
        (RpcError(GrpcStatus.DEADLINE_EXCEEDED, "too slow"), Code.PROXY_TIMEOUT),
    ],
)
async def test_the_brokers_word_on_a_recall_reaches_the_client(error: StatusError | RpcError, code: int) -> None:
    async with world(failover={"hold_ms": 50}) as w:
        await add_topics(w)
        handle = (await w.send(delayed())).entries[0].recall_handle
        w.broker.recall_error = error
        assert (await recall(w, handle)).status.code == code


async def test_what_is_no_handle_of_the_topic_is_refused() -> None:
    async with world() as w:
        await add_topics(w)
        handle = (await w.send(delayed())).entries[0].recall_handle
        forged = recall_handle.encode(b"another key", "later", RecallHandle("b1", 0, 100_000, "01" + "A" * 32))
        for shown, topic in ((handle, "mixed"), (forged, "later"), (handle[:-1], "later"), ("", "later")):
            assert (await recall(w, shown, topic)).status.code == Code.BAD_REQUEST, (shown, topic)
        for topic in ("", "no good", "%DLQ%g", "rmq_sys_wheel_timer"):
            assert (await recall(w, handle, topic)).status.code == Code.ILLEGAL_TOPIC
        assert handle in w.broker.timers
        w.controller.delete_topic("later")
        await until(lambda: "later" not in w.app.view.topics)
        assert (await recall(w, handle)).status.code == Code.OK, "also of a topic that was deleted"


async def test_a_broker_that_is_away_is_distinguished_from_a_handle_that_is_wrong() -> None:
    async with world("b1", "b2") as w:
        await add_topics(w)
        handle = recall_handle.encode(KEY, "later", RecallHandle("b2", 0, 100_000, "id"))
        forged = recall_handle.encode(b"another key", "later", RecallHandle("b2", 0, 100_000, "id"))
        w.controller.remove_broker("b2")
        await until(lambda: "b2" not in w.app.view.brokers)
        assert (await recall(w, handle)).status.code == Code.HA_NOT_AVAILABLE
        assert (await recall(w, forged)).status.code == Code.BAD_REQUEST
