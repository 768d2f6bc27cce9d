"""Forms that change something: what each asks the API for, where it leads, and whom it is shown to."""

import json
from typing import Any

import pytest

from popwheel_console.answer import Answer
from popwheel_console.pages.send import draft, lack_of, wanted
from popwheel_console.visit import Refused
from tests.unit.console.canned import ANSWERS, CannedServer, form_of

PLACE = {"broker": "broker-0", "group": "billing", "topic": "Orders", "queue_id": 3, "queue_offset": 17}


@pytest.mark.parametrize(
    ("address", "fields", "asked", "body", "leads_to"),
    [
        ("/topics/Orders/pause", {}, "POST /topics/Orders/pause", None, "/topics/Orders"),
        ("/groups/billing/resume", {}, "POST /groups/billing/resume", None, "/groups/billing"),
        ("/held/release", PLACE, "POST /inflight/release", PLACE, "/held?group=billing"),
        (
            "/timers/recall",
            {"topic": "Orders", "recall_handle": "h"},
            "POST /timers/recall",
            {"topic": "Orders", "recall_handle": "h"},
            "/timers?topic=Orders",
        ),
        (
            "/topics/Orders/messages",
            {
                "body": "b",
                "body_encoding": "text",
                "tag": "t",
                "keys": "k1 k2",
                "properties": "a=1\n\nb==",
                "delay_s": "3",
            },
            "POST /topics/Orders/messages",
            {
                "body": "b",
                "body_encoding": "text",
                "tag": "t",
                "keys": ["k1", "k2"],
                "properties": {"a": "1", "b": "="},
                "delay_ms": 3000,
            },
            "/messages/Orders/01CD",
        ),
        (
            "/groups/billing/reset",
            {"topic": "Orders", "to": "shift", "value": "-3", "force": "yes"},
            "POST /groups/billing/reset",
            {"topic": "Orders", "to": "shift", "shift": -3, "dry_run": False, "force": True},
            "/groups/billing",
        ),
        (
            "/topics/Orders/change",
            {"queues": "16", "type": "MIXED"},
            "PATCH /topics/Orders",
            {"queues": 16, "type": "MIXED"},
            "/topics/Orders",
        ),
        (
            "/groups",
            {"name": "billing", "fifo": "yes", "max_attempts": "five"},
            "POST /groups",
            {"name": "billing", "fifo": True, "max_attempts": "five"},
            "/groups/billing",
        ),
        ("/groups/billing/delete", {"typed": "billing"}, "DELETE /groups/billing", None, "/groups"),
        (
            "/groups/billing/dead-letters/choose",
            {"7@broker-0": "yes", "9@a@b": "yes", "no@broker": "yes", "@b": "yes", "do": "dry_run"},
            "POST /groups/billing/dead-letters/redrive",
            {
                "letters": [{"broker": "broker-0", "queue_offset": 7}, {"broker": "a@b", "queue_offset": 9}],
                "dry_run": True,
            },
            "/groups/billing/dead-letters",
        ),
        (
            "/replicas/broker-0/drill",
            {"typed": "broker-0"},
            "POST /brokers/broker-0/kill-master",
            None,
            "/replicas?at=broker-0",
        ),
        (
            "/replicas/broker-0/switchover",
            {"to": "1"},
            "POST /brokers/broker-0/switchover",
            {"to": 1},
            "/replicas?at=broker-0",
        ),
    ],
)
async def test_a_form_asks_the_api_and_leads_on(
    address: str, fields: dict[str, Any], asked: str, body: dict[str, Any] | None, leads_to: str
) -> None:
    server = CannedServer()
    async with server.browser() as browser:
        answer = await browser.post(address, data={**await form_of(browser), **fields})
    assert (answer.status_code, answer.headers["location"]) == (303, leads_to), answer.text
    ((path, _, sent),) = [each for each in server.asked if not each[0].startswith("GET")]
    assert (path, json.loads(sent) if sent else None) == (asked, body)


async def test_a_preview_changes_nothing() -> None:
    server = CannedServer()
    async with server.browser() as browser:
        await browser.get("/groups/billing/reset?topic=Orders&to=offset&value=7")
    ((_, _, sent),) = [each for each in server.asked if each[0].startswith("POST")]
    assert json.loads(sent) == {"topic": "Orders", "to": "offset", "offset": 7, "dry_run": True}


async def test_what_the_api_refuses_is_said_beside_the_form() -> None:
    refusal = (400, {"code": "MESSAGE_BODY_EMPTY", "message": "the body is <empty>"})
    async with CannedServer({**ANSWERS, "POST /topics/Orders/messages": refusal}).browser() as browser:
        answer = await browser.post(
            "/topics/Orders/messages", data={**await form_of(browser), "body": "", "tag": '"><b>'}
        )
    assert answer.status_code == 400
    assert (
        "MESSAGE_BODY_EMPTY" in answer.text and "&lt;empty&gt;" in answer.text and "&#34;&gt;&lt;b&gt;" in answer.text
    )


def test_a_property_without_a_value_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        wanted({"body": "b", "properties": "=x"})
    assert isinstance(refused.value.answer, Answer) and "NAME=VALUE" in refused.value.answer.why


@pytest.mark.parametrize(
    ("address", "fields"),
    [
        ("/replicas/broker-0/drill", {"typed": "else"}),
        ("/groups/billing/delete", {"typed": "else"}),
        ("/topics/Orders/delete", {"typed": "else"}),
        ("/groups/billing/dead-letters/choose", {}),
    ],
)
async def test_nothing_is_done_where_nothing_was_typed_or_chosen(address: str, fields: dict[str, str]) -> None:
    server = CannedServer()
    async with server.browser() as browser:
        answer = await browser.post(address, data={**await form_of(browser), **fields})
    assert answer.status_code == 400 and "nothing was" in answer.text
    assert [path for path, query, _ in server.asked if not path.startswith("GET") and "dry_run" not in query] == []


async def test_what_becomes_of_chosen_dead_letters_is_said() -> None:
    reported = {
        "redriven": 2,
        "kept": 1,
        "moved": 3,
        "refused": [{"broker": "broker-0", "queue_offset": 7, "reason": "it is no dead letter (any more)"}],
    }
    path = "POST /groups/billing/dead-letters/redrive"
    async with CannedServer({**ANSWERS, path: reported}).browser() as browser:
        fields = {**await form_of(browser), "7@broker-0": "yes", "do": "redrive"}
        answer = await browser.post("/groups/billing/dead-letters/choose", data=fields, follow_redirects=True)
    for words in ("2 dead letters will be redelivered", "1 other will stay", "3 others", "broker-0 · 7: it is no dead"):
        assert words in answer.text


@pytest.mark.parametrize(
    ("place", "lack"),
    [
        ({"body": "é", "body_encoding": "text", "body_bytes": 2}, ""),
        ({"body": "AAE=", "body_encoding": "base64", "body_bytes": 2}, ""),
        ({"body": "a", "body_encoding": "text", "body_bytes": 70_000}, "70,000 bytes"),
        ({"body": "", "body_encoding": "text", "body_bytes": 5, "hidden": True}, "your token"),
    ],
)
def test_a_message_that_is_not_whole_is_no_whole_draft(place: dict[str, Any], lack: str) -> None:
    assert lack in lack_of(place)
    assert bool(lack_of(place)) == bool(lack)
    assert draft(place)["body"] == ("" if lack else place["body"])


def test_a_message_that_is_there_is_a_draft() -> None:
    place = {"body": "b", "body_encoding": "base64", "tag": "t", "keys": ["k"], "properties": {"a": "1=2"}}
    found = draft(place)
    assert wanted(found) == {
        "body": "b",
        "body_encoding": "base64",
        "tag": "t",
        "keys": ["k"],
        "properties": {"a": "1=2"},
    }
