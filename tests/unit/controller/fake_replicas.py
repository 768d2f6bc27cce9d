"""Replicas that say what a test wants, at controllers that are real."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1 import broker_pb2
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    BrokerInfo,
    ReplicaReport,
    SyncStateSetRequest,
)
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerAddresses, ControllerApp
from popwheel_controller.options import ControllerOptions, ReplicationOptions
from popwheel_controller.store.state_store import StateStore
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import CHANGE_SYNC_STATE_SET, HAND_OVER, REGISTER_BROKER, REPLICA_STATUS
from popwheel_rpc.service import Call, Channel, ClientStream, Service, StreamClosedError
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.controller.nowhere import Nowhere

GROUP = "broker-0"
DETECTION_MS = 800
_BEAT_S = 0.03


class FakeReplica:
    """One process of one replica.

    Args:
        number: its number.
        identity: of its volume.
        more: what else it reports.
    """

    def __init__(self, number: int, identity: bytes | None = None, **more: Any) -> None:
        self.report = ReplicaReport(
            group=GROUP,
            replica=number,
            address=f"replica-{number}:1",
            identity=b"volume-%d" % number if identity is None else identity,
            **more,
        )
        self.learned: list[BrokerGroup] = []
        self.refusal: StatusError | RpcError | None = None
        self.alive = True
        self.answers = True
        self.beats = True
        self.transfer_error: StatusError | None = None
        self.handed_over_to: list[int] = []
        self.service = Service()
        self.service.unary(REPLICA_STATUS, self._status)
        self.service.unary(HAND_OVER, self._transfer)
        self._stream: ClientStream[BrokerGroup, ReplicaReport] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def group(self) -> BrokerGroup:
        """What it heard last."""
        return self.learned[-1]

    @property
    def leads(self) -> int | None:
        """The epoch in which it leads."""
        return self.report.epoch if self.report.leading else None

    async def join(self, controller: Channel) -> None:
        """Open a stream and report again and again."""
        self._stream = controller.open(REGISTER_BROKER)
        await self._stream.send([self._said()])
        self._tasks = [asyncio.create_task(self._listen(self._stream)), asyncio.create_task(self._beat(self._stream))]

    def cut(self) -> None:
        """The stream breaks; the process lives."""
        if self._stream is not None:
            self._stream.cancel()
        for task in self._tasks:
            task.cancel()

    def kill(self) -> None:
        """kill -9."""
        self.alive = False
        self.cut()

    def next_life(self, **changes: Any) -> "FakeReplica":
        """The process that is started in its place."""
        life = FakeReplica(self.report.replica)
        life.report.CopyFrom(self.report)
        life.report.leading = life.report.leaving = False
        for name, value in changes.items():
            setattr(life.report, name, value)
        return life

    async def ask_for_set(self, controller: Channel, *numbers: int) -> BrokerGroup:
        """Ask for a sync-state set, as a master."""
        request = SyncStateSetRequest(
            group=GROUP,
            epoch=self.report.epoch,
            master=self.report.replica,
            version=self.report.version,
            sync_state_set=numbers,
        )
        answer = await controller.call(CHANGE_SYNC_STATE_SET, request)
        self._learn(answer)
        return answer

    def _said(self) -> ReplicaReport:
        report = ReplicaReport()
        report.CopyFrom(self.report)
        return report

    async def _beat(self, stream: ClientStream[BrokerGroup, ReplicaReport]) -> None:
        with contextlib.suppress(StreamClosedError, StatusError, RpcError):
            while True:
                await asyncio.sleep(_BEAT_S)
                if self.beats:
                    await stream.send([self._said()])

    async def _listen(self, stream: ClientStream[BrokerGroup, ReplicaReport]) -> None:
        try:
            while (group := await stream.receive()) is not None:
                self._learn(group)
        except (StatusError, RpcError) as error:
            self.refusal = error

    def _learn(self, group: BrokerGroup) -> None:
        if self.learned and group.version <= self.group.version:
            return
        self.learned.append(group)
        self.report.version = group.version
        self.report.epoch = group.epoch
        self.report.leading = group.master == self.report.replica
        self.report.sync_state_set[:] = group.sync_state_set

    async def _status(self, call: Call, request: broker_pb2.ReplicaStatusRequest) -> broker_pb2.ReplicaStatusResponse:
        said = self.report
        if not self.answers:
            raise RpcError(GrpcStatus.DEADLINE_EXCEEDED, "nobody answers in time")
        return broker_pb2.ReplicaStatusResponse(
            group=said.group,
            replica=said.replica,
            identity=said.identity,
            last_epoch=said.last_epoch,
            end_position=said.end_position,
            suspect=said.suspect,
        )

    async def _transfer(self, call: Call, request: broker_pb2.HandOverRequest) -> broker_pb2.HandOverResponse:
        if self.transfer_error is not None:
            raise self.transfer_error
        self.handed_over_to.append(request.to)
        return broker_pb2.HandOverResponse(end_position=self.report.end_position)


class Machines:
    """Where replicas are: channels to those that live."""

    def __init__(self) -> None:
        self.replicas: dict[str, FakeReplica] = {}

    def add(self, *replicas: FakeReplica) -> None:
        """Let them be reached at their addresses."""
        self.replicas.update((replica.report.address, replica) for replica in replicas)

    def connect(self, info: BrokerInfo) -> Channel:
        """A channel to whoever is at an address."""
        replica = self.replicas.get(info.address)
        return LocalChannel(replica.service) if replica is not None and replica.alive else Nowhere()


def make_controller(
    folder: Path, machines: Machines, shared: StateStore | None = None, address: str = "", **options: Any
) -> ControllerApp:
    """A controller with short times."""
    times = {"detection_ms": DETECTION_MS, "lease_ms": 400, **options.pop("replication", {})}
    return ControllerApp(
        Runtime(SystemClock(), random.Random(address), CollectorRegistry()),
        ControllerOptions(replication=ReplicationOptions(**times), **options),
        folder / "controller",
        machines.connect,
        shared=shared,
        addresses=ControllerAddresses(address, f"admin-of-{address}"),
    )


class Scene:
    """A controller and replicas."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.machines = Machines()
        self._folder = folder
        self._options = options
        self.app = make_controller(folder, self.machines, **options)
        self.channel = LocalChannel(self.app.service)

    async def join(self, *replicas: FakeReplica) -> None:
        """Let replicas register, one after the other, and learn of their group."""
        self.machines.add(*replicas)
        for replica in replicas:
            known = len(replica.learned)
            await replica.join(self.channel)
            await until(lambda replica=replica, known=known: len(replica.learned) > known)  # type: ignore[misc]

    async def led_with(self, master: FakeReplica, *slaves: FakeReplica) -> None:
        """Let replicas register and the slaves be in the sync-state set."""
        await self.join(master, *slaves)
        await until(lambda: len(master.group.replicas) == 1 + len(slaves))
        if slaves:
            await master.ask_for_set(self.channel, *(each.report.replica for each in (master, *slaves)))

    async def restart(self) -> None:
        """Stop the controller; another one starts on its folder."""
        await self.stop()
        self.app = make_controller(self._folder, self.machines, **self._options)
        await self.app.start()
        self.channel = LocalChannel(self.app.service)

    async def stop(self) -> None:
        """End everything that still runs."""
        for replica in self.machines.replicas.values():
            replica.cut()
        await self.channel.close()
        await self.app.stop()

    def route(self) -> tuple[str, int] | None:
        """Address and epoch of the group's master, as proxies learn of it; None if it is in no route."""
        info = self.app.state.brokers.get(GROUP)
        return None if info is None else (info.address, info.epoch)


@asynccontextmanager
async def scene(folder: Path, **options: Any) -> AsyncIterator[Scene]:
    """A controller that is stopped in the end."""
    async with AsyncExitStack() as stack:
        made = Scene(folder, **options)
        await made.app.start()
        stack.push_async_callback(made.stop)
        yield made


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


def masters(groups: Iterable[BrokerGroup]) -> list[tuple[int, int]]:
    """(epoch, master) of states that somebody heard, each once."""
    return list(dict.fromkeys((group.epoch, group.master) for group in groups))
