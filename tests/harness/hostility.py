"""What tests of hostile clients share: an impatient server, requests of each call, and what must not change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message import Message

from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.http2.grpc_messages import CODE_TRAILER
from tests.harness.client import MessagingClient, duration, make_message
from tests.harness.metrics import lasting
from tests.harness.others import others_are_served
from tests.harness.proxy_calls import CALLS
from tests.harness.standalone import StandaloneProcess

SETTINGS = (
    *("--set", "proxy.receive.invisible_ms_min=500"),
    *("--set", "proxy.limits.handshake_timeout_ms=1500"),
    *("--set", "proxy.limits.keepalive_interval_ms=2000"),
    *("--set", "proxy.limits.keepalive_timeout_ms=1000"),
    *("--set", "broker.pop.stay_ms=3600000"),
)
TOPIC, GROUP, OTHER_GROUP, NORMAL_TOPIC = "Target", "target-group", "other-group", "NormalOnly"
MIB = 2**20
HOUR_S = 3600.0


def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """A server with a topic and two groups in it, whose log holds no traceback in the end; for a fixture."""
    with StandaloneProcess(tmp_path_factory.mktemp("hostile") / "data", SETTINGS) as process:
        answer = httpx.post(f"{process.http_url}/api/v1/topics", json={"name": NORMAL_TOPIC, "type": "NORMAL"})
        assert answer.status_code == 201, answer.text
        asyncio.run(_prepare(process))
        yield process
        log = process.log_text()
        assert "Traceback" not in log, log[-4_000:]


async def _prepare(process: StandaloneProcess) -> None:
    async with MessagingClient(process.grpc_address) as client:
        for group in (GROUP, OTHER_GROUP):
            assert (await client.send(TOPIC, b"first")).status.code == Code.OK
            (message,) = await client.receive_all(group, TOPIC, 1, invisible_s=HOUR_S)
            assert (await client.ack(group, TOPIC, [message])).status.code == Code.OK
        (rest,) = await client.receive_all(GROUP, TOPIC, 1, invisible_s=HOUR_S)
        assert (await client.ack(GROUP, TOPIC, [rest])).status.code == Code.OK


@asynccontextmanager
async def nothing_changes(server: StandaloneProcess) -> AsyncIterator[None]:
    """What lasts is the same afterwards: topics, groups, messages, offsets, the log's size, what is delivered."""
    before = lasting(server), await committed(server)
    yield
    after = lasting(server), await committed(server)
    assert after == before


async def committed(server: StandaloneProcess) -> dict[tuple[str, int], int]:
    """The committed offsets of the target's groups."""
    async with MessagingClient(server.grpc_address) as client:
        route = await client.route(TOPIC)
        return {
            (group, queue.id): (await client.get_offset(group, queue)).offset
            for group in (GROUP, OTHER_GROUP)
            for queue in route.message_queues
        }


async def endured(server: StandaloneProcess, hostility: Callable[[], Awaitable[None]]) -> None:
    """Nothing changes by it, and then it happens again while others are served."""
    async with nothing_changes(server):
        await hostility()
    async with others_are_served(server.grpc_address):
        await hostility()


def check(status: d.Status, *codes: int) -> None:
    """A status is one of these, by name, and says why in a sentence fit for a log."""
    assert status.code in codes, f"{code_name(status.code)}: {status.message}"
    assert len(status.message.split()) >= 3, status
    assert status.message.isprintable(), status


async def say(server: StandaloneProcess, data: bytes, *, end: bool = False) -> bytes:
    """Send bytes; all that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.grpc_port)
    said = b""
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(15):
            with suppress(ConnectionError):
                while part := await reader.read(65_536):
                    said += part
    finally:
        writer.transport.abort()
    return said


RESOURCE = d.Resource(name=TOPIC)


def queue(name: str = TOPIC, number: int = 0) -> d.MessageQueue:
    """One queue of a topic."""
    return d.MessageQueue(topic=d.Resource(name=name), id=number, broker=d.Broker(name="broker-0"))


def poll(**fields: Any) -> pb.ReceiveMessageRequest:
    """A poll of the target group that does not wait, but for these fields."""
    return pb.ReceiveMessageRequest(
        **{
            "group": d.Resource(name=GROUP),
            "message_queue": queue(number=-1),
            "filter_expression": d.FilterExpression(type=d.TAG, expression="*"),
            "batch_size": 1,
            "invisible_duration": duration(HOUR_S),
            "long_polling_timeout": duration(0),
            **fields,
        }
    )


def naming(topic: str = TOPIC, group: str = GROUP) -> dict[str, Message]:
    """A request of each call that names a topic or a group."""
    names: dict[str, Any] = {"topic": d.Resource(name=topic), "group": d.Resource(name=group)}
    return {
        "QueryRoute": pb.QueryRouteRequest(topic=names["topic"]),
        "QueryAssignment": pb.QueryAssignmentRequest(**names),
        "SendMessage": pb.SendMessageRequest(messages=[make_message(topic, b"body")]),
        "ReceiveMessage": poll(group=names["group"], message_queue=queue(topic, -1)),
        "AckMessage": pb.AckMessageRequest(**names, entries=[pb.AckMessageEntry(receipt_handle="none")]),
        "ChangeInvisibleDuration": pb.ChangeInvisibleDurationRequest(
            **names, receipt_handle="none", invisible_duration=duration(30)
        ),
        "ForwardMessageToDeadLetterQueue": pb.ForwardMessageToDeadLetterQueueRequest(**names, receipt_handle="none"),
        "PullMessage": pb.PullMessageRequest(group=names["group"], message_queue=queue(topic), batch_size=1),
        "PullRecords": pb.PullMessageRequest(group=names["group"], message_queue=queue(topic), batch_size=1),
        "UpdateOffset": pb.UpdateOffsetRequest(group=names["group"], message_queue=queue(topic), offset=0),
        "GetOffset": pb.GetOffsetRequest(group=names["group"], message_queue=queue(topic)),
        "QueryOffset": pb.QueryOffsetRequest(message_queue=queue(topic)),
        "Telemetry": pb.TelemetryCommand(
            settings=d.Settings(subscription=d.Subscription(group=names["group"], subscriptions=[]))
        ),
    }


WITH_TOPIC = [name for name in naming() if name != "Telemetry"]
WITH_GROUP = [name for name in naming() if name not in ("QueryRoute", "SendMessage", "QueryOffset")]


async def status_of(client: MessagingClient, name: str, request: Message, *, metadata: Any = None) -> d.Status:
    """The status that a call is answered with: of a stream, the first part's; of others, perhaps the trailers'."""
    call = client._channel.stream_stream(CALLS[name].path)(
        iter([request.SerializeToString()]), timeout=5, metadata=client.metadata if metadata is None else metadata
    )
    try:
        answer = await call.read()
    except grpc.aio.AioRpcError as error:
        code = dict(error.trailing_metadata() or ()).get(CODE_TRAILER)
        assert code is not None, error
        return d.Status(code=int(code), message=error.details())  # type: ignore[arg-type]
    call.cancel()
    parsed: Any = CALLS[name].answer.FromString(answer)
    return parsed.status if CALLS[name].has_status else d.Status(code=Code.OK)
