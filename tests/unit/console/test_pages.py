"""Every page, from canned answers: what it shows, and that nothing of it does anything by itself."""

import re
from typing import Any
from urllib.parse import parse_qs

import pytest

from popwheel_console.catalog import PAGES, STREAMS
from tests.unit.console.canned import ANSWERS, EMPTY, HOSTILE, CannedServer, hostile
from tests.unit.console.read_page import ReadPage

ADDRESSES = {
    "/": "9,223,372,036,854,775,808",
    "/topics": "9,007,199,254,740,993",
    "/topics/Orders": "A topic of type normal, with 8 queues at each broker.",
    "/topics/Orders?do=delete": "5 messages that groups have yet to take",
    "/topics/Orders?do=change": "Queues at each broker, more than now",
    "/topics/Orders/messages": "The newest",
    "/topics/Orders/messages?from=offset&at=5&tag=paid&queue_id=3": "9,007,199,254,740,993",
    "/topics/Orders/tail?tag=paid": "Messages that come from now on",
    "/topics/Orders/send": "The body is",
    "/topics/Orders/send?like=01AB": "amount=100",
    "/groups/billing/reset": "the first message",
    "/groups/billing/reset?topic=Orders&to=shift&value=-3": "Reset billing in Orders",
    "/groups": "1 min 1 s",
    "/groups/billing?do=delete": "12 messages that it has yet to take",
    "/groups/billing?do=change": "Attempts until a message is a dead letter",
    "/groups/billing": "A message is a dead letter after 3 attempts.",
    "/held": "cart-1",
    "/held?topic=Orders&group=billing&client=c@1": "01AB",
    "/messages": "Name a topic",
    "/messages?topic=Orders&key=order-1": "9,007,199,254,740,993",
    "/messages/Orders/01AB": "Not acknowledged in time",
    "/timers": "behind",
    "/clients": "python 5.1.2",
    "/clients/c%401": "At proxy",
    "/replicas": "catching up",
    "/replicas?at=broker-0": "+2.0 s",
    "/replicas?at=broker-0&do=drill": "The process 4711 of replica 1",
    "/changes": "topic create",
    "/groups/billing/retries": "after 1.0 s",
    "/groups/billing/dead-letters": "broker-1: it is not there now",
    "/groups/billing/dead-letters?broker=broker-0&begin=1": "61 dead letters at broker-0",
    "/groups/billing/dead-letters?do=purge": "61 dead letters at all brokers are passed over for good.",
    "/polls": "at all brokers",
    "/polls?group=billing&topic=Orders": "25 %",
    "/trouble": "The broker group broker-1 has no master.",
    "/trouble/broker-0/17.0": "KeyError: 'amount'",
    "/trouble/broker-0/17.0?do=drop": "Type 17.0 to drop it",
    "/balance": "Of which group?",
    "/balance?group=billing": "9,007,199,254,740,980",
    "/settings": "proxy.listen",
    "/settings?which=all&find=CLU&process=controller": '"acceptance"',
}
"""Address of a page -> words of it."""
SERVERS = {
    "usual": ANSWERS,
    "empty": EMPTY,
    "hostile": hostile(dict(ANSWERS)),
    "older": {name: each for name, each in ANSWERS.items() if "activity" not in name and "summary" not in name},
}


async def page_of(address: str, answers: Any = ANSWERS) -> ReadPage:
    async with CannedServer(answers).browser() as browser:
        answer = await browser.get(address)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < 150_000
    return ReadPage(answer.text)


def test_every_page_is_tried() -> None:
    beginnings = {address.split("?")[0].split("/")[1] for address in ADDRESSES}
    assert {page.path.split("/")[1] for page in PAGES} == beginnings


@pytest.mark.parametrize(("address", "words"), ADDRESSES.items(), ids=str)
async def test_a_page_shows_what_the_api_says(address: str, words: str) -> None:
    page = await page_of(address)
    assert words.lower() in page.shown.lower()


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("address", ADDRESSES)
async def test_nothing_of_a_page_does_anything_by_itself(address: str, server: str) -> None:
    page = await page_of(address, SERVERS[server])
    for each in page.elements:
        assert each.tag not in ("style", "iframe", "object", "embed", "base", "img"), each
        assert "style" not in each.attributes, each
        assert [name for name in each.attributes if name.startswith("on")] == [], each
        for name in ("href", "src", "action"):
            address_there = each.attributes.get(name)
            assert address_there is None or address_there.startswith(("/", "#", "?")), each
            assert not str(address_there).startswith("//"), each
    assert [each.attributes.get("type") for each in page.all("script")] == ["module"]
    assert page.badly_nested == []
    assert page.open_tags == []


@pytest.mark.parametrize("address", ADDRESSES)
async def test_links_lead_to_pages(address: str) -> None:
    page = await page_of(address)
    paths = [each.path for each in PAGES] + [each.path for each in STREAMS]
    known = [re.sub(r"\\{\w+(:path)?\\}", "[^/]+", re.escape(each)) for each in paths]
    for each in page.all("a"):
        path = each.attributes["href"].partition("?")[0].partition("#")[0]
        assert path in ("", "/docs") or any(re.fullmatch(one, path) for one in known), each


@pytest.mark.parametrize("address", [each for each in ADDRESSES if each not in ("/", "/messages")])
async def test_script_in_names_is_text(address: str) -> None:
    page = await page_of(address, SERVERS["hostile"])
    assert HOSTILE in "".join(page.words)
    assert "<script>alert" not in page.text


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_page_can_be_found_one_s_way_in(address: str, server: str) -> None:
    page = await page_of(address, SERVERS[server])
    ids = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    assert {"main", "live"} <= set(ids)
    labels = {each.attributes["aria-labelledby"] for each in page.elements if "aria-labelledby" in each.attributes}
    assert labels <= set(ids)
    assert len(page.all("h1")) == 1 and len(page.all("main")) == 1
    assert all("scope" in each.attributes for each in page.all("th"))
    assert all(each.attributes.get("datetime", "").endswith("Z") for each in page.all("time"))
    assert next(each.attributes["href"] for each in page.all("a")) == "#main"


@pytest.mark.parametrize("address", [each for each in ADDRESSES if "?" not in each])
async def test_the_navigation_marks_where_one_is(address: str) -> None:
    page = await page_of(address)
    marked = [each.attributes["href"] for each in page.all("a") if "aria-current" in each.attributes]
    assert marked == ["/" + address.split("/")[1]]


@pytest.mark.parametrize("address", ["/topics", "/groups", "/held", "/timers", "/clients", "/"])
async def test_an_empty_list_says_what_to_do_first(address: str) -> None:
    page = await page_of(address, EMPTY)
    commands = [each.attributes["data-copy"] for each in page.elements if "data-copy" in each.attributes]
    assert [each for each in commands if each.startswith("popwheel ")]


async def test_absent_is_not_zero() -> None:
    page = await page_of("/groups", SERVERS["older"])
    row = page.shown.partition("billing")[2]
    assert "–" in row and " 0 " not in row


async def test_who_could_not_be_asked_is_named() -> None:
    page = await page_of("/timers")
    assert "broker-1: the broker broker-1 is not there now; try again" in page.shown
    page = await page_of("/clients")
    assert "p2: away" in page.shown


async def test_an_older_server_says_less_and_the_page_says_so() -> None:
    page = await page_of("/", SERVERS["older"])
    assert "Not known: this server does not report it." in page.shown
    page = await page_of("/messages/Orders/01AB", {**ANSWERS, "GET /messages/01AB/events": None})
    assert "Read from where the message is and was" in page.shown


@pytest.mark.parametrize(("since", "asked_for"), [("1799999999999", "1799999999999"), ("", "0"), ("\u00b2", "0")])
async def test_a_message_is_looked_for_from_the_time_on_that_the_link_says(since: str, asked_for: str) -> None:
    server = CannedServer(ANSWERS)
    async with server.browser() as browser:
        answer = await browser.get("/messages/Orders/01AB", params={"since_ms": since})
    assert answer.status_code == 200
    queries = [parse_qs(query) for path, query, _ in server.asked if path.startswith("GET /messages/01AB")]
    assert [query["since_ms"] for query in queries] == [[asked_for]] * 2
