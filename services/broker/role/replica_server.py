"""What the controller asks of a replica: who it is, and to pass its role on."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from services.broker.calls.router import Router
from services.broker.options import BrokerOptions
from services.broker.role.leader import Leader
from services.common import names
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.rpc import methods
from services.rpc.service import Call, Service

if TYPE_CHECKING:
    from services.broker.app import BrokerApp

_log = structlog.get_logger()

_CATCH_UP_S = 2.0
_NEW_EPOCH_S = 3.0
"""How long a master that has handed its role over waits for somebody to take it; then it goes on."""


class _Transfer:
    """A master's role that is being passed on; its master is paused until it is over.

    Args:
        to: the successor's number.
        task: returns where the logs end when the successor has all.
    """

    def __init__(self, to: int, task: asyncio.Task[int]) -> None:
        self.to = to
        self.task = task
        self.callers = 0
        self.timer: asyncio.TimerHandle | None = None


class ReplicaServer:
    """Answers, whatever the role is.

    Args:
        app: the replica.
        options: settings.
        router: held while the role is passed on.
    """

    def __init__(self, app: "BrokerApp", options: BrokerOptions, router: Router) -> None:
        self._app = app
        self._options = options
        self._router = router
        self._passing: _Transfer | None = None

    def bind(self, service: Service) -> None:
        """Answer calls of a service."""
        service.unary(methods.REPLICA_STATUS, self.status)
        service.unary(methods.HAND_OVER, self.hand_over)

    async def status(self, call: Call, request: pb.ReplicaStatusRequest) -> pb.ReplicaStatusResponse:
        """Who this is and how far it has come."""
        app = self._app
        return pb.ReplicaStatusResponse(
            group=self._options.name,
            replica=self._options.replica,
            identity=app.identity,
            epoch=app.group.epoch,
            is_master=app.leading is not None,
            last_epoch=app.files.last_epoch,
            end_position=app.files.end_position,
            confirmed_position=app.files.confirmed_position,
            doubtful=app.files.is_doubtful,
        )

    async def hand_over(self, call: Call, request: pb.HandOverRequest) -> pb.HandOverResponse:
        """Take nothing more, and answer when another replica has all; go on if no new epoch comes soon.

        Whoever asks for the same meanwhile waits for the same, or is answered at once, and has what is left of the
        first one's time to make the new epoch.

        Raises:
            StatusError: PRECONDITION_FAILED: this replica does not lead that epoch, or passes its role on to another
                one already. HA_NOT_AVAILABLE: the other one did not catch up in time; this one goes on.
        """
        names.broker_group(request.group)
        leading = self._app.leading
        if (
            leading is None
            or leading.has_ended
            or leading.epoch != request.epoch
            or request.group != self._options.name
        ):
            raise self._leads_not(request)
        if request.to == self._options.replica:
            raise StatusError(Code.BAD_REQUEST, f"replica {request.to} of {request.group} leads already")
        passing = self._passing
        if passing is not None and passing.to != request.to:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"{request.group} passes its role on to replica {passing.to} already; ask again when that is over",
            )
        if passing is None:
            _log.info("the broker passes its role on", name=request.group, to=request.to, epoch=request.epoch)
            self._router.hold("passes its role on to another replica, ask again in a moment")
            work = leading.hand_over(request.to, _CATCH_UP_S)
            passing = self._passing = _Transfer(request.to, asyncio.create_task(work, name="broker-hand-over"))
        passing.callers += 1
        try:
            end = await asyncio.shield(passing.task)
        except asyncio.CancelledError:
            if passing.task.cancelled():  # the mastership has ended
                raise self._leads_not(request) from None
            passing.callers -= 1
            if not passing.callers:
                self._go_on(leading, passing)
            raise
        except BaseException:
            self._go_on(leading, passing)
            raise
        if passing.timer is None:  # else whoever asks again and again would keep the master paused
            passing.timer = asyncio.get_running_loop().call_later(_NEW_EPOCH_S, self._go_on, leading, passing)
        return pb.HandOverResponse(end_position=end)

    def stop_waiting(self) -> None:
        """The mastership that was to be passed on ends: it is not gone on with."""
        passing, self._passing = self._passing, None
        if passing is not None:
            passing.task.cancel()
            if passing.timer is not None:
                passing.timer.cancel()

    def _go_on(self, leading: Leader, passing: _Transfer) -> None:
        if self._passing is not passing:
            return
        self.stop_waiting()
        if self._app.leading is leading and not leading.has_ended:
            _log.warning("the broker's role was not passed on, it goes on", name=self._options.name)
            leading.go_on()
            self._router.open(leading.server.service, leading.replication.replicate)

    def _leads_not(self, request: pb.HandOverRequest) -> StatusError:
        return StatusError(
            Code.PRECONDITION_FAILED,
            f"replica {self._options.replica} of {self._options.name} does not lead epoch {request.epoch}",
        )
