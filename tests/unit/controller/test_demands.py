"""Each route of the admin API: which role it takes, that each change leaves a line, and who sees what clients sent."""

import random
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_common.runtime import Runtime
from popwheel_common.web.caller import Caller, Role, set_caller
from popwheel_common.web.tokens import Tokens
from popwheel_controller.app import ControllerApp
from popwheel_controller.http.audit_routes import audit_router
from popwheel_controller.http.browse_routes import browse_router
from popwheel_controller.http.consumption_routes import consumption_router
from popwheel_controller.http.dead_letter_routes import dead_letter_router
from popwheel_controller.http.demands import DEMANDS, PREFIX, body_limit, demanded
from popwheel_controller.http.guard import without_data
from popwheel_controller.http.inquiry import Answers
from popwheel_controller.http.quarantine_routes import quarantine_router
from popwheel_controller.http.timer_routes import timer_router
from popwheel_controller.http.timers import TimerPage
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.methods import DEAD_LETTER_LIST, MESSAGE_LIST, MESSAGE_TRACE, QUARANTINE_SHOW
from popwheel_rpc.service import Channel

TOKENS = {
    "reader": ("read", "reader-token-of-tests"),
    "auditor": ("read+bodies", "auditor-token-of-tests"),
    "operator": ("operate", "operator-token-of-tests"),
    "admin": ("administer", "admin-token-of-tests"),
}
OLD = "a-token-of-before-it-had-names"
BY_ROLE = {Role.READ: "reader", Role.OPERATE: "operator", Role.ADMINISTER: "admin"}


def no_broker(info: BrokerInfo) -> Channel:
    raise AssertionError(f"nothing is asked of brokers here, nor of {info.name}")


class Scene:
    """A controller behind tokens."""

    def __init__(self, app: ControllerApp, api: FastAPI) -> None:
        self.app = app
        self.api = api
        self.clients = {
            name: httpx.AsyncClient(
                transport=httpx.ASGITransport(api, client=("10.0.0.7", 4711)),
                base_url=f"http://controller{PREFIX}",
                headers={"authorization": f"Bearer {token}"},
            )
            for name, token in {**{name: token for name, (_, token) in TOKENS.items()}, "token 1": OLD}.items()
        }

    def __getitem__(self, name: str) -> httpx.AsyncClient:
        return self.clients[name]

    async def lines(self, **asked: str) -> list[dict[str, Any]]:
        answer = await self["reader"].get("/changes", params=asked)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["changes"]
        return found


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    file = folder / "tokens"
    file.write_text("\n".join([OLD, *(f"{name} {role} {token}" for name, (role, token) in TOKENS.items())]))
    registry, clock = CollectorRegistry(), SystemClock()
    app = ControllerApp(
        Runtime(clock, random.Random(7), registry), ControllerOptions(), folder / "controller", no_broker
    )
    await app.start()
    api = make_http_app("test", "0", registry, {}, [app.admin], tokens=Tokens(str(file), clock, registry))
    here = Scene(app, api)
    try:
        yield here
    finally:
        for client in here.clients.values():
            await client.aclose()
        await app.stop()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path) as found:
        yield found


def routes(api: FastAPI) -> set[tuple[str, str]]:
    """All routes of the admin API, by the document that describes them."""
    paths = api.openapi()["paths"]
    return {
        (method.upper(), path.removeprefix(PREFIX))
        for path, methods in paths.items()
        if path.startswith(PREFIX)
        for method in methods
    }


def filled(path: str) -> str:
    """A path with names in it."""
    return re.sub(r"\{offset\}", "1", re.sub(r"\{(?!offset)\w+\}", "some", path))


async def test_each_route_declares_its_role_and_each_change_its_verb(here: Scene) -> None:
    assert routes(here.api) == set(DEMANDS)
    assert [key for key, demand in DEMANDS.items() if (key[0] != "GET") != bool(demand.verb)] == []
    for (method, path), demand in DEMANDS.items():
        assert demanded(method, PREFIX + filled(path)).demand == demand


async def test_a_route_that_declares_nothing_is_for_administrators() -> None:
    assert demanded("PUT", f"{PREFIX}/topics/orders").demand.role is Role.ADMINISTER
    assert demanded("PUT", f"{PREFIX}/topics/orders").demand.verb == "PUT /topics/orders"


def test_only_sends_may_be_long() -> None:
    long = {key for key in DEMANDS if body_limit(key[0], PREFIX + filled(key[1])) > 16 * 1024}
    assert long == {("POST", "/topics/{name}/messages")}
    for method, path in (
        ("GET", "/topics/t/messages"),
        ("POST", "/topics/t/messages/x"),
        ("POST", "/topics//messages"),
    ):
        assert body_limit(method, PREFIX + path) == 16 * 1024
    assert body_limit("POST", "/topics/t/messages") == 16 * 1024


@pytest.mark.parametrize(("method", "path"), sorted(DEMANDS))
async def test_each_route_takes_its_role_and_leaves_its_line(here: Scene, method: str, path: str) -> None:
    demand = DEMANDS[method, path]
    for role, name in BY_ROLE.items():
        answer = await here[name].request(method, filled(path), json={"what": 1} if method == "POST" else None)
        assert (answer.status_code == 403) == (role < demand.role), answer.text
        if role < demand.role:
            assert answer.json()["code"] == "FORBIDDEN"
            assert f"a token that may {demand.role.name.lower()}" in answer.json()["message"]
    found = await here.lines()
    if method == "GET":
        assert found == []
        return
    assert [line["who"] for line in found] == ["admin", "operator", "reader"]
    assert {line["verb"] for line in found} == {demand.verb}
    assert {line["address"] for line in found} == {"10.0.0.7"}
    assert all(line["outcome"].startswith(("refused ", "failed ", "done")) for line in found)
    assert [line["outcome"] == "refused FORBIDDEN" for line in found[::-1]] == [r < demand.role for r in BY_ROLE]


async def test_a_line_says_who_what_before_after_and_how_it_ended(here: Scene) -> None:
    await here["admin"].post("/topics", json={"name": "orders", "queues": 3})
    await here["admin"].post("/topics", json={"name": "orders"})
    await here["token 1"].delete("/topics/orders")
    gone, again, made = await here.lines()
    assert (made["who"], made["verb"], made["object"], made["outcome"]) == ("admin", "topic create", "orders", "done")
    assert '"queues":3' in made["after"]
    assert (again["outcome"], again["after"]) == ("refused PRECONDITION_FAILED", "topic orders is there already")
    assert (gone["who"], gone["verb"], gone["outcome"]) == ("token 1", "topic delete", "done")
    assert '"queues":3' in gone["before"] and '"deleted":true' in gone["after"]
    assert OLD not in str(await here.lines())
    assert [line["who"] for line in await here.lines(who="token 1")] == ["token 1"]
    assert await here.lines(object="bills") == []


async def test_lines_come_in_pages(here: Scene) -> None:
    for number in range(5):
        await here["admin"].post("/groups", json={"name": f"g{number}"})
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = (await here["reader"].get("/changes", params={"limit": 2, "after": after})).json()
        found += [line["object"] for line in page["changes"]]
        after = page["next"]
    assert found == ["g4", "g3", "g2", "g1", "g0"]
    assert (await here["reader"].get("/changes", params={"after": "what"})).status_code == 400


@pytest.mark.parametrize("kind", ["topics", "groups"])
async def test_a_dry_run_says_the_same_changes_nothing_and_leaves_no_line(here: Scene, kind: str) -> None:
    await here["admin"].post(f"/{kind}", json={"name": "orders"})
    before = await here.lines()
    would = await here["admin"].delete(f"/{kind}/orders", params={"dry_run": "true"})
    assert (would.status_code, would.json()["deleted"]) == (200, False)
    assert (await here["admin"].get(f"/{kind}/orders")).status_code == 200
    assert await here.lines() == before
    did = await here["admin"].delete(f"/{kind}/orders")
    assert did.json() | {"deleted": False, "rests_until_ms": 0} == would.json() | {"rests_until_ms": 0}
    assert (await here["reader"].delete(f"/{kind}/orders", params={"dry_run": "true"})).status_code == 403


async def test_what_takes_no_dry_run_leaves_its_line_whatever_is_asked_for(here: Scene) -> None:
    await here["admin"].post("/topics?dry_run=true", json={"name": "orders"})
    assert [line["object"] for line in await here.lines()] == ["orders"]
    await here["admin"].post("/groups", json={"name": "g"})
    purge = "/groups/g/dead-letters/purge"
    assert (await here["admin"].post(purge, json={"dry_run": True})).json() == {"purged": 0, "unanswered": []}
    assert len(await here.lines()) == 2
    await here["admin"].post(purge, json={})
    assert (await here.lines())[0]["verb"] == "dlq purge"


async def test_lines_are_there_after_a_restart(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here["admin"].post("/topics", json={"name": "orders"})
    async with scene(tmp_path) as here:
        assert [line["object"] for line in await here.lines()] == ["orders"]


async def test_without_tokens_everybody_may_and_is_called_by_the_address(tmp_path: Path) -> None:
    registry, clock = CollectorRegistry(), SystemClock()
    app = ControllerApp(Runtime(clock, random.Random(7), registry), ControllerOptions(), tmp_path, no_broker)
    await app.start()
    api = make_http_app("test", "0", registry, {}, [app.admin])
    transport = httpx.ASGITransport(api, client=("192.0.2.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://controller{PREFIX}") as http:
        assert (await http.post("/topics", json={"name": "orders"})).status_code == 201
        (line,) = (await http.get("/changes")).json()["changes"]
    await app.stop()
    assert (line["who"], line["address"]) == ("192.0.2.1", "192.0.2.1")


def test_without_data_bodies_and_properties_are_left_out() -> None:
    body = b64encode(b"secret").decode()
    fields = {"message_id": "1", "keys": ["k"], "properties": {"p": "secret"}, "body": body, "body_bytes": 6}
    shown = without_data(fields)
    assert shown == {**fields, "properties": {}, "body": "", "hidden": True}


class FakeInquiry:
    """Brokers that have one message."""

    def __init__(self) -> None:
        properties = SystemProperties(message_id="01", keys=["key"], tag="tag", queue_offset=1)
        message = Message(system_properties=properties, user_properties={"p": "secret"}, body=b"secret")
        data = message.SerializeToString()
        self.answers: dict[Any, Any] = {
            DEAD_LETTER_LIST: pb.DeadLetterListResponse(messages=[data], next_offset=2, max_offset=2),
            QUARANTINE_SHOW: pb.QuarantineShowResponse(entry=pb.QuarantineEntry(id="1"), message=data),
            MESSAGE_LIST: pb.MessageListResponse(messages=[pb.TracedMessage(message=data)]),
            MESSAGE_TRACE: pb.MessageTraceResponse(messages=[pb.TracedMessage(message=data)]),
        }
        self.state = SimpleNamespace(group=lambda name: None, topic=lambda name: None, brokers={"b": None})

    async def of(self, name: str, method: Any, request: Any) -> Any:
        return self.answers[method]

    async def ask_by_broker(self, method: Any, requests: Mapping[str, Any]) -> Answers[Any]:
        return Answers(dict.fromkeys(requests, self.answers[method]), [])


class FakeTimers:
    """Has one page of delayed messages."""

    def __init__(self, page: TimerPage) -> None:
        self._page = page

    async def page(self, *asked: Any) -> TimerPage:
        return self._page


@pytest.mark.parametrize("sees", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        *("/groups/g/dead-letters", "/groups/g/dead-letters/b", "/groups/g/dead-letters/b/1"),
        *("/groups/g/dead-letters/export", "/quarantine/b/1", "/timers", "/topics/t/browse"),
        *("/messages?topic=t&key=key", "/messages/01?topic=t"),
    ],
)
async def test_bodies_and_properties_are_for_those_who_may_see_them(path: str, sees: bool) -> None:
    inquiry: Any = FakeInquiry()
    app = FastAPI()
    entry = pb.TimerEntry(keys=["key"], tag="tag", body=b"secret", body_bytes=6)
    timers: Any = FakeTimers(TimerPage([("b", entry)], None, []))
    clock = SystemClock()
    of_topics = dead_letter_router(inquiry, clock), browse_router(inquiry, clock)
    routers = consumption_router(inquiry), quarantine_router(inquiry), audit_router(inquiry), timer_router(timers)
    for router in (*of_topics, *routers):
        router.add_to(app)

    async def called(scope: Any, receive: Any, send: Any) -> None:
        set_caller(scope.setdefault("state", {}), Caller("reader", Role.READ, sees, "10.0.0.7"))
        await app(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(called), base_url="http://controller") as http:
        answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    assert ("secret" in answer.text, '"hidden":true' in answer.text) == (sees, not sees)
    assert '"keys":["key"]' in answer.text and '"tag":"tag"' in answer.text and '"body_bytes":6' in answer.text
