"""Times to live on a real server: expired messages end, through kill -9, and operators see it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from tests.harness.client import MessagingClient, make_message
from tests.harness.standalone import StandaloneProcess
from tests.integration.conftest import QUICK

GROUP, TOPIC = "traders", "Quotes"


async def put(client: MessagingClient, body: bytes, life: str | None, topic: str = TOPIC) -> tuple[int, str]:
    message = make_message(topic, body)
    if life is not None:
        message.user_properties["TTL_MS"] = life
    answer = await client.send_messages(message)
    return answer.status.code, answer.status.message


async def receive(client: MessagingClient, poll_s: float = 5.0) -> list[Message]:
    return (await client.receive(GROUP, TOPIC, count=16, poll_s=poll_s)).messages


async def metric(http: httpx.AsyncClient, outcome: str) -> str:
    page = (await http.get("/metrics")).text
    (line,) = [
        each for each in page.splitlines() if each.startswith(f'popwheel_expired_messages_total{{outcome="{outcome}"')
    ]
    return line.rpartition(" ")[2]


async def test_expired_messages_end_for_each_group(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with httpx.AsyncClient(base_url=server.http_url) as http, MessagingClient(server.grpc_address) as client:
            made = await http.post("/api/v1/topics", json={"name": TOPIC, "expired_messages": "drop"})
            assert made.json()["expired_messages"] == "drop", made.text
            plain = await http.patch(f"/api/v1/topics/{TOPIC}", json={"expired_messages": "deliver"})
            assert plain.json()["changes"] == [{"field": "expired_messages", "before": "drop", "after": "deliver"}]
            again = await http.patch(f"/api/v1/topics/{TOPIC}", json={"expired_messages": "drop"})
            assert again.json()["changes"] == [{"field": "expired_messages", "before": "deliver", "after": "drop"}]
            assert await receive(client, 0.1) == []
            for number in range(50):
                assert await put(client, b"old %d" % number, "300") == (Code.OK, "OK")
            assert (await put(client, b"lasting", None))[0] == Code.OK
            assert (await put(client, b"long", "3600000"))[0] == Code.OK
            code, sentence = await put(client, b"bad", "5 s")
            assert (code, "must be a whole number" in sentence) == (Code.ILLEGAL_MESSAGE_PROPERTY_KEY, True)
            assert (await put(client, b"other", "5 s", "Plain"))[0] == Code.OK
            await asyncio.sleep(0.4)
            found = [*await receive(client), *await receive(client)]
            assert sorted(each.body for each in found) == [b"lasting", b"long"]
            async with asyncio.timeout(20):
                while await metric(http, "drop") != "50.0":
                    assert await receive(client, 0.2) == []
        server.kill()
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        async with httpx.AsyncClient(base_url=server.http_url) as http, MessagingClient(server.grpc_address) as client:
            assert (await client.ack(GROUP, TOPIC, found)).status.code == Code.OK
            changed = await http.patch(f"/api/v1/topics/{TOPIC}", json={"expired_messages": "dead_letter"})
            assert changed.json()["changes"] == [
                {"field": "expired_messages", "before": "drop", "after": "dead_letter"}
            ]
            assert (await put(client, b"late", "200"))[0] == Code.OK
            await asyncio.sleep(0.3)
            letters: list[Any] = []
            async with asyncio.timeout(20):
                while not letters:
                    assert await receive(client, 0.5) == []
                    letters = (await http.get(f"/api/v1/groups/{GROUP}/dead-letters")).json()["letters"]
            assert [each["topic"] for each in letters] == [TOPIC]
            events = await events_of(http, letters[0]["message_id"])
            assert "time_to_live_passed" in events
            assert "delivered" not in events


async def events_of(http: httpx.AsyncClient, message_id: str) -> list[Any]:
    answer = (await http.get(f"/api/v1/messages/{message_id}/events", params={"topic": TOPIC, "since_ms": 0})).json()
    return [each["kind"] for each in answer["events"]]
