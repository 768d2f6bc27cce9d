"""Messages over the admin API of a real server: browsed, followed, sent; dead letters chosen and exported."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import StandaloneProcess
from tests.integration.test_group_verbs import dead_letters

BODY_BYTES_MAX = 4 * 1024 * 1024


@asynccontextmanager
async def api(server: StandaloneProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"{server.http_url}/api/v1", timeout=20) as http:
        yield http


async def made(http: httpx.AsyncClient, name: str, kind: str = "NORMAL") -> str:
    queues = {"queues": 2} if kind == "NORMAL" else {}
    answer = await http.post("/topics", json={"name": name, "type": kind, **queues})
    assert answer.status_code == 201, answer.text
    return name


async def browsed(http: httpx.AsyncClient, topic: str, **asked: Any) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        answer = await http.get(f"/topics/{topic}/browse", params={**asked, "after": after})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert page["unanswered"] == []
        found += page["messages"]
        after = page["next"]
    return found


async def events(answer: httpx.Response) -> AsyncGenerator[tuple[str, Any], None]:
    """The events of a tail; heartbeats are passed over."""
    kind = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


async def open_tails(http: httpx.AsyncClient) -> int:
    page = (await http.get(str(http.base_url).replace("/api/v1/", "/metrics"))).text
    (line,) = (each for each in page.splitlines() if each.startswith("popwheel_controller_tails "))
    return int(float(line.split()[1]))


async def until_open(http: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(10):
        while await open_tails(http) != count:
            await asyncio.sleep(0.1)


async def test_what_a_topic_holds(server: StandaloneProcess, client: MessagingClient) -> None:
    async with api(server) as http:
        topic = await made(http, "Browsed")
        for number in range(10):
            assert (
                await client.send(topic, b"%d" % number, tag="odd" if number % 2 else "even")
            ).status.code == Code.OK
        for limit in (1, 3, 100):
            found = await browsed(http, topic, limit=limit)
            assert sorted(each["body"] for each in found) == [str(number) for number in range(10)]
        odd = await browsed(http, topic, tag="odd", limit=2)
        assert {each["body"] for each in odd} == {"1", "3", "5", "7", "9"}
        first = found[0]["queue_offset"]
        queue = await browsed(http, topic, queue_id=1, offset=first + 3)
        assert [each["queue_offset"] for each in queue] == [first + 3, first + 4]
        assert {each["queue_offset"] for each in await browsed(http, topic, last=1)} == {first + 4}
        assert (await http.get(f"/topics/{topic}/browse", params={"last": 1, "offset": 1})).status_code == 400
        assert (await http.get("/topics/Nothing/browse")).status_code == 404
    assert len(await client.receive_all("takers", topic, 10)) == 10, "nothing was taken away"


async def test_what_comes_is_seen_and_readers_may_be_killed(server: StandaloneProcess, client: MessagingClient) -> None:
    async with api(server) as http:
        topic = await made(http, "Followed")
        await client.send(topic, b"before")
        async with http.stream("GET", f"/topics/{topic}/tail") as answer, aclosing(events(answer)) as seen:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert await anext(seen) == ("begun", {})
            assert (await client.send(topic, b"first", tag="red")).status.code == Code.OK
            kind, message = await anext(seen)
            assert (kind, message["body"], message["tag"], message["topic"]) == ("message", "first", "red", topic)
        await until_open(http, 0)

        # Readers that are killed in the midst of it leave nothing behind.
        reader = (
            "import sys, httpx\nwith httpx.stream('GET', sys.argv[1], timeout=60) as a:\n  for b in a.iter_raw(): pass"
        )
        url = f"{server.http_url}/api/v1/topics/{topic}/tail"
        readers = [subprocess.Popen([sys.executable, "-c", reader, url]) for _ in range(8)]
        try:
            await until_open(http, 8)
            ninth = await http.get(f"/topics/{topic}/tail")
            assert (ninth.status_code, ninth.json()["code"]) == (429, "TOO_MANY_REQUESTS")
            for each in readers[:4]:
                os.kill(each.pid, signal.SIGKILL)
            await client.send(topic, b"for those that are left")
            await until_open(http, 4)
        finally:
            for each in readers:
                each.kill()
                each.wait()
        await until_open(http, 0)


async def test_more_than_can_be_shown_is_counted(server: StandaloneProcess, client: MessagingClient) -> None:
    async with api(server) as http:
        topic = await made(http, "Rapids")
        asked: dict[str, Any] = {"rate": 10, "tag": "red"}
        async with (
            http.stream("GET", f"/topics/{topic}/tail", params=asked) as answer,
            aclosing(events(answer)) as seen,
        ):
            assert (await anext(seen))[0] == "begun"
            for number in range(100):
                await client.send(topic, b"%d" % number, tag="red")
            shown = skipped = 0
            began_s = time.monotonic()
            async for kind, data in seen:
                shown += kind == "message"
                skipped += data["count"] if kind == "skipped" else 0
                if shown + skipped >= 100:
                    break
            assert shown + skipped == 100
            assert 10 <= shown <= 10 * (2 + time.monotonic() - began_s)
            await http.delete(f"/topics/{topic}")
            async for kind, data in seen:
                if kind == "end":
                    assert data["code"] == "TOPIC_NOT_FOUND"
                    return
        raise AssertionError("the tail went on without its topic")


async def test_messages_of_each_kind_are_sent(server: StandaloneProcess, client: MessagingClient) -> None:
    async with api(server) as http:
        body = {"body": "grüße", "tag": "red", "keys": ["k1", "k2"], "properties": {"p": "v"}}
        answer = await http.post("/topics/SentPlain/messages", json=body)
        assert answer.status_code == 201, answer.text
        sent = answer.json()
        assert (sent["topic"], sent["recall_handle"]) == ("SentPlain", None)
        (message,) = await client.receive_all("takers", "SentPlain", 1)
        system = message.system_properties
        assert (message.body.decode(), system.tag, [*system.keys]) == ("grüße", "red", ["k1", "k2"])
        assert dict(message.user_properties) == {"p": "v"}
        assert (system.message_id, system.queue_offset) == (sent["message_id"], sent["queue_offset"])
        assert system.born_host == "127.0.0.1"

        kinds: list[tuple[str, dict[str, Any]]] = [
            ("FIFO", {"message_group": "g"}),
            ("PRIORITY", {"priority": 3}),
            ("LITE", {"lite_topic": "l"}),
        ]
        for kind, more in kinds:
            topic = await made(http, f"Sent{kind}", kind)
            answer = await http.post(f"/topics/{topic}/messages", json={"body": kind, **more})
            assert answer.status_code == 201, answer.text
            lite = {"lite_topic": "l"} if kind == "LITE" else {}
            assert [each["body"] for each in await browsed(http, topic, **lite)] == [kind]
        refused = await http.post("/topics/SentFIFO/messages", json={"body": "plain"})
        assert (refused.status_code, refused.json()["code"]) == (400, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE")

        topic = await made(http, "SentDELAY", "DELAY")
        answer = await http.post(f"/topics/{topic}/messages", json={"body": "later", "delay_ms": 60_000})
        handle = answer.json()["recall_handle"]
        assert answer.json()["queue_offset"] is None
        assert (await http.get("/timers", params={"topic": topic})).json()["timers"][0]["recall_handle"] == handle
        both = {"body": "x", "delay_ms": 1, "priority": 1}
        assert "choose one" in (await http.post(f"/topics/{topic}/messages", json=both)).json()["message"]


async def test_the_longest_message_goes_through_and_its_body_into_no_line(server: StandaloneProcess) -> None:
    longest = os.urandom(BODY_BYTES_MAX)
    async with api(server) as http:
        body = {"body": b64encode(longest).decode(), "body_encoding": "base64"}
        answer = await http.post("/topics/SentLong/messages", json=body)
        assert answer.status_code == 201, answer.text
        (found,) = await browsed(http, "SentLong")
        assert (found["body_bytes"], b64decode(found["body"])) == (BODY_BYTES_MAX, longest[:1024])
        too_long = await http.post("/topics/SentLong/messages", json={"body": "x" * (BODY_BYTES_MAX + 1)})
        assert (too_long.status_code, too_long.json()["code"]) == (413, "MESSAGE_BODY_TOO_LARGE")
        far_too_long = await http.post("/topics/SentLong/messages", json={"body": "x" * 6_000_000})
        assert (far_too_long.status_code, far_too_long.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
        elsewhere = await http.post("/topics", json={"name": "x" * 20_000})
        assert elsewhere.status_code == 413
        await http.post("/topics/SentLong/messages", json={"body": "a secret"})
        changes = await http.get("/changes", params={"object": "SentLong"})
        assert [each["verb"] for each in changes.json()["changes"]] == ["message send"] * 3
        assert "secret" not in changes.text and body["body"][:100] not in changes.text


async def test_dead_letters_are_chosen_and_exported(server: StandaloneProcess, client: MessagingClient) -> None:
    await dead_letters(client, "doomed", "Choosing", 6)
    async with api(server) as http:
        path = "/groups/doomed/dead-letters"
        page = (await http.get(path, params={"limit": 4})).json()
        assert (len(page["letters"]), page["total"], page["unanswered"]) == (4, 6, [])
        rest = (await http.get(path, params={"after": page["next"]})).json()
        letters = page["letters"] + rest["letters"]
        assert (len(letters), rest["next"]) == (6, None)

        lines = (await http.get(f"{path}/export")).text.splitlines()
        exported = [json.loads(each) for each in lines]
        assert exported.pop() == {"next": None, "unanswered": []}
        assert [each["message_id"] for each in exported] == [each["message_id"] for each in letters]

        chosen = [{"broker": each["broker"], "queue_offset": each["queue_offset"]} for each in (letters[1], letters[4])]
        gone = {"broker": letters[0]["broker"], "queue_offset": 77}
        wanted = {"letters": [*chosen, gone]}
        would = (await http.post(f"{path}/redrive", json={**wanted, "dry_run": True})).json()
        assert (would["redriven"], would["kept"], would["moved"]) == (2, 0, 3)
        assert [(each["queue_offset"], each["broker"]) for each in would["refused"]] == [(77, gone["broker"])]
        assert (await http.get(path)).json()["total"] == 6
        assert (await http.post(f"{path}/redrive", json=wanted)).json() == would
        again = await client.receive_all("doomed", "Choosing", 2)
        assert sorted(bodies(again)) == sorted(letters[at]["body"].encode() for at in (1, 4))
        left = (await http.get(path)).json()["letters"]
        assert [each["body"] for each in left] == [letters[at]["body"] for at in (5, 0, 2, 3)]
        changes = (await http.get("/changes", params={"object": "doomed"})).json()["changes"]
        assert [each["verb"] for each in changes] == ["dlq redrive"], "a dry run leaves no line"
