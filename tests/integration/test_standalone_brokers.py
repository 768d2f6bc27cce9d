"""`popwheel standalone --workers 2 --brokers 2`: two logs behind one port, of which no start leaves one out."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient
from tests.harness.load import Ledger, Load, receive_and_ack_all
from tests.harness.metrics import metric
from tests.harness.standalone import ProcessFailedError, StandaloneProcess
from tests.integration.conftest import QUICK

BROKERS = ("broker", "broker-1")
TWO = ("--workers", "2", "--brokers", "2")
PATIENCE_S = 15.0


def pid_of(server: StandaloneProcess, group: str) -> int:
    """The process of a broker group; 0 if there is none."""
    found = httpx.get(f"{server.http_url}/api/v1/cluster/status").json()["processes"]
    return next((one["pid"] for one in found if one["name"] == group and one["ready"]), 0)


def stored(server: StandaloneProcess, topic: str) -> list[float]:
    """How many messages of a topic each broker has stored since its start."""
    return [metric(server, "rocketmq_messages_in_total", topic=topic, worker=name) for name in BROKERS]


@pytest.mark.timeout(180)
async def test_messages_of_a_topic_are_in_both_logs_and_kill_9_of_a_broker_loses_none(tmp_path: Path) -> None:
    ledger = Ledger()
    with StandaloneProcess(tmp_path / "data", (*QUICK, *TWO)) as server:
        made = {"name": "load", "max_attempts": 1000}
        assert httpx.post(f"{server.http_url}/api/v1/groups", json=made).status_code == 201
        assert httpx.get(f"{server.http_url}/readyz").json() == {"ready": True, "reasons": {}}
        for run, victim in enumerate(("broker-1", "broker-0")):
            wanted = len(ledger.sent) + 150
            load = Load(server.grpc_address, ledger, lambda ledger: len(ledger.sent) >= wanted)  # noqa: B023
            working = [asyncio.create_task(load.send(run * 6 + number)) for number in range(6)]
            working += [asyncio.create_task(load.consume()) for _ in range(3)]
            await load.reached.wait()
            if run == 0:
                assert min(stored(server, "Load")) > 20, "both logs have their part"
            killed = pid_of(server, victim)
            os.kill(killed, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while pid_of(server, victim) in (0, killed):
                    await asyncio.sleep(0.05)
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        assert metric(server, "popwheel_standalone_broker_restarts_total") == 2
        async with MessagingClient(server.grpc_address) as client:
            got = await receive_and_ack_all(client, ledger.owed)
    assert len(ledger.acked) > 20
    assert ledger.owed - set(got) == set(), "sent with OK and lost (S1)"
    assert ledger.again | ledger.acked & set(got) == set(), "acked with OK and delivered again (P3)"


async def test_a_folder_grows_by_a_broker_and_is_not_started_without_it(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data")
    with server:
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.send("Grown", b"one process")).status.code == Code.OK
    server.extra_args = ["--brokers", "2"]  # one worker
    with server:
        assert metric(server, "popwheel_proxy_workers") == 1
        async with MessagingClient(server.grpc_address) as client:
            for number in range(20):
                assert (await client.send("Grown", b"%d" % number)).status.code == Code.OK
            assert len(await client.receive_all("grown", "Grown", 21)) == 21
        assert min(stored(server, "Grown")) > 0
    assert sorted(path.name for path in server.data_dir.iterdir()) == [*BROKERS, "controller", "lock"]
    for words in ([], ["--workers", "2"]):
        server.extra_args = words
        with pytest.raises(ProcessFailedError, match=r"--brokers: must be at least 2, because .* of broker-1"):
            server.start()
