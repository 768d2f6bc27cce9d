"""Nothing that was promised is forgotten by a stop or a crash (S1, S2, P3)."""

import asyncio
from pathlib import Path

import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.load import Ledger, Load, receive_and_ack_all
from tests.harness.standalone import StandaloneProcess
from tests.integration.conftest import QUICK

POLLS = 20
SENDERS = 8


@pytest.mark.parametrize("transport", ["popwheel", "grpcio"])
async def test_sigterm_drains(tmp_path: Path, transport: str) -> None:
    server = StandaloneProcess(tmp_path / "data", [*QUICK, "--set", f"proxy.transport={transport}"])
    ledger = Ledger()
    with server:
        load = Load(server.grpc_address, ledger, lambda ledger: len(ledger.sent) >= 200)
        async with MessagingClient(server.grpc_address) as idle:
            await idle.route("Quiet")
            polls = [asyncio.create_task(idle.receive("quiet", "Quiet", poll_s=20.0)) for _ in range(POLLS)]
            senders = [asyncio.create_task(load.send(number)) for number in range(SENDERS)]
            await load.reached.wait()
            await asyncio.to_thread(server.stop)
            ends = await asyncio.gather(*polls)
            await asyncio.gather(*senders)
        assert {end.code for end in ends} == {Code.MESSAGE_NOT_FOUND}
        server.start()
        async with MessagingClient(server.grpc_address) as client:
            got = await receive_and_ack_all(client, ledger.sent)
    assert ledger.sent <= set(got)
    assert set(got) <= ledger.tried
    assert len(got) == len(set(got))


async def test_offsets_and_open_messages_survive_a_restart(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with MessagingClient(server.grpc_address) as client:
            await client.send("Kept", *(b"%d" % number for number in range(20)))
            acked = await client.receive_all("kept", "Kept", 10)
            assert (await client.ack("kept", "Kept", acked)).status.code == Code.OK
            (held,) = (await client.receive("kept", "Kept", count=1, invisible_s=60.0)).messages
            (queue,) = (
                each
                for each in (await client.route("Kept")).message_queues
                if each.id == held.system_properties.queue_id
            )
            assert (await client.update_offset("puller", queue, 1)).code == Code.OK
        server.restart()
        async with MessagingClient(server.grpc_address) as client:
            rest = await client.receive_all("kept", "Kept", 9)
            assert (await client.receive("kept", "Kept")).code == Code.MESSAGE_NOT_FOUND
            assert len(bodies([*acked, held, *rest])) == 20
            assert {message.body for message in [*acked, held, *rest]} == {b"%d" % number for number in range(20)}
            assert (await client.ack("kept", "Kept", [held])).status.code == Code.OK
            assert (await client.get_offset("puller", queue)).offset == 1


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_kill_9_under_load(tmp_path: Path, flush: str) -> None:
    server = StandaloneProcess(tmp_path / "data", [*QUICK, "--set", f"broker.flush={flush}"])
    ledger = Ledger()
    with server:
        load = Load(server.grpc_address, ledger, lambda ledger: len(ledger.sent) >= 1000 and len(ledger.acked) >= 400)
        senders = [asyncio.create_task(load.send(number)) for number in range(SENDERS)]
        consumers = [asyncio.create_task(load.consume()) for _ in range(3)]
        await load.reached.wait()
        server.kill()
        await asyncio.gather(*senders, *consumers)

        server.start()
        async with MessagingClient(server.grpc_address) as client:
            got = await receive_and_ack_all(client, ledger.owed)
    assert ledger.owed - set(got) == set(), "sent with OK and lost (S1)"
    assert ledger.acked & set(got) == set(), "acked with OK and delivered again (P3)"
    assert set(got) - ledger.tried == set(), "delivered though nobody sent it (S2)"
