"""Each limit of the proxy gone past: its status, its count in the metrics, and nothing made or stored on the way."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol import client_methods as protocol
from tests.unit.proxy.world import CLIENT, World, message, poll_request, until, world

NEW = "made-on-first-use"
HITS = "popwheel_proxy_limit_hits_total"

Attempt = Callable[[World], Awaitable[d.Status]]


def send(*messages: d.Message) -> Attempt:
    async def attempt(w: World) -> d.Status:
        return (await w.send(*messages)).status

    return attempt


def receive(*, group: str = NEW, **fields: object) -> Attempt:
    async def attempt(w: World) -> d.Status:
        return (await w.receive(poll_request(group=d.Resource(name=group), **fields))).status  # type: ignore[arg-type]

    return attempt


def call(method: object, request: object) -> Attempt:
    async def attempt(w: World) -> d.Status:
        response = await w.channel.call(method, request, metadata=CLIENT)  # type: ignore[var-annotated,arg-type]
        status: d.Status = response.status
        return status

    return attempt


def settings(given: d.Settings, client_id: str = "client-1") -> Attempt:
    async def attempt(w: World) -> d.Status:
        stream = w.channel.open(protocol.TELEMETRY, metadata={**CLIENT, "x-mq-client-id": client_id})
        await stream.send((pb.TelemetryCommand(settings=given),))
        answer = await stream.receive()
        assert answer is not None
        stream.cancel()
        return answer.status

    return attempt


async def second_client(w: World) -> d.Status:
    await call(protocol.HEARTBEAT, pb.HeartbeatRequest())(w)
    response = await w.channel.call(
        protocol.HEARTBEAT, pb.HeartbeatRequest(), metadata={**CLIENT, "x-mq-client-id": "client-2"}
    )
    return response.status


async def one_stream_too_many(w: World) -> d.Status:
    producer = d.Settings(client_type=d.ClientType.PRODUCER, publishing=d.Publishing())
    streams = [w.channel.open(protocol.TELEMETRY, metadata=CLIENT) for _ in range(65)]
    for stream in streams:
        await stream.send((pb.TelemetryCommand(settings=producer),))
    answers = [await stream.receive() for stream in streams]
    for stream in streams:
        stream.cancel()
    (refused,) = [answer.status for answer in answers if answer is not None and answer.status.code != Code.OK]
    return refused


async def while_another_waits(w: World) -> d.Status:
    poll = w.poll(poll_request())
    await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1)
    tagged = d.FilterExpression(type=d.FilterType.TAG, expression="a")
    refused = await w.receive(poll_request(filter_expression=tagged))
    w.app.drain()
    await poll
    return refused.status


async def behind_a_put(w: World) -> d.Status:
    w.broker.put_gate.clear()
    first = asyncio.create_task(w.send(message(body=bytes(600_000))))
    await until(lambda: len(w.broker.asked("Put")) == 1)
    second = asyncio.create_task(w.send(message(body=bytes(600_000))))
    await until(lambda: w.metric("popwheel_proxy_waiting_sends") == 1)
    refused = await w.send(message(body=bytes(600_000)))
    w.broker.put_gate.set()
    assert [answer.status.code for answer in await asyncio.gather(first, second)] == [Code.OK] * 2
    return refused.status


def with_properties(**properties: str) -> d.Message:
    made = message(NEW)
    made.user_properties.update(properties)
    return made


def lasting(milliseconds: int) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(milliseconds)
    return duration


def route(*hosts: str) -> pb.QueryRouteRequest:
    addresses = [d.Address(host=host, port=1) for host in hosts]
    return pb.QueryRouteRequest(topic=d.Resource(name=NEW), endpoints=d.Endpoints(addresses=addresses))


NAMES = d.Resource(name="orders"), d.Resource(name="group")
MIB = 1024 * 1024


@dataclass(frozen=True)
class Case:
    """One limit.

    Args:
        limit: as it stands in the metrics.
        attempt: goes past it.
        code: what the client is told.
        options: of the proxy, where the default would take too long to reach.
    """

    limit: str
    attempt: Attempt
    code: int
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("message.body_bytes_max", send(message(NEW, body=bytes(4 * MIB + 1))), Code.MESSAGE_BODY_TOO_LARGE),
    Case("message.batch_messages_max", send(*[message(NEW)] * 129), Code.PAYLOAD_TOO_LARGE),
    Case(
        "message.user_properties_max",
        send(with_properties(**{f"{number:03}": "v" for number in range(129)})),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    Case(
        "message.user_properties_bytes_max", send(with_properties(k=16 * 1024 * "v")), Code.MESSAGE_PROPERTIES_TOO_LARGE
    ),
    Case(
        "message.system_properties_bytes_max",
        send(message(NEW, keys=["k" * 17_000])),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    Case("message.id_length_max", send(message(NEW, message_id="i" * 256)), Code.ILLEGAL_MESSAGE_ID),
    Case("topic_length_max", send(message("t" * 128)), Code.ILLEGAL_TOPIC),
    Case("group_length_max", receive(group="g" * 121), Code.ILLEGAL_CONSUMER_GROUP),
    Case("receive.invisible_ms_min", receive(invisible_s=9.999), Code.ILLEGAL_INVISIBLE_TIME),
    Case("receive.invisible_ms_max", receive(invisible_s=43_200.001), Code.ILLEGAL_INVISIBLE_TIME),
    Case(
        "receive.acknowledgements_max",
        call(
            protocol.ACK_MESSAGE,
            pb.AckMessageRequest(topic=NAMES[0], group=NAMES[1], entries=[pb.AckMessageEntry()] * 1025),
        ),
        Code.PAYLOAD_TOO_LARGE,
    ),
    Case("receive.interests_max", while_another_waits, Code.TOO_MANY_REQUESTS, {"receive": {"interests_max": 1}}),
    Case(
        "renewal.handles_max",
        receive(auto_renew=True, batch=11),
        Code.TOO_MANY_REQUESTS,
        {"renewal": {"handles_max": 10}},
    ),
    Case("send.waiting_bytes_max", behind_a_put, Code.TOO_MANY_REQUESTS, {"send": {"waiting_bytes_max": MIB}}),
    Case("client.sessions_max", second_client, Code.TOO_MANY_REQUESTS, {"client": {"sessions_max": 1}}),
    Case("telemetry_streams_per_client_max", one_stream_too_many, Code.TOO_MANY_REQUESTS),
    Case(
        "settings_bytes_max",
        settings(d.Settings(publishing=d.Publishing(topics=[d.Resource(name="t" * MIB)]))),
        Code.INVALID_CLIENT_PROPERTIES,
    ),
    Case(
        "settings_entries_max",
        settings(d.Settings(publishing=d.Publishing(topics=[d.Resource(name="t")] * 2_001))),
        Code.INVALID_CLIENT_PROPERTIES,
    ),
    Case(
        "filter_expression_length_max",
        receive(filter_expression=d.FilterExpression(type=d.FilterType.TAG, expression="t" * 8193)),
        Code.ILLEGAL_FILTER_EXPRESSION,
    ),
    Case(
        "sql_filter_length_max",
        receive(filter_expression=d.FilterExpression(type=d.FilterType.SQL, expression="a = 1" + " " * 4092)),
        Code.ILLEGAL_FILTER_EXPRESSION,
    ),
    Case("endpoints_max", call(protocol.QUERY_ROUTE, route(*["host"] * 65)), Code.BAD_REQUEST),
    Case("endpoints_max", call(protocol.QUERY_ROUTE, route("h" * 256)), Code.BAD_REQUEST),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.limit)
async def test_each_limit_has_a_status_and_a_count_and_nothing_is_made(case: Case) -> None:
    async with world(auto_create_topics=True, **case.options) as w:
        status = await case.attempt(w)
        assert status.code == case.code, status
        assert len(status.message.split()) > 4
        assert w.metric(HITS, {"limit": case.limit}) == 1
        assert set(w.controller.topics) == {"orders"}
        assert set(w.controller.groups) == {"group"}
        assert w.broker.asked("Pop") == [] or case.limit == "receive.interests_max"


async def test_what_is_cut_to_a_limit_is_counted() -> None:
    async with world() as w:
        await w.receive(poll_request(wait_s=0, batch=33))
        assert w.metric(HITS, {"limit": "receive.batch_messages_max"}) == 1
        await w.receive(poll_request(wait_s=4.9))
        assert w.metric(HITS, {"limit": "grpc_client_consumer_min_long_polling_timeout_ms"}) == 1
        poll = w.poll(poll_request(wait_s=1e9))
        await until(lambda: w.metric("popwheel_proxy_polls_waiting") == 1)
        assert w.metric(HITS, {"limit": "grpc_client_consumer_max_long_polling_timeout_ms"}) == 1
        w.app.drain()
        await poll


async def test_no_poll_waits_longer_than_the_longest_time() -> None:
    async with world(
        grpc_client_consumer_min_long_polling_timeout_ms=10, grpc_client_consumer_max_long_polling_timeout_ms=20
    ) as w:
        async with asyncio.timeout(5):
            assert (await w.receive(poll_request(wait_s=1e9))).code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"batch": -1}, Code.BAD_REQUEST),
        ({"batch": -(2**31)}, Code.BAD_REQUEST),
        ({"wait_s": -1}, Code.ILLEGAL_POLLING_TIME),
        ({"long_polling_timeout": Duration(seconds=-(2**63))}, Code.ILLEGAL_POLLING_TIME),
        ({"invisible_s": -1}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": Duration(seconds=2**63 - 1)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"message_queue": d.MessageQueue(topic=NAMES[0], id=4)}, Code.BAD_REQUEST),
        ({"message_queue": d.MessageQueue(topic=NAMES[0], id=-2)}, Code.BAD_REQUEST),
        ({"message_queue": d.MessageQueue(topic=d.Resource(name="nowhere"))}, Code.TOPIC_NOT_FOUND),
        (
            {"filter_expression": d.FilterExpression(type=d.FilterType.TAG, expression="a |")},
            Code.ILLEGAL_FILTER_EXPRESSION,
        ),
    ],
)
async def test_no_group_is_made_for_a_poll_that_is_refused(fields: dict[str, Any], code: int) -> None:
    async with world() as w:
        status = await receive(**fields)(w)
        assert status.code == code, status
        assert set(w.controller.groups) == {"group"}


@pytest.mark.parametrize(
    "bad",
    [message(NEW, body=b""), message(NEW, message_type=d.MessageType.FIFO), message("a b")],
)
async def test_no_topic_is_made_for_a_send_that_is_refused(bad: d.Message) -> None:
    async with world(auto_create_topics=True) as w:
        assert (await w.send(bad)).status.code != Code.OK
        assert (await w.send(message("another"), bad)).status.code != Code.OK
        assert set(w.controller.topics) == {"orders"}
        sent = await w.send(message("another"), message(NEW))
        assert sent.status.code == Code.OK, sent
        assert set(w.controller.topics) == {"orders", "another", NEW}


async def test_no_group_is_made_for_an_offset_that_is_refused() -> None:
    async with world() as w:
        queue = d.MessageQueue(topic=NAMES[0], id=0, broker=d.Broker(name="b1"))
        request = pb.UpdateOffsetRequest(group=d.Resource(name=NEW), message_queue=queue, offset=1)
        assert (await call(protocol.UPDATE_OFFSET, request)(w)).code == Code.ILLEGAL_OFFSET
        assert set(w.controller.groups) == {"group"}
        request.offset = 0
        assert (await call(protocol.UPDATE_OFFSET, request)(w)).code == Code.OK
        assert set(w.controller.groups) == {"group", NEW}


async def test_no_topic_is_made_for_an_assignment_that_is_refused() -> None:
    async with world(auto_create_topics=True) as w:
        request = pb.QueryAssignmentRequest(topic=d.Resource(name=NEW), group=d.Resource(name="a b"))
        assert (await call(protocol.QUERY_ASSIGNMENT, request)(w)).code == Code.ILLEGAL_CONSUMER_GROUP
        assert set(w.controller.topics) == {"orders"}


async def test_an_impossible_name_is_not_repeated_as_it_came() -> None:
    async with world() as w:
        queue = d.MessageQueue(topic=NAMES[0], id=0, broker=d.Broker(name="b1"))
        request = pb.GetOffsetRequest(group=d.Resource(name="a\x1b[2J"), message_queue=queue)
        status = await call(protocol.GET_OFFSET, request)(w)
        assert status.code == Code.ILLEGAL_CONSUMER_GROUP
        assert status.message.isprintable()


async def test_the_name_of_a_broker_is_not_repeated_at_any_length() -> None:
    async with world() as w:
        queue = d.MessageQueue(topic=NAMES[0], id=0, broker=d.Broker(name="b" * 9_000))
        status = await call(protocol.GET_OFFSET, pb.GetOffsetRequest(group=NAMES[1], message_queue=queue))(w)
        assert status.code == Code.HA_NOT_AVAILABLE
        assert len(status.message) < 200


async def test_a_timestamp_of_any_size_is_taken() -> None:
    async with world() as w:
        queue = d.MessageQueue(topic=NAMES[0], id=0, broker=d.Broker(name="b1"))
        for seconds in (2**63 - 1, -(2**63)):
            request = pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=d.QueryOffsetPolicy.TIMESTAMP)
            request.timestamp.seconds = seconds
            assert (await call(protocol.QUERY_OFFSET, request)(w)).code == Code.OK


def test_the_limits_of_the_issue_are_the_defaults() -> None:
    options = ProxyOptions()
    assert options.message.body_bytes_max == 4 * MIB
    assert options.message.user_properties_max == 128
    assert options.message.user_properties_bytes_max == 16 * 1024
    assert (options.receive.invisible_ms_min, options.receive.invisible_ms_max) == (10_000, 12 * 3600 * 1000)
