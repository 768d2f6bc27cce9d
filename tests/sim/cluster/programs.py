"""What runs in a simulated process: controller, broker or proxy, put together as `service_process.py` does it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry

from popwheel_broker.app import BrokerApp
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.channels import BrokerChannels
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_common.disk import Disk
from popwheel_common.pb.popwheel.v1.controller_pb2 import WatchRequest
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerAddresses, ControllerApp
from popwheel_controller.options import ControllerOptions
from popwheel_controller.store.state_store import StateStore
from popwheel_proxy.app import ProxyApp, ProxyChannels
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.receive.shared_count import CountStore
from popwheel_rpc.membership.controller_channel import ControllerChannel
from popwheel_rpc.service import Channel, Service
from tests.sim.cluster.network import (
    CONTROLLER_KEEPALIVE_S,
    KEEPALIVE_S,
    PROXY_KEEPALIVE_S,
    Listener,
    Network,
    Tamper,
)
from tests.sim.process import Process, ProcessClock

DATA = Path("/data")
CONTROLLER = "controller:0"
_GRACE_S = 3.0


@dataclass(slots=True)
class Place:
    """What a process finds around it.

    Args:
        process: its life.
        disk: its machine's disk.
        chance: its random source.
        network: the way to others.
        port: where it listens.
    """

    process: Process
    disk: Disk
    chance: random.Random
    network: Network
    port: int = 0
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    @property
    def clock(self) -> ProcessClock:
        """The time."""
        return self.process.clock

    @property
    def address(self) -> str:
        """Where others reach it."""
        return f"{self.process.name}:{self.port}"

    def channel(self, address: str) -> Channel:
        """A channel to another process."""
        return self.network.channel(self.process, address)

    def to_controllers(self, addresses: Sequence[str]) -> Channel:
        """The way to the controller, or to whichever of several leads."""
        if len(addresses) == 1:
            return self.channel(addresses[0])
        # As `popwheel_cli.process.listeners.SEVERAL_CONTROLLERS_LIMITS`: when one hangs, another is asked soon.
        channels = [self.network.channel(self.process, address, CONTROLLER_KEEPALIVE_S) for address in addresses]
        return ControllerChannel(channels, self.clock)

    def listen(self, service: Service, keepalive_s: float, tamper: Tamper | None = None) -> Listener:
        """Take calls at the address."""
        return self.network.listen(self.process, self.address, service, keepalive_s, tamper)


class Program(Protocol):
    """What a machine runs; made anew, in the process, for each of its lives."""

    async def start(self) -> None:
        """Recover and be of service."""

    async def stop(self) -> None:
        """End gracefully."""

    async def failed(self) -> Exception:
        """Return if it cannot go on."""


class _Served:
    """What all have in common: an end in the right order."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ends: list[Callable[[], Awaitable[object]]] = []

    async def stop(self) -> None:
        """End in the order opposite to that of the beginning."""
        while self._ends:
            await self._ends.pop()()

    async def failed(self) -> Exception:
        """There is nothing that it cannot outlast."""
        never: asyncio.Future[Exception] = self._place.network.loop.create_future()
        return await never

    def _listen(self, service: Service, keepalive_s: float, tamper: Tamper | None = None) -> None:
        listener = self._place.listen(service, keepalive_s, tamper)
        self._ends.append(lambda: listener.stop(_GRACE_S))


class ControllerProgram(_Served):
    """The controller.

    Args:
        place: where it runs.
        options: its settings.
        shared: the store that it has in common with others; None: its own disk.
    """

    def __init__(self, place: Place, options: ControllerOptions, shared: StateStore | None = None) -> None:
        super().__init__(place)
        self.registry = place.registry
        self.app = ControllerApp(
            Runtime(place.clock, place.chance, place.registry),
            options,
            DATA,
            lambda broker: place.channel(broker.address),
            place.disk,
            shared,
            ControllerAddresses(place.address),
        )

    async def start(self) -> None:
        await self.app.start()
        self._listen(self.app.service, CONTROLLER_KEEPALIVE_S)
        self._ends.append(self.app.stop)


class BrokerProgram(_Served):
    """A broker, registered at the controller.

    Args:
        place: where it runs.
        options: its settings.
        prepare: told of it before it starts.
        tamper: what becomes of its notifications.
        controllers: where they are.
        constants: paces and sizes of replication; those of the product if not given.
    """

    def __init__(
        self,
        place: Place,
        options: BrokerOptions,
        prepare: Callable[[BrokerApp], None],
        tamper: Tamper | None,
        controllers: Sequence[str] = (CONTROLLER,),
        constants: ReplicationConstants | None = None,
    ) -> None:
        super().__init__(place)
        self._tamper = tamper
        self._controller = controller = place.to_controllers(controllers)
        self.app = BrokerApp(
            Runtime(place.clock, place.chance, place.registry),
            options,
            DATA,
            BrokerChannels(controller, place.channel),
            place.disk,
            constants=constants,
        )
        prepare(self.app)
        self.registrar = self.app.registrar(place.address)

    async def start(self) -> None:
        self._ends.append(self._controller.close)
        await self.app.start()
        self._ends.append(self.app.stop)
        self._listen(self.app.service, KEEPALIVE_S, self._tamper)
        await self.registrar.start()
        self._ends.append(self.registrar.stop)
        self._ends.append(self.app.leave)

    async def failed(self) -> Exception:
        return await self.app.failure


class ProxyProgram(_Served):
    """A proxy.

    Args:
        place: where it runs.
        options: its settings.
        prepare: told of it before it starts.
        store: where proxies add up their polls.
        controllers: where they are.
    """

    def __init__(
        self,
        place: Place,
        options: ProxyOptions,
        prepare: Callable[[ProxyApp], None],
        store: CountStore | None,
        controllers: Sequence[str] = (CONTROLLER,),
    ) -> None:
        super().__init__(place)
        self._controller = controller = place.to_controllers(controllers)
        self.app = ProxyApp(
            Runtime(place.clock, place.chance, place.registry),
            options.model_copy(update={"name": place.process.name}),
            ProxyChannels(controller, lambda broker: place.channel(broker.address)),
            WatchRequest(process=place.process.name, kind=WatchRequest.PROXY),
            store,
        )
        prepare(self.app)

    async def start(self) -> None:
        self._ends.append(self._controller.close)
        await self.app.start()
        self._ends.append(self.app.stop)
        self._listen(self.app.service, PROXY_KEEPALIVE_S)
        self._ends.append(self._drain)

    async def _drain(self) -> None:
        self.app.drain()
