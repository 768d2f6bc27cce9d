"""Delayed messages over the admin API: what several brokers say put together, and what if one says nothing."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import httpx
import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.contract import recall_handle
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.errors import StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import TimerStatsRequest, TimerStatsResponse
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ReplicaReport
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.http import timer_routes
from popwheel_controller.http.inquiry import Answers, Inquiry, Silence
from popwheel_controller.http.timers import Timers
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.methods import TIMER_STATS
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.controller.fake_timer_broker import NOW_MS, FakeTimerBroker
from tests.unit.controller.test_app import until

AWAY = RpcError(GrpcStatus.UNAVAILABLE, "connection refused")


@asynccontextmanager
async def api(folder: Path, *brokers: FakeTimerBroker) -> AsyncIterator[httpx.AsyncClient]:
    """The admin API of a controller at which these brokers are registered, with a topic `later`."""
    by_name = {broker.name: broker for broker in brokers}
    app = ControllerApp(
        Runtime(SystemClock(), random.Random(7), CollectorRegistry()),
        ControllerOptions(),
        folder,
        lambda info: by_name[info.name].connect(info),
    )
    async with AsyncExitStack() as stack:
        await app.start()
        stack.push_async_callback(app.stop)
        channel = LocalChannel(app.service)
        stack.push_async_callback(channel.close)
        for broker in brokers:
            broker.key = app.state.receipt_key
            registrar = BrokerRegistrar(
                channel,
                partial(ReplicaReport, group=broker.name, address=f"{broker.name}:1"),
                lambda group: None,
                random.Random(0),
            )
            await registrar.start()
            stack.push_async_callback(registrar.stop)
        await until(lambda: app.state.brokers.keys() == by_name.keys())
        http = make_http_app("test", "0", CollectorRegistry(), {}, [app.admin])
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(http), base_url="http://controller/api/v1")
        )
        await client.post("/topics", json={"name": "later", "type": "DELAY"})
        yield client
        for broker in brokers:
            for opened in broker.channels:
                with pytest.raises(RpcError, match="closed"):  # none is left open
                    await opened.call(TIMER_STATS, TimerStatsRequest())


def two_brokers() -> tuple[FakeTimerBroker, FakeTimerBroker]:
    return (
        FakeTimerBroker("b1", ("later", NOW_MS + 1_000), ("later", NOW_MS + 30_000), ("far", NOW_MS + 10**9)),
        FakeTimerBroker("b2", ("later", NOW_MS + 20_000), ("later", NOW_MS + 90_000)),
    )


async def test_counts_of_all_brokers_are_added_up(tmp_path: Path) -> None:
    async with api(tmp_path, *two_brokers()) as http:
        stats = (await http.get("/timers/stats")).json()
    assert stats["pending"] == 5
    assert [(one["within_ms"], one["count"]) for one in stats["horizons"]] == [
        (60_000, 3),
        (600_000, 1),
        (3_600_000, 0),
        (86_400_000, 0),
        (0, 1),
    ]
    assert stats["topics"] == [{"topic": "far", "count": 1}, {"topic": "later", "count": 4}]
    assert stats["brokers"][0] == {
        "broker": "b1",
        "pending": 3,
        "recalled": 0,
        "read_time_ms": NOW_MS,
        "write_time_ms": NOW_MS + 1,
        "behind_ms": 7,
    }
    assert [one["broker"] for one in stats["brokers"]] == ["b1", "b2"]
    assert stats["unanswered"] == []


async def test_without_a_broker_there_is_nothing_to_count(tmp_path: Path) -> None:
    async with api(tmp_path) as http:
        stats = (await http.get("/timers/stats")).json()
        listed = (await http.get("/timers", params={"topic": "later"})).json()
    assert stats == {"pending": 0, "horizons": [], "topics": [], "brokers": [], "unanswered": []}
    assert listed == {"timers": [], "more": False, "next": None, "unanswered": []}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AWAY, "the broker b1 cannot be reached now"),
        (RpcError(GrpcStatus.DEADLINE_EXCEEDED, "slow"), "the broker b1 did not answer within 5 s"),
        (RpcError(GrpcStatus.UNIMPLEMENTED, "what?"), "of an older release, which cannot answer this"),
        (RpcError(GrpcStatus.INTERNAL, "broken"), "the call to the broker b1 failed: broken"),
        (StatusError(Code.UNSUPPORTED, "the timer is off"), "the timer is off"),
    ],
)
async def test_a_broker_that_does_not_answer_is_named(
    tmp_path: Path, error: StatusError | RpcError, words: str
) -> None:
    first, second = two_brokers()
    first.error = error
    async with api(tmp_path, first, second) as http:
        stats = (await http.get("/timers/stats")).json()
        listed = (await http.get("/timers", params={"topic": "later"})).json()
    for answer in (stats, listed):
        ((silent),) = answer["unanswered"]
        assert silent["broker"] == "b1"
        assert words in silent["reason"]
    assert stats["pending"] == 2
    assert [one["broker"] for one in listed["timers"]] == ["b2", "b2"]


async def test_the_earliest_of_all_brokers_are_listed(tmp_path: Path) -> None:
    async with api(tmp_path, *two_brokers()) as http:

        async def dues(**asked: int) -> tuple[list[int], bool]:
            listed = (await http.get("/timers", params={"topic": "later", **asked})).json()
            return [one["due_ms"] - NOW_MS for one in listed["timers"]], listed["more"]

        assert await dues() == ([1_000, 20_000, 30_000, 90_000], False)
        assert await dues(within_ms=30_000) == ([1_000, 20_000, 30_000], False)
        assert await dues(limit=2) == ([1_000, 20_000], True)
        assert await dues(limit=1) == ([1_000], True)
        assert await dues(limit=3) == ([1_000, 20_000, 30_000], True)
        first = (await http.get("/timers", params={"topic": "later"})).json()["timers"][0]
        assert {name: first[name] for name in ("topic", "message_id", "tag", "keys", "broker")} == {
            "topic": "later",
            "message_id": "id-1000",
            "tag": "t",
            "keys": ["k1", "k2"],
            "broker": "b1",
        }


@pytest.mark.parametrize(("limit", "at_once"), [(1, 1000), (3, 2), (7, 1), (1000, 1)])
async def test_pages_of_all_brokers_hold_each_message_once(tmp_path: Path, limit: int, at_once: int) -> None:
    """Each broker stops where it likes; seconds in which several have timers, and crowded ones, are among them."""
    dues = [NOW_MS + due_ms for due_ms in (1000, 1001, 1002, 1500, 3000, 3100, 4000, 9000, 9001, 9002, 9003)]
    brokers = [
        FakeTimerBroker("b1", *(("later", due_ms) for due_ms in dues)),
        FakeTimerBroker("b2", *(("later", due_ms + 10) for due_ms in dues if due_ms % 2)),
        FakeTimerBroker("b3", ("later", NOW_MS + 1), ("other", NOW_MS + 20_000)),
        FakeTimerBroker("b4"),
    ]
    brokers[0].at_once = at_once
    async with api(tmp_path, *brokers) as http:

        async def scan(**asked: str) -> list[tuple[str, int]]:
            found: list[tuple[str, int]] = []
            after: str | None = ""
            while after is not None:
                page = (await http.get("/timers", params={"limit": limit, "after": after, **asked})).json()
                assert len(page["timers"]) <= limit
                assert page["more"] is (page["next"] is not None)
                found += [(one["broker"], one["due_ms"]) for one in page["timers"]]
                after = page["next"]
            return found

        everything = {(broker.name, due_ms) for broker in brokers for _, due_ms in broker.dues}
        found = await scan()
        assert len(found) == len(set(found))
        assert set(found) == everything
        seconds = [due_ms // 1000 for _, due_ms in found]
        assert seconds == sorted(seconds)
        assert set(await scan(topic="later")) == everything - {("b3", NOW_MS + 20_000)}
        assert await scan(broker="b3") == [("b3", NOW_MS + 1), ("b3", NOW_MS + 20_000)]
        silent = (await http.get("/timers", params={"broker": "b9"})).json()
        assert silent["unanswered"] == [{"broker": "b9", "reason": "the broker b9 is not there now; try again"}]


async def test_a_message_is_recalled(tmp_path: Path) -> None:
    first, second = two_brokers()
    async with api(tmp_path, first, second) as http:
        listed = (await http.get("/timers", params={"topic": "later"})).json()["timers"]
        order = {"topic": "later", "recall_handle": listed[1]["recall_handle"]}
        answer = await http.post("/timers/recall", json=order)
        assert (answer.status_code, answer.json()) == (
            200,
            {"topic": "later", "message_id": "id-20000", "recalled": True},
        )
        assert (first.recalled, second.recalled) == (0, 1)
        late = await http.post("/timers/recall", json=order)
        assert (late.status_code, late.json()["code"]) == (409, "PRECONDITION_FAILED")
        second.error = AWAY
        away = await http.post("/timers/recall", json=order)
        assert (away.status_code, away.json()["code"]) == (500, "HA_NOT_AVAILABLE")
        assert "the broker b2 cannot be reached now" in away.json()["message"]


async def test_a_group_without_a_master_is_away() -> None:
    """During a failover it is in the routes, with no address: to such a place there is no channel."""

    async def unused(*_: object) -> NoReturn:
        raise AssertionError

    def connect(info: BrokerInfo) -> NoReturn:
        raise ValueError(f"no address: {info.address!r}")

    state = ClusterState("popwheel", bytes(32), brokers={"b1": BrokerInfo(name="b1", epoch=3)})
    timers = Timers(Inquiry(StateWriter(state, unused, unused, lambda _: None, lambda: None, 10), connect))
    answers = await timers.stats()
    assert answers.given == {}
    assert answers.unanswered == [Silence(broker="b1", reason="the broker b1 is not there now; try again")]
    with pytest.raises(StatusError) as caught:
        await timers.recall("later", recall_handle.encode(bytes(32), "later", RecallHandle("b1", 1, 1, "id")))
    assert caught.value.code == Code.HA_NOT_AVAILABLE


async def test_handles_of_brokers_that_are_not_there(tmp_path: Path) -> None:
    first, _ = two_brokers()
    async with api(tmp_path, first) as http:
        gone = recall_handle.encode(first.key, "later", RecallHandle("b9", 1, 1, "id"))
        forged = recall_handle.encode(b"another key", "later", RecallHandle("b9", 1, 1, "id"))
        for handle, code, words in (
            (gone, "HA_NOT_AVAILABLE", "the broker b9 is not there now"),
            (forged, "BAD_REQUEST", "was not issued for this topic"),
            ("garbled", "BAD_REQUEST", "was not issued for this topic"),
        ):
            answer = await http.post("/timers/recall", json={"topic": "later", "recall_handle": handle})
            assert answer.json()["code"] == code
            assert words in answer.json()["message"]


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"after": "x"}, 400, "after: this is no place"),
        ({"topic": "nowhere"}, 404, "there is no topic nowhere"),
        ({"topic": "later", "within_ms": 0}, 400, "within_ms: "),
        ({"topic": "later", "within_ms": "soon"}, 400, "within_ms: "),
        ({"topic": "later", "limit": 0}, 400, "limit: "),
        ({"topic": "later", "limit": 1001}, 400, "limit: "),
    ],
)
async def test_what_cannot_be_listed(tmp_path: Path, asked: dict[str, str], status: int, words: str) -> None:
    async with api(tmp_path) as http:
        answer = await http.get("/timers", params=asked)
        assert answer.status_code == status
        assert words in answer.json()["message"]
        recall = await http.post("/timers/recall", json={"topic": "later", "handle": "x"})
        assert recall.status_code == 400


async def test_the_api_describes_the_timers(tmp_path: Path) -> None:
    async with api(tmp_path) as http:
        described = (await http.get("http://controller/openapi.json")).json()
    assert {"/api/v1/timers/stats", "/api/v1/timers", "/api/v1/timers/recall"} <= described["paths"].keys()
    for model in ("TimerStats", "TimerList", "RecallOrder", "Recalled", "Silence", "Timer", "BrokerTimers"):
        assert described["components"]["schemas"][model]["description"]


def test_topics_of_which_few_are_pending_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_routes, "_TOPICS_MAX", 2)
    answers = {}
    for name in ("b1", "b2"):
        answers[name] = TimerStatsResponse(pending=10)
        for topic, count in (("few", 1), ("many", 5), ("some", 3), ("one", 1)):
            answers[name].topics.add(topic=topic, count=count)
    topics = timer_routes._stats(Answers(answers, [])).topics
    assert [(each.topic, each.count) for each in topics] == [("(other)", 4), ("many", 10), ("some", 6)]
