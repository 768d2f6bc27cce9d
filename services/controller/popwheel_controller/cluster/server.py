"""Calls of brokers and proxies: `popwheel.v1.Controller` (replicas: `replica_streams`)."""

import asyncio
import sys
from collections.abc import Callable

import structlog

from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    ClusterUpdate,
    EnsureGroupRequest,
    EnsureGroupResponse,
    EnsureTopicRequest,
    EnsureTopicResponse,
    WatchRequest,
)
from popwheel_controller.cluster.admission import Admission
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.context import ControllerContext
from popwheel_controller.cluster.processes import Processes
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.cluster.watchers import Watcher, Watchers
from popwheel_rpc.methods import ENSURE_GROUP, ENSURE_TOPIC, WATCH
from popwheel_rpc.service import Call, Service, Stream, StreamClosedError

_logger = structlog.get_logger()

_ADVICE = (
    "it learns nothing of this one. Give it the addresses of its own cluster's controllers; a proxy that is to belong "
    "to this cluster is to be started anew"
)


class ControllerServer:
    """Binds the calls of `popwheel.v1.Controller`.

    Args:
        context: of the controller.
        state_writer: of the cluster's state.
        watchers: that get its changes.
        admission: refuses processes of another cluster.
        processes: list of processes, for operators.
        lagged: called whenever a watcher has lagged too far.
    """

    def __init__(
        self,
        context: ControllerContext,
        state_writer: StateWriter,
        watchers: Watchers,
        admission: Admission,
        processes: Processes,
        lagged: Callable[[], None],
    ) -> None:
        self._options = context.options
        self._state_writer = state_writer
        self._watchers = watchers
        self._admission = admission
        self._processes = processes
        self._clock = context.clock
        self._lagged = lagged
        self._check_leads = context.check_leads
        self._lock = asyncio.Lock()
        """Lets one part of a whole state be sent in each turn of the loop, however many watchers wait."""
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
        kind = WatchRequest.Kind.Name(request.kind).lower() if request.kind else "process"
        self._admission.check(request.cluster_id, f"the {kind} {request.process}", _ADVICE)
        arrived = asyncio.Event()
        names_max = self._options.watcher_part_names if request.in_parts else sys.maxsize
        watcher = Watcher(
            self._options.watcher_updates_max,
            lambda: self._watchers.parts(self._state_writer.state, names_max),
            arrived.set,
        )
        self._watchers.add(watcher)
        watching = self._processes.register(request, call.peer, self._clock.wall_ms())
        try:
            lagged = 0
            while True:
                if watcher.lagged > lagged:
                    lagged = watcher.lagged
                    self._lagged()
                    _logger.warning("watcher fell behind, whole state sent anew", process=request.process)
                arrived.clear()
                if watcher.takes_snapshot:
                    async with self._lock:
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
            return state.ensure_topic(self._options, request.name, request.type, self._clock.wall_ms())

        names.topic(request.name, Use.CREATE)
        self._check_leads()
        topic = self._state_writer.state.topics.get(request.name)
        if topic is None:
            # Refusals must not fill the queue of changes: each send of a running producer may be refused.
            self._state_writer.state.check_topic_may_be_made(request.name, self._clock.wall_ms())
            update = await self._state_writer.change(decide)
            if update is not None:
                _logger.info("change", who="first use", address=call.peer, verb="topic create", object=request.name)
            topic = update.topics[0] if update is not None else self._state_writer.state.topic(request.name)
        return EnsureTopicResponse(topic=topic)

    async def _ensure_group(self, call: Call, request: EnsureGroupRequest) -> EnsureGroupResponse:
        def decide(state: ClusterState) -> ClusterUpdate | None:
            return state.ensure_group(self._options, request.name, self._clock.wall_ms())

        names.group(request.name)
        self._check_leads()
        group = self._state_writer.state.groups.get(request.name)
        if group is None:
            self._state_writer.state.check_group_may_be_made(request.name, self._clock.wall_ms())
            update = await self._state_writer.change(decide)
            if update is not None:
                _logger.info("change", who="first use", address=call.peer, verb="group create", object=request.name)
            group = update.groups[0] if update is not None else self._state_writer.state.group(request.name)
        return EnsureGroupResponse(group=group)
