"""Clients that do not know the protocol, or wish it ill: each gets a named status and a sentence, changes nothing, and
others are served all the while (E1, M1).
"""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.http2 import frames
from tests.harness.client import SERVICE, MessagingClient, make_message
from tests.harness.hostility import (
    GROUP,
    MIB,
    NORMAL_TOPIC,
    RESOURCE,
    TOPIC,
    WITH_GROUP,
    WITH_TOPIC,
    check,
    endured,
    hostile_server,
    naming,
    nothing_changes,
    poll,
    queue,
    say,
    status_of,
)
from tests.harness.metrics import metric
from tests.harness.proxy_calls import CALLS
from tests.harness.standalone import StandaloneProcess
from tests.unit.rpc.peers import split


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    yield from hostile_server(tmp_path_factory)


# What is no HTTP/2

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
async def test_what_is_no_http2_is_notified_so_and_closed(server: StandaloneProcess, what: str) -> None:
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
        "/popwheel.v1.Proxy/NoSuchCall",
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
            for call in CALLS.values():
                for request in (b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\x12\xc3"):
                    code, text, answer = await raw_call(client, call.path, request)
                    if code is grpc.StatusCode.OK:
                        # Where the first field is a number, the last of these is an empty request: nobody is named.
                        codes = (Code.BAD_REQUEST, Code.ILLEGAL_CONSUMER_GROUP, Code.UNSUPPORTED)
                        check(call.answer.FromString(answer).status, *codes)  # type: ignore[attr-defined]
                    else:
                        assert code is grpc.StatusCode.INVALID_ARGUMENT, (call.path, request, code, text)
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


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("metadata", [(), (("x-mq-client-id", ""),), (("x-mq-client-id", "i" * 1_025),)])
async def test_a_call_without_a_client_id(server: StandaloneProcess, method: str, metadata: Any) -> None:
    async with nothing_changes(server), MessagingClient(server.grpc_address) as client:
        status = await status_of(client, method, naming().get(method, CALLS[method].request()), metadata=metadata)
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
        (method, pb.PullMessageRequest(**pulled), code)
        for method in ("PullMessage", "PullRecords")
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
            reported = await client.agree_on_settings(settings)
            assert 0 < reported.subscription.long_polling_timeout.seconds <= 20
            assert reported.subscription.receive_batch_size == 32


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
