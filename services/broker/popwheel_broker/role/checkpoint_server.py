"""Checkpoint sync at a replica: a master sends its progress, a slave stores that of its master."""

import asyncio
from pathlib import Path

import structlog

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.replication.checkpoint_source import CheckpointSource
from popwheel_broker.replication.master_checkpoint import speaks_of, take_over_offsets
from popwheel_broker.replication.master_checkpoint_file import MasterCheckpointFile
from popwheel_broker.role.leader import Leader
from popwheel_broker.role.role import Role
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service

_log = structlog.get_logger()

_SCANNED_AT_ONCE = 5000


class CheckpointServer:
    """Answers FetchCheckpoint and StoreCheckpoint, and restores the stored progress at a new master.

    Args:
        context: of the replica.
        role: the replica's role.
        folder: of its files.
    """

    def __init__(self, context: BrokerContext, role: Role, folder: Path) -> None:
        self._role = role
        self._files = context.files
        self._options = context.options
        self._clock = context.clock
        self._entries_max = context.constants.checkpoint_entries_max
        self._source: CheckpointSource | None = None
        self._scanning = asyncio.Lock()
        self._scans = 0
        self._stored_at_s: float | None = None
        self.file = MasterCheckpointFile(context.disk, folder)
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
            raise self._leads_not(request.epoch)
        source = await self._scan(leader, request.known_version)
        core = leader.core
        position = core.store.log.end_position
        saved = core.timer.saved
        progress = pb.TimerProgress()
        if saved is not None:
            progress = pb.TimerProgress(
                last_read_time_ms=saved.last_read_time_ms,
                master_timer_queue_offset=saved.last_timer_queue_offset,
                scan_position=saved.scan_position,
                state_version=saved.state_version,
            )
        answer = source.checkpoint(
            request.known_version, self._clock.wall_ms(), position, progress, core.revive_offsets()
        )
        try:
            await leader.flusher.fully_synced(position)
        except OSError as error:
            raise StatusError(Code.INTERNAL_ERROR, f"the broker's device refused a sync: {error}") from error
        return answer

    async def _scan(self, leader: Leader, known_version: int) -> CheckpointSource:
        """Collect what has changed, a part at a time.

        Callers that wait for the same scan share its result, and the rest of a partial answer is from the scan before.
        """
        scans = self._scans
        async with self._scanning:
            if self._role.leader is not leader:
                raise self._leads_not(leader.epoch)
            if self._source is None:
                self._source = CheckpointSource(
                    self._options.name,
                    leader.epoch,
                    self._entries_max,
                    leader.core.state.merge_buffer,
                    leader.core.topic_registry,
                )
            elif self._scans > scans or self._source.is_rest(known_version):
                return self._source
            self._scans += 1
            source = self._source
            source.epoch = leader.epoch  # a master that is elected once more keeps its core
            scanned_position = leader.core.store.log.end_position
            for count, _ in enumerate(source.scan(), 1):
                if count % _SCANNED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            source.scanned_position = scanned_position
            return source

    def _leads_not(self, epoch: int) -> StatusError:
        return StatusError(
            Code.PRECONDITION_FAILED,
            f"replica {self._options.replica} of {self._options.name} does not lead epoch {epoch}",
        )

    def forget_core(self) -> None:
        """Drop the progress of a core that was discarded."""
        self._source = None

    # At a slave

    def load(self) -> None:
        """Read the checkpoint that an earlier process stored.

        Raises:
            UnknownFormatError: it is in the format of a newer release.
        """
        self.file.load()

    async def store(self, call: Call, request: pb.ReplicaCheckpoint) -> pb.StoreCheckpointResponse:
        """Store the master's progress, durably.

        Raises:
            StatusError: PRECONDITION_FAILED: it is of an older epoch or version, is a difference from one that is not
                stored, or this replica leads; nothing was changed. INTERNAL_ERROR: the device refused.
        """
        try:
            self._check(request)
            stored = await self.file.store(request)
        except StatusError:
            self.refused += 1
            raise
        except OSError as error:
            raise StatusError(Code.INTERNAL_ERROR, f"the checkpoint could not be stored: {error}") from error
        self._stored_at_s = self._clock.monotonic()
        self.stored += stored
        if not request.rest_from:
            self._forward_timer(request)
        return pb.StoreCheckpointResponse(version=request.version)

    def _check(self, request: pb.ReplicaCheckpoint) -> None:
        names.broker_group(request.group)
        role = self._role
        if request.group != self._options.name:
            raise _refusal(f"it is of {request.group}, and this is a replica of {self._options.name}")
        if role.leader is not None:
            raise _refusal(f"this replica leads epoch {role.leader.epoch}")
        if request.epoch < role.group.epoch:
            raise _refusal(f"epoch {request.epoch} is over, epoch {role.group.epoch} has begun")

    def _forward_timer(self, request: pb.ReplicaCheckpoint) -> None:
        """Forward the progress of the master's timer to this replica's."""
        if self._role.leader is None:
            self._files.timer_progressed(request.high_watermark, request.timer)

    def take_over(self) -> None:
        """Restore the stored progress at a replica that is about to lead, with its whole log folded."""
        files, checkpoint = self._files, self.file.checkpoint
        end_of_epoch = files.epochs.end_of(checkpoint.latest.epoch, files.end_position)
        if speaks_of(checkpoint.latest, end_of_epoch):
            moved = take_over_offsets(files.core, checkpoint)
            _log.info(
                "the master's checkpoint is taken over",
                name=self._options.name,
                epoch=checkpoint.latest.epoch,
                version=checkpoint.latest.version,
                offsets_moved=moved,
            )

    # Status

    @property
    def version(self) -> int:
        """Version of the stored checkpoint; 0 for none."""
        return self.file.checkpoint.latest.version

    @property
    def age_s(self) -> float | None:
        """Age of the stored progress, the larger one by two clocks; None if there is none."""
        latest = self.file.checkpoint.latest
        if not latest.epoch:
            return None
        by_wall_s = (self._clock.wall_ms() - latest.time_ms) / 1000
        since_s = 0.0 if self._stored_at_s is None else self._clock.monotonic() - self._stored_at_s
        return max(0.0, by_wall_s, since_s)


def _refusal(why: str) -> StatusError:
    return StatusError(Code.PRECONDITION_FAILED, f"the checkpoint is refused: {why}")
