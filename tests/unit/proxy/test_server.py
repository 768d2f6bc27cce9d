"""Offsets, and what becomes of errors."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, QueryOffsetPolicy
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.protocol.statuses import is_old
from tests.unit.proxy.fake_broker import RECORDS
from tests.unit.proxy.world import CLIENT, World, message, world

GROUP = d.Resource(name="group")


def queue(number: int = 0, name: str = "b1", topic: str = "orders") -> d.MessageQueue:
    return d.MessageQueue(topic=d.Resource(name=topic), id=number, broker=d.Broker(name=name))


def pull_request(**fields: object) -> pb.PullMessageRequest:
    return pb.PullMessageRequest(**{"group": GROUP, "message_queue": queue(), "batch_size": 10, **fields})  # type: ignore[arg-type]


async def pull_records(w: World, **fields: object) -> bytes:
    return await w.channel.call(protocol.PULL_RECORDS, pull_request(**fields), metadata=CLIENT)


async def pull(w: World, **fields: object) -> list[pb.PullMessageResponse]:
    request = pull_request(**fields)
    stream = w.channel.open(protocol.PULL_MESSAGE, metadata=CLIENT)
    await stream.send((request,))
    await stream.end()
    answers = []
    while (part := await stream.receive()) is not None:
        answers.append(pb.PullMessageResponse.FromString(part))
    return answers


async def test_a_pull_reads_by_offset() -> None:
    async with world() as w:
        await w.send(message(body=b"0"), message(body=b"1"))
        status, first, second, behind = await pull(w)
        assert status.status.code == Code.OK
        assert [first.message.body, second.message.body] == [b"0", b"1"]
        assert behind.next_offset == 2
        nothing, behind = await pull(w, offset=2)
        assert nothing.status.code == Code.MESSAGE_NOT_FOUND
        assert behind.WhichOneof("content") == "next_offset"
        assert behind.next_offset == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": -1}, Code.ILLEGAL_OFFSET),
        ({"message_queue": queue(4)}, Code.BAD_REQUEST),
        ({"message_queue": queue(-1)}, Code.BAD_REQUEST),
        ({"message_queue": queue(topic="nowhere")}, Code.TOPIC_NOT_FOUND),
        ({"message_queue": queue(name="b9")}, Code.HA_NOT_AVAILABLE),
        ({"group": d.Resource()}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"batch_size": -1}, Code.BAD_REQUEST),
        (
            {"filter_expression": d.FilterExpression(type=d.FilterType.SQL, expression="a = 1")},
            Code.ILLEGAL_FILTER_EXPRESSION,
        ),
    ],
)
async def test_a_pull_that_breaks_a_rule(fields: dict[str, object], code: int) -> None:
    async with world() as w:
        (answer,) = await pull(w, **fields)
        assert answer.status.code == code
        with pytest.raises(StatusError) as refused:
            await pull_records(w, **fields)
        assert refused.value.code == code
        assert w.broker.asked("Pull") == w.broker.asked("PullRecords") == []


@pytest.mark.parametrize("makes", [True, False])
async def test_a_pull_of_a_tool_makes_no_group(makes: bool) -> None:
    async with world(auto_create_groups=makes) as w:
        await w.send(message(body=b"0"))
        tool = d.Resource(name="TOOLS_CONSUMER")
        status, read, _ = await pull(w, group=tool)
        assert (status.status.code, read.message.body) == (Code.OK, b"0")
        await pull_records(w, group=tool)
        assert "TOOLS_CONSUMER" not in w.controller.groups
        if makes:
            await pull(w, group=d.Resource(name="others"))
            assert "others" in w.controller.groups


async def test_records_are_passed_on_as_the_broker_answers_them() -> None:
    async with world() as w:
        assert await pull_records(w, offset=7, filter_expression=d.FilterExpression(expression="a")) == RECORDS
        (request,) = w.broker.asked("PullRecords")
        assert isinstance(request, broker.PullRequest)
        assert (request.topic, request.queue_id, request.offset) == ("orders", 0, 7)
        assert (request.filter.kind, request.filter.expression) == (broker.FilterKind.TAG, "a")


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (200, 200), (1025, 1024), (2**31 - 1, 1024)])
async def test_a_block_has_a_limit_of_messages(asked: int, given: int) -> None:
    async with world() as w:
        await pull_records(w, batch_size=asked)
        (request,) = w.broker.asked("PullRecords")
        assert isinstance(request, broker.PullRequest)
        assert request.max_messages == given


async def test_offsets_are_committed_and_read() -> None:
    async with world() as w:
        get = pb.GetOffsetRequest(group=GROUP, message_queue=queue(1))
        assert (await w.channel.call(protocol.GET_OFFSET, get, metadata=CLIENT)).status.code == Code.OFFSET_NOT_FOUND
        update = pb.UpdateOffsetRequest(group=GROUP, message_queue=queue(1), offset=5)
        assert (await w.channel.call(protocol.UPDATE_OFFSET, update, metadata=CLIENT)).status.code == Code.OK
        assert (await w.channel.call(protocol.GET_OFFSET, get, metadata=CLIENT)).offset == 5
        update.offset = -1
        refused = await w.channel.call(protocol.UPDATE_OFFSET, update, metadata=CLIENT)
        assert refused.status.code == Code.ILLEGAL_OFFSET


async def test_an_offset_is_found_by_policy() -> None:
    async with world() as w:
        request = pb.QueryOffsetRequest(message_queue=queue(), query_offset_policy=QueryOffsetPolicy.TIMESTAMP)
        answer = await w.channel.call(protocol.QUERY_OFFSET, request, metadata=CLIENT)
        assert answer.status.code == Code.BAD_REQUEST
        request.timestamp.CopyFrom(Timestamp(seconds=3))
        assert (await w.channel.call(protocol.QUERY_OFFSET, request, metadata=CLIENT)).status.code == Code.OK
        (asked,) = w.broker.asked("QueryOffset")
        assert isinstance(asked, broker.QueryOffsetRequest)
        assert (asked.policy, asked.timestamp_ms) == (broker.OffsetPolicy.TIMESTAMP, 3000)


async def test_heartbeat_and_termination_are_answered() -> None:
    async with world() as w:
        beat = await w.channel.call(protocol.HEARTBEAT, pb.HeartbeatRequest(), metadata=CLIENT)
        assert beat.status.code == Code.OK
        assert w.metric("popwheel_proxy_clients") == 1
        w.clock.shift_s += 61
        over = await w.channel.call(
            protocol.NOTIFY_CLIENT_TERMINATION, pb.NotifyClientTerminationRequest(), metadata=CLIENT
        )
        assert over.status.code == Code.OK
        assert w.metric("popwheel_proxy_clients") == 0
        nameless = await w.channel.call(protocol.HEARTBEAT, pb.HeartbeatRequest())
        assert nameless.status.code == Code.CLIENT_ID_REQUIRED


async def test_an_unexpected_error_is_a_status_and_calls_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    async with world() as w:
        w.broker.put_error = StatusError(Code.INTERNAL_SERVER_ERROR, "x")
        w.app._send_handler._turns = None  # type: ignore[assignment]
        answer = await w.send(message())
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        assert "a call failed unexpectedly" in capsys.readouterr().out
        labels = {
            "node_type": "proxy",
            "protocol_type": "grpc",
            "request_code": "SendMessage",
            "response_code": "INTERNAL_SERVER_ERROR",
        }
        assert w.metric("rocketmq_rpc_latency_count", labels) == 1
        assert w.metric("rocketmq_rpc_latency_bucket", {**labels, "le": "+Inf"}) == 1
        w.app._send_handler._turns = {}


async def test_an_unexpected_error_of_a_pull_of_records_is_reported_in_trailers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with world() as w:
        w.app._admission.enter = None  # type: ignore[method-assign, assignment]
        with pytest.raises(StatusError, match="the proxy failed unexpectedly"):
            await w.channel.call(protocol.PULL_RECORDS, pull_request(), metadata=CLIENT)
        assert "a call failed unexpectedly" in capsys.readouterr().out
        labels = {
            "node_type": "proxy",
            "protocol_type": "grpc",
            "request_code": "PullRecords",
            "response_code": "INTERNAL_SERVER_ERROR",
        }
        assert w.metric("rocketmq_rpc_latency_count", labels) == 1


@pytest.mark.parametrize(
    ("version", "old"),
    [
        *(("5.0.0", True), ("5.0.2", True), ("5.0.3", False), ("v5.1.4", False), ("5.2.0-SNAPSHOT", False), ("", True)),
        (f"5.{'9' * 5_000}.1", True),
    ],
)
def test_which_clients_are_old(version: str, old: bool) -> None:
    assert is_old({"x-mq-client-version": version}) is old
