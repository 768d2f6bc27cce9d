"""What the controller asks of a replica: who it is, and to pass its role on."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from services.broker.front import Front
from services.broker.leading import Leading
from services.broker.options import BrokerOptions
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


class ReplicaServer:
    """Answers, whatever the role is.

    Args:
        app: the replica.
        options: settings.
        front: held while the role is passed on.
    """

    def __init__(self, app: "BrokerApp", options: BrokerOptions, front: Front) -> None:
        self._app = app
        self._options = options
        self._front = front
        self._going_on: asyncio.TimerHandle | None = None

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
        )

    async def hand_over(self, call: Call, request: pb.HandOverRequest) -> pb.HandOverResponse:
        """Take nothing more, and answer when another replica has all; go on if no new epoch comes soon.

        Raises:
            StatusError: PRECONDITION_FAILED: this replica does not lead that epoch. HA_NOT_AVAILABLE: the other one
                did not catch up in time; this one goes on.
        """
        leading = self._app.leading
        if (
            leading is None
            or leading.has_ended
            or leading.epoch != request.epoch
            or request.group != self._options.name
        ):
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"replica {self._options.replica} of {self._options.name} does not lead epoch {request.epoch}",
            )
        if request.to == self._options.replica:
            raise StatusError(Code.BAD_REQUEST, f"replica {request.to} of {request.group} leads already")
        _log.info("the broker passes its role on", name=request.group, to=request.to, epoch=request.epoch)
        self.stop_waiting()
        self._front.hold("passes its role on to another replica, ask again in a moment")
        try:
            end = await leading.hand_over(request.to, _CATCH_UP_S)
        except BaseException:
            self._go_on(leading)
            raise
        self._going_on = asyncio.get_running_loop().call_later(_NEW_EPOCH_S, self._go_on, leading)
        return pb.HandOverResponse(end_position=end)

    def stop_waiting(self) -> None:
        """The mastership that was to be passed on ends: it is not gone on with."""
        if self._going_on is not None:
            self._going_on.cancel()
            self._going_on = None

    def _go_on(self, leading: Leading) -> None:
        self.stop_waiting()
        if self._app.leading is leading and not leading.has_ended:
            _log.warning("the broker's role was not passed on, it goes on", name=self._options.name)
            leading.go_on()
            self._front.open(leading.server.service, leading.replication.replicate)
