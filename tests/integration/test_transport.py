"""Our server and grpcio's client over real sockets, graceful ends, and each limit gone past."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.rpc.client.socket_channel import SocketChannel, connect
from services.rpc.http2 import frames, hpack
from services.rpc.limits import Limits
from services.rpc.server.metrics import RpcMetrics
from services.rpc.server.server import Server
from services.rpc.service import Call, Service, Stream
from services.rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.unit.rpc.contract_service import CHAT, ECHO, LISTEN, METADATA, MISSING, REFUSE, REPEAT, WAIT, ContractService
from tests.unit.rpc.peers import REQUEST, data, headers

START = frames.PREFACE + frames.settings({})
MIB = 2**20
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]

Serve = Callable[..., Awaitable[Server]]


class Recorder:
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.limits: list[str] = []
        self.calls: list[tuple[str, GrpcStatus]] = []
        self.open = self.opened = 0
        self.changed = asyncio.Event()

    def connection_opened(self) -> None:
        self.open += 1
        self.opened += 1

    def connection_closed(self) -> None:
        self.open -= 1
        self.changed.set()

    def call_started(self, path: str) -> None:
        pass

    def call_ended(self, path: str, status: GrpcStatus, seconds: float) -> None:
        self.calls.append((path, status))
        self.changed.set()

    def limit_hit(self, name: str) -> None:
        self.limits.append(name)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was seen fulfils a condition."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest_asyncio.fixture
async def contract() -> ContractService:
    return ContractService()


@pytest_asyncio.fixture
async def recorder() -> Recorder:
    return Recorder()


@pytest_asyncio.fixture
async def serve(contract: ContractService, recorder: Recorder) -> AsyncIterator[Serve]:
    """Start servers of the contract's service; they are stopped after the test."""
    servers = []

    async def start(limits: Limits | None = None) -> Server:
        server = Server(contract.service, limits, observer=recorder)
        servers.append(server)
        await server.start("127.0.0.1", 0)
        return server

    yield start
    for server in servers:
        await server.stop(0)


@pytest_asyncio.fixture
async def channel(serve: Serve) -> AsyncIterator[grpc.aio.Channel]:
    server = await serve()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=OPTIONS) as opened:
        yield opened


async def raw(server: Server, *sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A socket to the server that has sent these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(sent))
    return reader, writer


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What the server says until it closes the connection."""
    said = b""
    try:
        async with asyncio.timeout(10):
            while part := await reader.read(65_536):
                said += part
    except ConnectionResetError:
        pass
    finally:
        writer.close()
    return said


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


async def test_who_is_refused_before_it_has_written_is_told_why(recorder: Recorder) -> None:
    service = Service()
    service.stream(CHAT, refuse_at_once)
    service.stream(REPEAT, answer_at_once)
    server = Server(service, observer=recorder)
    await server.start("127.0.0.1", 0)
    told: set[tuple[grpc.StatusCode, str]] = set()
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
            told.add((await call.code(), await call.details()))
        began = server.clock.monotonic()
        silent = channel.stream_stream(CHAT.path)()
        assert await silent.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert 0.05 < server.clock.monotonic() - began < 2
    assert told == {
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
    with pytest.raises(RpcError) as told:
        await channel.call(WAIT, b"1", timeout_s=0.05)
    assert not isinstance(told.value, NotProcessedError)
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
    await asyncio.sleep(0.3)
    connection = channel._connection
    assert connection is not None
    assert not connection.lost
    async with asyncio.timeout(0.5):
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


# Limits


async def test_messages_beyond_the_limit(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(message_bytes_max=1000))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        for size in (1001, 3 * MIB):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(ECHO.path)(bytes(size))
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await channel.unary_unary(ECHO.path)(bytes(1000)) == bytes(1000)
    assert recorder.limits == ["message_bytes_max"] * 2


async def test_answers_beyond_the_callers_limit(serve: Serve) -> None:
    server = await serve()
    channel = connect(f"127.0.0.1:{server.port}", limits=Limits(message_bytes_max=1000))
    with pytest.raises(RpcError) as raised:
        await channel.call(ECHO, bytes(1001))
    assert raised.value.status is GrpcStatus.RESOURCE_EXHAUSTED
    await channel.close()


async def test_connections_beyond_the_limit(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(connections_max=2))
    first = await raw(server, START)
    second = await raw(server, START)
    await second[0].readexactly(9)
    third = await raw(server, START)
    assert await closed(*third) == b""
    assert recorder.limits == ["connections_max"]
    first[1].close()
    await recorder.until(lambda: recorder.open == 1)
    fourth = await raw(server, START)
    await fourth[0].readexactly(9)
    for _, writer in (second, fourth):
        writer.close()


async def test_calls_beyond_the_limit_wait_their_turn(serve: Serve, contract: ContractService) -> None:
    server = await serve(Limits(concurrent_streams_max=2))
    channel = connect(f"127.0.0.1:{server.port}")
    calls = [asyncio.create_task(channel.call(WAIT, b"%d" % number)) for number in range(5)]
    await contract.waiting.wait()
    await asyncio.sleep(0.05)
    assert len(contract.calls) == 2
    contract.released.set()
    assert await asyncio.gather(*calls) == [b"%d" % number for number in range(5)]
    await channel.close()


async def test_who_sends_nothing_is_let_go(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(preface_timeout_s=0.1))
    assert await closed(*await raw(server)) == b""
    assert await closed(*await raw(server, b"\x16\x03\x01")) == b""
    assert recorder.limits == ["preface_timeout_s"] * 2


async def test_who_does_not_answer_pings_is_let_go(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(keepalive_interval_s=0.1, keepalive_timeout_s=0.1))
    said = await closed(*await raw(server, START))
    assert frames.ping(b"stillher", ack=False) in said
    assert recorder.limits == ["keepalive_timeout_s"]


async def test_who_answers_pings_may_stay(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(keepalive_interval_s=0.1, keepalive_timeout_s=0.5))
    channel = connect(f"127.0.0.1:{server.port}", limits=Limits(keepalive_interval_s=0.2, keepalive_timeout_s=0.5))
    assert await channel.call(ECHO, b"") == b""
    await asyncio.sleep(2.5)
    assert recorder.open == 1
    assert recorder.limits == []
    await channel.close()


async def test_an_idle_connection_is_told_to_go(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(idle_timeout_s=0.1))
    channel = connect(f"127.0.0.1:{server.port}")
    assert await channel.call(ECHO, b"1") == b"1"
    await recorder.until(lambda: recorder.open == 0)
    assert await channel.call(ECHO, b"2") == b"2"
    await channel.close()


async def test_who_reads_nothing_is_let_go(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(send_buffer_bytes_max=200_000, message_bytes_max=20_000))
    calls = [
        headers(2 * number + 1, ECHO_BLOCK) + data(2 * number + 1, b"\0\0\0\x3a\x98" + bytes(15_000), end=True)
        for number in range(20)
    ]
    reader, writer = await raw(server, frames.PREFACE, frames.settings({4: 0}), *calls)
    await closed(reader, writer)
    assert recorder.limits == ["send_buffer_bytes_max"]


async def test_who_gives_no_window_is_let_go(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(stalled_timeout_s=0.1))
    call = headers(1, ECHO_BLOCK) + data(1, b"\0\0\0\0\1x", end=True)
    await closed(*await raw(server, frames.PREFACE, frames.settings({4: 0}), call))
    assert recorder.limits == ["stalled_timeout_s"]


async def test_an_attack_is_ended_and_others_are_served(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(resets_max=100, pings_max=100))
    channel = connect(f"127.0.0.1:{server.port}")
    rapid_reset = [
        headers(2 * number + 1, ECHO_BLOCK) + frames.rst_stream(2 * number + 1, frames.ErrorCode.CANCEL)
        for number in range(2000)
    ]
    pings = [frames.ping(bytes(8), ack=False)] * 2000
    for flood in (rapid_reset, pings):
        said = await closed(*await raw(server, START, *flood))
        assert len(said) < 20_000
        assert await channel.call(ECHO, b"served") == b"served"
    assert recorder.limits == ["resets_max", "pings_max"]
    await channel.close()


async def test_unfinished_messages_beyond_the_limit(serve: Serve, recorder: Recorder) -> None:
    limits = Limits(message_bytes_max=60_000, connection_window_bytes=65_535, receive_buffer_bytes_max=0)
    server = await serve(limits)
    parts = [
        headers(stream_id, ECHO_BLOCK)
        + data(stream_id, b"\0\0\0\xc3\x50" + bytes(9_995))
        + data(stream_id, bytes(10_000))
        for stream_id in range(1, 41, 2)
    ]
    reader, writer = await raw(server, START)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.002)  # each in a turn of its own, so that the windows open in between
    await recorder.until(lambda: "receive_buffer_bytes_max" in recorder.limits)
    writer.close()
    await reader.read()


async def test_unfinished_messages_of_many_connections_beyond_the_limit(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(message_bytes_max=100_000, receive_total_bytes_max=MIB))
    channel = connect(f"127.0.0.1:{server.port}")
    part = headers(1, ECHO_BLOCK) + data(1, b"\0\0\1\x86\xa0" + bytes(16_000)) + 3 * data(1, bytes(16_000))
    hoarders = []
    for _ in range(40):
        hoarders.append(await raw(server, START, part))
        assert await channel.call(ECHO, bytes(90_000)) == bytes(90_000)
    await recorder.until(lambda: "receive_total_bytes_max" in recorder.limits)
    assert server.totals.received_bytes < MIB
    assert recorder.open == 41
    for _, writer in hoarders:
        writer.close()
    await recorder.until(lambda: recorder.open == 1)
    assert server.totals.received_bytes == 0
    await channel.close()


async def test_unread_answers_of_many_connections_beyond_the_limit(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(message_bytes_max=100_000, send_total_bytes_max=MIB))
    channel = connect(f"127.0.0.1:{server.port}")
    call = headers(1, ECHO_BLOCK) + data(1, b"\0\0\0\x3a\x98" + bytes(15_000), end=True)
    deaf = []
    for _ in range(100):
        deaf.append(await raw(server, frames.PREFACE, frames.settings({4: 0}), call))
        assert await channel.call(ECHO, bytes(90_000)) == bytes(90_000)
    await recorder.until(lambda: "send_total_bytes_max" in recorder.limits)
    await recorder.until(lambda: recorder.open <= 80)
    assert server.totals.unsent_bytes <= MIB
    for _, writer in deaf:
        writer.close()
    await recorder.until(lambda: recorder.open == 1)
    assert server.totals.unsent_bytes == 0
    await channel.close()


async def test_headers_and_streams_beyond_the_limit(serve: Serve, recorder: Recorder) -> None:
    server = await serve(Limits(header_list_bytes_max=2_000, concurrent_streams_max=1))
    many = hpack.encode([(b"x", b"y" * 3_000)])
    calls = headers(1, ECHO_BLOCK) + headers(3, ECHO_BLOCK) + frames.rst_stream(1, frames.ErrorCode.CANCEL)
    reader, writer = await raw(server, START, calls, headers(5, ECHO_BLOCK + many, end=True))
    said = await reader.readuntil(b"the headers are longer than the 2000 bytes allowed")
    assert frames.rst_stream(3, frames.ErrorCode.REFUSED_STREAM) in said
    assert recorder.limits == ["concurrent_streams_max", "header_list_bytes_max"]
    writer.close()


async def test_what_is_no_http2_or_no_grpc(serve: Serve) -> None:
    server = await serve()
    assert b"preface" in await closed(*await raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    get = REQUEST[1:]  # without :method
    reader, writer = await raw(server, START, headers(1, b"\x82" + get, end=True))
    said = await reader.readuntil(b"speaks gRPC")
    assert b"415" in said
    writer.close()


ECHO_BLOCK = REQUEST.replace(b"\x09/t.T/Echo", bytes((len(ECHO.path),)) + ECHO.path.encode())


# Metrics


async def test_metrics(contract: ContractService) -> None:
    registry = CollectorRegistry()
    server = Server(contract.service, Limits(message_bytes_max=10), observer=RpcMetrics(registry))
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
