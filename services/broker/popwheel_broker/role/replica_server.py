"""Requests of the controller to a replica: its status, and the transfer of its role."""

import asyncio

import structlog

from popwheel_broker.calls.router import Router
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_broker.role.leader import Leader
from popwheel_broker.role.role import Role
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service

_log = structlog.get_logger()

_CATCH_UP_S = 2.0
_NEW_EPOCH_S = 3.0
"""Time that a master waits for its successor after a transfer; then it continues."""


class _Transfer:
    """Transfer of a master's role; the master is paused until it is over.

    Args:
        to: the successor's number.
        task: returns where the logs end when the successor has everything.
    """

    def __init__(self, to: int, task: asyncio.Task[int]) -> None:
        self.to = to
        self.task = task
        self.callers = 0
        self.timer: asyncio.TimerHandle | None = None


class ReplicaServer:
    """Answers in every role.

    Args:
        role: the replica's role.
        files: its log.
        options: settings.
        router: parks calls during a transfer.
    """

    def __init__(self, role: Role, files: ReplicaStore, options: BrokerOptions, router: Router) -> None:
        self._role = role
        self._files = files
        self._options = options
        self._router = router
        self._transfer: _Transfer | None = None

    def bind(self, service: Service) -> None:
        """Answer calls of a service."""
        service.unary(methods.REPLICA_STATUS, self.status)
        service.unary(methods.HAND_OVER, self.transfer)

    async def status(self, call: Call, request: pb.ReplicaStatusRequest) -> pb.ReplicaStatusResponse:
        """Return this replica's identity and progress."""
        role, files = self._role, self._files
        return pb.ReplicaStatusResponse(
            group=self._options.name,
            replica=self._options.replica,
            identity=role.identity,
            epoch=role.group.epoch,
            is_master=role.leader is not None,
            last_epoch=files.last_epoch,
            end_position=files.end_position,
            high_watermark=files.high_watermark,
            suspect=files.is_suspect,
        )

    async def transfer(self, call: Call, request: pb.HandOverRequest) -> pb.HandOverResponse:
        """Stop writing, and answer when another replica has everything; continue if no new epoch follows soon.

        A second call for the same transfer waits for the same result, or is answered at once, and has the rest of the
        first one's time to make the new epoch.

        Raises:
            StatusError: PRECONDITION_FAILED: this replica does not lead that epoch, or transfers its role to another
                one already. HA_NOT_AVAILABLE: the other one did not catch up in time; this one continues.
        """
        names.broker_group(request.group)
        leader = self._role.leader
        if leader is None or leader.has_ended or leader.epoch != request.epoch or request.group != self._options.name:
            raise self._leads_not(request)
        if request.to == self._options.replica:
            raise StatusError(Code.BAD_REQUEST, f"replica {request.to} of {request.group} leads already")
        transfer = self._transfer
        if transfer is not None and transfer.to != request.to:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"{request.group} passes its role on to replica {transfer.to} already; ask again when that is over",
            )
        if transfer is None:
            _log.info("the broker transfers its role", name=request.group, to=request.to, epoch=request.epoch)
            self._router.hold("passes its role on to another replica, ask again in a moment")
            work = leader.transfer(request.to, _CATCH_UP_S)
            transfer = self._transfer = _Transfer(request.to, asyncio.create_task(work, name="leadership-transfer"))
        transfer.callers += 1
        try:
            end = await asyncio.shield(transfer.task)
        except asyncio.CancelledError:
            if transfer.task.cancelled():  # the term has ended
                raise self._leads_not(request) from None
            transfer.callers -= 1
            if not transfer.callers:
                self._resume(leader, transfer)
            raise
        except BaseException:
            self._resume(leader, transfer)
            raise
        if transfer.timer is None:  # else repeated calls would keep the master paused
            transfer.timer = asyncio.get_running_loop().call_later(_NEW_EPOCH_S, self._resume, leader, transfer)
        return pb.HandOverResponse(end_position=end)

    def stop_waiting(self) -> None:
        """End the transfer, as the master's term ends."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.task.cancel()
            if transfer.timer is not None:
                transfer.timer.cancel()

    def _resume(self, leader: Leader, transfer: _Transfer) -> None:
        if self._transfer is not transfer:
            return
        self.stop_waiting()
        if self._role.leader is leader and not leader.has_ended:
            _log.warning("the broker's role was not transferred, it continues to lead", name=self._options.name)
            leader.resume()
            self._router.open(leader.server.service, leader.replication.replicate)

    def _leads_not(self, request: pb.HandOverRequest) -> StatusError:
        return StatusError(
            Code.PRECONDITION_FAILED,
            f"replica {self._options.replica} of {self._options.name} does not lead epoch {request.epoch}",
        )
