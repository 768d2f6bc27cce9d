"""The controller as brokers and proxies call it: `popwheel.v1.Controller` (replicas: `replica_streams`)."""

import asyncio
import sys
from collections.abc import Callable

import structlog

from services.common.clock import Clock
from services.common.contract import names
from services.common.contract.names import Use
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.controller_pb2 import (
    ClusterUpdate,
    EnsureGroupRequest,
    EnsureGroupResponse,
    EnsureTopicRequest,
    EnsureTopicResponse,
    WatchRequest,
)
from services.controller.cluster.cluster_state import ClusterState
from services.controller.cluster.processes import Processes
from services.controller.cluster.state_keeper import StateKeeper
from services.controller.cluster.watchers import Watcher, Watchers
from services.controller.options import ControllerOptions
from services.rpc.methods import ENSURE_GROUP, ENSURE_TOPIC, WATCH
from services.rpc.service import Call, Service, Stream, StreamClosedError

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
        check_leads: raises StatusError while this controller does not lead.
    """

    def __init__(
        self,
        options: ControllerOptions,
        keeper: StateKeeper,
        watchers: Watchers,
        processes: Processes,
        clock: Clock,
        lagged: Callable[[], None],
        check_leads: Callable[[], None],
    ) -> None:
        self._options = options
        self._keeper = keeper
        self._watchers = watchers
        self._processes = processes
        self._clock = clock
        self._lagged = lagged
        self._check_leads = check_leads
        self._turn = asyncio.Lock()
        """One part of a whole state goes out in a turn of the loop, however many wait for theirs."""
        self.service = Service()
        self.service.stream(WATCH, self._watch)
        self.service.unary(ENSURE_TOPIC, self._ensure_topic)
        self.service.unary(ENSURE_GROUP, self._ensure_group)

    async def _watch(self, call: Call, stream: Stream[WatchRequest, ClusterUpdate]) -> None:
        request = await stream.receive()
        if request is None:
            raise StatusError(Code.BAD_REQUEST, "Watch begins with one WatchRequest")
        names.process(request.process)
        self._check_leads()
        arrived = asyncio.Event()
        names_max = self._options.watcher_part_names if request.in_parts else sys.maxsize
        watcher = Watcher(
            self._options.watcher_updates_max,
            lambda: self._watchers.parts(self._keeper.state, names_max),
            arrived.set,
        )
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
                if watcher.is_told_all:
                    async with self._turn:
                        await asyncio.sleep(0)
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

    async def _ensure_topic(self, call: Call, request: EnsureTopicRequest) -> EnsureTopicResponse:
        def decide(state: ClusterState) -> ClusterUpdate | None:
            if request.name in state.topics:
                return None
            return state.create_topic(self._options, request.name, request.type)

        names.topic(request.name, Use.CREATE)
        self._check_leads()
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

        names.group(request.name)
        self._check_leads()
        group = self._keeper.state.groups.get(request.name)
        if group is None:
            update = await self._keeper.change(decide)
            group = update.groups[0] if update is not None else self._keeper.state.group(request.name)
        return EnsureGroupResponse(group=group)
