"""Clients that do not know the protocol, or wish it ill: each gets a named status and a sentence, changes nothing, and
others are served all the while (E1, M1).
"""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from services.common.errors import code_name
from services.common.pb.apache.rocketmq.v2 import definition_pb2 as d
from services.common.pb.apache.rocketmq.v2 import service_pb2 as pb
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.rpc import frames
from tests.harness.client import SERVICE, MessagingClient, duration, make_message
from tests.harness.metrics import lasting, metric
from tests.harness.others import others_are_served
from tests.harness.standalone import ROOT, StandaloneProcess
from tests.unit.rpc.peers import split

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
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
    """What lasts is the same afterwards: topics, groups, messages, offsets, the log's size, what is given out."""
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


# What is no HTTP/2


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


GARBAGE = {
    "an HTTP/1.1 request": b"GET /index.html HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an upgrade to h2c": b"POST / HTTP/1.1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    "bytes of no kind": bytes(range(1, 256)) * 40,
    "zeros": bytes(10_000),
    "another preface": b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n",
    "a ping before the settings": frames.PREFACE + frames.ping(bytes(8), ack=False),
    "the protocol of RocketMQ 4": b"\x00\x00\x00\x6e\x00\x00\x00\x5f" + b'{"code":105,"language":"JAVA"}',
    "a proxy's header": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_what_is_no_http2_is_told_so_and_closed(server: StandaloneProcess, what: str) -> None:
    async def hostility() -> None:
        said = await say(server, GARBAGE[what])
        last = split(said)[-1]
        assert last.kind == frames.GOAWAY
        assert last.payload[4:8] == frames.ErrorCode.PROTOCOL_ERROR.to_bytes(4, "big")
        assert last.payload[8:] in (b"this is no HTTP/2 connection preface", b"the first frame is not SETTINGS")

    await endured(server, hostility)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), frames.PREFACE[:10], frames.PREFACE],
    ids=["nothing", "one byte of TLS", "half a TLS hello", "half a preface", "a preface and no settings"],
)
async def test_who_stops_half_way_is_let_go(server: StandaloneProcess, data: bytes) -> None:
    async with nothing_changes(server):
        before = metric(server, "popwheel_rpc_limit_hits_total", limit="preface_timeout_s")
        await say(server, data)
        assert metric(server, "popwheel_rpc_limit_hits_total", limit="preface_timeout_s") == before + 1


async def test_a_broken_tls_handshake_is_closed(server: StandaloneProcess) -> None:
    async def hostility() -> None:
        said = await say(server, b"\x16\x03\x01\x00\x05hello" + bytes(200))
        assert said[:1] in (b"", b"\x15"), "nothing, or a TLS alert"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AES128-SHA")  # nobody should speak that any more
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", server.grpc_port, ssl=context)

    await endured(server, hostility)


# What is no call of the protocol


async def raw_call(
    client: MessagingClient, path: str, request: bytes, *, metadata: Any = None, timeout_s: float = 5.0
) -> tuple[grpc.StatusCode, str, bytes]:
    """Status, sentence and answer of a call with any bytes."""
    call = client._channel.unary_unary(path)(
        request, timeout=timeout_s, metadata=client.metadata if metadata is None else metadata
    )
    answer = b""
    with suppress(grpc.aio.AioRpcError):
        answer = await call
    return await call.code(), await call.details() or "", answer


@pytest.mark.parametrize(
    "path",
    [
        f"/{SERVICE}/NoSuchCall",
        f"/{SERVICE}/",
        f"/{SERVICE}",
        "/apache.rocketmq.v1.MessagingService/QueryRoute",
        "/popwheel.v1.Broker/Put",
        "/popwheel.v1.Controller/EnsureTopic",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/../../etc/passwd",
        "/" + "x" * 2_000,
    ],
)
async def test_unknown_calls_and_services(server: StandaloneProcess, path: str) -> None:
    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            code, text, _ = await raw_call(client, path, b"")
            assert code is grpc.StatusCode.UNIMPLEMENTED
            assert text.startswith("there is no method /"), text

    await endured(server, hostility)


async def test_bytes_that_are_no_request(server: StandaloneProcess) -> None:
    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            for method in METHODS:
                for request in (b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\x12\xc3"):
                    code, text, answer = await raw_call(client, f"/{SERVICE}/{method}", request)
                    if code is grpc.StatusCode.OK:
                        check(ANSWERS[method].FromString(answer).status, Code.BAD_REQUEST, Code.UNSUPPORTED)  # type: ignore[attr-defined]
                    else:
                        assert code is grpc.StatusCode.INVALID_ARGUMENT, (method, request, code, text)
                        assert len(text.split()) > 3

    await endured(server, hostility)


async def test_a_request_beyond_all_limits(server: StandaloneProcess) -> None:
    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            answer = await client.send(TOPIC, bytes(4 * MIB + 1))
            check(answer.status, Code.MESSAGE_BODY_TOO_LARGE)
            code, text, _ = await raw_call(client, f"/{SERVICE}/SendMessage", bytes(9 * MIB))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "bytes allowed" in text
        assert metric(server, "popwheel_proxy_limit_hits_total", limit="message.body_bytes_max") > 0
        assert metric(server, "popwheel_rpc_limit_hits_total", limit="message_bytes_max") > 0

    await endured(server, hostility)


# Requests that are wrong

RESOURCE = d.Resource(name=TOPIC)


def queue(name: str = TOPIC, number: int = 0) -> d.MessageQueue:
    return d.MessageQueue(topic=d.Resource(name=name), id=number, broker=d.Broker(name="broker-0"))


def poll(**fields: Any) -> pb.ReceiveMessageRequest:
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
        "UpdateOffset": pb.UpdateOffsetRequest(group=names["group"], message_queue=queue(topic), offset=0),
        "GetOffset": pb.GetOffsetRequest(group=names["group"], message_queue=queue(topic)),
        "QueryOffset": pb.QueryOffsetRequest(message_queue=queue(topic)),
        "Telemetry": pb.TelemetryCommand(
            settings=d.Settings(subscription=d.Subscription(group=names["group"], subscriptions=[]))
        ),
    }


WITH_TOPIC = [name for name in naming() if name != "Telemetry"]
WITH_GROUP = [name for name in naming() if name not in ("QueryRoute", "SendMessage", "QueryOffset")]
_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["MessagingService"]
METHODS = [method.name for method in _DESCRIPTOR.methods]
REQUESTS: dict[str, type[Message]] = {one.name: getattr(pb, one.input_type.name) for one in _DESCRIPTOR.methods}
ANSWERS: dict[str, type[Message]] = {one.name: getattr(pb, one.output_type.name) for one in _DESCRIPTOR.methods}


async def status_of(client: MessagingClient, method: str, request: Message, *, metadata: Any = None) -> d.Status:
    """The status that a call is answered with; of a stream, the first part's."""
    code, text, answer = await first_answer(client, method, request, metadata)
    assert code is grpc.StatusCode.OK, f"{code}: {text}"
    parsed: Any = ANSWERS[method].FromString(answer)
    status: d.Status = parsed.status
    return status


async def first_answer(
    client: MessagingClient, method: str, request: Message, metadata: Any
) -> tuple[grpc.StatusCode, str, bytes]:
    call = client._channel.stream_stream(f"/{SERVICE}/{method}")(
        iter([request.SerializeToString()]), timeout=5, metadata=client.metadata if metadata is None else metadata
    )
    answer = await call.read()
    if answer is grpc.aio.EOF:
        return await call.code(), await call.details() or "", b""
    call.cancel()
    return grpc.StatusCode.OK, "", answer


BAD_NAMES = {
    "empty": "",
    "too long": "n" * 128,
    "far too long": "n" * 100_000,
    "a path upwards": "../../x",
    "a path": "a/b",
    "a path of Windows": "a\\b",
    "two dots": "..",
    "NUL": "a\0b",
    "newline": "a\nb",
    "escape": "a\x1b[2J",
    "blank": "a b",
    "beyond ASCII": "naïve",
    "right to left": "a\u202eb",
    "a face": "😀",
    "a separator": "a+b",
    "a quote": "a'; DROP TABLE t; --",
}


@pytest.mark.parametrize("what", BAD_NAMES)
async def test_names_that_are_none(server: StandaloneProcess, what: str) -> None:
    name = BAD_NAMES[what]

    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            for method in WITH_TOPIC:
                check(await status_of(client, method, naming(topic=name)[method]), Code.ILLEGAL_TOPIC)
            for method in WITH_GROUP:
                if method == "Telemetry" and not name:
                    continue  # some clients say their group only later
                check(await status_of(client, method, naming(group=name)[method]), Code.ILLEGAL_CONSUMER_GROUP)

    await endured(server, hostility)
    assert not [path for path in server.data_dir.parent.iterdir() if path.name not in ("data", "data.log")]


async def test_names_of_a_namespace_that_is_none(server: StandaloneProcess) -> None:
    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            request = pb.QueryRouteRequest(topic=d.Resource(resource_namespace="../..", name="a"))
            check(await status_of(client, "QueryRoute", request), Code.ILLEGAL_TOPIC)
            heirs = pb.QueryAssignmentRequest(topic=RESOURCE, group=d.Resource(resource_namespace="n\n" * 60, name="a"))
            check(await status_of(client, "QueryAssignment", heirs), Code.ILLEGAL_CONSUMER_GROUP)

    await endured(server, hostility)


@pytest.mark.parametrize("topic", ["%RETRY%target-group+Target", "%DLQ%target-group", "rmq_sys_REVIVE_LOG_popwheel"])
async def test_the_systems_own_topics_are_not_sent_to(server: StandaloneProcess, topic: str) -> None:
    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            check((await client.send(topic, b"body")).status, Code.ILLEGAL_TOPIC)

    await endured(server, hostility)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("metadata", [(), (("x-mq-client-id", ""),), (("x-mq-client-id", "i" * 1_025),)])
async def test_a_call_without_a_client_id(server: StandaloneProcess, method: str, metadata: Any) -> None:
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        status = await status_of(client, method, naming().get(method, REQUESTS[method]()), metadata=metadata)
        check(status, Code.CLIENT_ID_REQUIRED)


INT32 = (-(2**31), -2, 2**31 - 1)
FAR = (Duration(seconds=-(2**63)), Duration(seconds=-1), Duration(seconds=2**63 - 1, nanos=2**31 - 1))
NUMBERS: list[tuple[str, Message, int]] = [
    *[("ReceiveMessage", poll(message_queue=queue(number=number)), Code.BAD_REQUEST) for number in INT32],
    *[("ReceiveMessage", poll(batch_size=number), Code.BAD_REQUEST) for number in INT32[:2]],
    ("ReceiveMessage", poll(batch_size=2**31 - 1), Code.MESSAGE_NOT_FOUND),
    *[("ReceiveMessage", poll(invisible_duration=far), Code.ILLEGAL_INVISIBLE_TIME) for far in FAR],
    ("ReceiveMessage", poll(invisible_duration=Duration()), Code.ILLEGAL_INVISIBLE_TIME),
    *[("ReceiveMessage", poll(long_polling_timeout=far), Code.ILLEGAL_POLLING_TIME) for far in FAR[:2]],
    *[
        ("PullMessage", pb.PullMessageRequest(**pulled), code)
        for pulled, code in (
            ({"group": naming()["AckMessage"].group, "message_queue": queue(number=8)}, Code.BAD_REQUEST),  # type: ignore[attr-defined]
            ({"group": d.Resource(name=GROUP), "message_queue": queue(), "offset": -1}, Code.ILLEGAL_OFFSET),
            ({"group": d.Resource(name=GROUP), "message_queue": queue(), "offset": 2**63 - 1}, Code.ILLEGAL_OFFSET),
            ({"group": d.Resource(name=GROUP), "message_queue": queue(), "batch_size": -1}, Code.BAD_REQUEST),
            (
                {"group": d.Resource(name=GROUP), "message_queue": queue(), "long_polling_timeout": FAR[0]},
                Code.ILLEGAL_POLLING_TIME,
            ),
        )
    ],
    *[
        (
            "UpdateOffset",
            pb.UpdateOffsetRequest(group=d.Resource(name=GROUP), message_queue=queue(), offset=offset),
            code,
        )
        for offset, code in (
            (-1, Code.ILLEGAL_OFFSET),
            (-(2**63), Code.ILLEGAL_OFFSET),
            (2**63 - 1, Code.ILLEGAL_OFFSET),
            (1_000_000, Code.ILLEGAL_OFFSET),
        )
    ],
    *[
        (method, request(group=d.Resource(name=GROUP), message_queue=queue(number=number)), Code.BAD_REQUEST)
        for method, request in (("UpdateOffset", pb.UpdateOffsetRequest), ("GetOffset", pb.GetOffsetRequest))
        for number in INT32
    ],
    *[("QueryOffset", pb.QueryOffsetRequest(message_queue=queue(number=number)), Code.BAD_REQUEST) for number in INT32],
    ("QueryOffset", pb.QueryOffsetRequest(message_queue=queue(), query_offset_policy=77), Code.BAD_REQUEST),  # type: ignore[arg-type]
    *[
        (
            "QueryOffset",
            pb.QueryOffsetRequest(
                message_queue=queue(), query_offset_policy=d.TIMESTAMP, timestamp=Timestamp(seconds=seconds)
            ),
            Code.OK,
        )
        for seconds in (2**63 - 1, -(2**63))
    ],
    *[
        (
            "ChangeInvisibleDuration",
            pb.ChangeInvisibleDurationRequest(
                group=d.Resource(name=GROUP), topic=RESOURCE, receipt_handle="none", invisible_duration=far
            ),
            Code.ILLEGAL_INVISIBLE_TIME,
        )
        for far in FAR
    ],
    *[
        (
            "ForwardMessageToDeadLetterQueue",
            pb.ForwardMessageToDeadLetterQueueRequest(
                group=d.Resource(name=GROUP),
                topic=RESOURCE,
                receipt_handle="none",
                delivery_attempt=attempt,
                max_delivery_attempts=attempt,
            ),
            Code.INVALID_RECEIPT_HANDLE,
        )
        for attempt in INT32
    ],
    *[
        (
            "QueryRoute",
            pb.QueryRouteRequest(
                topic=RESOURCE,
                endpoints=d.Endpoints(scheme=77, addresses=[d.Address(host="h", port=port)]),  # type: ignore[arg-type]
            ),
            Code.OK,
        )
        for port in INT32
    ],
]


async def test_numbers_that_make_no_sense(server: StandaloneProcess) -> None:
    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            for method, request, code in NUMBERS:
                status = await status_of(client, method, request)
                if code == Code.OK:
                    assert status.code == Code.OK, (method, request, status)
                else:
                    check(status, code)

    await endured(server, hostility)


async def test_settings_of_negative_and_huge_times(server: StandaloneProcess) -> None:
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        for far in FAR:
            subscription = d.Subscription(group=d.Resource(name=GROUP), long_polling_timeout=far, receive_batch_size=-1)
            settings = d.Settings(subscription=subscription, request_timeout=far)
            command = pb.TelemetryCommand(settings=settings)
            assert (await status_of(client, "Telemetry", command)).code == Code.OK
            told = await client.agree_on_settings(settings)
            assert 0 < told.subscription.long_polling_timeout.seconds <= 20
            assert told.subscription.receive_batch_size == 32


def typed(topic: str, kind: int, **properties: Any) -> pb.SendMessageRequest:
    message = make_message(topic, b"body")
    message.system_properties.message_type = kind  # type: ignore[assignment]
    for name, value in properties.items():
        if isinstance(value, Message):
            getattr(message.system_properties, name).CopyFrom(value)
        else:
            setattr(message.system_properties, name, value)
    return pb.SendMessageRequest(messages=[message])


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (typed(NORMAL_TOPIC, d.FIFO, message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (typed(NORMAL_TOPIC, d.DELAY), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (typed(NORMAL_TOPIC, d.TRANSACTION), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (typed(NORMAL_TOPIC, d.NORMAL, message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (
            typed(NORMAL_TOPIC, d.NORMAL, delivery_timestamp=Timestamp(seconds=2**40)),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (typed(NORMAL_TOPIC, 77), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (typed(NORMAL_TOPIC, -1), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
async def test_a_message_of_another_type_than_its_topics(
    server: StandaloneProcess, request_: pb.SendMessageRequest, code: int
) -> None:
    async def hostility() -> None:
        async with MessagingClient(server.grpc_address) as client:
            check(await status_of(client, "SendMessage", request_), code)

    await endured(server, hostility)


# Receipt handles


async def held(client: MessagingClient) -> d.Message:
    """A message that the target group has been given for an hour."""
    assert (await client.send(TOPIC, b"held")).status.code == Code.OK
    (message,) = await client.receive_all(GROUP, TOPIC, 1, invisible_s=HOUR_S)
    return message


async def is_refused(client: MessagingClient, handle: str, *, group: str = GROUP, topic: str = TOPIC) -> None:
    """All that is done with a handle is refused."""
    names: dict[str, Any] = {"group": d.Resource(name=group), "topic": d.Resource(name=topic)}
    for method, request in (
        ("AckMessage", pb.AckMessageRequest(**names, entries=[pb.AckMessageEntry(receipt_handle=handle)])),
        (
            "ChangeInvisibleDuration",
            pb.ChangeInvisibleDurationRequest(**names, receipt_handle=handle, invisible_duration=duration(0)),
        ),
        ("ForwardMessageToDeadLetterQueue", pb.ForwardMessageToDeadLetterQueueRequest(**names, receipt_handle=handle)),
    ):
        check(await status_of(client, method, request), Code.INVALID_RECEIPT_HANDLE)


def forged(handle: str) -> Iterator[str]:
    """Handles that are not quite this one."""
    fields = handle.split(" ")
    for index in range(len(fields)):
        if index == 7:
            continue  # the queue offset is not signed: which message of the pop; see the test below
        changed = "0" if fields[index] != "0" else "1"
        yield " ".join([*fields[:index], changed, *fields[index + 1 :]])
    for cut in (0, 1, len(handle) // 2, len(handle) - 1):
        yield handle[:cut]
    yield from (handle + "0", handle + " ", " " + handle, handle.upper() + "!", handle * 2, "9" * 600, "\0" + handle)
    yield " ".join([*fields[:7], "-1", fields[8]])
    yield " ".join([*fields[:7], "٣", fields[8]])
    yield " ".join([*fields[:7], "9" * 30, fields[8]])


async def test_forged_and_truncated_handles(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)

        async def hostility() -> None:
            for handle in forged(message.system_properties.receipt_handle):
                await is_refused(client, handle)

        await endured(server, hostility)
        assert (await client.ack(GROUP, TOPIC, [message])).status.code == Code.OK


async def test_the_handle_of_a_message_that_was_not_given_out_with_it(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)
        fields = message.system_properties.receipt_handle.split(" ")

        async def hostility() -> None:
            for offset in (int(fields[7]) + 1, int(fields[7]) + 100, 2**63):
                await is_refused(client, " ".join([*fields[:7], str(offset), fields[8]]))

        await endured(server, hostility)
        assert (await client.ack(GROUP, TOPIC, [message])).status.code == Code.OK


async def test_another_groups_message_is_not_acknowledged(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)
        handle = message.system_properties.receipt_handle

        async def hostility() -> None:
            await is_refused(client, handle, group=OTHER_GROUP)
            await is_refused(client, handle, topic=NORMAL_TOPIC)

        await endured(server, hostility)
        assert (await client.ack(GROUP, TOPIC, [message])).status.code == Code.OK
        (same,) = await client.receive_all(OTHER_GROUP, TOPIC, 1, invisible_s=HOUR_S)
        assert (await client.ack(OTHER_GROUP, TOPIC, [same])).status.code == Code.OK


async def test_a_foreign_servers_handle(server: StandaloneProcess, tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "foreign") as foreign:
        async with MessagingClient(foreign.grpc_address) as client:
            handle = (await held(client)).system_properties.receipt_handle
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        await is_refused(client, handle)


async def test_stale_handles(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)
        before_change = message.system_properties.receipt_handle
        assert (await client.change_invisible(GROUP, TOPIC, message, HOUR_S)).status.code == Code.OK

        async def hostility() -> None:
            await is_refused(client, before_change)

        await endured(server, hostility)

        assert (await client.change_invisible(GROUP, TOPIC, message, 0.5)).status.code == Code.OK
        too_late = message.system_properties.receipt_handle
        (again,) = await client.receive_all(GROUP, TOPIC, 1, invisible_s=HOUR_S)
        assert again.system_properties.delivery_attempt == 2
        async with nothing_changes(server):
            await is_refused(client, too_late)
        assert (await client.ack(GROUP, TOPIC, [again])).status.code == Code.OK


async def test_good_and_bad_handles_in_one_request(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        message = await held(client)
        bad = d.Message(system_properties=d.SystemProperties(receipt_handle="forged", message_id="x"))
        answer = await client.ack(GROUP, TOPIC, [bad, message, bad])
        assert answer.status.code == Code.MULTIPLE_RESULTS
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.INVALID_RECEIPT_HANDLE, Code.OK, Code.INVALID_RECEIPT_HANDLE]


# Calls that are given up


async def test_polls_cancelled_at_every_moment_lose_nothing(server: StandaloneProcess) -> None:
    topic, group, count = "Cancelled", "cancelled", 40
    # What had reached the client before it cancelled comes again when its invisible duration is over.
    made = {"name": group, "max_attempts": 1_000, "backoff_ms": [10]}
    assert httpx.post(f"{server.http_url}/api/v1/groups", json=made).status_code == 201
    async with MessagingClient(server.grpc_address) as client, others_are_served(server.grpc_address):
        for number in range(count):
            assert (await client.send(topic, b"%d" % number)).status.code == Code.OK
        request = poll(
            group=d.Resource(name=group),
            message_queue=queue(topic, -1),
            batch_size=8,
            invisible_duration=duration(1),
            long_polling_timeout=duration(5),
        )
        for step in range(60):
            call = client._channel.stream_stream(f"/{SERVICE}/ReceiveMessage")(
                iter([request.SerializeToString()]), timeout=10, metadata=client.metadata
            )
            await asyncio.sleep(step * 0.0002)
            call.cancel()
        found: set[bytes] = set()
        async with asyncio.timeout(60):
            while len(found) < count:
                received = await client.receive(group, topic, invisible_s=HOUR_S, poll_s=5)
                found |= {message.body for message in received.messages}
                if received.messages:
                    assert (await client.ack(group, topic, received.messages)).status.code == Code.OK
        assert len(found) == count


@pytest.mark.parametrize("method", METHODS)
async def test_calls_cancelled_at_every_moment(server: StandaloneProcess, method: str) -> None:
    request = naming(topic="Broken-off", group="broken-off").get(method, REQUESTS[method]()).SerializeToString()
    async with MessagingClient(server.grpc_address) as client, others_are_served(server.grpc_address):
        for step in range(30):
            call = client._channel.stream_stream(f"/{SERVICE}/{method}")(metadata=client.metadata)
            if step % 3:
                with suppress(asyncio.CancelledError, asyncio.InvalidStateError):
                    await call.write(request)
            await asyncio.sleep(step * 0.0001)
            call.cancel()
        async with asyncio.timeout(10):
            while _in_flight(server, method):
                await asyncio.sleep(0.05)


def _in_flight(server: StandaloneProcess, method: str) -> float:
    path = f"/{SERVICE}/{method}"
    # Telemetry streams of well-behaved clients live on; this module has none.
    return metric(server, "popwheel_rpc_calls_in_flight", path=path)


# Clients that are there no more, and do not say so

PATIENT = """
import asyncio, sys
from tests.harness.client import MessagingClient

async def main():
    async with MessagingClient(sys.argv[1]) as client:
        print("ready", flush=True)
        await asyncio.gather(*(client.receive("half-open", "HalfOpen", poll_s=15.0) for _ in range(20)))

asyncio.run(main())
"""


async def test_a_client_that_is_frozen_is_let_go_and_its_polls_end(server: StandaloneProcess) -> None:
    async with MessagingClient(server.grpc_address) as client:
        assert (await client.send("HalfOpen", b"kept")).status.code == Code.OK
        (message,) = await client.receive_all("half-open", "HalfOpen", 1)
        assert (await client.ack("half-open", "HalfOpen", [message])).status.code == Code.OK
    before = metric(server, "popwheel_rpc_limit_hits_total", limit="keepalive_timeout_s")
    frozen = subprocess.Popen(
        [sys.executable, "-c", PATIENT, server.grpc_address],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    try:
        assert frozen.stdout is not None
        assert await asyncio.to_thread(frozen.stdout.readline) == b"ready\n"
        async with others_are_served(server.grpc_address), asyncio.timeout(30):
            while metric(server, "popwheel_proxy_polls_waiting") < 20:
                await asyncio.sleep(0.05)
            frozen.send_signal(signal.SIGSTOP)
            while metric(server, "popwheel_rpc_limit_hits_total", limit="keepalive_timeout_s") == before:
                await asyncio.sleep(0.1)
            while metric(server, "popwheel_proxy_polls_waiting"):
                await asyncio.sleep(0.1)
    finally:
        frozen.kill()
        frozen.wait()
        assert frozen.stdout is not None
        frozen.stdout.close()
    async with MessagingClient(server.grpc_address) as client:
        assert (await client.send("HalfOpen", b"next")).status.code == Code.OK
        (message,) = await client.receive_all("half-open", "HalfOpen", 1)
        assert message.body == b"next", "nobody who is gone was given it"
        assert (await client.ack("half-open", "HalfOpen", [message])).status.code == Code.OK


async def test_a_socket_that_answers_no_ping_is_let_go(server: StandaloneProcess) -> None:
    before = metric(server, "popwheel_rpc_limit_hits_total", limit="keepalive_timeout_s")
    async with nothing_changes(server):
        said = await say(server, frames.PREFACE + frames.settings({}))
        assert frames.ping(b"stillher", ack=False) in said
        assert metric(server, "popwheel_rpc_limit_hits_total", limit="keepalive_timeout_s") == before + 1


async def test_a_client_that_ends_its_half_and_stays(server: StandaloneProcess) -> None:
    async with nothing_changes(server):
        await say(server, frames.PREFACE + frames.settings({}), end=True)


async def test_a_thousand_connections_that_send_nothing(server: StandaloneProcess) -> None:
    def memory_kib() -> int:
        for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")

    before = metric(server, "popwheel_rpc_limit_hits_total", limit="preface_timeout_s")
    start_kib = memory_kib()
    sockets = [socket.socket() for _ in range(1_000)]
    try:
        async with others_are_served(server.grpc_address) as others, asyncio.timeout(60):
            for each in sockets:
                each.setblocking(False)
                await asyncio.get_running_loop().sock_connect(each, ("127.0.0.1", server.grpc_port))
            cost_mib = (memory_kib() - start_kib) / 1024
            await others.wait_for(3)
            while metric(server, "popwheel_rpc_limit_hits_total", limit="preface_timeout_s") < before + 1_000:
                await asyncio.sleep(0.1)
            while metric(server, "popwheel_rpc_connections") > 5:
                await asyncio.sleep(0.1)
    finally:
        for each in sockets:
            each.close()
    print(f"\n1,000 silent connections: {cost_mib:.1f} MiB")
    assert cost_mib < 40


async def test_more_connections_than_files(tmp_path: Path) -> None:
    """Connections never take the files that the broker needs."""
    with StandaloneProcess(tmp_path / "data", open_files_max=200) as server:
        sockets = [socket.socket() for _ in range(400)]
        try:
            async with MessagingClient(server.grpc_address) as client:
                assert (await client.send("Files", b"first")).status.code == Code.OK
                for each in sockets:
                    each.setblocking(False)
                    each.connect_ex(("127.0.0.1", server.grpc_port))
                async with asyncio.timeout(20):
                    while not metric(server, "popwheel_rpc_limit_hits_total", limit="connections_max"):
                        await asyncio.sleep(0.05)
                for number in range(20):
                    assert (await client.send(f"Files-{number}", b"body")).status.code == Code.OK
                (message,) = await client.receive_all("files", "Files", 1)
                assert (await client.ack("files", "Files", [message])).status.code == Code.OK
        finally:
            for each in sockets:
                each.close()
        assert "Too many open files" not in server.log_text()
