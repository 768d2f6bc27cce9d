"""Priorities on a real server: the highest first, of what comes again, too, through kill -9, and none last for ever."""

import asyncio
from pathlib import Path

import httpx

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, MessageQueue, Resource
from tests.harness.client import MessagingClient, make_message, urgent_message
from tests.harness.standalone import StandaloneProcess
from tests.integration.conftest import QUICK

GROUP, TOPIC = "watch", "Alarms"
TOP = 9
"""The highest of the levels that a topic has if nobody says otherwise."""


async def send(client: MessagingClient, *messages: tuple[str, int]) -> None:
    for body, priority in messages:
        answer = await client.send_messages(urgent_message(TOPIC, body.encode(), priority))
        assert answer.status.code == Code.OK, answer.status.message


async def receive(client: MessagingClient, count: int) -> list[Message]:
    return (await client.receive(GROUP, TOPIC, count=count, poll_s=5.0)).messages


def shown(messages: list[Message]) -> list[tuple[str, int]]:
    return [(each.body.decode(), each.system_properties.priority) for each in messages]


async def test_the_highest_comes_first_and_the_lowest_in_time(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with httpx.AsyncClient() as http:
            made = await http.post(f"{server.http_url}/api/v1/topics", json={"name": TOPIC, "type": "PRIORITY"})
            assert made.json()["queues"] == TOP + 1
        async with MessagingClient(server.grpc_address) as client:
            await send(client, ("low", 0), ("high", 12), ("middle", 5), ("high again", TOP))
            assert (await client.send_messages(make_message(TOPIC, b"ordinary"))).status.code == Code.OK
            for bad in (urgent_message(TOPIC, b"bad", -1), urgent_message("Plain", b"bad", 1)):
                answer = await client.send_messages(bad)
                assert answer.status.code in (Code.BAD_REQUEST, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
            first = await receive(client, 2)
            assert shown(first) == [("high", 12), ("high again", TOP)]
            assert (await client.ack(GROUP, TOPIC, first[1:])).status.code == Code.OK
            assert (await client.change_invisible(GROUP, TOPIC, first[0], 0.0)).status.code == Code.OK
            retries = MessageQueue(topic=Resource(name=f"%RETRY%{GROUP}+{TOPIC}"), id=TOP)
            retries.broker.name = (await client.route(TOPIC)).message_queues[0].broker.name
            async with asyncio.timeout(10):
                while not await client.pull(GROUP, retries, 0):
                    await asyncio.sleep(0.02)
        server.kill()
    with StandaloneProcess(tmp_path / "data", (*QUICK, "--set", "broker.pop.priority_wait_ms=0")) as server:
        async with MessagingClient(server.grpc_address) as client:
            (once_more,) = await receive(client, 1)
            assert shown([once_more]) == [("high", 12)]
            assert once_more.system_properties.delivery_attempt == 2
            await send(client, *((f"high {number}", TOP) for number in range(4)))
            assert [each.body for each in await receive(client, 4)] == [b"low", b"ordinary", b"high 0", b"high 1"]
            assert [each.body for each in await receive(client, 4)] == [b"middle", b"high 2", b"high 3"]
