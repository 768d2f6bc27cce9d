"""Clients of all proxies over the admin API, and pages of all processes: who answers, and who does not, is told."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.http import make_http_app
from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.cluster import inspections as module
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.controller_watch import ControllerWatch
from popwheel_rpc.membership.inspection_stream import InspectionStream
from popwheel_rpc.service import Channel
from tests.unit.controller.nowhere import Nowhere
from tests.unit.controller.test_app import until


def no_broker(info: pb.BrokerInfo) -> Channel:
    return Nowhere()


NOW_MS = 1_700_000_000_000


class FakeProxy:
    """Has clients `NAME-000`, `NAME-001` ..., and a page `log`."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.ids = [f"{name}-{number:03}" for number in range(count)]
        self.hangs = False
        self.process = pb.WatchRequest(process=name, kind=pb.WatchRequest.PROXY, address=f"{name}:1")

    async def answer(self, question: pb.InspectQuestion) -> pb.InspectAnswer:
        if self.hangs:
            await asyncio.Event().wait()
        if question.HasField("polls"):
            asked_polls = question.polls
            after = asked_polls.after_topic, asked_polls.after_group
            pairs = [(f"t{number}", f"g{number}") for number in range(len(self.ids)) if (f"t{number}", "") > after]
            found_pairs = [each for each in pairs if each > after]
            rows = [pb.PollInfo(topic=topic, group=group, mode="notify", polls=1) for topic, group in found_pairs]
            return pb.InspectAnswer(
                polls=pb.PollListResponse(polls=rows[: asked_polls.limit], more=len(rows) > asked_polls.limit)
            )
        if question.page == "settings":
            page = {"settings": {"proxy": {"name": self.name, "names": ["a"]}}, "sources": {"proxy.name": "file"}}
            return pb.InspectAnswer(page=json.dumps(page).encode())
        if question.page:
            return pb.InspectAnswer(page=f"{question.page} of {self.name}".encode())
        asked = question.clients
        if asked.id:
            found = [each for each in self.ids if each == asked.id]
        else:
            found = [each for each in self.ids if each > asked.after and each.startswith(asked.prefix)]
        some = found[: asked.limit or None]
        infos = [
            pb.ClientInfo(
                id=each,
                kind="push",
                in_flight=1,
                in_flight_since_ms=NOW_MS,
                subscriptions=[pb.ClientSubscription(group="g", topic="t", filter="*", polled_ms=NOW_MS)],
                messages=[pb.ClientMessage(group="g", topic="t", broker="b", queue_offset=7)] if asked.id else [],
            )
            for each in some
        ]
        return pb.InspectAnswer(
            clients=pb.ClientListResponse(clients=infos, next=some[-1] if len(some) < len(found) else "")
        )


@asynccontextmanager
async def api(folder: Path, *proxies: FakeProxy, old: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """The admin API of a controller with these proxies, and one of an older release."""
    app = ControllerApp(
        Runtime(SystemClock(), random.Random(7), CollectorRegistry()), ControllerOptions(), folder, no_broker
    )
    async with AsyncExitStack() as stack:
        await app.start()
        stack.push_async_callback(app.stop)
        channel = LocalChannel(app.service, peer="10.0.0.1:1")
        stack.push_async_callback(channel.close)
        watching = [proxy.process for proxy in proxies]
        if old:
            watching.append(pb.WatchRequest(process=old, kind=pb.WatchRequest.PROXY))
        for process in watching:
            follower = ControllerWatch(channel, ClusterView(), process, SystemClock(), random.Random(0))
            await follower.start()
            stack.push_async_callback(follower.stop)
        for proxy in proxies:
            stream = InspectionStream(
                channel, proxy.process, ["log", "settings"], proxy.answer, lambda: "", random.Random(0)
            )
            await stream.start()
            stack.push_async_callback(stream.stop)
        await until(lambda: len(app._inspections.all) == len(proxies))
        await until(lambda: len(app._processes.members(())) == len(watching))

        async def text() -> bytes:
            return b"{}"

        app.own_pages = {"settings": text}
        http = make_http_app("test", "0", CollectorRegistry(), {}, [app.admin])
        yield await stack.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(http), base_url="http://controller/api/v1")
        )


async def pages(client: httpx.AsyncClient, limit: int, **asked: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Ids of all clients, page by page, and who did not answer."""
    found: list[str] = []
    unanswered: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = (await client.get("/clients", params={**asked, "after": after, "limit": limit})).json()
        assert len(page["clients"]) <= limit
        found += [each["id"] for each in page["clients"]]
        unanswered += page["unanswered"]
        after = page["next"]
    return found, unanswered


async def test_pages_go_from_proxy_to_proxy(tmp_path: Path) -> None:
    first, second = FakeProxy("127.0.0.1:8081/0", 7), FakeProxy("127.0.0.1:8081/1", 5)
    async with api(tmp_path, first, second) as client:
        for limit in (1, 3, 7, 12, 100):
            assert await pages(client, limit) == ([*first.ids, *second.ids], [])
        assert await pages(client, 2, prefix="127.0.0.1:8081/1") == (second.ids, [])
        page = (await client.get("/clients", params={"limit": 1})).json()
        (one,) = page["clients"]
        assert (one["proxy"], one["kind"], one["held"], one["held_since_ms"]) == (first.name, "push", 1, NOW_MS)
        assert one["subscriptions"] == [{"group": "g", "topic": "t", "filter": "*", "polled_ms": NOW_MS}]
        refused = await client.get("/clients", params={"after": "nowhere"})
        assert (refused.status_code, refused.json()["code"]) == (400, "BAD_REQUEST")
        refused = await client.get("/clients", params={"topic": "no name"})
        assert (refused.status_code, refused.json()["code"]) == (400, "ILLEGAL_TOPIC")


async def test_who_does_not_answer_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.2)
    first, second = FakeProxy("p1", 2), FakeProxy("p2", 2)
    first.hangs = True
    async with api(tmp_path, first, second, old="p0") as client:
        found, unanswered = await pages(client, 100)
        assert found == second.ids
        assert [each["proxy"] for each in unanswered] == ["p0", "p1"]
        assert "older release" in unanswered[0]["reason"]
        assert "did not answer" in unanswered[1]["reason"]
        described = (await client.get(f"/clients/{second.ids[0]}")).json()
        assert [each["proxy"] for each in described["at"]] == ["p2"]
        assert [each["queue_offset"] for each in described["messages"]] == [7]
        assert len(described["unanswered"]) == 2
        nobody = await client.get("/clients/a/b")
        assert (nobody.status_code, nobody.json()["code"]) == (404, "NOT_FOUND")


async def test_pages_of_processes(tmp_path: Path) -> None:
    async with api(tmp_path, FakeProxy("p1", 0), old="p0") as client:
        processes = (await client.get("/debug/processes")).json()["processes"]
        assert {each["key"]: each["pages"] for each in processes} == {
            "controller": ["settings"],
            "proxy/p0": [],
            "proxy/p1": ["log", "settings"],
        }
        page = await client.get("/debug/page", params={"process": "proxy/p1", "page": "log"})
        assert page.json() == {"process": "proxy/p1", "page": "log", "text": "log of p1"}
        own = await client.get("/debug/page", params={"process": "controller", "page": "settings"})
        assert own.json()["text"] == "{}"
        for process, name in (("proxy/p1", "metrics"), ("proxy/p9", "log"), ("controller", "log")):
            missing = await client.get("/debug/page", params={"process": process, "page": name})
            assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")


async def test_two_processes_of_one_name_are_both_asked(tmp_path: Path) -> None:
    first, second = FakeProxy("p", 2), FakeProxy("p", 2)
    second.ids = ["other"]
    async with api(tmp_path, first, second) as client:
        found, unanswered = await pages(client, 1)
        assert (sorted(found), unanswered) == (sorted([*first.ids, "other"]), [])


async def test_a_stream_that_ends_is_opened_anew(tmp_path: Path) -> None:
    """As when another controller leads from now on."""
    proxy = FakeProxy("p", 1)
    app = ControllerApp(
        Runtime(SystemClock(), random.Random(7), CollectorRegistry()), ControllerOptions(), tmp_path, no_broker
    )
    await app.start()
    channel = LocalChannel(app.service)
    stream = InspectionStream(channel, proxy.process, [], proxy.answer, lambda: "", random.Random(0))
    await stream.start()
    try:
        await until(lambda: len(app._inspections.all) == 1)
        (before,) = app._inspections.all
        app._inspections.close()
        await until(lambda: bool(app._inspections.all) and app._inspections.all[0] is not before)
        (after,) = app._inspections.all
        asked = pb.InspectQuestion(clients=pb.ClientListRequest(limit=1))
        assert [each.id for each in (await app._inspections.ask(after, asked)).clients.clients] == proxy.ids
    finally:
        await stream.stop()
        await channel.close()
        await app.stop()
    await until(lambda: app._inspections.all == [])


async def test_an_answer_that_fails_says_so(tmp_path: Path) -> None:
    class Broken(FakeProxy):
        async def answer(self, question: pb.InspectQuestion) -> pb.InspectAnswer:
            raise KeyError("what")

    async with api(tmp_path, Broken("p", 1)) as client:
        found, unanswered = await pages(client, 10)
        assert found == []
        assert "it failed at this: KeyError('what')" in unanswered[0]["reason"]


async def test_polls_of_all_proxies_come_page_by_page(tmp_path: Path) -> None:
    first, second = FakeProxy("127.0.0.1:8081/0", 4), FakeProxy("127.0.0.1:8081/1", 3)
    async with api(tmp_path, first, second, old="old") as client:
        found: list[tuple[str, str, str]] = []
        after: str | None = ""
        silent: set[str] = set()
        while after is not None:
            page = (await client.get("/polls", params={"after": after, "limit": 2})).json()
            assert len(page["polls"]) <= 2
            found += [(each["proxy"], each["topic"], each["group"]) for each in page["polls"]]
            silent |= {each["proxy"] for each in page["unanswered"]}
            after = page["next"]
        assert found == [(proxy.name, f"t{n}", f"g{n}") for proxy in (first, second) for n in range(len(proxy.ids))]
        assert silent == {"old"}
        assert (await client.get("/polls", params={"after": "x"})).status_code == 400
        assert (await client.get("/polls", params={"group": "a b"})).status_code == 400


async def test_settings_of_all_processes_say_where_they_came_from(tmp_path: Path) -> None:
    proxy = FakeProxy("proxy-0", 1)
    async with api(tmp_path, proxy, old="old") as client:
        found = (await client.get("/settings")).json()
        assert [each["process"] for each in found["processes"]] == ["controller", "proxy/proxy-0"]
        assert found["processes"][1]["settings"] == [
            {"key": "proxy.name", "value": "proxy-0", "source": "file"},
            {"key": "proxy.names", "value": ["a"], "source": "default"},
        ]
        assert [each["process"] for each in found["unanswered"]] == ["proxy/old"]
        one = (await client.get("/settings", params={"process": "proxy/proxy-0"})).json()
        assert ([each["process"] for each in one["processes"]], one["unanswered"]) == (["proxy/proxy-0"], [])
