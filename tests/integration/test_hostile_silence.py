"""Clients that give up, vanish or say nothing: nothing is lost and nothing stays behind (E1, M1)."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.http2 import frames
from tests.harness.client import SERVICE, MessagingClient, duration
from tests.harness.hostility import (
    HOUR_S,
    hostile_server,
    naming,
    nothing_changes,
    poll,
    queue,
    say,
)
from tests.harness.metrics import metric
from tests.harness.others import others_are_served
from tests.harness.proxy_calls import CALLS
from tests.harness.standalone import ROOT, StandaloneProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    yield from hostile_server(tmp_path_factory)


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


@pytest.mark.parametrize("method", CALLS)
async def test_calls_cancelled_at_every_moment(server: StandaloneProcess, method: str) -> None:
    request = naming(topic="Broken-off", group="broken-off").get(method, CALLS[method].request()).SerializeToString()
    async with MessagingClient(server.grpc_address) as client, others_are_served(server.grpc_address):
        for step in range(30):
            call = client._channel.stream_stream(CALLS[method].path)(metadata=client.metadata)
            if step % 3:
                with suppress(asyncio.CancelledError, asyncio.InvalidStateError):
                    await call.write(request)
            await asyncio.sleep(step * 0.0001)
            call.cancel()
        async with asyncio.timeout(10):
            while _in_flight(server, method):
                await asyncio.sleep(0.05)


def _in_flight(server: StandaloneProcess, method: str) -> float:
    path = CALLS[method].path
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
    """Connections never take the files that the broker needs, nor those of health checks."""
    patient = ("--set", "proxy.limits.handshake_timeout_ms=100000")
    with StandaloneProcess(tmp_path / "data", patient, open_files_max=200) as server:
        sockets = [socket.socket() for _ in range(800)]
        try:
            async with MessagingClient(server.grpc_address) as client:
                assert (await client.send("Files", b"first")).status.code == Code.OK
                for number, each in enumerate(sockets):
                    each.setblocking(False)
                    each.connect_ex(("127.0.0.1", (server.grpc_port, server.http_port)[number % 2]))
                async with asyncio.timeout(60):
                    while not metric(server, "popwheel_rpc_limit_hits_total", limit="connections_max"):
                        await asyncio.sleep(0.05)
                    while metric(server, "popwheel_http_connections_ended_total", reason="full") < 300:
                        await asyncio.sleep(0.05)
                assert metric(server, "popwheel_http_connections") <= 200 / 8
                assert httpx.get(f"{server.http_url}/readyz").status_code == 200
                for number in range(20):
                    assert (await client.send(f"Files-{number}", b"body")).status.code == Code.OK
                (message,) = await client.receive_all("files", "Files", 1)
                assert (await client.ack("files", "Files", [message])).status.code == Code.OK
        finally:
            for each in sockets:
                each.close()
        assert "Too many open files" not in server.log_text()
