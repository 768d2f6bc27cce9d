"""What operators do with a consumer group on a real server: `popwheel admin offset reset`, `popwheel admin dlq`."""

import json
import subprocess
import sys
from base64 import b64decode
from typing import Any

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import ROOT, StandaloneProcess


def admin(server: StandaloneProcess, *words: str, exit_code: int = 0, answer: str = "") -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "services.cli.main", "admin", "--server", server.http_url, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, input=answer, check=False)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout + (done.stderr if exit_code else "")


def told(server: StandaloneProcess, *words: str) -> Any:
    """The same as JSON."""
    return json.loads(admin(server, *words, "-o", "json"))


async def dead_letters(client: MessagingClient, group: str, topic: str, count: int) -> None:
    """Have so many messages of a topic be dead letters of a group."""
    for number in range(count):
        assert (await client.send(topic, b"%d" % number)).status.code == Code.OK
    for message in await client.receive_all(group, topic, count):
        assert (await client.forward_to_dead_letters(group, topic, message)).code == Code.OK


async def test_a_group_is_set_back_and_forward(server: StandaloneProcess, client: MessagingClient) -> None:
    for number in range(10):
        assert (await client.send("Reset", b"%d" % number)).status.code == Code.OK
    first = await client.receive_all("resetters", "Reset", 10)
    assert (await client.ack("resetters", "Reset", first[:5])).status.code == Code.OK

    preview = told(server, "offset", "reset", "resetters", "Reset", "--to", "earliest", "--dry-run")
    assert (preview["in_flight"], preview["retries"], preview["unanswered"]) == (5, 0, [])
    assert sum(each["from_offset"] - each["to_offset"] for each in preview["queues"]) == 10
    admin(server, "offset", "reset", "resetters", "Reset", "--to", "earliest", exit_code=1, answer="n\n")
    assert told(server, "offset", "reset", "resetters", "Reset", "--to", "earliest", "--dry-run") == preview

    assert told(server, "offset", "reset", "resetters", "Reset", "--to", "earliest", "--yes") == preview
    again = await client.receive_all("resetters", "Reset", 10)
    assert sorted(bodies(again)) == [b"%d" % number for number in range(10)]
    stale = await client.ack("resetters", "Reset", first[5:])
    assert {each.status.code for each in stale.entries} == {Code.INVALID_RECEIPT_HANDLE}

    stored = again[0].system_properties.store_timestamp.ToDatetime().isoformat(timespec="milliseconds")
    assert told(server, "offset", "reset", "resetters", "Reset", "--to", "2000-01-01T00:00:00Z", "--yes")["queues"]
    assert len(await client.receive_all("resetters", "Reset", 10)) == 10
    admin(server, "offset", "reset", "resetters", "Reset", "--to", stored, exit_code=2)  # of which zone?
    admin(server, "offset", "reset", "resetters", "Reset", "--to", "latest", "--yes")
    assert (await client.receive("resetters", "Reset", count=10, poll_s=0.5)).messages == []
    admin(server, "offset", "reset", "nobody", "Reset", "--to", "latest", "--yes", exit_code=1)
    admin(server, "offset", "reset", "resetters", "Nowhere", "--to", "latest", "--yes", exit_code=1)


async def test_dead_letters_are_listed_shown_and_redriven(server: StandaloneProcess, client: MessagingClient) -> None:
    await dead_letters(client, "mourners", "Redrive", 7)
    found = told(server, "dlq", "list", "mourners", "--limit", "5")
    assert (len(found["letters"]), found["total"]) == (5, 7)
    assert {each["topic"] for each in found["letters"]} == {"Redrive"}
    letter = found["letters"][2]
    shown = told(server, "dlq", "show", "mourners", letter["broker"], str(letter["queue_offset"]))
    assert b64decode(shown["body"]).isdigit()
    assert shown["message_id"] == letter["message_id"]
    assert told(server, "dlq", "redrive", "mourners", "--dry-run")["would be redriven"] == 7

    assert told(server, "dlq", "redrive", "mourners", "--limit", "3", "--yes")["redriven"] == 3
    assert told(server, "dlq", "redrive", "mourners", "--rate", "2", "--yes")["redriven"] == 4
    assert told(server, "dlq", "list", "mourners") == {"letters": [], "total": 0}
    again = await client.receive_all("mourners", "Redrive", 7)
    assert sorted(bodies(again)) == [b"%d" % number for number in range(7)]
    assert {each.system_properties.delivery_attempt for each in again} == {1}
    admin(server, "dlq", "show", "mourners", letter["broker"], str(letter["queue_offset"]), exit_code=1)


async def test_dead_letters_are_purged_and_can_still_be_read(
    server: StandaloneProcess, client: MessagingClient
) -> None:
    await dead_letters(client, "forgetters", "Purge", 3)
    assert told(server, "dlq", "purge", "forgetters", "--dry-run")["would be purged"] == 3
    assert told(server, "dlq", "purge", "forgetters", "--yes")["purged"] == 3
    assert told(server, "dlq", "list", "forgetters")["total"] == 0
    assert told(server, "dlq", "redrive", "forgetters", "--yes")["redriven"] == 0
    assert len(await client.receive_all("auditors", "%DLQ%forgetters", 3)) == 3


async def test_a_message_is_found_by_its_id_wherever_it_is(server: StandaloneProcess, client: MessagingClient) -> None:
    await dead_letters(client, "tracers", "Trace", 1)
    (message,) = await client.receive_all("others", "Trace", 1)
    message_id = message.system_properties.message_id
    got = told(server, "message", "get", message_id, "--topic", "Trace")
    assert (got["topic"], b64decode(got["body"])) == ("Trace", b"0")
    places = told(server, "message", "trace", message_id, "--topic", "Trace")["places"]
    assert [each["topic"] for each in places] == ["Trace", "%DLQ%tracers"]
    holdings = {each["group"]: each["holding"] for each in places[0]["groups"]}
    assert holdings == {"tracers": "done", "others": "given out"}
    table = admin(server, "message", "trace", message_id, "--topic", "Trace", "--group", "others")
    assert "given out at" in table
    refused = admin(server, "message", "get", "nobody", "--topic", "Trace", exit_code=1)
    assert "no message nobody of Trace" in refused
    admin(server, "message", "get", message_id, "--topic", "Nowhere", exit_code=1)
    admin(server, "message", "get", message_id, "--topic", "Trace", "--since", "yesterday", exit_code=2)
