"""A process of another cluster is refused: by a header of calls, and for good where it asks again."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from popwheel_common.clock import SystemClock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import InconsistentClusterIdError
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    Cluster,
    ClusterUpdate,
    EnsureGroupRequest,
    EnsureGroupResponse,
    ReplicaReport,
    WatchRequest,
)
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.cluster_guard import guard_by_cluster
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership import controller_watch, registrar
from popwheel_rpc.membership.controller_watch import ControllerWatch
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.methods import ENSURE_GROUP, REGISTER_BROKER, WATCH
from popwheel_rpc.server.server import Server
from popwheel_rpc.service import Call, Service, Stream

OURS = "popwheel-00000000000000aa"
THEIRS = "popwheel-00000000000000bb"


class Guarded:
    """A service of a cluster that counts what reaches it."""

    def __init__(self) -> None:
        self.cluster_id = OURS
        self.calls = 0
        self.streams = 0
        self.service = Service()
        self.service.unary(ENSURE_GROUP, self._unary)
        self.service.stream(WATCH, self._stream)
        guard_by_cluster(self.service, lambda: self.cluster_id, streams=True)

    async def _unary(self, call: Call, request: EnsureGroupRequest) -> EnsureGroupResponse:
        self.calls += 1
        return EnsureGroupResponse()

    async def _stream(self, call: Call, stream: Stream[WatchRequest, ClusterUpdate]) -> None:
        self.streams += 1


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[str]:
    server = Server(service)
    await server.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(0.1)


async def test_calls_over_a_socket_name_the_cluster_of_their_caller() -> None:
    guarded, caller = Guarded(), [""]
    async with served(guarded.service) as address:
        channel = connect(address, cluster_id=lambda: caller[0])
        await channel.call(ENSURE_GROUP, EnsureGroupRequest())
        caller[0] = OURS  # it is known from here on
        await channel.call(ENSURE_GROUP, EnsureGroupRequest())
        caller[0] = THEIRS
        with pytest.raises(InconsistentClusterIdError, match=f"{THEIRS}.*{OURS}"):
            await channel.call(ENSURE_GROUP, EnsureGroupRequest())
        with pytest.raises(InconsistentClusterIdError):
            await channel.open(WATCH).receive()
        assert (guarded.calls, guarded.streams) == (2, 0)
        guarded.cluster_id = ""  # a service that knows of no cluster yet
        await channel.call(ENSURE_GROUP, EnsureGroupRequest())
        assert guarded.calls == 3
        await channel.close()


class Refusing:
    """A controller of another cluster, until it is one of ours."""

    def __init__(self) -> None:
        self.asked = 0
        self.refuses = True
        self.service = Service()
        self.service.stream(WATCH, self._watch)
        self.service.stream(REGISTER_BROKER, self._register)

    def _answer(self) -> None:
        self.asked += 1
        if self.refuses:
            raise InconsistentClusterIdError("INCONSISTENT_CLUSTER_ID: two clusters")

    async def _watch(self, call: Call, stream: Stream[WatchRequest, ClusterUpdate]) -> None:
        await stream.receive()
        self._answer()
        await stream.send([ClusterUpdate(version=1, snapshot=True, cluster=Cluster(name="popwheel", id=OURS))])
        await asyncio.Event().wait()

    async def _register(self, call: Call, stream: Stream[ReplicaReport, BrokerGroup]) -> None:
        await stream.receive()
        self._answer()
        await stream.send([BrokerGroup(name="b", version=1)])
        await asyncio.Event().wait()


async def until_asked(controller: Refusing, count: int) -> None:
    async with asyncio.timeout(10):
        while controller.asked < count:
            await asyncio.sleep(0.001)


async def test_a_broker_that_is_refused_says_it_once_and_goes_on_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "OTHER_CLUSTER_S", 0.001)
    controller = Refusing()
    channel = LocalChannel(controller.service)
    reported: list[BrokerGroup] = []
    broker = BrokerRegistrar(channel, ReplicaReport, reported.append, random.Random(0))
    with capture_logs() as logs:
        await broker.start()
        await until_asked(controller, 4)
        assert "INCONSISTENT_CLUSTER_ID" in (broker.health() or "")
        assert [line["log_level"] for line in logs] == ["error"]
        controller.refuses = False
        async with asyncio.timeout(10):
            while not reported:
                await asyncio.sleep(0.001)
    assert broker.health() is None
    await broker.stop()
    await channel.close()


async def test_one_that_watches_and_is_refused_says_it_once_and_keeps_what_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_watch, "OTHER_CLUSTER_S", 0.001)
    controller, view = Refusing(), ClusterView()
    channel = LocalChannel(controller.service)
    watching = ControllerWatch(channel, view, "p", SystemClock(), random.Random(0))
    with capture_logs() as logs:
        await watching.start()
        await until_asked(controller, 4)
        assert watching.refusal is not None and not view.ready
        assert [line["log_level"] for line in logs] == ["error"]
        controller.refuses = False
        async with asyncio.timeout(10):
            await watching.wait_ready()
    assert watching.refusal is None and view.cluster_id == OURS
    await watching.stop()
    await channel.close()


def test_a_view_of_one_cluster_takes_in_nothing_of_another() -> None:
    view = ClusterView()
    reported: list[ClusterUpdate] = []
    view.subscribe_to_names(reported.append)
    view.apply(ClusterUpdate(version=5, snapshot=True, cluster=Cluster(name="popwheel", id=OURS)))
    with pytest.raises(InconsistentClusterIdError):
        view.apply(ClusterUpdate(version=9, snapshot=True, cluster=Cluster(name="popwheel", id=THEIRS)))
    assert (view.version, view.cluster_id, len(reported)) == (5, OURS, 1)
    view.apply(ClusterUpdate(version=2, snapshot=True, cluster=Cluster(name="popwheel")))  # its state was lost
    assert (view.version, view.cluster_id) == (2, OURS)
