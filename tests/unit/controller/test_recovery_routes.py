"""`/api/v1/cluster/recovery`: all brokers are asked page by page, and the whole state is replaced at once."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE, ClusterView, store_id_of
from popwheel_common.errors import StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerInfo,
    ClusterUpdate,
    Group,
    ReplicaReport,
    Topic,
    TopicType,
    WatchRequest,
)
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.http import recovery_routes
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.methods import NAME_LIST, WATCH
from popwheel_rpc.service import Call, Channel, Service
from tests.unit.controller.test_app import until

LOST = 3 * VERSIONS_PER_STORE
RECOVERY = "/cluster/recovery"


class KnowingBroker:
    """A broker that has names in its log."""

    def __init__(self, name: str, topics: int = 0) -> None:
        self.name = name
        settings = Topic(type=TopicType.FIFO, queues=4).SerializeToString()
        self.topics = {
            f"t-{number:03}": pb.ListedName(name=f"t-{number:03}", ids=[LOST + 1 + number], settings=settings)
            for number in range(topics)
        }
        slow = Group(max_attempts=9, backoff_ms=[5]).SerializeToString()
        self.groups = {"g": pb.ListedName(name="g", ids=[LOST + 900], settings=slow)}
        self.states = [pb.SeenStore(version=LOST + 900, applied_version=LOST + 900)]
        self.error: StatusError | None = None
        self.asked: list[pb.NameListRequest] = []
        self.service = Service()
        self.service.unary(NAME_LIST, self._list)

    async def _list(self, call: Call, request: pb.NameListRequest) -> pb.NameListResponse:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        every = self.groups if request.groups else self.topics
        names = [name for name in sorted(every) if name > request.after]
        page = names[: request.limit]
        following = page[-1] if len(names) > len(page) else ""
        return pb.NameListResponse(names=[every[name] for name in page], next=following, states=self.states)


@asynccontextmanager
async def leading(folder: Path, *brokers: KnowingBroker) -> AsyncIterator[tuple[ControllerApp, httpx.AsyncClient]]:
    by_name = {broker.name: broker for broker in brokers}

    def connect(info: BrokerInfo) -> Channel:
        return LocalChannel(by_name[info.name].service)

    app = ControllerApp(
        Runtime(SystemClock(), random.Random(7), CollectorRegistry()), ControllerOptions(), folder, connect
    )
    async with AsyncExitStack() as stack:
        await app.start()
        stack.push_async_callback(app.stop)
        channel = LocalChannel(app.service)
        stack.push_async_callback(channel.close)
        for broker in brokers:
            registrar = BrokerRegistrar(
                channel,
                partial(ReplicaReport, group=broker.name, address=f"{broker.name}:1", identity=b"volume"),
                lambda group: None,
                random.Random(0),
            )
            await registrar.start()
            stack.push_async_callback(registrar.stop)
        await until(lambda: app.state.brokers.keys() == by_name.keys())
        api = make_http_app("test", "0", CollectorRegistry(), {}, [app.admin])
        yield (
            app,
            await stack.enter_async_context(
                httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://controller/api/v1")
            ),
        )


async def test_a_dry_run_shows_it_and_changes_nothing_then_it_is_done_and_reported_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_routes, "_PAGE", 2)
    broker = KnowingBroker("b-0", 5)
    async with leading(tmp_path, broker) as (app, http):
        before = app.state
        found = await http.post(RECOVERY, params={"dry_run": True}, json={})
        assert found.status_code == 200, found.text
        answer = found.json()
        assert (answer["brokers"], answer["topics_total"], answer["groups_total"]) == (["b-0"], 5, 1)
        assert [each["name"] for each in answer["topics"]] == [f"t-{number:03}" for number in range(5)]
        assert (answer["topics"][0]["type"], answer["topics"][0]["id"]) == ("FIFO", LOST + 1)
        assert (answer["groups"][0]["max_attempts"], answer["findings"], answer["kept_total"]) == (9, [], 0)
        assert [each.after for each in broker.asked if not each.groups] == ["", "t-001", "t-003"]
        assert app.state is before

        channel = LocalChannel(app.service)
        stream = channel.open(WATCH)
        await stream.send([WatchRequest(process="p-0")])
        view = ClusterView()
        view.apply(await stream.receive() or ClusterUpdate())
        assert (await http.post(RECOVERY, json={})).json() == answer
        async with asyncio.timeout(5):
            while store_id_of(view.version) != 3:
                view.apply(await stream.receive() or ClusterUpdate())
        assert view.topics.keys() == broker.topics.keys() and view.groups["g"].id == LOST + 900
        stream.cancel()
        await channel.close()
        (line,) = [each for each in (await http.get("/changes")).json()["changes"] if each["verb"] == "cluster recover"]
        assert line["outcome"] == "done", "and none of the dry run"
        assert line["after"] == "5 topics, 1 groups, 0 findings"
        assert (await http.post("/topics", json={"name": "new"})).json()["id"] > LOST + 1_000_000
        version = app.state.version
    async with leading(tmp_path, broker) as (app, http):
        assert app.state.topics.keys() == {*broker.topics, "new"} and store_id_of(app.state.version) == 3
        assert app.state.version >= version


async def test_it_is_refused_while_a_broker_group_does_not_answer(tmp_path: Path) -> None:
    brokers = KnowingBroker("b-0", 1), KnowingBroker("b-1", 1)
    async with leading(tmp_path, *brokers) as (app, http):
        brokers[1].error = StatusError(Code.INTERNAL_SERVER_ERROR, "it hangs")
        found = await http.post(RECOVERY, json={})
        assert (found.status_code, found.json()["code"]) == (500, "HA_NOT_AVAILABLE")
        assert "no answer from b-1 (it hangs)" in found.json()["message"]
        assert app.state.topics == {}
    async with leading(tmp_path / "empty") as (_, http):
        found = await http.post(RECOVERY, json={})
        assert "no broker group is registered" in found.json()["message"]


async def test_what_is_there_under_another_id_is_refused_unless_it_is_adopted(tmp_path: Path) -> None:
    async with leading(tmp_path, KnowingBroker("b-0", 2)) as (app, http):
        await http.post("/topics", json={"name": "t-001", "type": "MIXED"})
        found = await http.post(RECOVERY, json={})
        assert (found.status_code, found.json()["code"]) == (409, "PRECONDITION_FAILED")
        assert found.json()["message"].startswith("topic t-001 is there already under another id")
        found = await http.post(RECOVERY, json={"adopt": True})
        assert (found.json()["topics_total"], found.json()["kept_total"]) == (1, 1)
        assert (app.state.topics["t-001"].id, app.state.topics["t-001"].type) == (LOST + 2, TopicType.MIXED)
        assert (await http.post(RECOVERY, json={"force": True})).status_code == 400
