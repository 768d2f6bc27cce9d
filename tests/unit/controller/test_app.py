"""The controller as brokers, proxies and operators meet it: its calls, its admin API, its restarts."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS
from popwheel_common.errors import ConfigurationError, CorruptDataError, StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    ClusterUpdate,
    EnsureGroupRequest,
    EnsureTopicRequest,
    ReplicaReport,
    TopicType,
    WatchRequest,
)
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.controller_watch import ControllerWatch
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.methods import ENSURE_GROUP, ENSURE_TOPIC, REGISTER_BROKER, WATCH
from popwheel_rpc.service import ClientStream
from popwheel_rpc.status import RpcError
from tests.unit.controller.changes import contents, less_life
from tests.unit.controller.nowhere import no_broker

UNSET = {each.name: each.default for each in TOPIC_SETTINGS}


def make_app(folder: Path, **options: Any) -> ControllerApp:
    return ControllerApp(
        Runtime(SystemClock(), random.Random(7), CollectorRegistry()),
        ControllerOptions(**options),
        folder / "controller",
        no_broker,
    )


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[ControllerApp]:
    app = make_app(tmp_path, watcher_updates_max=3)
    await app.start()
    yield app
    await app.stop()


@pytest.fixture
async def channel(app: ControllerApp) -> AsyncIterator[LocalChannel]:
    channel = LocalChannel(app.service)
    yield channel
    await channel.close()


@pytest.fixture
async def http(app: ControllerApp) -> AsyncIterator[httpx.AsyncClient]:
    api = make_http_app("test", "0", CollectorRegistry(), {}, [app.admin])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://controller") as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def watch(channel: LocalChannel) -> ClientStream[ClusterUpdate, WatchRequest]:
    stream = channel.open(WATCH)
    await stream.send([WatchRequest(process="test")])
    await stream.end()
    return stream


async def make_topic(channel: LocalChannel, name: str) -> int:
    response = await channel.call(ENSURE_TOPIC, EnsureTopicRequest(name=name, type=TopicType.MIXED))
    return response.topic.id


async def test_watching_begins_with_the_whole_state_and_goes_on_with_changes(channel: LocalChannel) -> None:
    await make_topic(channel, "before")
    stream = await watch(channel)
    first = await stream.receive()
    assert first is not None
    assert first.snapshot
    assert ([topic.name for topic in first.topics], len(first.cluster.receipt_key)) == (["before"], 32)
    await make_topic(channel, "after")
    second = await stream.receive()
    assert second is not None
    assert (second.snapshot, less_life(second.version), [topic.name for topic in second.topics]) == (
        False,
        2,
        ["after"],
    )


async def test_who_watches_in_this_process_knows_a_topic_before_its_maker_is_reported(channel: LocalChannel) -> None:
    stream = await watch(channel)
    learned: list[str] = []

    async def listen() -> None:
        while (update := await stream.receive()) is not None:
            learned.extend(topic.name for topic in update.topics)

    listening = asyncio.create_task(listen())
    for number in range(20):
        await make_topic(channel, f"t-{number}")
        assert learned == [f"t-{earlier}" for earlier in range(number + 1)]
    stream.cancel()
    with pytest.raises((RpcError, StatusError)):
        await listening


async def test_watchers_that_come_together_share_one_snapshot(channel: LocalChannel) -> None:
    await make_topic(channel, "before")
    first, second = [await (await watch(channel)).receive() for _ in range(2)]
    assert first is second
    await make_topic(channel, "after")
    third = await (await watch(channel)).receive()
    assert third is not None
    assert [topic.name for topic in third.topics] == ["after", "before"]


async def test_watching_needs_a_request(channel: LocalChannel) -> None:
    stream = channel.open(WATCH)
    await stream.end()
    with pytest.raises(StatusError, match="WatchRequest"):
        await stream.receive()


async def test_a_watcher_that_lags_gets_the_whole_state_anew(app: ControllerApp, channel: LocalChannel) -> None:
    stream = await watch(channel)
    assert await stream.receive() is not None
    for number in range(60):  # more than the stream and the watcher hold together
        await make_topic(channel, f"t-{number}")
    view = ClusterView()
    snapshots = 0
    while view.version < app.state.version:
        update = await stream.receive()
        assert update is not None
        snapshots += update.snapshot
        view.apply(update)
    assert snapshots == 1
    assert contents(view) == contents(app.state)


async def test_what_is_ensured_is_made_once(app: ControllerApp, channel: LocalChannel) -> None:
    ids = await asyncio.gather(*(make_topic(channel, "a") for _ in range(5)))
    assert {less_life(each) for each in ids} == {1}
    assert less_life(await make_topic(channel, "a")) == 1
    groups = await asyncio.gather(*(channel.call(ENSURE_GROUP, EnsureGroupRequest(name="g")) for _ in range(3)))
    assert {(less_life(response.group.id), response.group.max_attempts) for response in groups} == {(2, 17)}
    assert less_life(app.state.version) == 2


async def test_bad_names_are_refused(channel: LocalChannel) -> None:
    with pytest.raises(StatusError) as caught:
        await make_topic(channel, "%RETRY%g_t")
    assert caught.value.code == Code.ILLEGAL_TOPIC
    with pytest.raises(StatusError) as caught:
        await channel.call(ENSURE_GROUP, EnsureGroupRequest(name="no good"))
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP


async def test_a_broker_is_there_as_long_as_its_stream(app: ControllerApp, channel: LocalChannel) -> None:
    stream = channel.open(REGISTER_BROKER)
    await stream.send([ReplicaReport(group="b-0", address="one:1")])
    answer = await stream.receive()
    assert answer is not None
    assert answer.version == 1
    assert app.state.brokers["b-0"].address == "one:1"
    stream.cancel()
    await until(lambda: not app.state.brokers)


async def test_of_two_streams_for_one_broker_the_newer_holds_it(app: ControllerApp, channel: LocalChannel) -> None:
    streams = []
    for address in ("one:1", "two:2"):
        stream = channel.open(REGISTER_BROKER)
        await stream.send([ReplicaReport(group="b-0", address=address)])
        assert await stream.receive() is not None
        streams.append(stream)
    streams[0].cancel()
    await make_topic(channel, "passes-the-end-of-the-first")
    assert app.state.brokers["b-0"].address == "two:2"
    refused = channel.open(REGISTER_BROKER)
    await refused.send([ReplicaReport(group="b-0", address="nonsense")])
    with pytest.raises(StatusError):
        await refused.receive()
    assert app.state.brokers["b-0"].address == "two:2"
    streams[1].cancel()
    await until(lambda: not app.state.brokers)


async def test_a_stream_registers_one_broker(channel: LocalChannel) -> None:
    stream = channel.open(REGISTER_BROKER)
    await stream.send([ReplicaReport(group="b-0", address="one:1")])
    assert await stream.receive() is not None
    await stream.send([ReplicaReport(group="b-1", address="one:1")])
    with pytest.raises(StatusError, match="this stream registers replica 0 of b-0"):
        await stream.receive()


async def test_followers_and_brokers_come_back_after_a_restart(tmp_path: Path) -> None:
    """The view stays as it was while the controller is away, and equals the new one's state when it is back."""
    first = make_app(tmp_path)
    await first.start()
    channel = SwitchedChannel(first)
    view = ClusterView()
    follower = ControllerWatch(channel, view, "test", SystemClock(), random.Random(0))
    registrar = BrokerRegistrar(
        channel, lambda: ReplicaReport(group="b-0", address="one:1"), lambda group: None, random.Random(0)
    )
    assert follower.away_since is not None
    await follower.start()
    await registrar.start()
    await follower.wait_ready()
    await make_topic(channel.now, "a")
    await until(lambda: registrar.registered and "a" in view.topics and "b-0" in view.brokers)
    assert registrar.health() is None
    assert follower.away_s == 0.0

    await first.stop()
    await channel.now.close()
    await until(lambda: follower.away_since is not None and not registrar.registered)
    assert list(view.topics) == ["a"]
    assert "not registered" in (registrar.health() or "")

    second = make_app(tmp_path)
    await second.start()
    channel.now = LocalChannel(second.service)
    await until(lambda: follower.away_since is None and registrar.registered and "b-0" in second.state.brokers)
    await until(lambda: view.version == second.state.version)
    assert contents(view) == contents(second.state)
    await registrar.stop()
    await follower.stop()
    await channel.now.close()
    await second.stop()


class SwitchedChannel:
    """A channel whose other end the test replaces, as a restart does."""

    def __init__(self, app: ControllerApp) -> None:
        self.now = LocalChannel(app.service)

    async def call(self, *args: Any, **options: Any) -> Any:
        return await self.now.call(*args, **options)

    def open(self, *args: Any, **options: Any) -> Any:
        return self.now.open(*args, **options)

    async def close(self) -> None:
        await self.now.close()


async def test_a_listener_that_fails_does_not_end_the_following(app: ControllerApp, channel: LocalChannel) -> None:
    view = ClusterView()
    failures = [ValueError("first time")]

    def listen(_: ClusterUpdate) -> None:
        if failures:
            raise failures.pop()

    view.subscribe(listen)
    follower = ControllerWatch(channel, view, "test", SystemClock(), random.Random(0))
    await follower.start()
    await follower.wait_ready()
    assert failures == []
    await follower.stop()


async def test_topics_groups_and_the_key_outlast_the_process(tmp_path: Path) -> None:
    first = make_app(tmp_path)
    await first.start()
    channel = LocalChannel(first.service)
    await make_topic(channel, "a")
    await channel.call(ENSURE_GROUP, EnsureGroupRequest(name="g"))
    await channel.close()
    await first.stop()
    second = make_app(tmp_path)
    assert "not read" in (second.health() or "")
    await second.start()
    assert contents(second.state) == contents(first.state)
    assert second.health() is None
    await second.stop()


async def test_the_clusters_name_stays(tmp_path: Path) -> None:
    app = make_app(tmp_path, cluster_name="one")
    await app.start()
    await app.stop()
    with pytest.raises(ConfigurationError, match="holds the cluster one"):
        await make_app(tmp_path, cluster_name="two").start()


async def test_a_damaged_state_is_not_begun_with(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    await app.start()
    await app.stop()
    file = tmp_path / "controller" / "cluster.json"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptDataError, match="restore it from a backup"):
        await make_app(tmp_path).start()
    assert file.read_bytes() == content


async def test_topics_over_http(http: httpx.AsyncClient) -> None:
    created = await http.post("/api/v1/topics", json={"name": "orders", "type": "FIFO", "queues": 3})
    topic = {"name": "orders", "type": "FIFO", "queues": 3, "id": 1, "paused_since_ms": None, **UNSET}
    assert (created.status_code, less_life(created.json())) == (201, topic)
    assert less_life((await http.get("/api/v1/topics")).json()) == {"topics": [topic], "total": 1, "next": None}
    assert less_life((await http.get("/api/v1/topics/orders")).json()) == topic
    assert less_life((await http.get("/api/v1/cluster")).json()) == {
        "name": "popwheel",
        "id": "",
        "version": 1,
        "topics": 1,
        "groups": 0,
        "brokers": [],
    }
    assert (await http.delete("/api/v1/topics/orders")).status_code == 200
    assert (await http.get("/api/v1/topics")).json() == {"topics": [], "total": 0, "next": None}


async def test_groups_over_http(http: httpx.AsyncClient) -> None:
    body = {"name": "%g", "max_attempts": 3, "fifo": True, "backoff_ms": [1, 2]}
    created = await http.post("/api/v1/groups", json=body)
    group = {**body, "exponential_backoff": None, "id": 1, "paused_since_ms": None}
    assert (created.status_code, less_life(created.json())) == (201, group)
    found = less_life((await http.get("/api/v1/groups")).json())
    assert found == {"groups": [group], "total": 1, "next": None}
    assert less_life((await http.get("/api/v1/groups/%25g")).json()) == group
    assert (await http.delete("/api/v1/groups/%25g")).status_code == 200
    assert (await http.get("/api/v1/groups")).json() == {"groups": [], "total": 0, "next": None}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "words"),
    [
        ("GET", "/topics/x", None, 404, "TOPIC_NOT_FOUND", "there is no topic x"),
        ("DELETE", "/topics/x", None, 404, "TOPIC_NOT_FOUND", "there is no topic x"),
        ("GET", "/groups/x", None, 404, "CONSUMER_GROUP_NOT_FOUND", "there is no group x"),
        ("POST", "/topics", {"name": "there"}, 409, "PRECONDITION_FAILED", "is there already"),
        ("POST", "/topics", {"name": "no good"}, 400, "ILLEGAL_TOPIC", "letters, digits"),
        ("POST", "/topics", {"name": "x", "type": "FOO"}, 400, "BAD_REQUEST", "NORMAL, FIFO"),
        ("POST", "/topics", {"name": "x", "type": "TOPIC_TYPE_UNSPECIFIED"}, 400, "BAD_REQUEST", "NORMAL, FIFO"),
        ("POST", "/topics", {"name": "x", "queues": 1025}, 400, "BAD_REQUEST", "1 to 1024"),
        ("POST", "/topics", {"name": "x", "queues": "8"}, 400, "BAD_REQUEST", "queues: "),
        ("POST", "/topics", {"name": "x", "colour": 1}, 400, "BAD_REQUEST", "colour: "),
        ("POST", "/topics", [], 400, "BAD_REQUEST", "the request: "),
        ("POST", "/groups", {"name": "g", "max_attempts": 0}, 400, "BAD_REQUEST", "max_attempts"),
        ("POST", "/groups", {"name": "g", "max_attempts": 2**40}, 400, "BAD_REQUEST", "max_attempts"),
        ("POST", "/groups", {"name": "g", "exponential_backoff": {"initial_ms": 1}}, 400, "BAD_REQUEST", "max_ms: "),
        ("GET", "/nothing", None, 404, "NOT_FOUND", "GET /api/v1/nothing"),
        ("PUT", "/topics", {}, 405, "BAD_REQUEST", "PUT /api/v1/topics"),
    ],
)
async def test_refusals_over_http(
    http: httpx.AsyncClient, method: str, path: str, body: object, status: int, code: str, words: str
) -> None:
    await http.post("/api/v1/topics", json={"name": "there"})
    answer = await http.request(method, f"/api/v1{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert words in answer.json()["message"]
    assert less_life((await http.get("/api/v1/cluster")).json())["version"] == 1  # nothing has changed (E1)


async def test_the_api_describes_itself(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert {"/api/v1/topics", "/api/v1/topics/{name}", "/api/v1/groups", "/healthz", "/readyz"} <= paths.keys()
    assert (await http.get("/docs")).status_code == 200


async def test_topics_and_groups_are_listed_in_pages(http: httpx.AsyncClient) -> None:
    names = sorted(["a", "b-1", "b-2", "b-3", "b", "b-", "c", "B-1"])
    for name in names:
        assert (await http.post("/api/v1/topics", json={"name": name})).status_code == 201
        assert (await http.post("/api/v1/groups", json={"name": name})).status_code == 201
    for kind in ("topics", "groups"):
        for prefix in ("", "b", "b-", "b-3", "x"):
            wanted = [name for name in names if name.startswith(prefix)]
            for limit in (1, 2, 3, len(wanted) or 1, 100):
                found: list[str] = []
                after: str | None = ""
                while after is not None:
                    asked = {"prefix": prefix, "after": after, "limit": limit}
                    page = (await http.get(f"/api/v1/{kind}", params=asked)).json()
                    assert len(page[kind]) <= limit and page["total"] == len(wanted)
                    found += [each["name"] for each in page[kind]]
                    after = page["next"]
                assert found == wanted
        assert (await http.get(f"/api/v1/{kind}", params={"limit": 1001})).status_code == 400
        # What was listed last may be gone when the next page is asked for.
        page = (await http.get(f"/api/v1/{kind}", params={"after": "b-11", "limit": 2})).json()
        assert [each["name"] for each in page[kind]] == ["b-2", "b-3"]


@pytest.mark.parametrize("kind", ["topics", "groups"])
async def test_pauses_over_http(http: httpx.AsyncClient, kind: str) -> None:
    await http.post(f"/api/v1/{kind}", json={"name": "orders"})
    version = (await http.get("/api/v1/cluster")).json()["version"]
    dry = await http.post(f"/api/v1/{kind}/orders/pause?dry_run=true", json={})
    assert (dry.status_code, dry.json()["paused_since_ms"]) == (200, None)
    paused = (await http.post(f"/api/v1/{kind}/orders/pause")).json()
    assert paused["paused_since_ms"] > 0
    assert (await http.post(f"/api/v1/{kind}/orders/pause")).json() == paused, "since the first time"
    assert (await http.get(f"/api/v1/{kind}")).json()[kind] == [paused]
    assert (await http.patch(f"/api/v1/{kind}/orders", json={})).status_code == 200
    resumed = (await http.post(f"/api/v1/{kind}/orders/resume")).json()
    assert resumed == {**paused, "paused_since_ms": None}
    assert (await http.get("/api/v1/cluster")).json()["version"] == version + 2
    assert (await http.post(f"/api/v1/{kind}/none/pause")).status_code == 404
