"""Numbers of the cluster over the admin API: what several brokers say put together, and what if one is silent."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.errors import StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ReplicaReport
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.options import ControllerOptions
from popwheel_rpc import methods
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.service import Call, Channel, Service
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.controller.test_app import until


class FakeActivityBroker:
    """Answers what is asked about activity.

    Args:
        name: the broker's.
        lag: of each group, in messages and in milliseconds.
    """

    def __init__(self, name: str, lag: int) -> None:
        self.name = name
        self.lag = lag
        self.number = 100
        self.is_away = False
        self.asked: list[str] = []
        self.revive_behind_ms = 0
        self.knows_waiting = True
        self.service = Service()
        self.service.unary(methods.SAMPLE_ACTIVITY, self._sample)
        self.service.unary(methods.DESCRIBE_GROUPS, self._groups)
        self.service.unary(methods.DESCRIBE_TOPICS, self._topics)
        self.service.unary(methods.GROUP_BALANCE, self._balance)
        self.service.unary(methods.TIMER_HISTOGRAM, self._histogram)

    def connect(self, info: BrokerInfo) -> Channel:
        return LocalChannel(self.service)

    def _fail(self, what: str) -> None:
        self.asked.append(what)
        if self.is_away:
            raise StatusError(Code.HA_NOT_AVAILABLE, "it is away")

    async def _sample(self, call: Call, request: pb.SampleActivityRequest) -> pb.SampleActivityResponse:
        self._fail("peek" if request.peek else "sample")
        is_next = request.since == self.number
        answer = pb.SampleActivityResponse(
            number=self.number,
            interval_ms=10_000 if is_next else 0,
            totals=pb.ActivityTotals(
                messages_in=100 if is_next else 0,
                lag=self.lag,
                lag_ms=self.lag,
                in_flight=2,
                delayed=3,
                stored=50,
                dead_letters=4,
                poisoned=1,
                poisoned_max=10,
                revive_behind_ms=self.revive_behind_ms,
                timers_max=100,
                disk_full_share=0.9,
            ),
            all_topics=True,
            all_groups=True,
        )
        answer.topics.add(name="t", messages_in=100 if is_next else 0, lag=self.lag)
        answer.groups.add(name="g", messages_in=0, messages_out=50 if is_next else 0, lag=self.lag, lag_ms=self.lag)
        if not request.peek:
            self.number += 1
            answer.number = self.number
        return answer

    async def _groups(self, call: Call, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
        self._fail("groups")
        answer = pb.DescribeGroupsResponse()
        for name in request.groups:
            reported = answer.groups.add(name=name, in_flight=1, dead_letters=2, poisoned=3, lag_ms=self.lag, topics=4)
            if self.knows_waiting:
                reported.waiting, reported.retrying = self.lag, 5
        return answer

    async def _topics(self, call: Call, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        self._fail("topics")
        answer = pb.DescribeTopicsResponse()
        for name in request.topics:
            answer.topics.add(name=name, stored=10, delayed=1, groups=2)
        return answer

    async def _balance(self, call: Call, request: pb.GroupBalanceRequest) -> pb.GroupBalanceResponse:
        self._fail("balance")
        answer = pb.GroupBalanceResponse()
        answer.topics.add(
            topic="t", stored=12, done=1, in_flight=2, waiting=3, delayed=0, dead=self.lag, poisoned=0, expired=0
        )
        answer.topics.add(topic="u", stored=1, in_flight=0)
        return answer

    async def _histogram(self, call: Call, request: pb.TimerHistogramRequest) -> pb.TimerHistogramResponse:
        self._fail("histogram")
        counts = [] if request.topic == "u" else range(len(request.bounds_ms) + 1)
        return pb.TimerHistogramResponse(pending=9, counts=counts, behind_ms=self.lag)


@asynccontextmanager
async def api(folder: Path, *brokers: FakeActivityBroker) -> AsyncIterator[tuple[httpx.AsyncClient, ControllerApp]]:
    """The admin API of a controller at which these brokers are registered, with topics t, u and groups g, h."""
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
            registrar = BrokerRegistrar(
                channel,
                partial(ReplicaReport, group=broker.name, address=f"{broker.name}:1"),
                lambda group: None,
                random.Random(0),
            )
            await registrar.start()
            stack.push_async_callback(registrar.stop)
        await until(lambda: app.state.brokers.keys() == by_name.keys())
        await app._sampler.stop()  # tests say when it samples
        http = make_http_app("test", "0", CollectorRegistry(), {}, [app.admin])
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(http), base_url="http://controller/api/v1")
        )
        for name in "tu":
            await client.post("/topics", json={"name": name})
        for name in "gh":
            await client.post("/groups", json={"name": name, "fifo": name == "h"})
        yield client, app


async def get(client: httpx.AsyncClient, path: str, **asked: Any) -> dict[str, Any]:
    answer = await client.get(path, params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def two() -> tuple[FakeActivityBroker, FakeActivityBroker]:
    return FakeActivityBroker("b1", 6), FakeActivityBroker("b2", 7)


async def test_the_overview_adds_up_what_brokers_say(tmp_path: Path) -> None:
    brokers = two()
    async with api(tmp_path, *brokers) as (client, app):
        await app._sampler.sample()
        await app._sampler.sample()
        found = await get(client, "/activity/overview")
    worst = found.pop("worst_groups")
    assert found.pop("time_ms") > 0
    assert found == {
        "in_rate": 20.0,
        "out_rate": 0.0,
        "stored": 100,
        "lag": 13,
        "lag_ms": 7,
        "held": 4,
        "delayed": 6,
        "dead_letters": 8,
        "poisoned": 2,
        "topics": 2,
        "groups": 2,
        "unanswered": [],
    }
    assert worst == [
        {
            "name": "g",
            "fifo": False,
            "lag": 25,
            "lag_ms": 7,
            "waiting": 13,
            "held": 2,
            "retrying": 10,
            "dead_letters": 4,
            "poisoned": 6,
            "in_rate": 0.0,
            "out_rate": 10.0,
            "topics": 4,
        }
    ]


async def test_who_is_silent_is_named_and_what_is_not_known_is_null(tmp_path: Path) -> None:
    brokers = two()
    async with api(tmp_path, *brokers) as (client, app):
        await app._sampler.sample()
        brokers[1].is_away = True
        await app._sampler.sample()
        overview = await get(client, "/activity/overview")
        assert (overview["lag"], overview["stored"], overview["in_rate"]) == (6, 50, 10.0)
        assert [each["broker"] for each in overview["unanswered"]] == ["b2"]
        groups = await get(client, "/activity/groups")
        assert [(each["name"], each["fifo"]) for each in groups["groups"]] == [("g", False), ("h", True)]
        assert [each["out_rate"] for each in groups["groups"]] == [None, None]
        history = await get(client, "/activity/history")
        assert (history["in_rate"], history["lag"]) == ([None], [13])
        brokers[0].is_away = True
        overview = await get(client, "/activity/overview")
        assert (overview["lag"], overview["lag_ms"], overview["stored"]) == (None, None, None)
        assert len(overview["unanswered"]) == 2
        (group, _) = (await get(client, "/activity/groups"))["groups"]
        assert (group["lag"], group["waiting"], group["lag_ms"]) == (None, None, None)
        (topic, _) = (await get(client, "/activity/topics"))["topics"]
        assert (topic["stored"], topic["groups"], topic["delayed"]) == (None, None, None)


async def test_pages_of_groups_and_topics_ask_each_broker_once(tmp_path: Path) -> None:
    brokers = two()
    async with api(tmp_path, *brokers) as (client, app):
        await app._sampler.sample()
        await app._sampler.sample()
        for broker in brokers:
            broker.asked.clear()
        first = await get(client, "/activity/groups", limit=1)
        assert ([each["name"] for each in first["groups"]], first["total"], first["next"]) == (["g"], 2, "g")
        rest = await get(client, "/activity/groups", after="g")
        assert ([each["name"] for each in rest["groups"]], rest["next"]) == (["h"], None)
        assert brokers[0].asked == ["groups", "groups"]
        topics = await get(client, "/activity/topics", prefix="t")
        assert topics["topics"] == [
            {
                "name": "t",
                "type": "NORMAL",
                "queues": 8,
                "stored": 20,
                "in_rate": 20.0,
                "out_rate": 0.0,
                "groups": 2,
                "delayed": 2,
            }
        ]
        brokers[0].knows_waiting = False
        (group,) = (await get(client, "/activity/groups", limit=1))["groups"]
        assert (group["waiting"], group["lag"], group["held"]) == (None, None, 2)
        assert (await client.get("/activity/groups", params={"limit": 101})).status_code == 400


async def test_the_past_of_the_cluster_a_topic_and_a_group(tmp_path: Path) -> None:
    async with api(tmp_path, *two()) as (client, app):
        empty = await get(client, "/activity/history")
        assert (empty["since_ms"], empty["lag"]) == (None, [])
        await app._sampler.sample()
        cluster = await get(client, "/activity/history")
        assert (cluster["lag"], cluster["held"], cluster["delayed"], cluster["interval_ms"]) == ([13], [4], [6], 10_000)
        group = await get(client, "/activity/history", kind="group", name="g")
        assert (group["name"], group["lag"], group["lag_ms"], group["delayed"]) == ("g", [13], [7], [None])
        topic = await get(client, "/activity/history", kind="topic", name="t")
        assert (topic["lag"], topic["in_rate"]) == ([13], [None])
        assert (await client.get("/activity/history", params={"kind": "topic", "name": "none"})).status_code == 404
        assert (await client.get("/activity/history", params={"kind": "other"})).status_code == 400


async def test_the_balance_has_its_difference_and_null_where_something_is_not_known(tmp_path: Path) -> None:
    async with api(tmp_path, *two()) as (client, _):
        found = await get(client, "/groups/g/balance")
        assert [(row["topic"], row["broker"], row["difference"]) for row in found["rows"]] == [
            ("t", "b1", 0),
            ("t", "b2", -1),
            ("u", "b1", None),
            ("u", "b2", None),
        ]
        assert found["rows"][2]["done"] is None
        assert found["rows"][2]["held"] == 0
        assert found["explained"].startswith("`stored` = `done` + `held`")
        assert (await client.get("/groups/none/balance")).status_code == 404
        assert (await client.get("/groups/g/balance", params={"topic": "none"})).status_code == 404


async def test_a_histogram_of_timers(tmp_path: Path) -> None:
    async with api(tmp_path, *two()) as (client, _):
        found = await get(client, "/timers/histogram", bounds_ms="1000,60000")
        assert found == {
            "pending": 18,
            "buckets": [
                {"from_ms": 0, "to_ms": 1000, "count": 0},
                {"from_ms": 1000, "to_ms": 60_000, "count": 2},
                {"from_ms": 60_000, "to_ms": None, "count": 4},
            ],
            "behind_ms": 7,
            "unanswered": [],
        }
        assert len((await get(client, "/timers/histogram"))["buckets"]) == 9
        buckets = (await get(client, "/timers/histogram", topic="u"))["buckets"]
        assert {each["count"] for each in buckets} == {None}
        for wrong in ("", "0", "5,5", "x", "1,", "9" * 17, ",".join(map(str, range(1, 102)))):
            assert (await client.get("/timers/histogram", params={"bounds_ms": wrong})).status_code == 400, wrong


async def test_trouble_is_what_alerts_would_say(tmp_path: Path) -> None:
    brokers = two()
    brokers[0].revive_behind_ms = 20_000
    async with api(tmp_path, *brokers) as (client, app):
        await app._sampler.sample()
        brokers[1].is_away = True
        await app._sampler.sample()
        found = await get(client, "/trouble")
    problems = {(each["id"], each["object"]): each for each in found["problems"]}
    late = problems["PopwheelReviveBehind", "b1"]
    assert (late["severity"], late["fires"], late["link"]) == (
        "critical",
        False,
        "docs/operate/alerts.md#popwheelrevivebehind",
    )
    assert late["since_ms"] > 0
    assert ("PopwheelPoisonMessage", "b1") in problems
    assert ("PopwheelNoProxy", "") in problems
    assert [each["broker"] for each in found["unanswered"]] == ["b2"]


async def test_nothing_takes_a_turn_for_long_with_many_names(tmp_path: Path) -> None:
    broker = FakeActivityBroker("b1", 1)

    async def many(call: Call, request: pb.SampleActivityRequest) -> pb.SampleActivityResponse:
        answer = pb.SampleActivityResponse(number=1, interval_ms=10_000, all_topics=False, all_groups=False)
        for number in range(1_000):
            answer.topics.add(name=f"t{number}", messages_in=number, lag=1)
            answer.groups.add(name=f"g{number}", messages_in=number, messages_out=1, lag=1, lag_ms=1, waiting_ms=1)
        return answer

    broker.service.unary_handlers[methods.SAMPLE_ACTIVITY.path] = (methods.SAMPLE_ACTIVITY, many)
    async with api(tmp_path, broker) as (_, app):
        await app._sampler.sample()
        assert len(app._book) == 2_000
        steps = app._book.take(1 << 41, ["b1"], app._book.samples)
        with measured_turns() as turns:
            for _ in steps:
                await asyncio.sleep(0)
        assert turns.longest_s < TURN_S_MAX / 5, turns


async def test_a_controller_that_leads_samples_by_itself(tmp_path: Path) -> None:
    broker = FakeActivityBroker("b1", 1)
    async with api(tmp_path, broker) as (_, app):
        app._sampler.start()
        await until(lambda: "b1" in app._book.samples)
        await app._sampler.stop()
        assert app._book.samples == {}, "another one may lead meanwhile"
