"""The controller as brokers and proxies call it: `popwheel.v1.Controller`."""

import asyncio
from collections.abc import Callable

import structlog

from services.common.clock import Clock
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    BrokerInfo,
    ClusterUpdate,
    EnsureGroupRequest,
    EnsureGroupResponse,
    EnsureTopicRequest,
    EnsureTopicResponse,
    Replica,
    ReplicaReport,
    WatchRequest,
)
from services.controller.cluster_state import ClusterState
from services.controller.options import ControllerOptions
from services.controller.processes import Processes
from services.controller.state_keeper import StateKeeper
from services.controller.watchers import Watcher, Watchers
from services.rpc.methods import ENSURE_GROUP, ENSURE_TOPIC, REGISTER_BROKER, WATCH
from services.rpc.service import Call, Service, Stream, StreamClosedError

_FIRST_EPOCH = 1

_logger = structlog.get_logger()


class ControllerServer:
    """Binds the calls to the state.

    Args:
        options: limits and defaults.
        keeper: holds and changes the state.
        watchers: who gets its changes.
        processes: who is there, for operators.
        clock: since when.
        lagged: called whenever a watcher fell too far behind.
    """

    def __init__(
        self,
        options: ControllerOptions,
        keeper: StateKeeper,
        watchers: Watchers,
        processes: Processes,
        clock: Clock,
        lagged: Callable[[], None],
    ) -> None:
        self._options = options
        self._keeper = keeper
        self._watchers = watchers
        self._processes = processes
        self._clock = clock
        self._lagged = lagged
        self._snapshot: tuple[ClusterState, ClusterUpdate] | None = None
        self._registrations: dict[str, object] = {}
        self._registering: set[asyncio.Task[object]] = set()
        self.service = Service()
        self.service.stream(WATCH, self._watch)
        self.service.unary(ENSURE_TOPIC, self._ensure_topic)
        self.service.unary(ENSURE_GROUP, self._ensure_group)
        self.service.stream(REGISTER_BROKER, self._register_broker)

    def close(self) -> None:
        """End the streams of brokers and watchers, which by themselves would last for ever."""
        self._watchers.close()
        for handler in list(self._registering):
            handler.cancel()

    async def _watch(self, call: Call, stream: Stream[WatchRequest, ClusterUpdate]) -> None:
        request = await stream.receive()
        if request is None:
            raise StatusError(Code.BAD_REQUEST, "Watch begins with one WatchRequest")
        arrived = asyncio.Event()
        watcher = Watcher(self._options.watcher_updates_max, self._whole_state, arrived.set)
        self._watchers.add(watcher)
        watching = self._processes.came(request, call.peer, self._clock.wall_ms())
        try:
            lagged = 0
            while True:
                if watcher.lagged > lagged:
                    lagged = watcher.lagged
                    self._lagged()
                    _logger.warning("watcher fell behind, whole state sent anew", process=request.process)
                arrived.clear()
                if updates := watcher.take():
                    await stream.send(updates)
                elif watcher.closed:
                    return
                else:
                    await arrived.wait()
        except StreamClosedError:
            return
        finally:
            self._watchers.remove(watcher)
            self._processes.left(watching)

    def _whole_state(self) -> ClusterUpdate:
        """The state as it is now, made once for all who come before it changes: after a restart all come at once."""
        state = self._keeper.state
        if self._snapshot is None or self._snapshot[0] is not state:
            self._snapshot = (state, state.snapshot())
        return self._snapshot[1]

    async def _ensure_topic(self, call: Call, request: EnsureTopicRequest) -> EnsureTopicResponse:
        def decide(state: ClusterState) -> ClusterUpdate | None:
            if request.name in state.topics:
                return None
            return state.create_topic(self._options, request.name, request.type)

        topic = self._keeper.state.topics.get(request.name)
        if topic is None:
            update = await self._keeper.change(decide)
            topic = update.topics[0] if update is not None else self._keeper.state.topic(request.name)
        return EnsureTopicResponse(topic=topic)

    async def _ensure_group(self, call: Call, request: EnsureGroupRequest) -> EnsureGroupResponse:
        def decide(state: ClusterState) -> ClusterUpdate | None:
            if request.name in state.groups:
                return None
            return state.create_group(self._options, request.name)

        group = self._keeper.state.groups.get(request.name)
        if group is None:
            update = await self._keeper.change(decide)
            group = update.groups[0] if update is not None else self._keeper.state.group(request.name)
        return EnsureGroupResponse(group=group)

    async def _register_broker(self, call: Call, stream: Stream[ReplicaReport, BrokerGroup]) -> None:
        """Hold a broker in the routes while the stream lives. Of two streams for one name the newer holds it."""
        registration = object()
        broker: BrokerInfo | None = None
        handler = asyncio.current_task()
        assert handler is not None
        self._registering.add(handler)
        try:
            while (report := await stream.receive()) is not None:
                if broker is not None and report.group != broker.name:
                    raise StatusError(
                        Code.BAD_REQUEST, f"this stream registers {broker.name}; open another for {report.group}"
                    )
                now = BrokerInfo(name=report.group, address=report.address, epoch=_FIRST_EPOCH)
                if now != broker:
                    broker = now
                    await self._register(broker, registration)
                    await stream.send([_led_by(report, self._keeper.state.version)])
        except StreamClosedError:
            return
        finally:
            self._registering.discard(handler)
            if broker is not None:
                self._dismiss(broker.name, registration)

    async def _register(self, broker: BrokerInfo, registration: object) -> None:
        def decide(state: ClusterState) -> ClusterUpdate | None:
            return None if state.brokers.get(broker.name) == broker else state.register_broker(broker)

        decide(self._keeper.state)  # a refused one must not take the name from the stream that holds it
        self._registrations[broker.name] = registration
        await self._keeper.change_brokers(decide)
        self._processes.registered(broker.name, self._clock.wall_ms())
        _logger.info("broker registered", broker=broker.name, address=broker.address)

    def _dismiss(self, name: str, registration: object) -> None:
        if self._registrations.get(name) is not registration:
            return  # a newer stream of the same broker holds the name
        del self._registrations[name]
        self._processes.dismissed(name)
        self._keeper.change_brokers_soon(lambda state: state.dismiss_broker(name))
        _logger.info("broker's registration ended", broker=name)


def _led_by(report: ReplicaReport, version: int) -> BrokerGroup:
    """The group of a replica that is alone in it."""
    return BrokerGroup(
        name=report.group,
        version=version,
        epoch=_FIRST_EPOCH,
        master=report.replica,
        sync_state_set=[report.replica],
        replicas=[Replica(number=report.replica, address=report.address, identity=report.identity, alive=True)],
    )
