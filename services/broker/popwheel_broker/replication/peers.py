"""Peers of a replica in its broker group, and the channels to them."""

from collections.abc import Iterator

import structlog

from popwheel_broker.replication.channels import BrokerChannels
from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, DescribeBrokerGroupRequest
from popwheel_rpc.methods import DESCRIBE_BROKER_GROUP
from popwheel_rpc.service import Channel
from popwheel_rpc.status import RpcError

_log = structlog.get_logger()

_ASK_AGAIN_MS = 5000


class Peers:
    """The other replicas: by the recorded state of the group, or by the controller's since.

    Args:
        group: name of the broker group.
        me: number of this replica.
        channels: channels to them, and to the controller, which has their addresses.
        timeout_ms: limit of the controller's answer.
        clock: the time.
    """

    def __init__(self, group: str, me: int, channels: BrokerChannels, timeout_ms: int, clock: Clock) -> None:
        self._group = group
        self._me = me
        self._connect = channels.to_replica
        self._controller = channels.controller
        self._timeout_s = timeout_ms / 1000
        self._addresses: dict[int, str] = {}
        self._channels: dict[str, Channel] = {}
        self._clock = clock
        self._is_known = channels.to_replica is None
        self._asked_ms: int | None = None

    def know(self, group: BrokerGroup) -> None:
        """Start with the recorded state of the group."""
        self._addresses = self._others_of(group)

    def group_changed(self, group: BrokerGroup) -> None:
        """Accept the group's state from a controller."""
        self._is_known = True
        self._addresses = self._others_of(group)

    async def ask(self) -> None:
        """Ask the controller for the group, unless it is known since the process began.

        Replicas may have been added or moved while this one was away, and it registers only after its recovery. After a
        failure it asks again only some seconds later: a start may meet much damage.
        """
        now_ms = self._clock.steady_ms()
        if self._is_known or (self._asked_ms is not None and now_ms - self._asked_ms < _ASK_AGAIN_MS):
            return
        self._asked_ms = now_ms
        request = DescribeBrokerGroupRequest(group=self._group)
        try:
            group = await self._controller.call(DESCRIBE_BROKER_GROUP, request, timeout_s=self._timeout_s)
        except (StatusError, RpcError) as error:
            _log.warning("no controller answers where the other replicas are", group=self._group, why=str(error))
            return
        self._is_known = True
        self._addresses |= self._others_of(group)  # a controller that has lost its state may not know all yet

    @property
    def is_known(self) -> bool:
        """True if a controller has sent the group since the process began, or there can be no other replicas."""
        return self._is_known

    def _others_of(self, group: BrokerGroup) -> dict[int, str]:
        return {each.number: each.address for each in group.replicas if each.number != self._me}

    def others(self) -> Iterator[tuple[int, Channel]]:
        """Yield the channels to the other replicas, by number."""
        if self._connect is None:
            return
        for number, address in sorted(self._addresses.items()):
            if address not in self._channels:
                self._channels[address] = self._connect(address)
            yield number, self._channels[address]

    async def forget_absent(self) -> None:
        """Close the ways to where no replica is any more: one that starts again may be at another address each time."""
        for address in sorted(self._channels.keys() - set(self._addresses.values())):
            await self._channels.pop(address).close()

    async def close(self) -> None:
        """Close all ways."""
        for channel in self._channels.values():
            await channel.close()
