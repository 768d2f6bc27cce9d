"""Requests that carry no message are not read if they are large, and are refused by name."""

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.protocol.client_methods import REQUEST_BYTES_MAX, SERVICE
from popwheel_rpc.limits import Limits
from popwheel_rpc.server.server import Server
from tests.fuzz.memory_socket import Answer, MemoryClient
from tests.unit.proxy.world import CLIENT, World, world


async def ask(w: World, method: str, request: bytes, service: str = SERVICE) -> Answer:
    """Call a method through the server's own HTTP/2, in which requests are bytes."""
    client = MemoryClient(Server(w.app.service, Limits()))
    await client.begin()
    answer = await client.call(f"/{service}/{method}", request, CLIENT, b"10S")
    await client.gone()
    return answer


@pytest.mark.parametrize(
    ("method", "bytes_max"),
    [
        *[
            (name, REQUEST_BYTES_MAX)
            for name in (
                *("QueryRoute", "QueryAssignment", "Heartbeat", "NotifyClientTermination", "EndTransaction"),
                *("ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue", "SyncLiteSubscription"),
                *("RecallMessage", "GetOffset", "UpdateOffset", "QueryOffset", "ReceiveMessage", "PullMessage"),
            )
        ],
        ("AckMessage", REQUEST_BYTES_MAX),
    ],
)
async def test_a_large_request_is_refused_by_name(method: str, bytes_max: int) -> None:
    async with world() as w:
        for size in (bytes_max + 1, 4 * 2**20):
            answer = await ask(w, method, b"\x1a\x00" * (size // 2) + b"\x00" * (size % 2))
            # Field 1 of every answer is its status.
            status = pb.HeartbeatResponse.FromString(answer.messages[0]).status
            assert (status.code, answer.grpc_status) == (Code.PAYLOAD_TOO_LARGE, 0)
            assert f"at most {bytes_max} are taken" in status.message
            assert "in many parts" in status.message
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "plain_request_bytes_max"}) == 2


@pytest.mark.parametrize("method", ["ReceiveMessage", "QueryRoute", "AckMessage", "EndTransaction"])
async def test_one_long_text_is_refused_by_its_own_rule(method: str) -> None:
    """It takes no time to read, and its sender learns which field is wrong."""
    async with world() as w:
        topic = d.Resource(name="t" * 4 * 2**20)
        of = {
            "ReceiveMessage": pb.ReceiveMessageRequest(
                group=d.Resource(name="group"), message_queue=d.MessageQueue(topic=topic)
            ),
            "QueryRoute": pb.QueryRouteRequest(topic=topic),
            "AckMessage": pb.AckMessageRequest(group=d.Resource(name="group"), topic=topic),
            "EndTransaction": pb.EndTransactionRequest(topic=topic),
        }
        answer = await ask(w, method, of[method].SerializeToString())
        assert pb.HeartbeatResponse.FromString(answer.messages[0]).status.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("inside", [b"\x12\x00", b"\x12\x02\x0a\x00", b"\x0a\x00", b"\xff\xff", b"\x0b"])
def test_parts_inside_of_parts_count(inside: bytes) -> None:
    """Addresses inside of endpoints, and what is no message at all."""
    parts = inside * (REQUEST_BYTES_MAX // len(inside) + 1)
    length = len(parts)
    varint = bytes((length >> shift & 0x7F) | 0x80 for shift in (0, 7, 14)) + bytes((length >> 21,))
    decoded = protocol.QUERY_ROUTE.request.decode(b"\x12" + varint + parts)
    assert isinstance(decoded, protocol.TooLarge)


async def test_one_that_spark_sends_is_refused_in_its_trailers() -> None:
    async with world() as w:
        answer = await ask(w, "PullRecords", bytes(REQUEST_BYTES_MAX + 1), "popwheel.v1.Proxy")
        assert answer.grpc_status != 0
        assert "at most" in answer.grpc_message
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "plain_request_bytes_max"}) == 1


async def test_large_settings_end_a_stream_only_if_they_are_its_first() -> None:
    async with world() as w:
        client = MemoryClient(Server(w.app.service, Limits()))
        await client.begin()
        small = pb.TelemetryCommand(settings=d.Settings(publishing=d.Publishing()))
        stream = await client.open(f"/{SERVICE}/Telemetry", CLIENT)
        for request in (small.SerializeToString(), bytes(REQUEST_BYTES_MAX + 1), small.SerializeToString()):
            await client.send(stream, request, end=False)
        await client.send(stream, small.SerializeToString())
        answers = [pb.TelemetryCommand.FromString(each) for each in (await client.answer(stream)).messages]
        assert [each.status.code for each in answers] == [Code.OK, Code.INVALID_CLIENT_PROPERTIES, Code.OK, Code.OK]
        first = await client.call(f"/{SERVICE}/Telemetry", bytes(REQUEST_BYTES_MAX + 1), CLIENT)
        assert [pb.TelemetryCommand.FromString(each).status.code for each in first.messages] == [
            Code.INVALID_CLIENT_PROPERTIES
        ]
        assert first.grpc_status != 0
        await client.gone()
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "settings_bytes_max"}) == 2


async def test_a_thousand_acknowledgements_fit() -> None:
    handle, message_id = "x" * 165, "0" * 34
    entries = [pb.AckMessageEntry(message_id=message_id, receipt_handle=handle)] * 1_024
    request = pb.AckMessageRequest(topic=d.Resource(name="t" * 127), group=d.Resource(name="g" * 120), entries=entries)
    assert request.ByteSize() < REQUEST_BYTES_MAX
    assert protocol.ACK_MESSAGE.request.decode(request.SerializeToString()) == request
