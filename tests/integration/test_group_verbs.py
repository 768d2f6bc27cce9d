"""What operators do with a consumer group on a real server: `popwheel admin offset reset`, `popwheel admin dlq`."""

import asyncio
import json
import subprocess
from typing import Any

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies, make_message
from tests.harness.preloaded import PROGRAM
from tests.harness.programs import run_popwheel
from tests.harness.standalone import ROOT, StandaloneProcess


def admin(server: StandaloneProcess, *words: str, exit_code: int = 0, answer: str = "") -> str:
    """What a command prints."""
    words = ("admin", "--server", server.http_url, *words)
    if answer:
        command = [*PROGRAM, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, input=answer, check=False)
    else:
        done = run_popwheel(words)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout + (done.stderr if exit_code else "")


def reported(server: StandaloneProcess, *words: str) -> Any:
    """The same as JSON."""
    return json.loads(admin(server, *words, "-o", "json"))


async def dead_letters(client: MessagingClient, group: str, topic: str, count: int) -> None:
    """Make a number of messages of a topic dead letters of a group."""
    for number in range(count):
        assert (await client.send(topic, b"%d" % number)).status.code == Code.OK
    for message in await client.receive_all(group, topic, count):
        assert (await client.forward_to_dead_letters(group, topic, message)).code == Code.OK


async def test_a_group_is_set_back_and_forward(server: StandaloneProcess, client: MessagingClient) -> None:
    for number in range(10):
        assert (await client.send("Reset", b"%d" % number)).status.code == Code.OK
    first = await client.receive_all("resetters", "Reset", 10)
    assert (await client.ack("resetters", "Reset", first[:5])).status.code == Code.OK

    preview = reported(server, "offset", "reset", "resetters", "Reset", "--to", "earliest", "--dry-run")
    assert (preview["in_flight"], preview["retries"], preview["unanswered"]) == (5, 0, [])
    assert sum(each["from_offset"] - each["to_offset"] for each in preview["queues"]) == 10
    forced = ("resetters", "Reset", "--force", "--to")
    admin(server, "offset", "reset", *forced, "earliest", exit_code=2)  # nobody to ask
    again = reported(server, "offset", "reset", "resetters", "Reset", "--to", "earliest", "--dry-run")
    assert again["queues"] == preview["queues"]

    assert reported(server, "offset", "reset", *forced, "earliest", "--yes")["queues"] == preview["queues"]
    again = await client.receive_all("resetters", "Reset", 10)
    assert sorted(bodies(again)) == [b"%d" % number for number in range(10)]
    stale = await client.ack("resetters", "Reset", first[5:])
    assert {each.status.code for each in stale.entries} == {Code.INVALID_RECEIPT_HANDLE}

    stored = again[0].system_properties.store_timestamp.ToDatetime().isoformat(timespec="milliseconds")
    assert reported(server, "offset", "reset", *forced, "2000-01-01T00:00:00Z", "--yes")["queues"]
    assert len(await client.receive_all("resetters", "Reset", 10)) == 10
    admin(server, "offset", "reset", *forced, stored, exit_code=2)  # of which zone?
    for place in ("-1h", "offset:0"):
        moved = reported(server, "offset", "reset", *forced, place, "--yes")
        assert {each["to_offset"] for each in moved["queues"]} == {0}
        assert len(await client.receive_all("resetters", "Reset", 10)) == 10
    moved = reported(server, "offset", "reset", "resetters", "Reset", "--force", "--shift", "-1000", "--yes")
    assert all(each["clamped"] and not each["to_offset"] for each in moved["queues"])
    one = moved["queues"][0]
    queue = ("--broker", one["broker"], "--queue", str(one["queue_id"]))
    moved = reported(server, "offset", "reset", "resetters", "Reset", "--force", "--shift", "1", *queue, "--yes")
    assert [(each["queue_id"], each["to_offset"]) for each in moved["queues"]] == [(one["queue_id"], 1)]
    assert len(await client.receive_all("resetters", "Reset", 9)) == 9
    admin(server, "offset", "reset", *forced, "latest", "--yes")
    assert (await client.receive("resetters", "Reset", count=10, poll_s=0.5)).messages == []
    admin(server, "offset", "reset", "nobody", "Reset", "--to", "latest", "--yes", exit_code=1)
    admin(server, "offset", "reset", "resetters", "Nowhere", "--to", "latest", "--yes", exit_code=1)


async def test_a_reset_is_refused_while_consumers_are_connected(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    assert (await client.send("Connected", b"x")).status.code == Code.OK
    assert len(await client.receive_all("connected", "Connected", 1)) == 1
    waiting = asyncio.create_task(client.receive("connected", "Connected", poll_s=60.0, invisible_s=300.0))
    await asyncio.sleep(0.1)  # the poll is on its way
    reset = ("offset", "reset", "connected", "Connected", "--to", "earliest")
    refused = await asyncio.to_thread(admin, server, *reset, "--yes", exit_code=1)
    assert "PRECONDITION_FAILED: consumers of connected are connected (at least 1)" in refused
    async with httpx.AsyncClient(base_url=f"{server.http_url}/api/v1/groups/connected") as http:
        wanted = {"topic": "Connected", "to": "earliest"}
        answer = await http.post("/reset", json=wanted)
        assert (answer.status_code, answer.json()["code"]) == (409, "PRECONDITION_FAILED")
        preview = (await http.post("/reset", json={**wanted, "dry_run": True})).json()
        assert (preview["consumers"], preview["in_flight"], waiting.done()) == (1, 1, False)
        done = (await http.post("/reset", json={**wanted, "force": True})).json()
        assert done["in_flight"] == 1
    assert bodies((await waiting).messages) == [b"x"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"to": "offset"}, "`offset` goes with `to: offset`"),
        ({"to": "latest", "shift": 1}, "`shift` with `to: shift`"),
        ({"to": "latest", "queue_id": 0}, "name both `broker` and `queue_id`"),
        ({"to": "latest", "broker": "broker-0"}, "name both `broker` and `queue_id`"),
        ({"to": "latest", "broker": "broker-0", "queue_id": 64}, "has no queue 64"),
    ],
)
async def test_a_reset_that_makes_no_sense(
    server: StandaloneProcess, client: MessagingClient, wanted: dict[str, Any], words: str
) -> None:
    async with httpx.AsyncClient(base_url=f"{server.http_url}/api/v1") as http:
        await http.post("/topics", json={"name": "Senseless"})
        await http.post("/groups", json={"name": "senseless"})
        answer = await http.post("/groups/senseless/reset", json={"topic": "Senseless", **wanted})
    assert answer.status_code == 400
    assert words in answer.json()["message"]


async def test_dead_letters_are_listed_shown_and_redriven(server: StandaloneProcess, client: MessagingClient) -> None:
    await dead_letters(client, "mourners", "Redrive", 7)
    found = reported(server, "dlq", "list", "mourners", "--limit", "5")
    assert (len(found["letters"]), found["total"]) == (5, 7)
    assert {each["topic"] for each in found["letters"]} == {"Redrive"}
    letter = found["letters"][2]
    shown = reported(server, "dlq", "show", "mourners", letter["broker"], str(letter["queue_offset"]))
    assert shown["body"].isdigit()
    assert shown["body_encoding"] == "text"
    assert all(each["body"].isdigit() for each in found["letters"])
    assert shown["message_id"] == letter["message_id"]
    assert reported(server, "dlq", "redrive", "mourners", "--dry-run")["would be redriven"] == 7

    assert reported(server, "dlq", "redrive", "mourners", "--limit", "3", "--yes")["redriven"] == 3
    assert reported(server, "dlq", "redrive", "mourners", "--rate", "2", "--yes")["redriven"] == 4
    assert reported(server, "dlq", "list", "mourners") == {"letters": [], "total": 0}
    again = await client.receive_all("mourners", "Redrive", 7)
    assert sorted(bodies(again)) == [b"%d" % number for number in range(7)]
    assert {each.system_properties.delivery_attempt for each in again} == {1}
    admin(server, "dlq", "show", "mourners", letter["broker"], str(letter["queue_offset"]), exit_code=1)


async def test_dead_letters_are_purged_and_can_still_be_read(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await dead_letters(client, "forgetters", "Purge", 3)
    assert reported(server, "dlq", "purge", "forgetters", "--dry-run")["would be purged"] == 3
    assert reported(server, "dlq", "purge", "forgetters", "--yes")["purged"] == 3
    assert reported(server, "dlq", "list", "forgetters")["total"] == 0
    assert reported(server, "dlq", "redrive", "forgetters", "--yes")["redriven"] == 0
    assert len(await client.receive_all("auditors", "%DLQ%forgetters", 3)) == 3


async def test_a_message_is_found_by_its_id_wherever_it_is(server: StandaloneProcess, client: MessagingClient) -> None:
    await dead_letters(client, "tracers", "Trace", 1)
    (message,) = await client.receive_all("others", "Trace", 1)
    message_id = message.system_properties.message_id
    got = reported(server, "message", "get", message_id, "--topic", "Trace")
    assert (got["topic"], got["body"], got["body_encoding"]) == ("Trace", "0", "text")
    places = reported(server, "message", "trace", message_id, "--topic", "Trace")["places"]
    assert [each["topic"] for each in places] == ["Trace", "%DLQ%tracers"]
    holdings = {each["group"]: each["holding"] for each in places[0]["groups"]}
    assert holdings == {"tracers": "done", "others": "delivered"}
    table = admin(server, "message", "trace", message_id, "--topic", "Trace", "--group", "others")
    assert "delivered at" in table
    refused = admin(server, "message", "get", "nobody", "--topic", "Trace", exit_code=1)
    assert "no message nobody of Trace" in refused
    admin(server, "message", "get", message_id, "--topic", "Nowhere", exit_code=1)
    admin(server, "message", "get", message_id, "--topic", "Trace", "--since", "yesterday", exit_code=2)


async def test_messages_are_found_by_their_key_and_time(server: StandaloneProcess, client: MessagingClient) -> None:
    for number in range(5):
        message = make_message("Keys", b"%d" % number)
        message.system_properties.keys.append("odd" if number % 2 else "even")
        assert (await client.send_messages(message)).status.code == Code.OK
    found = reported(server, "message", "list", "--topic", "Keys", "--key", "even")
    assert sorted(each["body"] for each in found["messages"]) == ["0", "2", "4"]
    assert (found["looked_through"], found["unreadable"], found["more"]) == (5, 0, False)
    last = max(each["stored_ms"] for each in found["messages"])
    query = {"topic": "Keys", "key": "even", "since_ms": last + 1}
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{server.http_url}/api/v1/messages", params=query)).json()
        assert (page["messages"], page["looked_through"], page["next"]) == ([], 0, None)
        refused = await http.get(f"{server.http_url}/api/v1/messages", params={"topic": "Keys"})
        assert refused.status_code == 400
        assert "key" in refused.json()["message"]
    admin(server, "message", "list", "--topic", "Nowhere", "--key", "even", exit_code=1)


async def test_dead_letters_are_selected_and_exported(server: StandaloneProcess, client: MessagingClient) -> None:
    await dead_letters(client, "pickers", "Picked", 5)
    letters = reported(server, "dlq", "list", "pickers")["letters"]
    lines = [json.loads(line) for line in admin(server, "dlq", "export", "pickers").splitlines()]
    assert [each["body"] for each in lines] == [each["body"] for each in letters]
    assert len(admin(server, "dlq", "export", "pickers", "--limit", "2").splitlines()) == 2
    chosen = [f"{each['broker']}/{each['queue_offset']}" for each in (letters[3], letters[1])]
    select = ("dlq", "redrive", "pickers", "--select", chosen[0], "--select", chosen[1], "--rate", "2")
    would = {"would be redriven": 2, "would be kept": 0, "group": "pickers"}
    # Each batch is of one, so the first moves one and the second one more.
    assert reported(server, *select, "--dry-run").items() >= would.items()
    assert reported(server, *select, "--yes") == {"group": "pickers", "redriven": 2, "kept": 0, "moved": 2}
    again = await client.receive_all("pickers", "Picked", 2)
    assert sorted(bodies(again)) == sorted(letters[at]["body"].encode() for at in (1, 3))
    assert "no dead letter (any more)" in admin(server, *select, "--yes", exit_code=1)
    admin(server, *select, "--broker", "broker-0", exit_code=2)
    admin(server, "dlq", "redrive", "pickers", "--select", "7", "--yes", exit_code=2)
