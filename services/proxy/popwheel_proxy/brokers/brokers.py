"""Broker groups of the cluster: the master of each, and a channel to it.

Each master has an epoch from the controller. An update with a lower epoch than a known one is outdated, and ignored. A
group without a master (its address is empty while one is elected) keeps its name here, so calls can wait for the next
master.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ClusterUpdate
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.protocol.errors import NoMasterError
from popwheel_rpc.service import Channel

Listener = Callable[[], None]

CLOSE_AFTER_S = 0.1
"""Time that calls in flight may still take when their master is deposed or gone.

A master that hands over its role has answered by then, and a hanging one delays nobody.
"""

_logger = structlog.get_logger()


@dataclass(slots=True)
class _Route:
    """Route to a broker group.

    Args:
        epoch: of its master, the largest seen.
        address: of its master; empty while there is none.
        channel: to its master.
    """

    epoch: int
    address: str
    channel: Channel | None


class Brokers:
    """Follows the cluster's list of broker groups.

    Args:
        view: the cluster as the controller streams it.
        connect: makes a channel to a broker; it connects when it is first used.
        background: where channels to former masters are closed.

    Attributes:
        names: all groups, also those without a master.
        homes: also those that are in no route, as none of their replicas is there; they keep their message groups.
        led: those with a master.
        changed: those whose master is another than when listeners were called before, or that came or lost it.
        masters_changed: number of changes of a group's master, to another process or to none.
        stale_routes: number of reports of an outdated master.
    """

    def __init__(self, view: ClusterView, connect: Callable[[BrokerInfo], Channel], background: Background) -> None:
        self._view = view
        self._connect = connect
        self._background = background
        self._routes: dict[str, _Route] = {}
        self._listeners: list[Listener] = []
        self.names: tuple[str, ...] = ()
        self.homes: tuple[str, ...] = ()
        self.led: frozenset[str] = frozenset()
        self.changed: frozenset[str] = frozenset()
        self.masters_changed = 0
        self.stale_routes = 0
        view.subscribe(self._update)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` whenever a group joins or leaves, or gets another master, or none."""
        self._listeners.append(listener)

    def channel(self, name: str) -> Channel:
        """Return the channel to a group's master.

        Raises:
            NoMasterError: no group of that name is there, or it has no master now.
        """
        known = self._routes.get(name)
        if known is not None and known.channel is not None:
            return known.channel
        raise NoMasterError(name, known=known is not None)

    def channel_if_led(self, name: str) -> Channel | None:
        """Return the channel to a group's master; None if there is none."""
        known = self._routes.get(name)
        return None if known is None else known.channel

    async def close(self) -> None:
        """Close all channels."""
        routes, self._routes, self.names, self.led = self._routes, {}, (), frozenset()
        self.homes = ()
        for route in routes.values():
            if route.channel is not None:
                await route.channel.close()

    def _update(self, update: ClusterUpdate) -> None:
        if not (update.snapshot or update.brokers or update.departed_brokers):
            return
        groups = self._view.brokers
        former = {name: route.channel for name, route in self._routes.items()}
        for name in [name for name in self._routes if name not in groups]:
            self._close_soon(self._routes.pop(name).channel)
        for name, info in groups.items():
            known = self._routes.get(name)
            if known is None:
                self._routes[name] = _Route(info.epoch, info.address, self._connect(info) if info.address else None)
            elif info.epoch < known.epoch:
                self.stale_routes += 1
            else:
                self._follow(known, info)
        self.names = tuple(sorted(self._routes))
        self.homes = tuple(sorted(self._routes.keys() | self._view.away))
        self.led = frozenset(name for name, route in self._routes.items() if route.channel is not None)
        self.changed = frozenset(
            name for name, route in self._routes.items() if name not in former or former[name] is not route.channel
        )
        for listener in self._listeners:
            listener()

    def _follow(self, route: _Route, info: BrokerInfo) -> None:
        """Apply the report about a known group."""
        route.epoch = info.epoch
        if route.address == info.address:
            return
        former, route.address = route.channel, info.address
        route.channel = self._connect(info) if info.address else None
        self._close_soon(former)
        self.masters_changed += 1
        if info.address:
            _logger.info("a broker group has another master", broker=info.name, address=info.address, epoch=info.epoch)
        else:
            _logger.warning("a broker group has no master, calls wait for one", broker=info.name, epoch=info.epoch)

    def _close_soon(self, channel: Channel | None) -> None:
        if channel is not None:
            self._background.start(_close_after(channel))


async def _close_after(channel: Channel) -> None:
    """Close a former master's channel, in a moment."""
    with suppress(asyncio.CancelledError):  # the proxy stops: close it now
        await asyncio.sleep(CLOSE_AFTER_S)
    await channel.close()
