"""TLS between services over real sockets: who is refused, and certificates that change while calls go on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.server.server import Server
from popwheel_rpc.service import Channel
from popwheel_rpc.socket.certificate_files import CertificateFiles
from popwheel_rpc.socket.certificates import KeyPair
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.certificates import CertificateVolume, certificate_by, new_authority
from tests.integration.test_channel_contract import trusting
from tests.unit.rpc.contract_service import CHAT, ECHO, ContractService

OURS = new_authority()
FOREIGN = new_authority()
BIG = bytes(5 * 2**20)
CALLERS = 4

Files = Callable[..., CertificateFiles]
Serve = Callable[..., Awaitable[Server]]
Reach = Callable[..., Channel]


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Files of a certificate by one authority, which trust another one or the same."""

    def hold(pair: KeyPair, *trusted: KeyPair) -> CertificateFiles:
        volume = CertificateVolume(tmp_path / str(len(list(tmp_path.iterdir()))))
        volume.hold(pair, *trusted)
        return volume.files()

    return hold


@pytest.fixture
def serve(stack: AsyncExitStack) -> Serve:
    async def start(shown: CertificateFiles, *, plain: bool = False) -> Server:
        server = Server(ContractService().service, tls=shown.server, plain=plain)
        await server.start("127.0.0.1", 0)
        stack.push_async_callback(server.stop, 1)
        return server

    return start


@pytest.fixture
def reach(stack: AsyncExitStack) -> Reach:
    def to(server: Server, shown: CertificateFiles | None) -> Channel:
        channel = connect(f"127.0.0.1:{server.port}", tls=None if shown is None else shown.client)
        stack.push_async_callback(channel.close)
        return channel

    return to


async def refusal(channel: Channel) -> str:
    with pytest.raises(RpcError) as raised:
        await channel.call(ECHO, b"", timeout_s=5)
    assert raised.value.status is GrpcStatus.UNAVAILABLE
    return str(raised.value)


async def test_both_sides_with_certificates_of_one_authority_are_served(
    files: Files, serve: Serve, reach: Reach
) -> None:
    server = await serve(files(certificate_by(OURS), OURS))
    channel = reach(server, files(certificate_by(OURS), OURS))
    assert await channel.call(ECHO, BIG) == BIG
    stream = channel.open(CHAT)
    await stream.send([BIG])
    assert await stream.receive() == BIG
    stream.cancel()


async def test_a_caller_without_a_certificate_is_refused(files: Files, serve: Serve, stack: AsyncExitStack) -> None:
    server = await serve(files(certificate_by(OURS), OURS))
    channel = connect(f"127.0.0.1:{server.port}", tls=trusting)
    stack.push_async_callback(channel.close)
    assert "TLS" in await refusal(channel)


async def test_a_caller_with_a_certificate_by_a_foreign_authority_is_refused(
    files: Files, serve: Serve, reach: Reach
) -> None:
    server = await serve(files(certificate_by(OURS), OURS))
    # It trusts both, so that it is the server that refuses.
    assert "UNKNOWN_CA" in await refusal(reach(server, files(certificate_by(FOREIGN), FOREIGN, OURS)))


async def test_a_server_with_a_certificate_by_a_foreign_authority_is_refused(
    files: Files, serve: Serve, reach: Reach
) -> None:
    server = await serve(files(certificate_by(FOREIGN), FOREIGN, OURS))
    said = await refusal(reach(server, files(certificate_by(OURS), OURS)))
    assert "CERTIFICATE_VERIFY_FAILED: self-signed certificate in certificate chain" in said


async def test_a_server_of_another_name_is_refused(files: Files, serve: Serve, reach: Reach) -> None:
    server = await serve(files(certificate_by(OURS, ["broker-a-0.broker"]), OURS))
    assert "not valid for '127.0.0.1'" in await refusal(reach(server, files(certificate_by(OURS), OURS)))


@pytest.mark.parametrize("plain", [True, False])
async def test_a_caller_without_tls_is_served_only_where_that_is_said(
    files: Files, serve: Serve, reach: Reach, plain: bool
) -> None:
    server = await serve(files(certificate_by(OURS), OURS), plain=plain)
    channel = reach(server, None)
    if plain:
        assert await channel.call(ECHO, b"plain") == b"plain"
    else:
        await refusal(channel)


async def test_certificates_and_authority_change_under_load_and_no_call_fails(
    tmp_path: Path, files: Files, serve: Serve, reach: Reach
) -> None:
    """Each of them in two steps, as everywhere: first all trust the new authority, then certificates are by it."""
    volumes = [CertificateVolume(tmp_path / name) for name in ("server", "client")]
    for volume in volumes:
        volume.hold(certificate_by(OURS), OURS)
    shown, own = (volume.files() for volume in volumes)
    server = await serve(shown)
    channels = [reach(server, own) for _ in range(CALLERS)]
    calls = [0] * CALLERS
    over = asyncio.Event()

    async def call(number: int) -> None:
        while not over.is_set():
            assert await channels[number].call(ECHO, b"x" * 1000) == b"x" * 1000
            calls[number] += 1

    async def go_on() -> None:
        wanted = [count + 20 for count in calls]
        while not all(count >= enough for count, enough in zip(calls, wanted, strict=True)):
            for load in loads:
                if load.done():
                    load.result()
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        loads = [asyncio.create_task(call(number)) for number in range(CALLERS)]
        await go_on()
        connected = set(server._connections)
        for pair, *trusted in (
            (certificate_by(OURS), OURS),  # a renewal
            (certificate_by(OURS), OURS, FOREIGN),
            (certificate_by(FOREIGN), OURS, FOREIGN),
            (certificate_by(FOREIGN), FOREIGN),
        ):
            for volume in volumes:  # one side has it before the other
                volume.hold(pair, *trusted)
                await go_on()
                assert set(server._connections) == connected, "connections that are there stay"
                for connection in connected:
                    connection.go_away()
                while set(server._connections) & connected or len(server._connections) < CALLERS:
                    await asyncio.sleep(0)
                connected = set(server._connections)
                await go_on()
        assert shown.trouble == own.trouble == ""
        assert await reach(server, files(certificate_by(FOREIGN), FOREIGN)).call(ECHO, b"later") == b"later"
        assert "UNKNOWN_CA" in await refusal(reach(server, files(certificate_by(OURS), OURS, FOREIGN)))
        over.set()
        await asyncio.gather(*loads)
