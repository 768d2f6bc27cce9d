"""Each limit of our server gone past, over real sockets: who does it is refused or let go, and others are served."""

import asyncio

import grpc
import pytest

from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.http2 import frames, hpack
from popwheel_rpc.limits import Limits
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.transport import ECHO_BLOCK, MIB, START, Recorder, Serve, closed, raw
from tests.unit.rpc.contract_service import ECHO, WAIT, ContractService
from tests.unit.rpc.peers import REQUEST, data, headers


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


async def test_an_idle_connection_is_notified_to_go(serve: Serve, recorder: Recorder) -> None:
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
