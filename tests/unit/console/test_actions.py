"""Forms that change something: what each asks the API for, where it leads, and whom it is shown to."""

import json
from typing import Any

import pytest

from popwheel_console.answer import Answer
from popwheel_console.pages.send import draft, wanted
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
    ((path, _, sent),) = [each for each in server.asked if each[0].startswith("POST")]
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
