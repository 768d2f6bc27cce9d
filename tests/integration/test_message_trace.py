"""What became of a message, as `popwheel admin message trace` tells it: it went well, failed, is dead, or waits."""

import asyncio
import time
from urllib.parse import quote

import httpx

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import COMMIT, ROLLBACK, Code, Message
from popwheel_controller.http.message_fates import Fate
from tests.harness.client import MessagingClient, delayed_message, half_message, make_message
from tests.harness.standalone import StandaloneProcess

TOPIC = "Traced"


PASSING = "done"
"""Told of a message for a moment, if its delivery ends between two looks at the broker."""


async def fates_of(server: StandaloneProcess, message_id: str, topic: str = TOPIC) -> list[Fate]:
    """What is notified of it, page by page."""
    found: list[Fate] = []
    after: str | None = ""
    async with httpx.AsyncClient(base_url=f"{server.http_url}/api/v1", timeout=20) as http:
        while after is not None:
            answer = await http.get(f"/messages/{quote(message_id)}", params={"topic": topic, "after": after})
            assert answer.status_code == 200, answer.text
            page = answer.json()
            assert page["unanswered"] == []
            found += (Fate.model_validate(each) for each in page["fates"])
            at_places = {one["fate"] for each in page["places"] for one in (each, *each["groups"])} - {None}
            assert at_places == {each["words"] for each in page["fates"]}
            after = page["next"]
    return found


async def fate_of(server: StandaloneProcess, message_id: str, topic: str = TOPIC) -> Fate:
    """The only thing that is notified of it."""
    (fate,) = await fates_of(server, message_id, topic)
    return fate


async def group_of(server: StandaloneProcess, name: str, max_attempts: int = 3) -> str:
    """A new group that tries again after a second."""
    async with httpx.AsyncClient(base_url=f"{server.http_url}/api/v1", timeout=20) as http:
        body = {"name": name, "max_attempts": max_attempts, "backoff_ms": [1000]}
        assert (await http.post("/groups", json=body)).status_code == 201
    return name


async def received(
    client: MessagingClient, group: str, topic: str, invisible_s: float = 60.0, expression: str = "*"
) -> Message:
    """The next message, waited for."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        found = await client.receive(group, topic, count=1, poll_s=2, invisible_s=invisible_s, expression=expression)
        if found.messages:
            return found.messages[0]
    raise AssertionError("no message came")


async def sent(client: MessagingClient, topic: str, tag: str = "") -> str:
    """Its id."""
    answer = await client.send(topic, b"body", tag=tag)
    assert answer.status.code == Code.OK
    return answer.entries[0].message_id


async def test_what_goes_well(server: StandaloneProcess, client: MessagingClient) -> None:
    group = await group_of(server, "fine")
    message_id = await sent(client, "Fine")
    message = await received(client, group, "Fine")
    fate = await fate_of(server, message_id, "Fine")
    assert (fate.group, fate.state, fate.attempts) == (group, "in flight", 0)
    assert fate.until_ms is not None
    assert fate.since_ms is not None
    assert 50_000 < fate.until_ms - fate.since_ms < 70_000
    unread = await sent(client, "Fine")
    assert (await fate_of(server, unread, "Fine")).state == "unread"
    assert (await client.ack(group, "Fine", [message])).status.code == Code.OK
    assert (await fate_of(server, message_id, "Fine")).state == "acknowledged"


async def test_what_fails_is_shown_as_failed(server: StandaloneProcess, client: MessagingClient) -> None:
    group = await group_of(server, "failing")
    message_id = await sent(client, "Failing")
    message = await received(client, group, "Failing")
    assert (await client.change_invisible(group, "Failing", message, 1.0)).status.code == Code.OK
    fate = await fate_of(server, message_id, "Failing")
    assert (fate.state, fate.attempts) == ("put off", 0)
    assert "attempt 2 at " in fate.words
    while fate.state in ("put off", PASSING):
        await asyncio.sleep(0.1)
        fate = await fate_of(server, message_id, "Failing")
    assert (fate.state, fate.attempts) == ("waits for retry", 1)
    message = await received(client, group, "Failing")
    fate = await fate_of(server, message_id, "Failing")
    assert (fate.state, fate.attempts) == ("in flight", 1)
    assert (await client.ack(group, "Failing", [message])).status.code == Code.OK
    fate = await fate_of(server, message_id, "Failing")
    assert (fate.state, fate.attempts) == ("acknowledged", 1)
    assert fate.words == "acknowledged, 1 attempt failed before"


async def test_dead_letters_are_shown_as_such(server: StandaloneProcess, client: MessagingClient) -> None:
    group = await group_of(server, "dying", max_attempts=2)
    message_id = await sent(client, "Dying")
    await received(client, group, "Dying", invisible_s=0.5)
    await received(client, group, "Dying", invisible_s=0.5)
    fate = await fate_of(server, message_id, "Dying")
    while fate.state in ("in flight", PASSING):
        await asyncio.sleep(0.1)
        fate = await fate_of(server, message_id, "Dying")
    assert (fate.state, fate.attempts) == ("dead letter", 2)
    assert "dead letter after 2 attempts" in fate.words
    others = await group_of(server, "living")
    await received(client, others, "Dying")
    assert {each.group: each.state for each in await fates_of(server, message_id, "Dying")} == {
        "dying": "dead letter",
        "living": "in flight",
    }


async def test_what_its_consumer_gave_up_at_once(server: StandaloneProcess, client: MessagingClient) -> None:
    group = await group_of(server, "giving-up")
    message_id = await sent(client, "GivenUp")
    message = await received(client, group, "GivenUp")
    assert (await client.forward_to_dead_letters(group, "GivenUp", message)).code == Code.OK
    fate = await fate_of(server, message_id, "GivenUp")
    assert (fate.state, fate.attempts) == ("dead letter", 1)


async def test_what_a_filter_keeps_back(server: StandaloneProcess, client: MessagingClient) -> None:
    group = await group_of(server, "choosing")
    message_id = await sent(client, "Choosing", tag="red")
    other = await sent(client, "Choosing", tag="blue")
    message = await received(client, group, "Choosing", expression="blue")
    assert message.system_properties.message_id == other
    await client.receive(group, "Choosing", count=1, poll_s=0.5, expression="blue")
    fate = await fate_of(server, message_id, "Choosing")
    assert fate.state == "done"
    assert "its filter of now, blue, does not let it through" in fate.words


async def test_what_waits_for_its_time(server: StandaloneProcess, client: MessagingClient) -> None:
    due_ms = round(time.time() * 1000) + 600_000
    answer = await client.send_messages(delayed_message("Later", b"x", due_ms))
    message_id, handle = answer.entries[0].message_id, answer.entries[0].recall_handle
    fate = await fate_of(server, message_id, "Later")
    assert (fate.group, fate.state, fate.until_ms) == ("", "delayed", due_ms)
    assert (await client.recall("Later", handle)).status.code == Code.OK
    assert (await fate_of(server, message_id, "Later")).state == "recalled"


async def test_what_was_delayed_and_came(server: StandaloneProcess, client: MessagingClient) -> None:
    group = await group_of(server, "patient")
    due_ms = round(time.time() * 1000) + 2_000
    answer = await client.send_messages(delayed_message("Soon", b"x", due_ms))
    await received(client, group, "Soon")
    fate = await fate_of(server, answer.entries[0].message_id, "Soon")
    assert (fate.group, fate.state) == (group, "in flight")


async def test_transactions(server: StandaloneProcess, client: MessagingClient) -> None:
    async def begun() -> tuple[str, str]:
        entry = (await client.send_messages(half_message("Halves", b"x"))).entries[0]
        return entry.message_id, entry.transaction_id

    async with httpx.AsyncClient(base_url=f"{server.http_url}/api/v1", timeout=20) as http:
        assert (await http.post("/topics", json={"name": "Halves", "type": "TRANSACTION"})).status_code == 201
    group = await group_of(server, "atomic")
    message_id, transaction = await begun()
    fate = await fate_of(server, message_id, "Halves")
    assert (fate.group, fate.state) == ("", "open")
    assert "its senders were asked 0 times" in fate.words
    assert (await client.end_transaction("Halves", transaction, ROLLBACK, message_id)).code == Code.OK
    assert (await fate_of(server, message_id, "Halves")).state == "rolled back"
    message_id, transaction = await begun()
    assert (await client.end_transaction("Halves", transaction, COMMIT, message_id)).code == Code.OK
    await received(client, group, "Halves")
    assert (await fate_of(server, message_id, "Halves")).state == "in flight"


async def test_an_id_that_was_sent_twice(server: StandaloneProcess, client: MessagingClient) -> None:
    """Clients try a send again under the id that it has."""
    group = await group_of(server, "twice")
    message = make_message("Twice", b"x")
    for _ in range(2):
        assert (await client.send_messages(message)).status.code == Code.OK
    first = await received(client, group, "Twice")
    assert (await client.ack(group, "Twice", [first])).status.code == Code.OK
    found = await fates_of(server, message.system_properties.message_id, "Twice")
    assert sorted(each.state for each in found) in (["acknowledged"], ["acknowledged", "unread"])
