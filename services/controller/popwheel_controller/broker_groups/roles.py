"""Roles of replicas in each broker group, for the parts of the controller that talk to replicas."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_rpc.service import Channel


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Number and address of a living replica.

    Args:
        number: within its group.
        address: host:port of its `popwheel.v1.Broker` service.
    """

    number: int
    address: str


@dataclass(frozen=True, slots=True)
class GroupRoles:
    """Roles within one broker group.

    Args:
        group: name of the broker group.
        epoch: of its latest master.
        master: None while none lives.
        slaves: the others that live, by number.
    """

    group: str
    epoch: int
    master: ReplicaPlace | None
    slaves: tuple[ReplicaPlace, ...]


class Roles:
    """Roles within all groups, by this controller's decisions; empty while it does not lead.

    Args:
        broker_channels: opens a channel to a replica.
    """

    def __init__(self, broker_channels: Callable[[BrokerInfo], Channel]) -> None:
        self.groups: Mapping[str, GroupRoles] = {}
        self._broker_channels = broker_channels
        self._channels: dict[str, Channel] = {}
        self._listeners: list[Callable[[str], None]] = []

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of each group whose roles have changed, or that was removed."""
        self._listeners.append(listener)

    def channel(self, group: str, place: ReplicaPlace) -> Channel:
        """Return the shared channel to a replica; only `close` and `forget_channels` close it."""
        channel = self._channels.get(place.address)
        if channel is None:
            info = BrokerInfo(name=group, address=place.address)
            channel = self._channels[place.address] = self._broker_channels(info)
        return channel

    def set(self, roles: GroupRoles) -> None:
        """Set the roles of a group; notify listeners if they differ."""
        if self.groups.get(roles.group) != roles:
            self.groups = {**self.groups, roles.group: roles}
            self._notify(roles.group)

    def forget(self, group: str) -> None:
        """Remove a group."""
        if group in self.groups:
            self.groups = {name: roles for name, roles in self.groups.items() if name != group}
            self._notify(group)

    def clear(self) -> None:
        """Remove all groups: this controller no longer leads."""
        names = list(self.groups)
        self.groups = {}
        for name in names:
            self._notify(name)

    async def forget_channels(self) -> None:
        """Close the channels to addresses without a living replica."""
        places = [place for roles in self.groups.values() for place in (roles.master, *roles.slaves)]
        used = {place.address for place in places if place is not None}
        for address in [address for address in self._channels if address not in used]:
            await self._channels.pop(address).close()

    async def close(self) -> None:
        """Remove all groups, and close all channels."""
        self.clear()
        await self.forget_channels()

    def _notify(self, group: str) -> None:
        for listener in self._listeners:
            listener(group)
