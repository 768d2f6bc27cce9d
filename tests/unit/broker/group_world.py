"""Replicas of one broker group in one loop: each a whole `BrokerApp` on a disk in memory; the test says who leads."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from popwheel_broker.app import BrokerApp
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.channels import BrokerChannels
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_common.clock import Clock, SystemClock
from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.disk import File
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    Cluster,
    ClusterUpdate,
    DescribeBrokerGroupRequest,
    Group,
    Replica,
    SyncStateSetRequest,
    Topic,
    WatchRequest,
)
from popwheel_common.runtime import Runtime
from popwheel_rpc import methods
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import Call, Channel, Service, Stream
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.memory_disk import CrashKind, MemoryDisk
from tests.unit.broker.world import KEY, wire_message, with_small_timer

FOLDER = Path("/broker")
NAME = "broker-0"
OPTIONS = {
    "name": NAME,
    "checkpoint_interval_ms": 100,
    "log": {"segment_bytes": 65_536, "index_entries_max": 64},
    "replication": {"absence_ms_max": 300},
}
CONSTANTS = {"heartbeat_ms": 50, "silence_ms_max": 1000}


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


class ProcessDisk:
    """A process's hold on a disk: once that has crashed, no file is opened, removed or renamed by what is left of it.

    Args:
        disk: the device.
    """

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._life = disk.life
        self.exists, self.list, self.make_folder = disk.exists, disk.list, disk.make_folder
        self.sync_folder, self.usage, self.reads = disk.sync_folder, disk.usage, disk.reads
        self.remove_folder = disk.remove_folder

    def open(self, path: Path) -> File:
        self._disk.check_life(self._life)
        return self._disk.open(path)

    def remove(self, path: Path) -> None:
        self._disk.check_life(self._life)
        self._disk.remove(path)

    def replace(self, source: Path, target: Path) -> None:
        self._disk.check_life(self._life)
        self._disk.replace(source, target)


class Member:
    """One replica: its disk lasts, its process comes and goes."""

    def __init__(self, world: "GroupWorld", number: int, seed: int) -> None:
        self.world = world
        self.number = number
        self.disk = MemoryDisk(random.Random(seed), 1 << 30)
        self.app: BrokerApp | None = None
        self.clock = world.clock
        self.reachable = True
        self.port = 1

    @property
    def address(self) -> str:
        return f"replica-{self.number}:{self.port}"

    @property
    def alive(self) -> BrokerApp:
        assert self.app is not None
        return self.app

    async def start(self) -> None:
        """Recover, and hear what the group's state is."""
        world = self.world
        options = with_small_timer(BrokerOptions.model_validate(world.options | {"replica": self.number}))
        self.registry = CollectorRegistry()
        self.to_controller = LocalChannel(world.service, clock=world.clock)
        self.app = BrokerApp(
            Runtime(self.clock, random.Random(self.number), self.registry),
            options,
            FOLDER,
            BrokerChannels(self.to_controller, world.connect),
            ProcessDisk(self.disk),
            constants=world.constants,
        )
        await self.app.start()
        self.channel = LocalChannel(self.app.service, clock=world.clock)
        if world.group.version:
            self.app.roles.group_changed(world.group)

    async def stop(self) -> None:
        """End gracefully."""
        app = self.alive
        self.app = None
        await self.channel.close()
        await app.stop()
        await self.to_controller.close()

    async def kill(self, kind: CrashKind = "process") -> None:
        """End the process without another write, or the machine."""
        app = self.alive
        self.app = None
        self.disk.crash(kind)
        app._fail(RuntimeError("killed"))
        await self.channel.close()
        await app.stop()
        await self.to_controller.close()

    def learn(self, group: BrokerGroup) -> None:
        if self.app is not None and self.reachable:
            self.app.roles.group_changed(group)

    @property
    def end(self) -> int:
        return self.alive.files.end_position

    def log_bytes(self) -> bytes:
        log = self.alive.files.log
        return b"".join(log.read(start, end - start) for start, end in log.segments())

    def metrics(self) -> str:
        return generate_latest(self.registry).decode()


class GroupWorld:
    """Replicas, and a controller that decides nothing by itself.

    Args:
        count: of replicas.
        clock: of all of them; None: the machine's.
        constants: of their replication, beyond those that tests want.
        options: of all of them, beyond those that tests want.
    """

    def __init__(
        self,
        count: int = 2,
        clock: Clock | None = None,
        constants: Mapping[str, int] | None = None,
        **options: object,
    ) -> None:
        self.options: dict[str, object] = {**OPTIONS, **options}
        self.constants = ReplicationConstants(**{**CONSTANTS, **(constants or {})})
        self.clock = clock or SystemClock()
        self.group = BrokerGroup(name=NAME, master=-1)
        self.snapshot = ClusterUpdate(
            version=1,
            snapshot=True,
            cluster=Cluster(name="test", receipt_key=KEY),
            topics=[Topic(name="t", queues=2, id=1), Topic(name="later", queues=1, id=1)],
            groups=[Group(name="g", max_attempts=3, id=1)],
        )
        self.controller_away = False
        self.service = Service()
        self.service.stream(methods.WATCH, self._watch)
        self.service.unary(methods.CHANGE_SYNC_STATE_SET, self._change)
        self.service.unary(methods.DESCRIBE_BROKER_GROUP, self._describe)
        self.members = [Member(self, number, number) for number in range(count)]

    async def start(self) -> None:
        for member in self.members:
            await member.start()

    async def stop(self) -> None:
        for member in self.members:
            if member.app is not None:
                await member.stop()

    def connect(self, address: str) -> Channel:
        for member in self.members:
            if member.address == address and member.app is not None and member.reachable:
                return LocalChannel(member.app.service, clock=self.clock)
        return LocalChannel(Service())  # nobody answers there

    async def _watch(self, call: Call, stream: Stream[WatchRequest, ClusterUpdate]) -> None:
        await stream.receive()
        await stream.send([self.snapshot])
        await asyncio.Event().wait()

    async def _change(self, call: Call, request: SyncStateSetRequest) -> BrokerGroup:
        if self.controller_away:
            raise RpcError(GrpcStatus.UNAVAILABLE, "the controller is away")
        if (request.epoch, request.version, request.master) != (
            self.group.epoch,
            self.group.version,
            self.group.master,
        ):
            raise StatusError(Code.PRECONDITION_FAILED, "not the latest")
        self._decide(sync_state_set=list(request.sync_state_set))
        return self.group

    async def _describe(self, call: Call, request: DescribeBrokerGroupRequest) -> BrokerGroup:
        if self.controller_away:
            raise RpcError(GrpcStatus.UNAVAILABLE, "the controller is away")
        reported = BrokerGroup()
        reported.CopyFrom(self.group)
        for replica in reported.replicas:
            app = self.members[replica.number].app
            replica.alive = app is not None and not app.report("").leaving
        return reported

    def _decide(self, **changes: object) -> None:
        group = BrokerGroup()
        group.CopyFrom(self.group)
        group.version += 1
        for name, value in changes.items():
            if isinstance(value, list):
                del getattr(group, name)[:]
                getattr(group, name).extend(value)
            else:
                setattr(group, name, value)
        self.group = group
        for member in self.members:
            member.learn(group)

    def elect(self, number: int) -> None:
        """Make a replica the master of a new epoch."""
        self._decide(
            epoch=self.group.epoch + 1,
            master=number,
            sync_state_set=[number],
            replicas=self.places(),
        )

    def places(self) -> list[Replica]:
        """Where the replicas are."""
        return [Replica(number=each.number, address=each.address) for each in self.members]

    async def lead(self, number: int) -> Member:
        """Make a replica the master, and wait until it leads."""
        self.elect(number)
        member = self.members[number]
        async with asyncio.timeout(20):
            await until(lambda: member.alive.role.leader is not None)
            await member.alive.roles.until_leads()
            await member.alive.controller_watch.wait_ready()
        return member

    async def in_sync(self, *numbers: int) -> None:
        """Wait until the sync-state set is this, by everybody's word, and all have all."""
        master = self.members[self.group.master].alive

        def is_so() -> bool:
            return (
                sorted(self.group.sync_state_set) == sorted(numbers)
                and master.role.leader is not None
                and sorted(master.role.leader.members.members) == sorted(numbers)
                and all(self.members[number].end == master.files.end_position for number in numbers)
            )

        await until(is_so)

    # What a proxy asks, of the master

    @property
    def channel(self) -> LocalChannel:
        return self.members[self.group.master].channel

    async def put(
        self, *bodies: bytes, again: bool = False, topic: str = "t", due_ms: int = 0, topic_id: int = 0
    ) -> PutResult:
        wired = [wire_message(topic, body) for body in bodies]
        run = MessageRun(
            topic,
            0,
            [payload for payload, _ in wired],
            [properties for _, properties in wired],
            [""] * len(bodies),
            PutKind.AT_TIME if due_ms else PutKind.NOW,
            [due_ms] * len(bodies) if due_ms else (),
            again,
            topic_id,
        )
        return (await self.channel.call(methods.PUT, [run]))[0]

    async def pop(self, max_messages: int = 32, invisible_ms: int = 60_000, topic: str = "t") -> dict[bytes, str]:
        """Bodies and handles of what was popped."""
        request = pb.PopRequest(
            group="g", topic=topic, queue_id=-1, max_messages=max_messages, invisible_ms=invisible_ms
        )
        answer = await self.channel.call(methods.POP, request)
        return {
            Message.FromString(message).body: handle
            for message, handle in zip(answer.messages, answer.handles, strict=True)
        }

    async def ack(self, *handles: str) -> list[int]:
        request = pb.AckRequest(group="g", topic="t", receipt_handles=handles)
        results = (await self.channel.call(methods.ACK, request)).results
        return [result.code for result in results] or [Code.OK] * len(handles)


@asynccontextmanager
async def group_of(
    count: int = 2, clock: Clock | None = None, constants: Mapping[str, int] | None = None, **options: object
) -> AsyncIterator[GroupWorld]:
    world = GroupWorld(count, clock, constants, **options)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


def damage(member: Member, body: bytes) -> None:
    """Let a record rot that holds a body."""
    for path, contents in member.disk.files().items():
        if path.suffix == ".log" and body in contents:
            member.disk.flip_bit(path, 8 * contents.index(body))
            return
    raise AssertionError("no record holds it")
