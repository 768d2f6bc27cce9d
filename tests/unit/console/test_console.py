"""The routes of the console: files, errors, forms, refreshes, the leader."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
from fastapi.routing import APIRoute
from structlog.testing import capture_logs

from popwheel_common.contract.message_id import made_since_ms
from popwheel_console import console
from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import ApiClient
from popwheel_console.view.renderer import Renderer
from tests.harness.manual_clock import ManualClock
from tests.unit.console.canned import ANSWERS, CannedServer, form_of
from tests.unit.console.read_page import ReadPage


async def test_pages_may_load_from_this_server_alone() -> None:
    async with CannedServer().browser() as browser:
        answer = await browser.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    assert answer.headers["content-security-policy"] == policy
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"


async def test_files_are_kept_under_the_address_of_their_version_alone() -> None:
    async with CannedServer().browser() as browser:
        page = ReadPage((await browser.get("/")).text)
        (module,) = [each.attributes["src"] for each in page.all("script")]
        links = [each.attributes["href"] for each in page.all("link")]
        for address in (module, *links):
            answer = await browser.get(address)
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["x-content-type-options"] == "nosniff"
        version = module.split("/")[2]
        assert (await browser.get(module.replace(version, "other"))).headers["cache-control"] == "no-cache"
        assert (await browser.get(f"/static/{version}/../console.py")).status_code == 404
        assert (await browser.get(f"/static/{version}/..%2fconsole.py")).status_code == 404


async def test_a_page_that_is_not_there_is_a_page_for_browsers_alone() -> None:
    async with CannedServer().browser() as browser:
        answer = await browser.get("/nowhere/<script>")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "NO_SUCH_PAGE" in answer.text and "<script>" not in answer.text.replace('<script type="module"', "")
        other = await browser.get("/nowhere", headers={"accept": "application/json"})
        assert (other.status_code, other.json()["code"]) == (404, "NOT_FOUND")
        api = await browser.get("/api/v2/x")
        assert api.json()["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("refusal", "heading"),
    [
        ((404, {"code": "TOPIC_NOT_FOUND", "message": "there is no <b>topic</b>"}), "Not found"),
        ((403, {"code": "FORBIDDEN", "message": "ann may read"}), "Refused"),
        ((504, {"code": "PROXY_TIMEOUT", "message": "did not answer"}), "Not answered"),
    ],
)
async def test_a_refusal_is_shown_by_its_name(refusal: tuple[int, Any], heading: str) -> None:
    server = CannedServer({**ANSWERS, "GET /topics/Orders": refusal})
    async with server.browser() as browser:
        answer = await browser.get("/topics/Orders")
    page = ReadPage(answer.text)
    assert answer.status_code == refusal[0]
    assert refusal[1]["code"] in page.shown and refusal[1]["message"] in page.shown and heading in page.shown


async def test_a_refresh_is_the_live_part_alone() -> None:
    async with CannedServer().browser() as browser:
        answer = await browser.get("/held", headers={"x-popwheel-live": "1"})
    page = ReadPage(answer.text)
    assert "01AB" in answer.text
    assert [each.tag for each in page.elements if each.tag in ("html", "nav", "script")] == []


async def test_a_group_may_have_any_name() -> None:
    summary = {**ANSWERS["GET /inflight/summary"], "groups": [{"group": "self", "held": 1, "clients": 1}]}
    async with CannedServer({**ANSWERS, "GET /inflight/summary": summary}).browser() as browser:
        answer = await browser.get("/held")
    assert answer.status_code == 200 and "/held?group=self" in answer.text


async def test_a_message_is_found_by_its_id() -> None:
    async with CannedServer().browser() as browser:
        answer = await browser.get("/messages", params={"topic": "Orders", "id": "01/AB?x"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/messages/Orders/01%2FAB%3Fx")


async def test_a_message_is_looked_for_from_when_its_id_was_made() -> None:
    server = CannedServer()
    message_id = "0102FC0000000112CA0B1B592B00000007"
    async with server.browser() as browser:
        await browser.get(f"/messages/Orders/{message_id}")
    (query,) = [query for path, query, _ in server.asked if path == f"GET /messages/{message_id}"]
    assert int(parse_qs(query)["since_ms"][0]) == made_since_ms(message_id)


async def test_a_message_that_may_be_further_on_is_not_said_to_be_gone() -> None:
    part = {"places": [], "next": "broker-0/1", "unanswered": []}
    async with CannedServer({**ANSWERS, "GET /messages/01AB": part}).browser() as browser:
        answer = await browser.get("/messages/Orders/01AB")
    assert answer.status_code == 404
    assert "NOT_FOUND_SO_FAR" in answer.text and "popwheel message trace 01AB --topic Orders" in answer.text


async def test_a_form_makes_a_topic() -> None:
    server = CannedServer()
    async with server.browser() as browser:
        answer = await browser.post(
            "/topics", data={**await form_of(browser), "name": "Orders", "type": "FIFO", "queues": "4"}
        )
        assert answer.status_code == 303
        assert answer.headers["location"] == "/topics/Orders"
        assert "The topic Orders was created." in (await browser.get("/topics/Orders")).text
        assert "The topic Orders was created." not in (await browser.get("/topics/Orders")).text
    assert [each for each in server.asked if each[0].startswith("POST")] == [
        ("POST /topics", "", b'{"name": "Orders", "type": "FIFO", "queues": 4}')
    ]


async def test_a_form_that_is_refused_is_shown_again_with_what_was_in_it() -> None:
    refusal = (400, {"code": "ILLEGAL_TOPIC", "message": "no <name>"})
    async with CannedServer({**ANSWERS, "POST /topics": refusal}).browser() as browser:
        answer = await browser.post(
            "/topics", data={**await form_of(browser), "name": '"><b>', "type": "FIFO", "queues": "many"}
        )
    page = ReadPage(answer.text)
    assert answer.status_code == 400
    assert "ILLEGAL_TOPIC" in page.shown and "no <name>" in page.shown
    values = {each.attributes.get("name"): each.attributes.get("value") for each in page.all("input")}
    assert (values["name"], values["queues"]) == ('"><b>', "many")


async def test_a_topic_goes_only_if_its_name_was_typed() -> None:
    server = CannedServer()
    async with server.browser() as browser:
        refused = await browser.post("/topics/Orders/delete", data={**await form_of(browser), "typed": "Order"})
        assert refused.status_code == 400 and "type Orders to delete it" in refused.text
        (live,) = [each for each in ReadPage(refused.text).elements if each.attributes.get("id") == "live"]
        assert live.attributes["data-address"] == "/topics/Orders"
        assert {query for path, query, _ in server.asked if path.startswith("DELETE")} == {"dry_run=true"}
        done = await browser.post("/topics/Orders/delete", data={**await form_of(browser), "typed": "Orders"})
    assert (done.status_code, done.headers["location"]) == (303, "/topics")
    assert server.asked[-1] == ("DELETE /topics/Orders", "", b"")


@pytest.mark.parametrize("form", [{}, {"csrf": "guessed"}, {f"f{number}": "" for number in range(200)}])
async def test_a_form_of_another_page_changes_nothing(form: dict[str, str]) -> None:
    server = CannedServer()
    async with server.browser() as browser:
        answer = await browser.post("/topics", data={**form, "name": "Orders"})
    assert answer.status_code in (400, 403)
    assert [path for path, _, _ in server.asked if not path.startswith("GET")] == []


async def test_a_form_of_another_site_comes_to_no_page() -> None:
    async with CannedServer().browser() as browser:
        answer = await browser.post("/topics", data=await form_of(browser), headers={"origin": "http://evil.example"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("back", "where"),
    [("/held?group=a", "/held?group=a"), ("//evil.example", "/"), ("http://evil.example", "/"), ("/\\evil", "/")],
)
async def test_a_theme_is_kept_and_leads_back_here(back: str, where: str) -> None:
    async with CannedServer().browser() as browser:
        answer = await browser.get("/theme", params={"to": "dark", "back": back})
        assert (answer.status_code, answer.headers["location"]) == (303, where)
        assert 'data-theme="dark"' in (await browser.get("/")).text


async def test_the_api_learns_on_whose_behalf_and_from_where() -> None:
    seen: list[Any] = []
    server = CannedServer()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/api"):
            seen.append((scope["client"][0], dict(scope["headers"]).get(b"authorization"), scope["path"]))
        await server.app(scope, receive, send)

    api = ApiClient(app, "Bearer x", "10.1.2.3", "test")
    assert (await api.ask(Question("/clients/c%401"))).is_good
    assert seen == [("10.1.2.3", b"Bearer x", "/api/v1/clients/c@1")]


async def test_who_leads_is_asked_instead_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    leading = CannedServer()
    refusal = (500, {"code": "HA_NOT_AVAILABLE", "message": "not I", "leader": "10.0.0.8:8080"})
    following = CannedServer(dict.fromkeys(ANSWERS, refusal))
    client = httpx.AsyncClient

    def to_leader(**words: Any) -> httpx.AsyncClient:
        return client(transport=httpx.ASGITransport(leading.app))

    async with following.browser() as browser:
        monkeypatch.setattr(httpx, "AsyncClient", to_leader)
        page = ReadPage((await browser.get("/topics")).text)
    assert "Orders" in page.shown
    assert "Another controller leads: these are the answers of 10.0.0.8:8080." in page.shown


async def test_nobody_leads() -> None:
    refusal = (500, {"code": "HA_NOT_AVAILABLE", "message": "not I", "leader": ""})
    async with CannedServer(dict.fromkeys(ANSWERS, refusal)).browser() as browser:
        answer = await browser.get("/")
    assert answer.status_code == 200
    assert "no controller leads now" in ReadPage(answer.text).shown


async def test_a_route_that_fails_takes_no_page_with_it() -> None:
    server = CannedServer()

    async def crash() -> None:
        raise RuntimeError("what nobody thought of")

    server.app.router.routes.insert(0, APIRoute("/api/v1/cluster/status", crash))
    with capture_logs() as lines:
        async with server.browser() as browser:
            page = ReadPage((await browser.get("/")).text)
    assert "Not known: the server answered with status 500." in page.shown
    assert [line["event"] for line in lines] == ["a route failed for the console"]


async def test_what_is_late_is_a_skeleton_until_a_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PATIENCE_S", 0.05)
    server = CannedServer()
    answered = asyncio.Event()

    async def wait() -> Any:
        await answered.wait()
        return ANSWERS["GET /inflight"]

    server.app.router.routes.insert(0, APIRoute("/api/v1/inflight", wait))
    async with server.browser() as browser:
        page = ReadPage((await browser.get("/held?topic=Orders")).text)
        assert [each for each in page.elements if each.attributes.get("class") == "skeleton"]
        assert "billing" in page.shown and "/held?topic=Orders&wait=1" in [
            each.attributes["href"] for each in page.all("a")
        ]
        answered.set()
        fresh = ReadPage((await browser.get("/held?topic=Orders", headers={"x-popwheel-live": "1"})).text)
    assert "01AB" in fresh.text


async def test_a_page_that_is_late_as_a_whole_is_a_skeleton_under_its_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PATIENCE_S", 0.05)
    server = CannedServer()

    async def wait() -> None:
        await asyncio.Event().wait()

    server.app.router.routes.insert(0, APIRoute("/api/v1/brokers", wait))
    async with server.browser() as browser:
        answer = await browser.get("/replicas")
    page = ReadPage(answer.text)
    assert answer.status_code == 200
    assert [each for each in page.elements if each.attributes.get("class") == "skeleton"]
    assert "Replicas" in page.shown and "Refused" not in page.shown


async def test_a_page_is_made_in_slices() -> None:
    """A look at this clock takes a millisecond, and a look follows each piece of a template."""
    looks = turns = 0

    class SlowClock(ManualClock):
        def monotonic(self) -> float:
            nonlocal looks
            looks += 1
            self.advance(1)
            return super().monotonic()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    renderer = Renderer(SlowClock())
    counter = asyncio.create_task(count_turns())
    answer = Answer(404, {}, "TOPIC_NOT_FOUND", "there is no topic")
    frame = SimpleNamespace(layout="live.html", trouble="", leader="")
    assert b"TOPIC_NOT_FOUND" in await renderer.render("error.html", {"frame": frame, "answer": answer})
    counter.cancel()
    assert looks > 10
    assert turns >= looks // 3 - 1


async def test_templates_are_compiled_once_with_the_first_page_and_not_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[threading.Thread] = []
    compile_all = Renderer.compile_all

    def counted(self: Renderer) -> None:
        compiled.append(threading.current_thread())
        compile_all(self)

    monkeypatch.setattr(Renderer, "compile_all", counted)
    renderer = Renderer(ManualClock())
    assert compiled == []
    values = {"frame": SimpleNamespace(layout="live.html", trouble="", leader=""), "answer": Answer(404, {}, "A", "b")}
    first, second = await asyncio.gather(renderer.render("error.html", values), renderer.render("error.html", values))
    assert first == second == await renderer.render("error.html", values)
    assert len(compiled) == 1
    assert compiled[0] is not threading.current_thread()
