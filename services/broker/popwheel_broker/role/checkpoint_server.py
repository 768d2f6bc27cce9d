"""Checkpoint sync at a replica: a master returns its progress, a slave applies that of its master.

The progress is how far the master's timer is. All else that a new master needs is in the log.
"""

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.role.role import Role
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service


class CheckpointServer:
    """Answers FetchCheckpoint and StoreCheckpoint.

    Args:
        context: of the replica.
        role: the replica's role.
    """

    def __init__(self, context: BrokerContext, role: Role) -> None:
        self._role = role
        self._files = context.files
        self._options = context.options
        self._clock = context.clock
        self._fetched = 0
        self._latest = pb.ReplicaCheckpoint()
        self._stored_at_s = 0.0
        self.stored = 0
        self.refused = 0

    def bind(self, service: Service) -> None:
        """Answer calls of a service."""
        service.unary(methods.FETCH_CHECKPOINT, self.fetch)
        service.unary(methods.STORE_CHECKPOINT, self.store)

    # At a master

    async def fetch(self, call: Call, request: pb.FetchCheckpointRequest) -> pb.ReplicaCheckpoint:
        """Return this master's progress, when none of it can be cut off any more.

        Raises:
            StatusError: PRECONDITION_FAILED: this replica does not lead that epoch.
        """
        names.broker_group(request.group)
        leader = self._role.leader
        if leader is None or leader.epoch != request.epoch or request.group != self._options.name:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"replica {self._options.replica} of {self._options.name} does not lead epoch {request.epoch}",
            )
        position = leader.core.store.log.end_position
        saved = leader.core.timer.saved
        self._fetched += 1
        answer = pb.ReplicaCheckpoint(
            group=self._options.name,
            epoch=leader.epoch,
            version=self._fetched,
            time_ms=self._clock.wall_ms(),
            high_watermark=position,
        )
        if saved is not None:
            answer.timer.last_read_time_ms = saved.last_read_time_ms
            answer.timer.master_timer_queue_offset = saved.last_timer_queue_offset
        try:
            await leader.flusher.fully_synced(position)
        except OSError as error:
            raise StatusError(Code.INTERNAL_ERROR, f"the broker's device refused a sync: {error}") from error
        return answer

    # At a slave

    async def store(self, call: Call, request: pb.ReplicaCheckpoint) -> pb.StoreCheckpointResponse:
        """Apply the master's progress. Epochs and, within one, versions never go back (C4).

        Raises:
            StatusError: PRECONDITION_FAILED: it is not of the epoch that this replica follows, is of an older version,
                or this replica leads; nothing was changed. BAD_REQUEST: it has no version.
        """
        try:
            self._check(request)
        except StatusError:
            self.refused += 1
            raise
        if (request.epoch, request.version) != (self.epoch, self.version):
            self._latest = request
            self._stored_at_s = self._clock.monotonic()
            self.stored += 1
            self._files.timer_progressed(request.high_watermark, request.timer)
        return pb.StoreCheckpointResponse(version=request.version)

    def _check(self, request: pb.ReplicaCheckpoint) -> None:
        names.broker_group(request.group)
        role = self._role
        if request.group != self._options.name:
            raise _refusal(f"it is of {request.group}, and this is a replica of {self._options.name}")
        if role.leader is not None:
            raise _refusal(f"this replica leads epoch {role.leader.epoch}")
        if request.epoch != role.group.epoch:
            raise _refusal(f"it is of epoch {request.epoch}, and this replica follows epoch {role.group.epoch}")
        if request.version < 1:
            raise StatusError(Code.BAD_REQUEST, "a checkpoint needs a version, which begins with 1")
        if (request.epoch, request.version) < (self.epoch, self.version):
            raise _refusal(f"version {request.version} of epoch {request.epoch} is older than {self.version}")

    # Status

    @property
    def epoch(self) -> int:
        """Epoch of the latest checkpoint that was applied; 0 for none."""
        return self._latest.epoch

    @property
    def version(self) -> int:
        """Version of the latest checkpoint that was applied; 0 for none."""
        return self._latest.version

    @property
    def age_s(self) -> float | None:
        """Age of the latest checkpoint, the larger one by two clocks; None if there is none."""
        if not self.epoch:
            return None
        by_wall_s = (self._clock.wall_ms() - self._latest.time_ms) / 1000
        return max(0.0, by_wall_s, self._clock.monotonic() - self._stored_at_s)


def _refusal(why: str) -> StatusError:
    return StatusError(Code.PRECONDITION_FAILED, f"the checkpoint is refused: {why}")
