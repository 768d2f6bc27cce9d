"""Paused groups and topics: nothing is delivered meanwhile, and all of it afterwards, at once and once."""

import asyncio
from collections import Counter
from pathlib import Path

import httpx

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, LiteSubscriptionAction
from tests.harness.client import MessagingClient, bodies, lite_message
from tests.harness.standalone import StandaloneProcess

MESSAGES = 100


async def order(server: StandaloneProcess, path: str) -> dict[str, object]:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{server.http_url}/api/v1{path}", json={})
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found


async def receive_all(client: MessagingClient, group: str, topic: str) -> Counter[bytes]:
    """What polls get until nothing comes, acknowledged."""
    got: Counter[bytes] = Counter()
    while (received := await client.receive(group, topic, poll_s=1.0, invisible_s=60.0)).messages:
        got.update(bodies(received.messages))
        await client.ack(group, topic, received.messages)
    return got


async def test_a_paused_group_gets_nothing_and_then_all_at_once(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    for group in ("stopped", "others"):
        await client.receive(group, "Halted")
    held = await client.send("Halted", b"held")
    assert held.status.code == Code.OK
    (first,) = (await client.receive("stopped", "Halted", invisible_s=60.0)).messages
    assert (await order(server, "/groups/stopped/pause"))["paused_since_ms"]
    poll = asyncio.create_task(client.receive("stopped", "Halted", poll_s=30.0, invisible_s=60.0))
    empty = asyncio.create_task(client.receive("stopped", "Halted", poll_s=1.0))
    sent = [b"%d" % number for number in range(MESSAGES)]
    for body in sent:
        assert (await client.send("Halted", body)).status.code == Code.OK
    assert await receive_all(client, "others", "Halted") == Counter([b"held", *sent])
    assert (await empty).code == Code.MESSAGE_NOT_FOUND and not poll.done()
    assert (await client.ack("stopped", "Halted", [first])).status.code == Code.OK, "what it has it may acknowledge"
    assert (await order(server, "/groups/stopped/resume"))["paused_since_ms"] is None
    async with asyncio.timeout(2):
        got = Counter(bodies((await poll).messages))
    assert got and got + await receive_all(client, "stopped", "Halted") == Counter(sent)


async def test_a_paused_topic_is_delivered_to_nobody_and_its_groups_go_on_elsewhere(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    for topic in ("Quiet", "Loud"):
        await client.receive("readers", topic)
    await order(server, "/topics/Quiet/pause")
    poll = asyncio.create_task(client.receive("readers", "Quiet", poll_s=30.0, invisible_s=60.0))
    for topic in ("Quiet", "Loud"):
        assert (await client.send(topic, b"1")).status.code == Code.OK
    assert await receive_all(client, "readers", "Loud") == Counter([b"1"])
    assert not poll.done()
    await order(server, "/topics/Quiet/resume")
    async with asyncio.timeout(2):
        assert bodies((await poll).messages) == [b"1"]


async def test_lite_topics_are_paused_with_their_topic(server: StandaloneProcess, client: MessagingClient) -> None:
    async with httpx.AsyncClient() as http:
        await http.post(f"{server.http_url}/api/v1/topics", json={"name": "Rooms", "type": "LITE"})
    await client.sync_lite("guests", "Rooms", "a", action=LiteSubscriptionAction.COMPLETE_ADD)
    await order(server, "/topics/Rooms/pause")
    poll = asyncio.create_task(client.receive("guests", "Rooms", poll_s=30.0, invisible_s=60.0))
    answer = await client.send_messages(lite_message("Rooms", b"1", "a"))
    assert answer.status.code == Code.OK
    await asyncio.sleep(0.5)
    assert not poll.done()
    await order(server, "/topics/Rooms/resume")
    async with asyncio.timeout(2):
        assert bodies((await poll).messages) == [b"1"]


async def test_a_pause_outlives_kill_9(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data") as server:
        async with MessagingClient(server.grpc_address) as client:
            await client.receive("stopped", "Halted")
            await order(server, "/groups/stopped/pause")
            assert (await client.send("Halted", b"1")).status.code == Code.OK
        server.kill()
        server.start()
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.receive("stopped", "Halted", poll_s=1.0)).code == Code.MESSAGE_NOT_FOUND
            await order(server, "/groups/stopped/resume")
            assert bodies((await client.receive("stopped", "Halted", poll_s=5.0)).messages) == [b"1"]
