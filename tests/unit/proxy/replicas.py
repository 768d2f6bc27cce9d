"""Broker groups of several replicas in memory: masters that die, hang, are deposed, and lose answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from popwheel_common.clock import Clock
from popwheel_common.contract.put import MessageRun, PutResult
from popwheel_common.contract.send_id import send_id_of
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, SystemProperties
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ClusterUpdate
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import PUT
from popwheel_rpc.service import Call, Channel, ClientStream, Method, Service
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.unit.proxy.fake_broker import FakeBroker
from tests.unit.proxy.virtual import LoopClock, arrive
from tests.unit.proxy.world import CLIENT, World, message, poll_request, until


class GroupLog(FakeBroker):
    """What all replicas of a group hold alike: whoever leads goes on with it."""

    async def _put(self, call: Call, request: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Messages that are tried again are not stored twice, as a broker has it."""
        results: list[PutResult] = []
        for run in request:
            found = self._found(run) if run.is_retry else None
            if found is None:
                results += await super()._put(call, [run])
            else:
                self.calls.append(("Put", [run]))
                results.append(PutResult(Code.OK, queue_offset=found))
        return results

    def _found(self, run: MessageRun) -> int | None:
        (wanted,) = (send_id_of(one) for one in run.system_properties)
        for offset, stored in enumerate(self.topics.get(run.topic, ())):
            if send_id_of(stored.system_properties) == wanted:
                return offset
        return None

    @property
    def ids(self) -> list[str]:
        """The ids of the messages of `orders`, in their order."""
        return [
            SystemProperties.FromString(stored.system_properties).message_id for stored in self.topics.get("orders", ())
        ]


class Way:
    """A channel to a replica: what is under way is lost when that dies, and a connection is made anew when it is back.

    Args:
        replica: where it leads.
        clock: for deadlines.
    """

    def __init__(self, replica: "Replica", clock: Clock) -> None:
        self._replica = replica
        self._clock = clock
        self._connection = LocalChannel(replica.service, clock=clock)
        self._closed = False

    async def lose(self) -> None:
        """The replica dies."""
        lost = self._connection
        if not self._closed:
            self._connection = LocalChannel(self._replica.service, clock=self._clock)
        await lost.close()

    async def call(
        self, method: Method[Any, Any], request: Any, *, timeout_s: float | None = None, metadata: Any = None
    ) -> Any:
        """Call a unary method."""
        if not self._replica.alive:
            raise NotProcessedError(f"no connection to {self._replica.address}")
        return await self._connection.call(method, request, timeout_s=timeout_s, metadata=metadata)

    def open(self, method: Method[Any, Any], *, metadata: Any = None) -> ClientStream[Any, Any]:
        """Begin a streaming call."""
        return self._connection.open(method, metadata=metadata)

    async def close(self) -> None:
        """End every call."""
        self._closed = True
        await self._connection.close()


class Replica:
    """One process of a group.

    Args:
        log: what the group holds.
        address: where it is.
    """

    def __init__(self, log: GroupLog, address: str) -> None:
        self.address = address
        self.leads = False
        self.alive = True
        self.asked = 0
        self.takes_s = 0.001
        self.answers_lost = 0
        self.takes_sends = True
        self.before_answer: Callable[[str], None] | None = None
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.ways: list[Way] = []
        self.service = Service()
        for path, (method, handler) in log.service.unary_handlers.items():
            self.service.unary(method, self._wrapped(path, handler))
        for method, stream_handler in log.service.stream_handlers.values():
            self.service.stream(method, self._wrapped_stream(stream_handler))

    async def kill(self) -> None:
        """End it: its connections are lost, and no new ones come about."""
        self.alive = self.leads = False
        for way in self.ways:
            await way.lose()

    def _wrapped(self, path: str, handler: Callable[[Call, Any], Awaitable[Any]]) -> Callable[[Call, Any], Any]:
        async def handle(call: Call, request: Any) -> Any:
            self._check_alive()
            self.asked += 1
            await asyncio.sleep(self.takes_s)
            await self.hangs.wait()
            self._check_alive()
            if not self.leads:
                raise StatusError(Code.HA_NOT_AVAILABLE, f"{self.address} does not lead")
            if path == PUT.path and not self.takes_sends:
                raise StatusError(Code.HA_NOT_AVAILABLE, "too few replicas are in sync")
            answer = await handler(call, request)
            if self.before_answer is not None:
                self.before_answer(path)
            if self.answers_lost:
                self.answers_lost -= 1
                raise RpcError(GrpcStatus.UNAVAILABLE, "the connection was lost")
            return answer

        return handle

    def _wrapped_stream(self, handler: Callable[[Call, Any], Awaitable[None]]) -> Callable[[Call, Any], Any]:
        async def handle(call: Call, stream: Any) -> None:
            self._check_alive()
            await self.hangs.wait()
            if not self.leads:
                raise StatusError(Code.HA_NOT_AVAILABLE, f"{self.address} does not lead")
            await handler(call, stream)

        return handle

    def _check_alive(self) -> None:
        if not self.alive:
            raise NotProcessedError(f"no connection to {self.address}")


class Groups(World):
    """A proxy among groups of replicas; replica 0 of each leads at first."""

    def __init__(self, options: ProxyOptions, *names: str, replicas: int = 2) -> None:
        super().__init__(options, *names, clock=LoopClock())
        self.logs = {name: GroupLog(name) for name in names}
        self.brokers = dict(self.logs)
        self.epochs = dict.fromkeys(names, 1)
        self.replicas = {
            name: [Replica(log, f"{name}-{number}:1") for number in range(replicas)] for name, log in self.logs.items()
        }
        for name in names:
            self.replicas[name][0].leads = True
            self.controller.brokers[name] = self._info(name, 0)

    def _info(self, name: str, number: int | None) -> BrokerInfo:
        address = "" if number is None else self.replicas[name][number].address
        return BrokerInfo(name=name, address=address, epoch=self.epochs[name])

    def _connect(self, info: BrokerInfo) -> Channel:
        (replica,) = (one for one in self.replicas[info.name] if one.address == info.address)
        way = Way(replica, self.clock)
        replica.ways.append(way)
        return way

    def tell(self, name: str, number: int | None) -> None:
        """Tell the proxy who leads a group; None: nobody does."""
        info = self.controller.brokers[name] = self._info(name, number)
        self.controller.publish(ClusterUpdate(brokers=[info]))

    def elect(self, name: str, number: int, *, reported: bool = True) -> None:
        """Make a replica the master of its group."""
        for replica in self.replicas[name]:
            replica.leads = False
        self.epochs[name] += 1
        self.replicas[name][number].leads = True
        if reported:
            self.tell(name, number)

    async def kill_master(self, name: str, number: int = 0) -> None:
        """Kill a master; the controller notices, and has no other yet."""
        await self.replicas[name][number].kill()
        self.tell(name, None)
        await until(lambda: name not in self.app._brokers.led)

    def is_idle(self) -> bool:
        """Whether nothing is held."""
        parked = self.app._parked_calls
        return not (parked.calls or parked.bytes or parked.gates.waiting)


@asynccontextmanager
async def groups(*names: str, replicas: int = 2, **options: object) -> AsyncIterator[Groups]:
    """A proxy that serves, with the topic `orders` and the group `group`; nothing is left over in the end."""
    made = Groups(ProxyOptions.model_validate(options), *(names or ("a",)), replicas=replicas)
    made.controller.add_topic("orders")
    made.controller.add_group("group")
    await made.app.start()
    await until(lambda: made.app.ready)
    try:
        yield made
        await until(made.is_idle)
    finally:
        for poll in made.polls:
            poll.cancel()
        await asyncio.gather(*made.polls, return_exceptions=True)
        for replicas_of in made.replicas.values():
            for replica in replicas_of:
                replica.hangs.set()
        await made.channel.close()
        await made.app.stop()


async def send(w: Groups, message_id: str, timeout_s: float | None = None) -> pb.SendMessageResponse:
    """Send one message."""
    request = pb.SendMessageRequest(messages=[message(message_id=message_id)]).SerializeToString()
    answer = await w.channel.call(protocol.SEND_MESSAGE, request, metadata=CLIENT, timeout_s=timeout_s)
    return pb.SendMessageResponse.FromString(answer)


def names(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


async def popped(w: Groups, count: int, invisible_s: float = 30.0) -> list[str]:
    """The handles of messages that were just delivered."""
    await arrive(w.logs["a"], count=count)
    return (await w.receive(poll_request(broker="a", batch=count, invisible_s=invisible_s))).handles
