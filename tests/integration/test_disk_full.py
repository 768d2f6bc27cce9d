"""A disk that is nearly full: sends are refused with a status of their own, receiving and acking go on (E1, S1)."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import ALIVE, StandaloneProcess

MEBIBYTE = 1024 * 1024
DISK_MIB = 32
BODY_BYTES = MEBIBYTE // 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("only root can mount a small disk; the test beside this one needs none")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill_up(folder: Path) -> None:
    """Take what is left of a file system, to the last byte."""
    with (folder / "rest").open("wb", buffering=0) as rest, suppress(OSError):
        for size in (MEBIBYTE, 4096, 1):
            with suppress(OSError):
                while True:
                    rest.write(bytes(size))


async def test_beyond_the_limit_sends_are_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with StandaloneProcess(data) as server:
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.send("Full", b"before")).status.code == Code.OK
    full = StandaloneProcess(data, ["--set", "broker.disk_full_share=0.000001"])
    full.start(until=ALIVE)
    with full as server:
        async with MessagingClient(server.grpc_address) as client:
            refused = await client.send("Full", b"refused")
            assert refused.status.code == Code.INTERNAL_ERROR
            assert "disk" in refused.status.message
            messages = await client.receive_all("full", "Full", 1)
            assert bodies(messages) == [b"before"]
            assert (await client.ack("full", "Full", messages)).status.code == Code.OK
    with StandaloneProcess(data) as server:
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.send("Full", b"after")).status.code == Code.OK
            assert bodies(await client.receive_all("full", "Full", 1)) == [b"after"]


async def test_a_disk_that_fills_up_loses_nothing(small_disk: Path) -> None:
    """Its log is there, too, and nothing of that can be written down any more."""
    chosen = (
        f"broker.log.segment_bytes={MEBIBYTE}",
        "broker.retention.disk_used_share_max=1",
        "broker.checkpoint_interval_ms=10",
    )
    settings = [word for setting in chosen for word in ("--set", setting)]
    with StandaloneProcess(small_disk / "data", settings, log_path=small_disk / "server.log") as server:
        async with MessagingClient(server.grpc_address) as client:
            sent: list[bytes] = []
            assert (await client.receive("filling", "Filling")).code != Code.OK
            for number in range(2 * DISK_MIB * MEBIBYTE // BODY_BYTES):
                body = b"%d" % number * (BODY_BYTES // len(b"%d" % number))
                answer = await client.send("Filling", body)
                if answer.status.code != Code.OK:
                    break
                sent.append(body)
            assert answer.status.code == Code.INTERNAL_ERROR
            assert "disk" in answer.status.message
            assert len(sent) * BODY_BYTES > DISK_MIB * MEBIBYTE // 2
            fill_up(small_disk)
            assert (await client.send("Filling", b"refused")).status.code == Code.INTERNAL_ERROR
            early = [await client.receive("filling", "Filling", count=1) for _ in range(50)]
            assert {each.code for each in early} <= {Code.OK, Code.INTERNAL_ERROR}
            assert {each.text for each in early if each.code != Code.OK} <= {answer.status.message}
            assert (await asyncio.to_thread(httpx.get, f"{server.http_url}/metrics")).status_code == 200
            (small_disk / "rest").unlink()
            messages = [message for each in early for message in each.messages]
            messages += await client.receive_all("filling", "Filling", len(sent) - len(messages))
            assert bodies(messages) == sorted(sent)
            assert (await client.ack("filling", "Filling", messages)).status.code == Code.OK
        server.restart(until=ALIVE)
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.receive("filling", "Filling")).code == Code.MESSAGE_NOT_FOUND
