"""Checkpoint sync between a controller and replicas that are there, slow, away or of another mind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from popwheel_common.clock import SystemClock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_controller.broker_groups.checkpoint_carrier import CheckpointCarrier, CheckpointMetrics
from popwheel_controller.broker_groups.checkpoint_sync import CheckpointSync
from popwheel_controller.broker_groups.roles import GroupRoles, ReplicaPlace, Roles
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import FETCH_CHECKPOINT, STORE_CHECKPOINT
from popwheel_rpc.service import Call, Channel, Service

INTERVAL_S = 0.05


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


class FakeBroker:
    """A replica's part."""

    def __init__(self) -> None:
        self.service = Service()
        self.service.unary(FETCH_CHECKPOINT, self._fetch)
        self.service.unary(STORE_CHECKPOINT, self._store)
        self.asked: list[pb.FetchCheckpointRequest] = []
        self.stored: list[pb.ReplicaCheckpoint] = []
        self.refusal: StatusError | None = None
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def _fetch(self, call: Call, request: pb.FetchCheckpointRequest) -> pb.ReplicaCheckpoint:
        self.asked.append(request)
        if self.refusal is not None:
            raise self.refusal
        return pb.ReplicaCheckpoint(group=request.group, epoch=request.epoch, version=len(self.asked))

    async def _store(self, call: Call, request: pb.ReplicaCheckpoint) -> pb.StoreCheckpointResponse:
        await self.goes_on.wait()
        if self.refusal is not None:
            raise self.refusal
        self.stored.append(request)
        return pb.StoreCheckpointResponse(version=request.version)


class Cluster:
    """Brokers, who is what, and the sync."""

    def __init__(self) -> None:
        self.brokers: dict[str, FakeBroker] = {}
        self.registry = CollectorRegistry()
        self.clock = SystemClock()
        self.roles = Roles(self._connect)
        self.sync = CheckpointSync(INTERVAL_S, 8)
        metrics = CheckpointMetrics(self.registry, self.sync, self.clock)
        self.carrier = CheckpointCarrier(self.sync, self.roles, self.clock, INTERVAL_S, metrics)

    def _connect(self, info: BrokerInfo) -> Channel:
        return LocalChannel(self.brokers[info.address].service if info.address in self.brokers else Service())

    def set(self, group: str, epoch: int, master: int, *slaves: int) -> list[FakeBroker]:
        """Say who is what; the brokers, master first."""
        places = [ReplicaPlace(number, f"{group}-{number}") for number in (master, *slaves)]
        for place in places:
            self.brokers.setdefault(place.address, FakeBroker())
        self.roles.set(GroupRoles(group, epoch, places[0], tuple(places[1:])))
        return [self.brokers[place.address] for place in places]

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"popwheel_controller_checkpoint_{name}", labels) or 0.0


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    each = Cluster()
    each.carrier.start()
    try:
        yield each
    finally:
        await each.carrier.stop()
        await each.roles.close()


async def test_slaves_are_given_their_masters_progress_again_and_again() -> None:
    async with cluster() as world:
        master, slave, other = world.set("b", 3, 0, 1, 2)
        await until(lambda: len(slave.stored) >= 3 and len(other.stored) >= 3)
        assert {request.epoch for request in master.asked} == {3}
        assert [given.version for given in slave.stored[:3]] == [1, 2, 3]
        assert world.value("fetches_total") >= 3
        assert 0 <= world.value("age_seconds", broker="b", replica="1") < 5
        assert world.value("sync_seconds_count") >= 6


async def test_one_slow_slave_holds_up_neither_the_other_one_nor_other_groups() -> None:
    async with cluster() as world:
        _, slow, quick = world.set("b", 1, 0, 1, 2)
        slow.goes_on.clear()
        _, elsewhere = world.set("c", 1, 0, 1)
        await until(lambda: len(quick.stored) >= 3 and len(elsewhere.stored) >= 3)
        assert slow.stored == []
        ages = {age.replica: age.age_s for age in world.sync.ages("b", world.clock.monotonic())}
        assert ages[1] > ages[2]
        slow.goes_on.set()
        await until(lambda: len(slow.stored) >= 2)


async def test_what_fails_is_counted_said_once_and_tried_again() -> None:
    async with cluster() as world:
        master, slave = world.set("b", 1, 0, 1)
        with capture_logs() as logs:
            master.refusal = StatusError(Code.PRECONDITION_FAILED, "I do not lead that epoch")
            await until(lambda: world.value("failures_total", step="fetch") >= 3)
            master.refusal = None
            await until(lambda: len(slave.stored) >= 1)
            slave.refusal = StatusError(Code.PRECONDITION_FAILED, "it is of an epoch that is over")
            await until(lambda: world.value("failures_total", step="refused") >= 3)
            slave.refusal = StatusError(Code.INTERNAL_ERROR, "the device refused")
            await until(lambda: world.value("failures_total", step="store") >= 3)
            slave.refusal = None
            stored = len(slave.stored)
            await until(lambda: len(slave.stored) > stored)
        assert [entry["step"] for entry in logs if entry["event"] == "checkpoint sync fails"] == [
            "fetch",
            "refused",
            "store",
        ]


async def test_a_new_master_is_asked_at_once_and_nobody_once_the_lead_is_over() -> None:
    async with cluster() as world:
        old, slave = world.set("b", 1, 0, 1)
        await until(lambda: len(slave.stored) >= 1)
        new, back = world.set("b", 2, 1, 0)
        await until(lambda: len(back.stored) >= 2)
        assert {request.epoch for request in new.asked} == {2}
        world.roles.clear()
        await asyncio.sleep(0.02)
        asked = len(new.asked)
        await asyncio.sleep(4 * INTERVAL_S)
        assert len(new.asked) <= asked + 1
        assert world.sync.names() == []
        assert {request.epoch for request in old.asked} == {1}
