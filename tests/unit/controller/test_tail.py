"""A tail of a topic: what it shows, what it passes over, and when it ends. In virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.http.inquiry import Inquiry
from popwheel_controller.http.tail import TailAsked, TailResponse
from popwheel_controller.http.tail_pace import TailPace
from popwheel_controller.http.tails import AT_ONCE_MAX, Tails
from popwheel_rpc.service import Channel
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.controller.fake_message_broker import FakeMessageBroker


class Scene:
    """Brokers, and what looks on."""

    def __init__(self, *brokers: FakeMessageBroker) -> None:
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.tails = Tails(self.registry)
        self.brokers = {broker.name: broker for broker in brokers}
        self.connections = self.closed = 0
        self.trouble: StatusError | None = None
        infos = {name: BrokerInfo(name=name, address=f"{name}:1", epoch=1) for name in self.brokers}
        state = ClusterState("popwheel", bytes(32), brokers=infos)
        self.inquiry = Inquiry(StateWriter(state, _unused, _unused, lambda _: None, lambda: None, 10), self._connect)

    def _connect(self, info: BrokerInfo) -> Channel:
        self.connections += 1
        return self.brokers[info.name].connect(info)

    def check(self, state: ClusterState) -> None:
        if self.trouble is not None:
            raise self.trouble

    def response(self, rate: int = 50, *, sees_data: bool = True) -> TailResponse:
        asked = TailAsked("orders", "", "k", "red", rate, sees_data, self.check)
        return TailResponse(self.inquiry, self.clock, asked, self.tails)

    def value(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"popwheel_controller_{name}")


async def _unused(*_: object) -> NoReturn:
    raise AssertionError


class Reader:
    """Reads an answer as an ASGI server would have it read."""

    def __init__(self) -> None:
        self.status = 0
        self.data = b""
        self.gone = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.takes.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.data += message["body"]

    @property
    def events(self) -> list[tuple[str, Any]]:
        found = []
        for block in self.data.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if fields:
                found.append((fields["event"], json.loads(fields["data"])))
        return found

    def shown(self) -> list[int]:
        return [data["queue_offset"] for kind, data in self.events if kind == "message"]

    def skipped(self) -> int:
        return sum(data["count"] for kind, data in self.events if kind == "skipped")


@asynccontextmanager
async def reading(response: TailResponse) -> AsyncIterator[Reader]:
    """Someone who reads, until the `with` block ends."""
    reader = Reader()
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    task = asyncio.create_task(response(scope, reader.receive, reader.send))
    try:
        yield reader
        reader.gone.set()
        await task
    finally:
        task.cancel()


def virtually(scene: Scene, work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    run_virtually(scene.clock, run())


def test_messages_of_all_brokers_come_in_order_and_one_connection_is_kept() -> None:
    first, second = FakeMessageBroker("b1", 0), FakeMessageBroker("b2", 0)
    scene = Scene(first, second)

    async def work() -> None:
        async with reading(scene.response()) as reader:
            await asyncio.sleep(0.1)
            assert reader.events == [("begun", {})]
            assert reader.headers[b"content-type"].startswith(b"text/event-stream")
            assert reader.headers[b"x-accel-buffering"] == b"no"
            first.comes([8, 10])
            second.comes([9])
            await asyncio.sleep(1)
            assert reader.shown() == [8, 9, 10]
            await asyncio.sleep(60)
            assert scene.value("tails") == 1
        request = first.tails[-1]
        assert (request.topic, request.key, request.tag, [each.offset for each in request.places]) == (
            "orders",
            "k",
            "red",
            [11],
        )
        assert 60 <= len(first.tails) <= 62 / 0.7
        assert scene.connections == 2
        assert (scene.value("tails"), scene.value("tail_messages_total")) == (0, 3)

    virtually(scene, work)


def test_more_than_the_rate_is_counted() -> None:
    broker = FakeMessageBroker("b1", 0)
    scene = Scene(broker)

    async def work() -> None:
        async with reading(scene.response(rate=5)) as reader:
            for number in range(10):
                broker.comes(range(20 * number, 20 * number + 20), passed_over=7)
            await asyncio.sleep(8)
            assert len(reader.shown()) + reader.skipped() == 10 * 27
            assert 5 * 7 <= len(reader.shown()) <= 5 * 9
            assert reader.shown()[0] == 15, "the newest are shown"
            assert scene.value("tail_skipped_total") == reader.skipped()

    virtually(scene, work)


def test_bodies_are_for_those_who_may_see_them() -> None:
    broker = FakeMessageBroker("b1", 0)
    broker.body = b"secret"
    scene = Scene(broker)

    async def work() -> None:
        async with reading(scene.response(sees_data=False)) as reader:
            broker.comes([3])
            await asyncio.sleep(1)
            assert reader.shown() == [3]
            assert b"secret" not in reader.data and b'"hidden":true' in reader.data and b'"p":"v"' not in reader.data

    virtually(scene, work)


def test_who_does_not_answer_is_named_when_that_changes() -> None:
    silent, other = FakeMessageBroker("b1", 0), FakeMessageBroker("b2", 0)
    scene = Scene(silent, other)

    async def work() -> None:
        silent.fails(RpcError(GrpcStatus.UNAVAILABLE, "connection refused"))
        async with reading(scene.response()) as reader:
            await asyncio.sleep(3)
            said = [data["unanswered"] for kind, data in reader.events if kind == "unanswered"]
            assert [[each["broker"] for each in one] for one in said] == [["b1"]]
            other.comes([1])
            silent.fails(None)
            await asyncio.sleep(2)
            assert reader.events[-1] == ("unanswered", {"unanswered": []})
            assert reader.shown() == [1]
            silent.comes([2])
            await asyncio.sleep(1)
            assert reader.shown() == [1, 2]

    virtually(scene, work)


def test_it_ends_with_its_topic() -> None:
    scene = Scene(FakeMessageBroker("b1", 0))

    async def work() -> None:
        async with reading(scene.response()) as reader:
            await asyncio.sleep(1)
            scene.trouble = StatusError(Code.TOPIC_NOT_FOUND, "the topic orders is gone")
            await asyncio.sleep(1)
            assert reader.events[-1] == ("end", {"code": "TOPIC_NOT_FOUND", "reason": "the topic orders is gone"})
            assert scene.value("tails") == 0

    virtually(scene, work)


def test_it_ends_by_itself_and_gives_signs_of_life_before() -> None:
    scene = Scene(FakeMessageBroker("b1", 0))

    async def work() -> None:
        async with reading(scene.response()) as reader:
            await asyncio.sleep(590)
            assert reader.data.count(b": nothing came\n\n") >= 590 / 6
            assert reader.events == [("begun", {})]
            await asyncio.sleep(12)
            assert [kind for kind, _ in reader.events] == ["begun", "end"]
            assert scene.value("tails") == 0

    virtually(scene, work)


def test_a_reader_that_takes_nothing_is_let_go() -> None:
    scene = Scene(FakeMessageBroker("b1", 0))

    async def work() -> None:
        async with reading(scene.response()) as reader:
            reader.takes.clear()
            await asyncio.sleep(604)
            assert scene.value("tails") == 1
            await asyncio.sleep(2)
            assert scene.value("tails") == 0

    virtually(scene, work)


def test_few_at_once() -> None:
    scene = Scene(FakeMessageBroker("b1", 0))

    async def work() -> None:
        responses = [reading(scene.response()) for _ in range(AT_ONCE_MAX)]
        readers = [await each.__aenter__() for each in responses]
        await asyncio.sleep(1)
        async with reading(scene.response()) as refused:
            await asyncio.sleep(0.1)
            assert (refused.status, json.loads(refused.data)["code"]) == (429, "TOO_MANY_REQUESTS")
        readers[0].gone.set()
        await asyncio.sleep(0.1)
        async with reading(scene.response()) as taken:
            await asyncio.sleep(1)
            assert (taken.status, scene.value("tails")) == (200, AT_ONCE_MAX)
        for each in responses:
            await each.__aexit__(None, None, None)
        assert scene.value("tails") == 0

    virtually(scene, work)


@pytest.mark.parametrize("rate", [1, 7, 50])
def test_the_pace_lets_no_more_through_than_its_rate(rate: int) -> None:
    pace = TailPace(rate, 0.0)
    shown = 0
    for step in range(1, 100):
        room = pace.room(step * 0.7)
        assert 0 <= room <= rate
        pace.polled(room, 3)
        shown += room
    assert rate * 68 <= shown <= rate * (99 * 0.7 + 1)
    assert (pace.take_skipped(), pace.take_skipped()) == (297, 0)
