"""The real process killed again and again, and how soon it is back (S1, S2, P3)."""

import asyncio
import json
import os
import random
from pathlib import Path

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient
from tests.harness.load import Ledger, Load, receive_and_ack_all
from tests.harness.standalone import StandaloneProcess
from tests.integration.conftest import QUICK

KILLS = 2 * int(os.environ.get("CRASH_ROUNDS", "3"))
"""`make drills` kills more often."""
SENDERS = 6
CONSUMERS = 3
ATTEMPTS_MAX = 1000
"""What is never acked comes every three seconds, and shall not end as a dead letter, however long all kills take."""
MEBIBYTE = 1024 * 1024
RECOVERY_S_MAX = 2.0


@pytest.mark.timeout(300)
async def test_kill_9_again_and_again_in_the_middle_of_load(tmp_path: Path) -> None:
    source = random.Random(20)
    server = StandaloneProcess(tmp_path / "data", QUICK)
    ledger = Ledger()
    with server:
        made = {"name": "load", "max_attempts": ATTEMPTS_MAX}
        assert httpx.post(f"{server.http_url}/api/v1/groups", json=made).status_code == 201
        for kill in range(KILLS):
            sent_before = len(ledger.sent)
            wanted = source.randrange(40, 400)
            load = Load(server.grpc_address, ledger, lambda ledger: len(ledger.sent) >= sent_before + wanted)  # noqa: B023
            senders = [asyncio.create_task(load.send(kill * SENDERS + number)) for number in range(SENDERS)]
            consumers = [asyncio.create_task(load.consume()) for _ in range(CONSUMERS)]
            await load.reached.wait()
            server.kill()
            await asyncio.gather(*senders, *consumers)
            server.start()
        async with MessagingClient(server.grpc_address) as client:
            got = await receive_and_ack_all(client, ledger.owed)
    assert len(ledger.acked) > 5 * KILLS
    assert ledger.owed - set(got) == set(), "sent with OK and lost (S1)"
    assert ledger.again | ledger.acked & set(got) == set(), "acked with OK and delivered again (P3)"
    assert set(got) - ledger.tried == set(), "delivered though nobody sent it (S2)"


@pytest.mark.timeout(300)
async def test_a_log_of_one_gibibyte_is_recovered_within_two_seconds(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data", ["--set", "broker.flush=async"])
    body = b"x" * MEBIBYTE
    with server:
        async with MessagingClient(server.grpc_address) as client:
            await client.send("Large", b"the first")

            async def send(count: int) -> None:
                for _ in range(count):
                    assert (await client.send("Large", body)).status.code == Code.OK

            await asyncio.gather(*(send(256) for _ in range(4)))
            server.kill()
        server.start()
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.send("Large", b"the last")).status.code == Code.OK
    recovered = [json.loads(line) for line in server.log_text().splitlines() if '"broker recovered"' in line][-1]
    assert recovered["position"] > 1024 * MEBIBYTE
    assert recovered["seconds"] <= RECOVERY_S_MAX
