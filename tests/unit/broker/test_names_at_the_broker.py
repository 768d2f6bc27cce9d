"""A broker does not trust its proxies: no call of popwheel.v1.Broker lets a bad name in, and nothing changes."""

from typing import Any

import pytest
from google.protobuf.message import Message

from popwheel_common.contract import names
from popwheel_common.contract.names import Kind, Use
from popwheel_common.contract.put import MessageRun
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Method
from tests.harness.names import BAD_GROUPS, BAD_TOPICS, OF_KIND
from tests.unit.broker.served_broker import Broker, running

TOPICS = [text for text in BAD_TOPICS if "\ud800" not in text]  # no call can carry that
GROUPS = [text for text in BAD_GROUPS if "\ud800" not in text]

USE_OF = {
    "Put": Use.SEND,
    "Recall": Use.SEND,
    "EndTransaction": Use.SEND,
    "Pop": Use.RECEIVE,
    "Ack": Use.RECEIVE,
    "ChangeInvisible": Use.RECEIVE,
    "Renew": Use.RECEIVE,
    "Release": Use.RECEIVE,
    "DeadLetter": Use.RECEIVE,
    "Pull": Use.PULL,
    "PullRecords": Use.PULL,
    "QueryOffset": Use.QUERY,
    "GetOffset": Use.QUERY,
    "SyncLite": Use.RECEIVE,
    "LiteTopicList": Use.QUERY,
    "TimerList": Use.QUERY,
    "TimerHistogram": Use.QUERY,
    "GroupBalance": Use.RECEIVE,
    "InFlightList": Use.RECEIVE,
    "ProgressList": Use.RECEIVE,
    "MessageTrace": Use.RECEIVE,
    "MessageEvents": Use.RECEIVE,
    "MessageList": Use.PULL,
    "MessageTail": Use.PULL,
    "UpdateOffset": Use.COMMIT,
    "ResetOffsets": Use.COMMIT,
}
OF_A_PLACE = ("InFlightRelease",)
"""Of a topic as the broker stores it, which may be a lite topic."""
OF_A_GROUP = ("DeadLetterList", "DeadLetterRedrive", "DeadLetterSelect")
OF_EITHER = ("DescribeUse",)
OF_SEVERAL = ("DescribeGroups", "DescribeTopics")
OF_BROKER_GROUPS = ("HandOver", "ReadRecords", "FetchCheckpoint", "StoreCheckpoint")
QUARANTINE = ("QuarantineList", "QuarantineShow", "QuarantineRetry", "QuarantineDrop")
WITHOUT_NAMES = ("TimerStats", "NameList", "InFlightSummary", "ReplicaStatus", "SampleActivity", *QUARANTINE)
STREAMS = ("Notify", "Replicate", "CheckTransactions")
METHODS: dict[str, Method[Any, Any]] = {
    each.name: each for each in vars(methods).values() if isinstance(each, Method) and each.service.endswith(".Broker")
}
EMPTY_IS_ALL = {("TimerList", "topic"), ("ProgressList", "topic"), ("InFlightList", "group"), ("MessageTrace", "group")}
EMPTY_IS_ALL |= {("LiteTopicList", "group"), ("TimerHistogram", "topic"), ("GroupBalance", "topic")}
EMPTY_IS_ALL |= {("InFlightList", "topic"), ("MessageEvents", "group")}
WITH_GROUP = sorted(
    set(USE_OF)
    - {"Put", "Recall", "EndTransaction", "QueryOffset", "TimerList", "TimerHistogram", "MessageList", "MessageTail"}
)


def test_no_call_of_the_broker_is_left_out() -> None:
    of_names = {*USE_OF, *OF_A_PLACE, *OF_A_GROUP, *OF_EITHER, *OF_SEVERAL}
    assert set(METHODS) == {*of_names, *OF_BROKER_GROUPS, *WITHOUT_NAMES, *STREAMS}


def request(name: str, topic: str, group: str) -> Any:
    """A request that is in order but for its names."""
    if name == "Put":
        return [MessageRun(topic, 0, [b""], [b""], [""])]
    if name == "Renew":
        return pb.RenewRequest(entries=[pb.RenewEntry(group=group, topic=topic, receipt_handle="x")], invisible_ms=1)
    descriptor = pb.DESCRIPTOR.services_by_name["Broker"].methods_by_name[name].input_type
    made: Message = getattr(pb, descriptor.name)()
    for field, value in (
        ("topic", topic),
        ("group", group),
        ("receipt_handle", "x"),
        ("message_id", "x"),
        ("key", "x"),
        ("client_id", "x"),
        ("max_messages", 1),
    ):
        if field in descriptor.fields_by_name:
            setattr(made, field, value)
    return made


async def code_of(broker: Broker, name: str, topic: str = "t", group: str = "g") -> int:
    """What a call is answered with."""
    try:
        answer = await broker.channel.call(METHODS[name], request(name, topic, group))
    except StatusError as error:
        assert error.message.isprintable()
        assert len(error.message) < 500
        return error.code
    results = getattr(answer, "results", ())
    return int(results[0].code) if results else Code.OK


def held(broker: Broker) -> tuple[object, ...]:
    """What a refused call leaves as it was."""
    core = broker.app.core
    return (
        core.store.log.end_position,
        set(core.store.queues),
        core.state.merge_buffer.pairs,
        len(core.interests),
        len(broker.metrics()),
    )


@pytest.mark.parametrize("name", USE_OF)
async def test_no_call_lets_a_name_in_that_is_none(name: str) -> None:
    async with running() as broker:
        await broker.put(b"1")
        await broker.pop()
        before = held(broker)
        for topic in TOPICS:
            if not topic and (name, "topic") in EMPTY_IS_ALL:
                continue
            assert await code_of(broker, name, topic=topic) == Code.ILLEGAL_TOPIC, topic[:80]
        for group in GROUPS if name in WITH_GROUP else ():
            if not group and (name, "group") in EMPTY_IS_ALL:
                continue
            assert await code_of(broker, name, group=group) == Code.ILLEGAL_CONSUMER_GROUP, group[:80]
        assert held(broker) == before


@pytest.mark.parametrize("name", OF_A_PLACE)
async def test_a_place_has_a_topic_as_it_is_stored(name: str) -> None:
    async with running() as broker:
        for topic in TOPICS:
            if names.kind_of(topic) is not Kind.LITE:
                assert await code_of(broker, name, topic=topic) == Code.ILLEGAL_TOPIC, topic[:80]
        assert await code_of(broker, name, topic="t+") != Code.OK
        assert await code_of(broker, name, topic="t+l") == Code.MESSAGE_NOT_FOUND
        for group in GROUPS:
            assert await code_of(broker, name, group=group) == Code.ILLEGAL_CONSUMER_GROUP, group[:80]


@pytest.mark.parametrize("name", USE_OF)
async def test_the_table_of_kinds_and_calls_holds_at_the_broker(name: str) -> None:
    async with running() as broker:
        for kind in Kind:
            for topic in OF_KIND[kind]:
                is_refused = await code_of(broker, name, topic=topic) == Code.ILLEGAL_TOPIC
                assert is_refused is (USE_OF[name] not in names.USES[kind]), topic


@pytest.mark.parametrize("name", OF_A_GROUP)
async def test_no_call_takes_a_consumer_group_that_can_not_be(name: str) -> None:
    async with running() as broker:
        for group in GROUPS:
            assert await code_of(broker, name, group=group) == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("name", OF_EITHER)
async def test_a_call_of_a_topic_or_a_group_takes_no_name_that_can_not_be(name: str) -> None:
    async with running() as broker:
        for topic in filter(None, TOPICS):
            assert await code_of(broker, name, topic=topic, group="") == Code.ILLEGAL_TOPIC
        for group in filter(None, GROUPS):
            assert await code_of(broker, name, topic="", group=group) == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("name", OF_BROKER_GROUPS)
async def test_no_call_takes_a_broker_group_that_can_not_be(name: str) -> None:
    async with running() as broker:
        for group in ("", "a/b", "n" * 65, "n" * 4_000_000):
            assert await code_of(broker, name, group=group) == Code.BAD_REQUEST


async def test_no_interest_is_registered_in_a_name_that_is_none() -> None:
    async with running() as broker:
        stream = broker.channel.open(methods.NOTIFY)
        wrong = [(topic, "g") for topic in (*TOPICS, "%RETRY%g+t", "rmq_sys_x")] + [("t", group) for group in GROUPS]
        await stream.send(
            [pb.NotifyInterest(id=number, topic=topic, group=group) for number, (topic, group) in enumerate(wrong)]
        )
        refused: set[int] = set()
        while len(refused) < len(wrong):
            events = await stream.receive()
            assert events is not None
            assert all(event.refused for event in events.events)
            refused |= {event.id for event in events.events}
        assert len(broker.app.core.interests) == 0
        stream.cancel()
