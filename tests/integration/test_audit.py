"""Fate of each message, reported by the admin API of a real process: acked, in flight, waiting, dead or unread."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from tests.harness.client import MessagingClient
from tests.harness.standalone import ROOT, StandaloneProcess

COUNT = 60


def pages(server: StandaloneProcess, path: str, name: str, **asked: Any) -> list[dict[str, Any]]:
    """The rows of all pages."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        answer = httpx.get(f"{server.http_url}/api/v1{path}", params={**asked, "after": after, "limit": 7})
        assert answer.status_code == 200, answer.text
        assert answer.json()["unanswered"] == []
        found += answer.json()[name]
        after = answer.json()["next"]
    return found


async def pulled(client: MessagingClient, queue: definition.MessageQueue, topic: str) -> dict[str, int]:
    """Id and offset of all that a queue of a topic at a queue's broker holds, the latest offset of each."""
    asked = definition.MessageQueue()
    asked.CopyFrom(queue)
    asked.topic.name = topic
    asked.id = queue.id if topic == queue.topic.name else 0
    found: dict[str, int] = {}
    offset = 0
    while messages := await client.pull("auditor", asked, offset):
        found.update((each.system_properties.message_id, each.system_properties.queue_offset) for each in messages)
        offset = messages[-1].system_properties.queue_offset + 1
    return found


async def audited(server: StandaloneProcess, client: MessagingClient, group: str, topic: str) -> dict[str, str]:
    """What became of each message of a topic, by its id, as docs/operate/messages.md says it: progress is read first,
    then what is in flight, and then retries and dead letters are read.
    """
    progress = pages(server, f"/groups/{group}/progress", "queues", topic=topic)
    next_offset = {(one["topic"], one["queue_id"]): one["next_offset"] for one in progress}
    in_flight = {one["message_id"] for one in pages(server, "/inflight", "messages", topic=topic, group=group)}
    queues = (await client.route(topic)).message_queues
    retry_topic = f"%RETRY%{group}+{topic}"
    retries = await pulled(client, queues[0], retry_topic)
    dead = await pulled(client, queues[0], f"%DLQ%{group}")
    found: dict[str, str] = {}
    for queue in queues:
        for message_id, offset in (await pulled(client, queue, topic)).items():
            if message_id in dead:
                state = "dead letter"
            elif message_id in in_flight:
                state = "in flight"
            elif message_id in retries:
                waits = retries[message_id] >= next_offset.get((retry_topic, 0), 0)
                state = "waits for its retry" if waits else "acked"
            else:
                state = "acked" if offset < next_offset.get((topic, queue.id), 0) else "unread"
            found[message_id] = state
    return found


async def test_an_auditor_can_say_of_each_message_what_became_of_it(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    for number in range(COUNT):
        await client.send("Audited", b"%d" % number)
    given = await client.receive_all("auditing", "Audited", COUNT - 10, invisible_s=60.0)
    expected = {each.system_properties.message_id: "in flight" for each in given}

    def noted(messages: Sequence[definition.Message], state: str) -> Sequence[definition.Message]:
        expected.update({each.system_properties.message_id: state for each in messages})
        return messages

    await client.ack("auditing", "Audited", noted(given[:10], "acked"))
    for message in noted(given[10:13], "dead letter"):
        await client.forward_to_dead_letters("auditing", "Audited", message)
    for message in given[13:20]:
        await client.change_invisible("auditing", "Audited", message, 500 / 1000)
    until = time.monotonic() + 20
    retry_topic = "%RETRY%auditing+Audited"
    while True:
        rows = pages(server, "/groups/auditing/progress", "queues", topic="Audited")
        if [one["lag"] for one in rows if one["topic"] == retry_topic] == [7]:
            break
        assert time.monotonic() < until
    noted(given[13:20], "waits for its retry")
    found = await audited(server, client, "auditing", "Audited")
    assert len(found) == COUNT
    assert {key: found[key] for key in expected} == expected
    assert sorted(found[key] for key in found.keys() - expected.keys()) == ["unread"] * (COUNT - len(given))

    again = await client.receive_all("auditing", "Audited", 17, invisible_s=60.0)
    retried = [each for each in again if each.system_properties.delivery_attempt == 2]
    assert len(retried) == 7
    noted(again, "in flight")
    await client.ack("auditing", "Audited", noted(retried[:3], "acked"))
    assert await audited(server, client, "auditing", "Audited") == expected
    attempts = pages(server, "/inflight", "messages", topic="Audited", group="auditing")
    assert sorted(one["attempt"] for one in attempts if one["topic"] == retry_topic) == [2] * 4
    assert all(0 < one["due_ms"] - time.time_ns() // 1_000_000 <= 60_000 for one in attempts)


def test_the_verbs_show_it(server: StandaloneProcess) -> None:
    def admin(*words: str) -> Any:
        command = [
            sys.executable,
            "-m",
            "popwheel_cli.main",
            "admin",
            "--server",
            server.http_url,
            *words,
            "-o",
            "json",
        ]
        return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60).stdout)

    assert httpx.post(f"{server.http_url}/api/v1/topics", json={"name": "Quiet"}).status_code == 201
    assert httpx.post(f"{server.http_url}/api/v1/groups", json={"name": "spark-quiet"}).status_code == 201
    quiet = admin("inflight", "--topic", "Quiet")
    (since_ms,) = quiet.pop("known_since_ms").values()
    assert quiet == {"messages": [], "more": False, "unanswered": []}
    assert 0 < since_ms < time.time_ns() // 1_000_000
    progress = admin("progress", "spark-quiet")
    assert (progress["kind"], progress["queues"], progress["dead_letters"]) == ("Spark", [], {"broker-0": 0})
