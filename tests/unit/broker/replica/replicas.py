"""Replicas of a group in one process: a master, its slaves, a controller, and links that fail as they are told."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from popwheel_broker.options import ReplicationOptions
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.log_receiver import Slave
from popwheel_broker.replication.log_sender import Master
from popwheel_broker.replication.peers import Peers
from popwheel_broker.replication.repair import RecordReader, Repairer
from popwheel_broker.replication.replication_master import ReplicationMaster
from popwheel_broker.replication.replication_slave import ReplicationSlave
from popwheel_broker.replication.statistics import ReplicationStatistics
from popwheel_broker.replication.sync_state_set import SyncStateSet
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, SyncStateSetRequest
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import CHANGE_SYNC_STATE_SET, READ_RECORDS, REPLICATE
from popwheel_rpc.service import Call, Channel, Service
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.harness.manual_clock import ManualClock, run_virtually
from tests.unit.broker.replica.memory_log import MemoryLog

GROUP = "broker-0"


class KnownPeers(Peers):
    """Those of whom nobody needs to be asked where they are."""

    def __init__(self, ways: Callable[[], list[tuple[int, Any]]]) -> None:
        self._ways = ways

    @property
    def is_known(self) -> bool:
        return True

    def others(self) -> Iterator[tuple[int, Channel]]:
        return iter(self._ways())

    async def ask(self) -> None:
        pass


class Controller:
    """Keeps the state of the group by compare-and-swap; answers as it is told."""

    def __init__(self) -> None:
        self.state = BrokerGroup(name=GROUP, version=1, epoch=1, master=0, sync_state_set=[0])
        self.reachable = True
        self.lose_answers = 0
        self.asked: list[SyncStateSetRequest] = []
        service = Service()
        service.unary(CHANGE_SYNC_STATE_SET, self._change)
        self._channel = LocalChannel(service)

    async def call(self, method: Any, request: Any, *, timeout_s: float | None = None, **more: Any) -> Any:
        if not self.reachable:
            raise RpcError(GrpcStatus.UNAVAILABLE, "the controller is away")
        answer = await self._channel.call(method, request, timeout_s=timeout_s)
        if self.lose_answers:
            self.lose_answers -= 1
            raise RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the answer was lost")
        return answer

    def open(self, method: Any, *, metadata: Mapping[str, str] | None = None) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        await self._channel.close()

    async def _change(self, call: Call, request: SyncStateSetRequest) -> BrokerGroup:
        self.asked.append(request)
        if request.version != self.state.version or request.epoch != self.state.epoch:
            raise StatusError(Code.PRECONDITION_FAILED, "the state has changed")
        state = BrokerGroup()
        state.CopyFrom(self.state)
        state.version += 1
        del state.sync_state_set[:]
        state.sync_state_set.extend(request.sync_state_set)
        self.state = state
        return state

    def elect(self, master: int) -> BrokerGroup:
        """Make a master, in a new epoch."""
        self.state = BrokerGroup(
            name=GROUP,
            version=self.state.version + 1,
            epoch=self.state.epoch + 1,
            master=master,
            sync_state_set=[master],
        )
        return self.state


class Link:
    """The way from one replica to another: may hold everything up, break, and change what comes back over it."""

    def __init__(self, target: "Replica") -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._streams: set[LinkStream] = set()
        self.up = True
        self.opened = 0
        self.on_chunk: Callable[[Any], Sequence[Any]] | None = None

    def channel(self) -> "LinkChannel":
        return LinkChannel(self, self._target)

    def hold(self) -> None:
        """Half-open from now on: nothing arrives, nothing fails."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def break_off(self) -> None:
        """End all streams."""
        for stream in list(self._streams):
            stream.break_off()

    async def passes(self) -> None:
        await self._open.wait()

    def add(self, stream: "LinkStream") -> None:
        self.opened += 1
        self._streams.add(stream)

    def remove(self, stream: "LinkStream") -> None:
        self._streams.discard(stream)


class LinkChannel:
    """A `Channel` over a link."""

    def __init__(self, link: Link, target: "Replica") -> None:
        self._link = link
        self._inner = LocalChannel(target.service, clock=target.clock)

    async def call(self, method: Any, request: Any, *, timeout_s: float | None = None, **more: Any) -> Any:
        if not self._link.up:
            raise RpcError(GrpcStatus.UNAVAILABLE, "refused")
        async with asyncio.timeout(timeout_s):
            await self._link.passes()
            return await self._inner.call(method, request, timeout_s=timeout_s)

    def open(self, method: Any, *, metadata: Mapping[str, str] | None = None) -> Any:
        if not self._link.up:
            raise RpcError(GrpcStatus.UNAVAILABLE, "refused")
        return LinkStream(self._link, self._inner.open(method))

    async def close(self) -> None:
        await self._inner.close()


class LinkStream:
    """A `ClientStream` over a link."""

    def __init__(self, link: Link, inner: Any) -> None:
        self._link = link
        self._inner = inner
        self._pending: list[Any] = []
        link.add(self)

    async def receive(self) -> Any:
        while not self._pending:
            chunk = await self._inner.receive()
            await self._link.passes()
            if chunk is None:
                return None
            self._pending += [chunk] if self._link.on_chunk is None else self._link.on_chunk(chunk)
        return self._pending.pop(0)

    async def send(self, messages: Sequence[Any]) -> None:
        await self._link.passes()
        await self._inner.send(messages)

    async def end(self) -> None:
        await self._inner.end()

    def cancel(self) -> None:
        self._link.remove(self)
        self._inner.cancel()

    def break_off(self) -> None:
        self._inner.cancel()


class Replica:
    """One replica: its log, and whichever part it plays."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.clock = world.clock
        self.log = MemoryLog()
        self.statistics = ReplicationStatistics()
        self.failures: list[Exception] = []
        self.master: ReplicationMaster | None = None
        self.slave: ReplicationSlave | None = None
        self.members: SyncStateSet | None = None
        self.followed = 0
        self.service = Service()
        self.service.stream(REPLICATE, self._replicate)
        self.service.unary(READ_RECORDS, RecordReader(GROUP, self.log).read_records)
        self.repairer = Repairer(
            GROUP,
            self.log,
            KnownPeers(
                lambda: [
                    (each.number, world.link(number, each.number).channel())
                    for each in world.replicas
                    if each is not self
                ]
            ),
            world.constants.repair_timeout_ms,
            world.clock,
            self.statistics,
        )

    async def _replicate(self, call: Call, stream: Any) -> None:
        if self.master is None:
            raise StatusError(Code.HA_NOT_AVAILABLE, "this replica does not lead")
        await self.master.replicate(call, stream)

    def lead(self, state: BrokerGroup) -> None:
        log = self.log
        log.epochs.begin(state.epoch, log.end_position)
        log.synced_position = log.end_position
        log.commit(log.end_position)
        self.members = SyncStateSet(
            self.number,
            state,
            log.end_position,
            self.clock.steady_ms(),
            self.world.options,
            self.world.constants,
            self._watermark,
        )
        master = Master(
            *(GROUP, self.number, state.epoch, log, self.members),
            *(self.world.constants, self.clock, self.statistics, self.repairer.repair),
        )
        self.master = ReplicationMaster(
            master, self.world.controller, self._follower, lambda state: None, self.failures.append
        )
        self.master.start()

    def follow(self, number: int, epoch: int) -> None:
        link = self.world.link(self.number, number)
        slave = Slave(
            *(GROUP, self.number, b"identity", epoch, self.log, self.world.constants),
            *(self.clock, self.statistics, self.repairer.repair, self.failures.append),
        )
        self.slave = ReplicationSlave(slave, link.channel)
        self.slave.start()

    async def stop(self) -> None:
        if self.master is not None:
            await self.master.stop()
            self.master = self.members = None
        if self.slave is not None:
            await self.slave.stop()
            self.slave = None

    def write(self, count: int = 1, payload: bytes = b"x" * 100, *, synced: bool = True) -> int:
        """Append as a master; where the log ends."""
        assert self.members is not None and self.master is not None
        end = self.log.write(count, payload)
        self.members.appended(end, self.clock.steady_ms())
        self.master.appended()
        if synced:
            self.log.synced_position = end
            self.members.synced(end)
        return end

    def _watermark(self) -> None:
        if self.members is not None:
            self.log.commit(self.members.high_watermark)

    def _follower(self) -> None:
        self.followed += 1


class World:
    """All replicas of a group.

    Args:
        clock: of all of them.
        count: how many there are.
        settings: options and constants of replication, by their names.
    """

    def __init__(self, clock: ManualClock, count: int = 2, **settings: Any) -> None:
        self.clock = clock
        of_options = {name: settings.pop(name) for name in ReplicationOptions.model_fields if name in settings}
        self.options, self.constants = ReplicationOptions(**of_options), ReplicationConstants(**settings)
        self.controller = Controller()
        self._links: dict[tuple[int, int], Link] = {}
        self.replicas: list[Replica] = []
        for number in range(count):
            self.replicas.append(Replica(self, number))

    def link(self, source: int, target: int) -> Link:
        """The way from one to another."""
        key = (source, target)
        if key not in self._links:
            self._links[key] = Link(self.replicas[target])
        return self._links[key]

    async def begin(self) -> Replica:
        """The first leads, the others follow and are in the set."""
        master = self.replicas[0]
        master.lead(self.controller.state)
        for each in self.replicas[1:]:
            each.follow(0, 1)
        await self.until(lambda: set(self.controller.state.sync_state_set) == {each.number for each in self.replicas})
        return master

    async def until(self, condition: Callable[[], bool], within_ms: float = 10_000) -> None:
        """Wait until something is so."""
        until_s = self.clock.monotonic() + within_ms / 1000
        while not condition():
            assert self.clock.monotonic() < until_s, "it did not come about"
            await asyncio.sleep(0.001)

    async def until_equal(self, within_ms: float = 10_000) -> None:
        """Wait until all logs are equal, synced, and folded to the end."""
        first = self.replicas[0].log
        await self.until(
            lambda: all(
                each.log.data == first.data
                and each.log.synced_position == each.log.high_watermark == each.log.end_position
                for each in self.replicas
            ),
            within_ms,
        )

    def heal_links(self) -> None:
        """Let all pass again, as it is."""
        for link in self._links.values():
            link.up = True
            link.on_chunk = None
            link.release()

    async def stop_replicas(self) -> None:
        """End what each of them does; links stay as they are."""
        for each in self.replicas:
            await each.stop()

    async def stop(self) -> None:
        self.heal_links()
        await self.stop_replicas()
        await self.controller.close()


def in_world(work: Callable[[World], Awaitable[None]], count: int = 2, **options: Any) -> None:
    """Run a story in virtual time, in a world of its own."""
    clock = ManualClock()

    async def story() -> None:
        world = World(clock, count, **options)
        try:
            async with asyncio.timeout(3600):
                await work(world)
        finally:
            await world.stop()

    run_virtually(clock, story())
