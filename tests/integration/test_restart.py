"""Nothing that was promised is forgotten by a stop or a crash (S1, S2, P3)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import StandaloneProcess
from tests.integration.conftest import QUICK

POLLS = 20
SENDERS = 8


@dataclass
class Ledger:
    """What clients tried and what they were promised, by body."""

    tried: set[bytes] = field(default_factory=set)
    sent: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)


@dataclass
class Load:
    """Clients at work until their server goes away.

    Args:
        address: of the server.
        ledger: where they write.
        enough: looked at after each step; sets `reached`.
    """

    address: str
    ledger: Ledger
    enough: Callable[[Ledger], bool]
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, sender: int) -> None:
        """Send two messages at a time."""
        async with MessagingClient(self.address) as client:
            number = 0
            while True:
                batch = [f"{sender}-{number + each}".encode() for each in range(2)]
                number += 2
                self.ledger.tried.update(batch)
                try:
                    answer = await client.send("Load", *batch)
                except grpc.aio.AioRpcError:
                    return
                if answer.status.code == Code.OK:
                    self.ledger.sent.update(batch)
                self._look()

    async def consume(self) -> None:
        """Receive, and ack four of five."""
        async with MessagingClient(self.address) as client:
            while True:
                try:
                    received = await client.receive("load", "Load", count=10, invisible_s=3.0, poll_s=5.0)
                    good = [each for each in received.messages if each.body[-1] % 5]
                    if good:
                        answer = await client.ack("load", "Load", good)
                        for message, entry in zip(good, answer.entries, strict=True):
                            if entry.status.code == Code.OK:
                                self.ledger.acked.add(message.body)
                except grpc.aio.AioRpcError:
                    return
                self._look()

    def _look(self) -> None:
        if self.enough(self.ledger):
            self.reached.set()


async def receive_and_ack_all(client: MessagingClient, missing: set[bytes]) -> list[bytes]:
    """Receive and ack until nothing of `missing` is missing and nothing more comes, or patience ends."""
    got: list[bytes] = []
    empty_polls = 0
    while empty_polls < 2:
        messages = (await client.receive("load", "Load", invisible_s=30.0, poll_s=5.0)).messages
        if messages:
            got += [message.body for message in messages]
            assert (await client.ack("load", "Load", messages)).status.code == Code.OK
            empty_polls = 0
        elif missing <= set(got):
            break
        else:
            empty_polls += 1
    return got


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
            got = await receive_and_ack_all(client, ledger.sent - ledger.acked)
    assert ledger.sent - ledger.acked - set(got) == set(), "sent with OK and lost (S1)"
    assert ledger.acked & set(got) == set(), "acked with OK and delivered again (P3)"
    assert set(got) - ledger.tried == set(), "delivered though nobody sent it (S2)"
