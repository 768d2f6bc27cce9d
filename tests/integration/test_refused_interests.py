"""More interests than a broker takes: who comes too late is served all the same, and disturbs nobody."""

import asyncio
import time
from pathlib import Path

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient
from tests.harness.metrics import metric
from tests.harness.standalone import StandaloneProcess

SETTINGS = ("--set", "broker.pop.notify_interests_max=1", "--set", "proxy.poll_mode=notify")


async def test_polls_of_a_refused_interest_find_messages_and_others_are_reported_as_ever(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", SETTINGS) as server:
        async with MessagingClient(server.grpc_address) as client:
            for topic in ("First", "Second"):
                await client.send(topic, b"warm")
                await client.ack("g", topic, await client.receive_all("g", topic, 1))
            registered = asyncio.create_task(client.receive("g", "First", poll_s=15.0))
            await asyncio.sleep(0.3)
            refused = asyncio.create_task(client.receive("g", "Second", poll_s=15.0))
            await asyncio.sleep(0.3)
            assert metric(server, "popwheel_notify_interests") == 1
            assert metric(server, "popwheel_notify_interests_refused_total") == 1
            assert metric(server, "popwheel_proxy_interests_refused") == 1
            began = time.monotonic()
            await client.send("Second", b"late")
            answer = await refused
            assert (answer.code, [message.body for message in answer.messages]) == (Code.OK, [b"late"])
            assert time.monotonic() - began < 3.0
            began = time.monotonic()
            await client.send("First", b"soon")
            answer = await registered
            assert (answer.code, [message.body for message in answer.messages]) == (Code.OK, [b"soon"])
            assert time.monotonic() - began < 0.5
            assert metric(server, "popwheel_proxy_notify_streams_broken_total") == 0
