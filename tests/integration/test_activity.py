"""Numbers that operators see, of a real process, beside what its clients know."""

import asyncio
import json
import subprocess
import time
from typing import Any

import httpx

from tests.harness.client import MessagingClient, delayed_message
from tests.harness.programs import run_popwheel
from tests.harness.standalone import StandaloneProcess

WITHIN_S = 40.0


def get(server: StandaloneProcess, path: str, **asked: Any) -> dict[str, Any]:
    answer = httpx.get(f"{server.http_url}/api/v1{path}", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["unanswered"] == []
    return found


def admin(server: StandaloneProcess, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_popwheel(["--server", server.http_url, *words])


async def test_numbers_are_what_clients_know(server: StandaloneProcess, client: MessagingClient) -> None:
    for number in range(20):
        await client.send("Counted", b"%d" % number)
    given = await client.receive_all("counting", "Counted", 12, invisible_s=60.0)
    await client.ack("counting", "Counted", given[:7])
    await client.send_messages(delayed_message("CountedLater", b"later", int(time.time() * 1000) + 300_000))

    held = len(given) - 7
    (row,) = get(server, "/groups/counting/balance")["rows"]
    assert (row["stored"], row["done"], row["held"]) == (20, 7, held)
    assert (row["waiting"], row["difference"]) == (20 - len(given), 0)
    (group,) = get(server, "/activity/groups", prefix="counting")["groups"]
    assert (group["lag"], group["waiting"], group["held"], group["topics"]) == (13, 20 - len(given), held, 1)
    (topic,) = get(server, "/activity/topics", prefix="Counted", limit=1)["topics"]
    assert (topic["name"], topic["stored"], topic["groups"], topic["delayed"]) == ("Counted", 20, 1, 0)
    histogram = get(server, "/timers/histogram", bounds_ms="60000,600000")
    assert [each["count"] for each in histogram["buckets"]] == [0, 1, 0]
    overview = get(server, "/activity/overview")
    assert (overview["lag"], overview["held"], overview["delayed"]) == (13, held, 1)

    poll = asyncio.create_task(client.receive("polling", "Counted", poll_s=20.0, expression="none"))
    until = time.monotonic() + WITHIN_S
    while not (polls := get(server, "/polls", group="polling")["polls"]):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    assert (polls[0]["topic"], polls[0]["mode"]) == ("Counted", "notify")
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)

    (process,) = get(server, "/settings")["processes"]
    sources = {each["key"]: each["source"] for each in process["settings"]}
    assert sources["proxy.receive.invisible_ms_min"] == "command line"
    assert sources["broker.flush"] == "default"
    # The first sample may have been taken before the broker was there, and the next one comes ten seconds later.
    while httpx.get(f"{server.http_url}/api/v1/trouble").json()["unanswered"]:
        assert time.monotonic() < until
        await asyncio.sleep(0.2)
    assert get(server, "/trouble")["problems"] == []
    shown = admin(server, "trouble")
    assert (shown.returncode, shown.stdout.strip()) == (0, "nothing is wrong, as far as the controller knows")
    listed = json.loads(admin(server, "activity", "--prefix", "counting", "-o", "json").stdout)
    assert [(each["name"], each["lag"]) for each in listed] == [("counting", 13)]


async def test_rates_and_the_past_come_with_two_samples(server: StandaloneProcess, client: MessagingClient) -> None:
    until = time.monotonic() + WITHIN_S
    while get(server, "/activity/overview")["in_rate"] is None:
        assert time.monotonic() < until
        await asyncio.sleep(0.2)
    sent = 0
    while not any((each["in_rate"] or 0) > 0 for each in get(server, "/activity/topics", prefix="Rated")["topics"]):
        assert time.monotonic() < until
        await client.send("Rated", b"x")
        sent += 1
    before: dict[str, Any] = {}
    while True:  # a sample may be taken between two questions
        (topic,) = get(server, "/activity/topics", prefix="Rated")["topics"]
        if topic == before:
            break
        before = topic
        asked = {"kind": "topic", "name": "Rated"}
        history = httpx.get(f"{server.http_url}/api/v1/activity/history", params=asked).json()
    assert 0 < topic["in_rate"] <= sent / 9
    assert history["in_rate"][-1] == topic["in_rate"]
    assert len(history["lag"]) == len(history["in_rate"])
