"""Our server and grpcio's client over real sockets, graceful ends, and what is counted."""

import asyncio
import ssl
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.client.socket_channel import SocketChannel, connect
from popwheel_rpc.http2 import frames
from popwheel_rpc.limits import Limits
from popwheel_rpc.server.metrics import RpcMetrics
from popwheel_rpc.server.server import Server
from popwheel_rpc.service import Call, Service, Stream
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.harness.transport import MIB, START, Recorder, Serve, raw
from tests.unit.rpc.contract_service import CHAT, ECHO, LISTEN, METADATA, MISSING, REFUSE, REPEAT, WAIT, ContractService
from tests.unit.rpc.peers import REQUEST, data, headers

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@pytest_asyncio.fixture
async def channel(serve: Serve) -> AsyncIterator[grpc.aio.Channel]:
    server = await serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=OPTIONS) as opened:
        yield opened


# grpcio's client


async def test_unary_calls_of_grpcio(channel: grpc.aio.Channel) -> None:
    echo = channel.unary_unary(ECHO.path)
    assert await echo(b"x" * 100, timeout=5) == b"x" * 100
    big = bytes(7 * MIB)
    assert await echo(big) == big
    answers = await asyncio.gather(*[echo(b"%d" % number) for number in range(300)])
    assert answers == [b"%d" % number for number in range(300)]


async def test_refusals_as_grpcio_sees_them(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(REFUSE.path)(b"")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert raised.value.details() == "there is no topic “naïve” (100%)"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary("/no.Such/Method")(b"")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_streams_of_grpcio(channel: grpc.aio.Channel) -> None:
    chat = channel.stream_stream(CHAT.path)()
    await chat.write(b"a")
    assert [await chat.read(), await chat.read()] == [b"a", b"A"]
    await chat.done_writing()
    assert await chat.read() is grpc.aio.EOF
    assert await chat.code() is grpc.StatusCode.OK
    once = channel.unary_stream(CHAT.path)(b"b" * MIB)
    assert [len(message) async for message in once] == [MIB, MIB]


async def test_who_is_refused_before_it_has_written_is_notified_why(recorder: Recorder) -> None:
    service = Service()
    service.stream(CHAT, refuse_at_once)
    service.stream(REPEAT, answer_at_once)
    server = Server(service, observer=recorder)
    await server.start("127.0.0.1", 0)
    reported: set[tuple[grpc.StatusCode, str]] = set()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=OPTIONS) as channel:
        for number in range(200):
            call = channel.stream_stream((CHAT.path, MISSING.path, REPEAT.path)[number % 3])()
            try:
                await call.write(bytes((10, 100_000)[number & 1]))
                if number & 2:
                    await call.done_writing()
                assert [message async for message in call] == [b"no"]
            except grpc.aio.AioRpcError:
                pass
            reported.add((await call.code(), await call.details()))
        began = server.clock.monotonic()
        silent = channel.stream_stream(CHAT.path)()
        assert await silent.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert 0.05 < server.clock.monotonic() - began < 2
    assert reported == {
        (grpc.StatusCode.INVALID_ARGUMENT, "not this one"),
        (grpc.StatusCode.UNIMPLEMENTED, f"there is no method {MISSING.path} here"),
        (grpc.StatusCode.OK, ""),
    }
    assert server.delayed_ends == 0
    await server.stop(1)


async def refuse_at_once(call: Call, stream: Stream[bytes, bytes]) -> None:
    raise StatusError(Code.ILLEGAL_TOPIC, "not this one")


async def answer_at_once(call: Call, stream: Stream[bytes, bytes]) -> None:
    await stream.send([b"no"])


async def test_headers_of_a_stream_come_before_anything_else(channel: grpc.aio.Channel) -> None:
    listening = channel.stream_stream(LISTEN.path)()
    async with asyncio.timeout(5):
        await listening.initial_metadata()
    listening.cancel()


async def test_deadlines_and_cancellation_of_grpcio(
    channel: grpc.aio.Channel, contract: ContractService, recorder: Recorder
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(WAIT.path)(b"", timeout=0.1)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await contract.cancelled.wait()
    contract.cancelled.clear()
    contract.waiting.clear()
    call = channel.unary_unary(WAIT.path)(b"")
    await contract.waiting.wait()
    call.cancel()
    await contract.cancelled.wait()
    await recorder.until(lambda: len(recorder.calls) == 2)


async def test_a_slow_grpcio_reader_holds_its_sender_up(channel: grpc.aio.Channel, contract: ContractService) -> None:
    call = channel.stream_stream(REPEAT.path)()
    await call.write(bytes(200_000))
    await contract.waiting.wait()
    sent = -1
    while sent != contract.sent:
        sent = contract.sent
        await asyncio.sleep(0.1)
    assert sent < 200
    call.cancel()
    await contract.cancelled.wait()


async def test_tls_and_plain_text_on_one_port(serve: Serve) -> None:
    server = await serve()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    session = writer.get_extra_info("ssl_object")
    assert session.selected_alpn_protocol() == "h2"
    authority = ssl.DER_cert_to_PEM_cert(session.getpeercert(binary_form=True)).encode()
    writer.transport.abort()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain:
        assert await plain.unary_unary(ECHO.path)(b"plain") == b"plain"
    # grpcio checks the certificate: it must be good for localhost once it is trusted.
    credentials = grpc.ssl_channel_credentials(authority)
    async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials, options=OPTIONS) as secret:
        assert await secret.unary_unary(ECHO.path)(bytes(5 * MIB)) == bytes(5 * MIB)


# Ends


async def test_a_graceful_stop_lets_calls_end(serve: Serve, contract: ContractService) -> None:
    server = await serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = asyncio.ensure_future(channel.unary_unary(WAIT.path)(b"x"))
        await contract.waiting.wait()
        stopping = asyncio.create_task(server.stop(10))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        contract.released.set()
        assert await call == b"x"
        async with asyncio.timeout(3):
            await stopping


async def test_a_stop_does_not_wait_for_ever(serve: Serve, contract: ContractService) -> None:
    server = await serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.stream_stream(LISTEN.path)()
        await call.write(b"x")
        await contract.waiting.wait()
        async with asyncio.timeout(2):
            await server.stop(0.1)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await contract.cancelled.wait()


async def test_a_channel_connects_again(serve: Serve, contract: ContractService) -> None:
    first = await serve()
    channel = connect(f"127.0.0.1:{first.port}")
    assert await channel.call(ECHO, b"1") == b"1"
    await first.stop(1)
    with pytest.raises(RpcError) as raised:
        await channel.call(ECHO, b"2")
    assert raised.value.status is GrpcStatus.UNAVAILABLE
    second = Server(contract.service)
    await second.start("127.0.0.1", first.port)
    async with asyncio.timeout(5):
        while True:
            try:
                assert await channel.call(ECHO, b"3") == b"3"
                break
            except RpcError:
                await asyncio.sleep(0.02)
    await channel.close()
    await second.stop(1)


async def test_a_call_without_a_connection_was_certainly_not_made(serve: Serve) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    mute = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    channel = connect(f"127.0.0.1:{port}", limits=Limits(preface_timeout_s=0.3))
    with pytest.raises(NotProcessedError) as raised:
        await channel.call(ECHO, b"1", timeout_s=0.05)
    assert raised.value.status is GrpcStatus.DEADLINE_EXCEEDED
    with pytest.raises(NotProcessedError) as raised:
        await channel.call(ECHO, b"1", timeout_s=5.0)  # the attempt itself is given up
    assert raised.value.status is GrpcStatus.UNAVAILABLE
    await channel.close()
    with pytest.raises(NotProcessedError):
        await channel.call(ECHO, b"1")
    mute.close()
    server = await serve()
    channel = connect(f"127.0.0.1:{server.port}")
    with pytest.raises(RpcError) as reported:
        await channel.call(WAIT, b"1", timeout_s=0.05)
    assert not isinstance(reported.value, NotProcessedError)
    await channel.close()
    await server.stop(1)
    channel = connect(f"127.0.0.1:{server.port}")
    with pytest.raises(NotProcessedError):
        await channel.call(ECHO, b"1")
    await channel.close()


async def test_a_channel_to_a_server_that_hangs_ends_its_calls_and_lets_go() -> None:
    stalled = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frames.settings({}) + frames.window_update(0, 2**30))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stalled.wait()
        writer.close()

    mute = await asyncio.start_server(hang, "127.0.0.1", 0)
    channel = connect(f"127.0.0.1:{mute.sockets[0].getsockname()[1]}", limits=Limits(message_bytes_max=64 * MIB))
    assert isinstance(channel, SocketChannel)
    calls = [asyncio.create_task(channel.call(ECHO, bytes(30_000))) for _ in range(400)]
    async with asyncio.timeout(20):
        while channel._connection is None:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    connection = channel._connection
    assert connection is not None
    assert not connection.lost
    async with asyncio.timeout(5):
        await channel.close()
        ended = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in ended} == {RpcError}
    async with asyncio.timeout(3):
        while not connection.lost:
            await asyncio.sleep(0.02)
    stalled.set()
    mute.close()


async def test_who_drops_the_connection_cancels_its_calls(serve: Serve, contract: ContractService) -> None:
    server = await serve()
    call = REQUEST.replace(b"/t.T/Echo", WAIT.path.encode())
    length = call.index(b"/test") - 1
    call = call[:length] + bytes((len(WAIT.path),)) + call[length + 1 :]
    _, writer = await raw(server, START, headers(1, call), data(1, bytes(5), end=True))
    await contract.waiting.wait()
    writer.transport.abort()
    await contract.cancelled.wait()


# Metrics


async def test_metrics(contract: ContractService) -> None:
    registry = CollectorRegistry()
    server = Server(contract.service, Limits(message_bytes_max=10), observer=RpcMetrics(registry).counts)
    await server.start("127.0.0.1", 0)
    channel = connect(f"127.0.0.1:{server.port}")
    for _ in range(3):
        await channel.call(ECHO, b"x")
    for refused in (channel.call(ECHO, bytes(11)), channel.call(WAIT, b"", timeout_s=0.05)):
        with pytest.raises(RpcError):
            await refused
    await asyncio.sleep(0)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"popwheel_rpc_{name}", labels)

    assert value("connections") == 1
    assert value("calls_total", path=ECHO.path, status="OK") == 3
    assert value("call_seconds_count", path=ECHO.path) == 3
    assert value("call_seconds_bucket", path=ECHO.path, le="+Inf") == 3
    assert value("limit_hits_total", limit="message_bytes_max") == 1
    assert value("calls_in_flight", path=ECHO.path) == 0
    await channel.close()
    await server.stop(1)
    # The deadline runs on both sides: whose clock rings first says what the server makes of it.
    ends = [value("calls_total", path=WAIT.path, status=each) for each in ("DEADLINE_EXCEEDED", "CANCELLED")]
    assert sorted(each or 0 for each in ends) == [0, 1]
    assert value("connections") == 0


async def test_a_method_has_one_handler(contract: ContractService) -> None:
    other = Service()
    other.unary(ECHO, contract.echo)
    with pytest.raises(ValueError, match="two handlers"):
        Server([contract.service, other])


async def test_who_means_another_server_is_not_served_and_looks_its_name_up_anew() -> None:
    """A name may lead to an address that has been given to somebody else since."""
    contract = ContractService()
    observer = Recorder()
    server = Server(contract.service, authority="broker-b-0:8082", observer=observer)
    await server.start("127.0.0.1", 0)
    channel = connect(f"127.0.0.1:{server.port}")
    try:
        with pytest.raises(RpcError, match="this is broker-b-0:8082") as caught:
            await channel.call(METADATA, b"for another one")
        assert caught.value.status is GrpcStatus.UNAVAILABLE
        assert contract.calls == []
        server.authority = f"127.0.0.1:{server.port}"
        await channel.call(METADATA, b"for this one")
        assert len(contract.calls) == 1
        assert observer.opened == 2
    finally:
        await channel.close()
        await server.stop(0)
