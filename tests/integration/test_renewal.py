"""A receive with auto_renew keeps its messages from the others for as long as its client lives, and no longer."""

import asyncio
from pathlib import Path

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient
from tests.harness.standalone import StandaloneProcess

SETTINGS = ("--set", "proxy.renewal.invisible_ms=3000", "--set", "proxy.client.expiry_ms=2000")
LASTING = (
    *("--set", "proxy.renewal.invisible_ms=600000", "--set", "proxy.client.grace_ms=1000"),
    *("--set", "proxy.grpc_client_consumer_min_long_polling_timeout_ms=0"),
)
"""By time alone nothing comes again while these tests run."""
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


async def test_what_a_client_holds_comes_to_others_when_it_has_gone(tmp_path: Path) -> None:
    """After a goodbye at once, after a broken connection in a moment, and never if it comes back."""
    settings = d.Settings(client_type=d.PUSH_CONSUMER, subscription=d.Subscription(group=d.Resource(name="left")))
    with StandaloneProcess(tmp_path / "data", LASTING) as server:
        async with MessagingClient(server.grpc_address) as other:
            await other.send("Left", b"one")
            async with MessagingClient(server.grpc_address) as polite:
                (held,) = await polite.receive_all("left", "Left", 1)  # with a duration of its own
                assert (await polite.ack("left", "Left", [held])).status.code == Code.OK
                await other.send("Left", b"two")
                await take(polite)
                assert (await polite.say_goodbye("left")).code == Code.OK
                (again,) = await other.receive_all("left", "Left", 1)
                assert (again.body, again.system_properties.delivery_attempt) == (b"two", 2)
                assert (await other.ack("left", "Left", [again])).status.code == Code.OK
            await other.send("Left", b"three")
            async with MessagingClient(server.grpc_address) as killed:
                commands = killed.commands(settings)
                await anext(commands)
                handle = await take(killed)
                await commands.aclose()
            client_id = killed.client_id
            async with MessagingClient(server.grpc_address, client_id=client_id) as returned:
                commands = returned.commands(settings)
                await anext(commands)
                await other.send("Left", b"four")
                four = await take(returned)
                assert (await other.receive("left", "Left", poll_s=2.5)).code == Code.MESSAGE_NOT_FOUND
                assert (await returned.ack("left", "Left", [handle])).status.code == Code.OK, "it came back in time"
                await commands.aclose()
            (again,) = await other.receive_all("left", "Left", 1)
            assert again.system_properties.message_id == four.system_properties.message_id


async def take(client: MessagingClient) -> d.Message:
    """A message that a push consumer holds from now on."""
    (message,) = (await client.receive("left", "Left", auto_renew=True, poll_s=5.0)).messages
    return message
