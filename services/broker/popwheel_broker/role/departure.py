"""Graceful shutdown of a replica: it leaves when its group can do without it.

A member of the sync-state set waits until every other live replica is one, too. While another one catches up, the group
would have no successor without this one, or fewer replicas than it had. A rolling update continues as soon as the last
replica is ready, so this wait makes it take the next one only when the set is whole again.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

import structlog

from popwheel_broker.options import BrokerOptions
from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, DescribeBrokerGroupRequest
from popwheel_rpc import methods
from popwheel_rpc.service import Channel
from popwheel_rpc.status import RpcError

_log = structlog.get_logger()

_ASK_AGAIN_S = 0.05
_ASK_S_MAX = 3.0
UNANSWERED_S_MAX: Final = 15.0
"""Longer than it takes until another controller leads."""


class Step(Enum):
    """Step of a replica that is to shut down."""

    WAIT = "wait"
    """Others catch up: it continues to serve."""
    SAY = "say"
    """It reports to the controller that it leaves: a master's role is transferred, and a slave is not elected."""
    LEAVE = "leave"
    """It shuts down."""


def next_step(group: BrokerGroup, me: int) -> Step:
    """Return the next step.

    Args:
        group: as the controller describes it; replicas that are dead, or have reported that they leave, do not count as
            alive.
        me: number of the replica that is to shut down.
    """
    alive = {replica.number for replica in group.replicas if replica.alive}
    others = alive - {me}
    if me not in group.sync_state_set or not others:
        return Step.LEAVE
    if not others <= set(group.sync_state_set):
        return Step.WAIT
    return Step.SAY if group.master == me or me in alive else Step.LEAVE


class Departure:
    """Waits until a replica that is to shut down may leave.

    Args:
        options: settings.
        controller: channel to the controller.
        clock: for how long no controller has answered.
        on_change: called when `is_announced` has changed.

    Attributes:
        is_announced: whether reports to the controller say that this replica leaves.
        is_master: whether this replica leads its group, by the latest answer of a controller.
    """

    def __init__(
        self, options: BrokerOptions, controller: Channel, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self._name = options.name
        self._replica = options.replica
        self._controller = controller
        self._clock = clock
        self._on_change = on_change
        self._unanswered: str | None = None
        self._unanswered_since_s = 0.0
        self.is_announced = False
        self.is_master = False

    async def wait(self) -> None:
        """Return when the group can do without this replica."""
        while (step := await self.next_step()) is not Step.LEAVE:
            self._announce(step is Step.SAY)
            await asyncio.sleep(_ASK_AGAIN_S)

    async def next_step(self) -> Step:
        """Return the next step: WAIT while no controller answers.

        After a longer silence it is LEAVE: nobody could take over, and all replicas may be about to shut down.
        """
        request = DescribeBrokerGroupRequest(group=self._name)
        try:
            group = await self._controller.call(methods.DESCRIBE_BROKER_GROUP, request, timeout_s=_ASK_S_MAX)
        except (StatusError, RpcError) as error:
            now_s = self._clock.monotonic()
            if self._unanswered is None:
                self._unanswered_since_s = now_s
            if str(error) != self._unanswered:
                self._unanswered = str(error)
                _log.warning("no controller says whether the replica may leave", name=self._name, why=str(error))
            return Step.WAIT if now_s - self._unanswered_since_s < UNANSWERED_S_MAX else Step.LEAVE
        self._unanswered = None
        self.is_master = group.master == self._replica
        return next_step(group, self._replica)

    def _announce(self, leaves: bool) -> None:
        if self.is_announced != leaves:
            self.is_announced = leaves
            _log.info("the replica is to shut down", name=self._name, announced=leaves)
            self._on_change()
