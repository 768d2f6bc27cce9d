"""What a caller may rely on, whatever carries the call: in process, our own transport, TLS, grpcio's server."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import pytest_asyncio

from popwheel_common.errors import NotLeadingError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import GetOffsetRequest
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.server.grpcio_server import GrpcioServer
from popwheel_rpc.server.server import Server
from popwheel_rpc.service import Channel, StreamClosedError
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.rpc.contract_service import (
    CHAT,
    ECHO,
    FAIL,
    LISTEN,
    METADATA,
    MISSING,
    REFUSE,
    REFUSE_STREAM,
    REPEAT,
    TYPED,
    UNREACHABLE,
    WAIT,
    WRONGLY_TYPED,
    ContractService,
)


def trusting() -> ssl.SSLContext:
    """A client's context that trusts anyone, as the Java and Go clients do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest_asyncio.fixture
async def contract() -> ContractService:
    return ContractService()


@pytest_asyncio.fixture(params=["local", "socket", "tls", "grpcio"])
async def channel(request: pytest.FixtureRequest, contract: ContractService) -> AsyncIterator[Channel]:
    """A channel to the service over one of the ways there are."""
    if request.param == "local":
        local = LocalChannel(contract.service)
        yield local
        await local.close()
        return
    server = GrpcioServer(contract.service) if request.param == "grpcio" else Server(contract.service)
    await server.start("127.0.0.1", 0)
    channel = connect(f"127.0.0.1:{server.port}", tls=trusting if request.param == "tls" else None)
    yield channel
    await channel.close()
    await server.stop(1)


async def failure(call: Awaitable[Any]) -> StatusError | RpcError:
    try:
        await call
    except (StatusError, RpcError) as error:
        return error
    raise AssertionError("the call did not fail")


async def test_a_unary_call(channel: Channel) -> None:
    assert await channel.call(ECHO, b"hello") == b"hello"
    assert await channel.call(ECHO, b"") == b""
    request = GetOffsetRequest(topic="t", queue_id=3)
    assert await channel.call(TYPED, request, timeout_s=5) == request


async def test_many_calls_at_a_time(channel: Channel) -> None:
    requests = [b"%d" % number for number in range(200)]
    assert await asyncio.gather(*[channel.call(ECHO, request) for request in requests]) == requests


async def test_big_messages(channel: Channel) -> None:
    big = bytes(range(256)) * (5 * 4096)
    assert await channel.call(ECHO, big) == big
    stream = channel.open(CHAT)
    await stream.send([big])
    assert await stream.receive() == big
    stream.cancel()


async def test_metadata_and_deadline(channel: Channel, contract: ContractService) -> None:
    assert (
        await channel.call(METADATA, b"x-mq-client-id", metadata={"x-mq-client-id": "a@b@1"}, timeout_s=5) == b"a@b@1"
    )
    assert await channel.call(METADATA, b"x-mq-client-id") == b""
    with_deadline, without = contract.calls
    now = asyncio.get_running_loop().time()
    assert with_deadline.deadline is not None
    assert now < with_deadline.deadline < now + 5.1
    assert without.deadline is None
    assert without.path == METADATA.path
    assert without.peer == "local" or without.peer.startswith("127.0.0.1:")
    assert not {name for name in without.metadata if name.startswith((":", "grpc-", "te", "content-type"))}


async def test_a_call_that_waits(channel: Channel, contract: ContractService) -> None:
    call = asyncio.create_task(channel.call(WAIT, b"x", timeout_s=30))
    await contract.waiting.wait()
    assert await channel.call(ECHO, b"others are served") == b"others are served"
    contract.released.set()
    assert await call == b"x"


async def test_refusals(channel: Channel) -> None:
    error = await failure(channel.call(REFUSE, b""))
    assert isinstance(error, StatusError)
    assert (error.code, error.message) == (Code.TOPIC_NOT_FOUND, "there is no topic “naïve” (100%)")
    assert isinstance(await failure(channel.call(REFUSE, b"who leads")), NotLeadingError)
    passed_on = await failure(channel.call(UNREACHABLE, b""))
    assert isinstance(passed_on, RpcError)
    assert (passed_on.status, passed_on.message) == (GrpcStatus.UNAVAILABLE, "the broker is away")


async def test_a_bug_and_a_method_that_is_not_there(channel: Channel) -> None:
    bug = await failure(channel.call(FAIL, b""))
    assert isinstance(bug, RpcError)
    assert bug.status is GrpcStatus.INTERNAL
    assert "a bug" not in bug.message, "what went wrong inside is for the log"
    missing = await failure(channel.call(MISSING, b""))
    assert isinstance(missing, RpcError)
    assert missing.status is GrpcStatus.UNIMPLEMENTED


async def test_a_deadline(channel: Channel, contract: ContractService) -> None:
    error = await failure(channel.call(WAIT, b"", timeout_s=0.1))
    assert isinstance(error, RpcError)
    assert error.status is GrpcStatus.DEADLINE_EXCEEDED
    await contract.cancelled.wait()


async def test_a_caller_that_gives_up(channel: Channel, contract: ContractService) -> None:
    call = asyncio.create_task(channel.call(WAIT, b""))
    await contract.waiting.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await contract.cancelled.wait()
    assert await channel.call(ECHO, b"go on") == b"go on"


async def test_a_chat(channel: Channel) -> None:
    stream = channel.open(CHAT, metadata={"a": "b"})
    for text in (b"one", b"two"):
        await stream.send([text])
        assert [await stream.receive(), await stream.receive()] == [text, text.upper()]
    await stream.send([b"x", b"y"])
    await stream.end()
    await stream.end()
    assert [await stream.receive() for _ in range(4)] == [b"x", b"X", b"y", b"Y"]
    assert await stream.receive() is None
    assert await stream.receive() is None
    stream.cancel()
    with pytest.raises(StreamClosedError):
        await stream.send([b"late"])


async def test_a_stream_that_is_refused_after_a_message(channel: Channel) -> None:
    stream = channel.open(REFUSE_STREAM)
    assert await stream.receive() == b"one"
    for _ in range(2):
        error = await failure(stream.receive())
        assert isinstance(error, StatusError)
        assert error.code == Code.ILLEGAL_TOPIC


async def test_a_stream_that_is_not_there(channel: Channel) -> None:
    async def attempt() -> bytes | None:
        return await channel.open(MISSING).receive()

    error = await failure(attempt())
    assert isinstance(error, RpcError)
    assert error.status is GrpcStatus.UNIMPLEMENTED


async def test_a_slow_reader_holds_its_sender_up(channel: Channel, contract: ContractService) -> None:
    stream = channel.open(REPEAT)
    message = bytes(100_000)
    await stream.send([message])
    await contract.waiting.wait()
    sent = -1
    while sent != contract.sent:
        sent = contract.sent
        await asyncio.sleep(0.1)
    assert sent < 400
    for _ in range(sent + 20):
        assert await stream.receive() == message
    stream.cancel()
    await contract.cancelled.wait()


async def test_a_stream_that_is_cancelled(channel: Channel, contract: ContractService) -> None:
    stream = channel.open(LISTEN)
    await stream.send([b"x"])
    await contract.waiting.wait()
    stream.cancel()
    stream.cancel()
    error = await failure(stream.receive())
    assert isinstance(error, RpcError)
    assert error.status is GrpcStatus.CANCELLED
    await contract.cancelled.wait()
    with pytest.raises(StreamClosedError):
        await stream.send([b"late"])


async def test_closing_ends_every_call(channel: Channel, contract: ContractService) -> None:
    call = asyncio.create_task(channel.call(WAIT, b""))
    await contract.waiting.wait()
    stream = channel.open(LISTEN)
    await stream.send([b"x"])
    reading = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    await channel.close()
    for task in (call, reading):
        error = await failure(task)
        assert isinstance(error, RpcError)
        assert error.status is GrpcStatus.UNAVAILABLE
    await contract.cancelled.wait()
    late = await failure(channel.call(ECHO, b""))
    assert isinstance(late, RpcError)
    assert late.status is GrpcStatus.UNAVAILABLE


async def test_bytes_that_are_no_request(channel: Channel) -> None:
    if isinstance(channel, LocalChannel):
        pytest.skip("nothing is decoded within one process")
    error = await failure(channel.call(WRONGLY_TYPED, b"\xff\xff\xff"))
    assert isinstance(error, RpcError)
    assert error.status is GrpcStatus.INVALID_ARGUMENT
