"""The pages that look into a topic: what they ask for, and what comes to a browser that follows one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi.responses import StreamingResponse

from popwheel_console.answer import Answer
from popwheel_console.pages.browse import browse_page, query_of, time_ms
from popwheel_console.visit import Listed, Refused
from tests.unit.console.canned import ANSWERS, CannedServer

NOTHING = {"at": "", "broker": "", "queue_id": "", "key": "", "tag": "", "lite_topic": "", "after": ""}


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        ({"from": "end"}, {"last": 6}),
        ({"from": "offset", "at": "0"}, {"offset": 0}),
        ({"from": "offset"}, {}),
        ({"from": "time", "at": "2026-01-31"}, {"time_ms": 1_769_817_600_000}),
        ({"from": "time", "at": "2026-01-31 12:00:01"}, {"time_ms": 1_769_860_801_000}),
        ({"from": "time", "at": "1769817600000"}, {"time_ms": 1_769_817_600_000}),
        (
            {"from": "end", "key": "k", "tag": "t", "broker": "b", "queue_id": "3", "after": "x"},
            {"key": "k", "tag": "t", "broker": "b", "after": "x", "queue_id": 3, "last": 6},
        ),
    ],
)
def test_the_api_is_asked_for_what_the_form_says(wanted: dict[str, str], asked: dict[str, Any]) -> None:
    assert query_of({**NOTHING, **wanted}, 6) == asked


@pytest.mark.parametrize(
    "wanted",
    [
        {"from": "offset", "at": "-1"},
        {"from": "offset", "at": "9" * 16},
        {"from": "end", "queue_id": "three"},
        {"from": "time", "at": "yesterday"},
        {"from": "time", "at": "2026-13-31"},
        {"from": "time", "at": "0000-01-01"},
    ],
)
def test_what_is_no_place_is_refused(wanted: dict[str, str]) -> None:
    with pytest.raises(Refused):
        query_of({**NOTHING, **wanted}, 6)


def test_a_time_is_of_utc() -> None:
    assert time_ms("1970-01-01T00:00:01Z") == 1_000


def test_the_newest_of_all_queues_stand_first() -> None:
    rows = [{"stored_ms": 1}, {"stored_ms": 3}, {"stored_ms": 2}]
    page = browse_page({"name": "t"}, {"from": "end"}, 6, Listed(rows, "more", [], Answer(200)))
    assert page.messages is not None
    assert [each["stored_ms"] for each in page.messages] == [3, 2, 1]
    assert page.has_more and not page.next


def test_a_page_leads_on_to_the_next_with_its_filters() -> None:
    wanted = {"from": "offset", **NOTHING, "at": "5", "tag": "a&b"}
    page = browse_page({"name": "t/u"}, wanted, 0, Listed([], "1.5", [], Answer(200)))
    assert page.next == "/topics/t%2Fu/messages?from=offset&at=5&tag=a%26b&after=1.5"


async def test_what_comes_is_passed_on_as_it_is() -> None:
    server = CannedServer()

    async def events() -> AsyncIterator[bytes]:
        yield b"event: begun\ndata: {}\n\n"
        yield b"event: message\ndata: 1\n\n"

    server.streams["GET /topics/Orders/tail"] = lambda: StreamingResponse(events(), media_type="text/event-stream")
    async with server.browser() as browser:
        answer = await browser.get("/topics/Orders/tail/events?tag=paid&rate=9")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text == "event: begun\ndata: {}\n\nevent: message\ndata: 1\n\n"
    assert server.asked[-1][:2] == ("GET /topics/Orders/tail", "tag=paid")


@pytest.mark.parametrize("status", [403, 429])
async def test_a_stream_that_is_refused_has_the_status_of_the_refusal(status: int) -> None:
    refusal = (status, {"code": "TOO_MANY_REQUESTS", "message": "eight are open"})
    async with CannedServer({**ANSWERS, "GET /topics/Orders/tail": refusal}).browser() as browser:
        assert (await browser.get("/topics/Orders/tail/events")).status_code == status


async def test_nobody_follows_a_topic_that_is_not_there() -> None:
    refusal = (404, {"code": "TOPIC_NOT_FOUND", "message": "there is no topic Gone"})
    async with CannedServer({**ANSWERS, "GET /topics/Gone": refusal}).browser() as browser:
        for path in ("messages", "tail", "tail/events"):
            assert (await browser.get(f"/topics/Gone/{path}")).status_code == 404
