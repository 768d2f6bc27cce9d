"""A proxy on our own transport and on grpcio's: each call is served, and answered alike."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import grpc
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from popwheel_cli.process.listeners import GrpcServer, grpc_server
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_rpc.http2.grpc_messages import CODE_TRAILER
from popwheel_rpc.limits import Limits
from popwheel_rpc.service import routes_of
from tests.harness.proxy_calls import CALLS
from tests.unit.proxy.fake_broker import RECORDS
from tests.unit.proxy.world import CLIENT, World, world

TRANSPORTS = ("popwheel", "grpcio")


@dataclass(frozen=True)
class End:
    """How a call ended: gRPC status, sentence, code in the trailers, messages."""

    status: grpc.StatusCode
    sentence: str
    code: str
    messages: tuple[bytes, ...]


class Pair:
    """One proxy behind both transports."""

    def __init__(self, proxy: World, channels: dict[str, grpc.aio.Channel]) -> None:
        self.proxy = proxy
        self._channels = channels

    async def call(self, name: str, request: bytes, metadata: dict[str, str] = CLIENT) -> End:
        """Make a call over both; they must end alike.

        Returns:
            How they ended.
        """
        ends = []
        for transport in TRANSPORTS:
            call = self._channels[transport].stream_stream(CALLS[name].path)(
                iter([request]), timeout=5, metadata=tuple(metadata.items())
            )
            messages = []
            with suppress(grpc.aio.AioRpcError):
                while (part := await call.read()) is not grpc.aio.EOF:
                    messages.append(part)
            code = dict(await call.trailing_metadata()).get(CODE_TRAILER, "")
            ends.append(End(await call.code(), await call.details() or "", code, tuple(messages)))
        ours, grpcios = ends
        assert ours == grpcios, name
        return ours


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with world() as proxy:
        servers: list[GrpcServer] = []
        channels = {}
        for transport in TRANSPORTS:
            server = grpc_server(proxy.app.service, transport, Limits(), CollectorRegistry())
            await server.start("127.0.0.1", 0)
            servers.append(server)
            channels[transport] = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")
        yield Pair(proxy, channels)
        for channel in channels.values():
            await channel.close()
        for server in servers:
            await server.stop(0)


async def test_the_table_of_calls_has_what_a_proxy_serves(pair: Pair) -> None:
    """The fuzzer and the tests of hostile names, numbers and silence go by that table, so none of them forgets one."""
    assert {call.path for call in CALLS.values()} == set(routes_of(pair.proxy.app.service))


@pytest.mark.parametrize("metadata", [CLIENT, {}])
async def test_each_call_answers_an_empty_request_alike(pair: Pair, metadata: dict[str, str]) -> None:
    for name, call in CALLS.items():
        end = await pair.call(name, b"", metadata)
        assert end.status is not grpc.StatusCode.UNIMPLEMENTED, name
        assert bool(end.code) != call.has_status, (name, end)


async def test_a_block_of_records_is_pulled_alike(pair: Pair) -> None:
    request = pb.PullMessageRequest(
        group=d.Resource(name="group"),
        message_queue=d.MessageQueue(topic=d.Resource(name="orders"), broker=d.Broker(name="b1")),
        batch_size=256,
    )
    end = await pair.call("PullRecords", request.SerializeToString())
    assert end.messages == (RECORDS,)
