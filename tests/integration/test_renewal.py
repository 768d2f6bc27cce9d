"""A receive with auto_renew keeps its messages from the others for as long as its client lives, and no longer."""

import asyncio
from pathlib import Path

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient
from tests.harness.standalone import StandaloneProcess

SETTINGS = ("--set", "proxy.renewal.invisible_ms=3000", "--set", "proxy.client.expiry_ms=2000")
HEARTBEAT_S = 0.5


async def beat(client: MessagingClient) -> None:
    while True:
        assert (await client.heartbeat("renewed")).code == Code.OK
        await asyncio.sleep(HEARTBEAT_S)


async def test_auto_renew_lasts_as_long_as_its_client(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", SETTINGS) as server:
        async with MessagingClient(server.grpc_address) as other, MessagingClient(server.grpc_address) as working:
            await working.send("Renewed", b"one", b"two")
            heart = asyncio.create_task(beat(working))
            first, second = sorted(
                (await working.receive("renewed", "Renewed", auto_renew=True, poll_s=5.0)).messages,
                key=lambda message: message.body,
            )
            assert (await other.receive("renewed", "Renewed", poll_s=5.0)).code == Code.MESSAGE_NOT_FOUND
            assert (await working.ack("renewed", "Renewed", [first])).status.code == Code.OK
            heart.cancel()
            (again,) = await other.receive_all("renewed", "Renewed", 1, patience_s=20.0)
            assert again.system_properties.message_id == second.system_properties.message_id
            assert again.system_properties.delivery_attempt == 2
