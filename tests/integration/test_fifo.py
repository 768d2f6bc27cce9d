"""Messages in order on a real server: one of each message group at a time, through kill -9, stuck ones, and retries."""

import asyncio
from pathlib import Path

import httpx

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from tests.harness.client import MessagingClient, bodies, ordered_message
from tests.harness.standalone import StandaloneProcess
from tests.integration.conftest import QUICK

LINES = 20


async def make_group(server: StandaloneProcess, name: str, max_attempts: int = 16) -> None:
    async with httpx.AsyncClient() as http:
        group = {"name": name, "fifo": True, "max_attempts": max_attempts}
        (await http.post(f"{server.http_url}/api/v1/groups", json=group)).raise_for_status()


async def send(client: MessagingClient, topic: str, line: str, *numbers: int) -> None:
    for number in numbers:
        answer = await client.send_messages(ordered_message(topic, f"{line} {number}".encode(), line))
        assert answer.status.code == Code.OK, answer.status.message


async def drained(client: MessagingClient, group: str, topic: str, rounds: int = 50) -> list[Message]:
    """All that comes, each answer acknowledged before the next one is asked for."""
    found: list[Message] = []
    for _ in range(rounds):
        messages = (await client.receive(group, topic, poll_s=0.0)).messages
        if not messages:
            break
        assert len({each.system_properties.message_group for each in messages}) == len(messages)
        assert (await client.ack(group, topic, messages)).status.code == Code.OK
        found += messages
    return found


async def test_lines_outlive_kill_9_and_a_stuck_message_holds_up_no_other(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        await make_group(server, "orderly")
        async with MessagingClient(server.grpc_address) as client:
            await client.route("Ordered")
            for line in range(LINES):
                await send(client, "Ordered", f"line{line}", 0, 1, 2)
            first = await client.receive_all("orderly", "Ordered", LINES, invisible_s=60.0)
            assert {each.body.split()[1] for each in first} == {b"0"}
            stuck, *others = first
            assert (await client.ack("orderly", "Ordered", others)).status.code == Code.OK
        server.kill()
        server.start()
        async with MessagingClient(server.grpc_address) as client:
            rest = await drained(client, "orderly", "Ordered")
            assert len(rest) == 2 * (LINES - 1)
            for line in range(LINES):
                got = [each.body for each in rest if each.body.startswith(b"line%d " % line)]
                held_back = stuck.system_properties.message_group == f"line{line}"
                assert got == ([] if held_back else [b"line%d 1" % line, b"line%d 2" % line])
            assert (await client.ack("orderly", "Ordered", [stuck])).status.code == Code.OK
            assert len(await drained(client, "orderly", "Ordered")) == 2


async def test_a_waiting_poll_gets_the_next_message_as_soon_as_the_one_before_is_done(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await make_group(server, "prompt", 2)
    await send(client, "Prompt", "a", 0, 1, 2)
    (first,) = (await client.receive("prompt", "Prompt", invisible_s=30.0)).messages
    poll = asyncio.create_task(client.receive("prompt", "Prompt", poll_s=10.0, invisible_s=0.5))
    await asyncio.sleep(0.3)
    assert not poll.done()
    await client.ack("prompt", "Prompt", [first])
    async with asyncio.timeout(2.0):
        (second,) = (await poll).messages
    # It is not acknowledged twice, so it is a dead letter, and the message group goes on by itself.
    async with asyncio.timeout(10.0):
        (again,) = (await client.receive("prompt", "Prompt", poll_s=9.0, invisible_s=0.5)).messages
        (third,) = (await client.receive("prompt", "Prompt", poll_s=9.0)).messages
    assert bodies([first, second, again, third]) == [b"a 0", b"a 1", b"a 1", b"a 2"]
    assert again.system_properties.delivery_attempt == 2
    assert bodies(await client.receive_all("undertaker", "%DLQ%prompt", 1)) == [b"a 1"]


async def test_the_same_attempt_gets_the_same_messages(server: StandaloneProcess, client: MessagingClient) -> None:
    await make_group(server, "trying")
    for line in "abc":
        await send(client, "Trying", line, 0, 1)
    first = (await client.receive("trying", "Trying", count=2, attempt_id="one")).messages
    again = (await client.receive("trying", "Trying", count=2, attempt_id="one")).messages
    assert [each.system_properties.receipt_handle for each in first] == [
        each.system_properties.receipt_handle for each in again
    ]
    other = (await client.receive("trying", "Trying", count=2, attempt_id="two")).messages
    assert len(other) == 1
    assert (await client.ack("trying", "Trying", [*again, *other])).status.code == Code.OK
    assert all(each.system_properties.receipt_handle.split(" ")[3] == "999" for each in (*first, *other))


async def test_the_end_of_the_first_try_takes_nothing_from_the_second(server: StandaloneProcess) -> None:
    """The seen fault: the first try's connection ended, and what the second try had went to another consumer."""
    await make_group(server, "twice")
    async with (
        MessagingClient(server.grpc_address) as dying,
        MessagingClient(server.grpc_address) as client,
        MessagingClient(server.grpc_address) as other,
    ):
        # More than a client's window takes, so that the first answer is on its way until its connection ends.
        large = [ordered_message("Twice", line.encode() * 3_000_000, line) for line in "abcd"]
        for each in large:
            assert (await client.send_messages(each)).status.code == Code.OK
        await client.route("Twice")
        first = await dying.begin_receive("twice", "Twice", attempt_id="one", auto_renew=True)
        assert await first.read() is not None, "its messages are on their way"
        second = (await client.receive("twice", "Twice", attempt_id="one", auto_renew=True)).messages
        assert {each.body[:1] for each in second} >= {b"a"}
        first.cancel()
        await dying.close()
        others = await other.receive("twice", "Twice", poll_s=5.0)
        got = {each.body[:1] for each in others.messages}
        assert got.isdisjoint({each.body[:1] for each in second}), "one at a time (P6)"
        assert (await client.ack("twice", "Twice", second)).status.code == Code.OK


async def test_grpcio_keeps_the_order_too(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", [*QUICK, "--set", "proxy.transport=grpcio"]) as server:
        await make_group(server, "plain")
        async with MessagingClient(server.grpc_address) as client:
            await send(client, "Plain", "a", 0, 1, 2)
            await send(client, "Plain", "b", 0)
            first = (await client.receive("plain", "Plain", attempt_id="one")).messages
            again = (await client.receive("plain", "Plain", attempt_id="one")).messages
            assert sorted(bodies(first)) == [b"a 0", b"b 0"]
            assert [each.system_properties.receipt_handle for each in again] == [
                each.system_properties.receipt_handle for each in first
            ]
            poll = asyncio.create_task(client.receive("plain", "Plain", poll_s=10.0))
            assert (
                await client.ack("plain", "Plain", [each for each in again if each.body == b"a 0"])
            ).status.code == Code.OK
            (second,) = (await poll).messages
            assert second.body == b"a 1"
            await client.change_invisible("plain", "Plain", second, 0.0)
            rest = await drained(client, "plain", "Plain")
            assert [(each.body, each.system_properties.delivery_attempt) for each in rest] == [(b"a 1", 2), (b"a 2", 1)]
