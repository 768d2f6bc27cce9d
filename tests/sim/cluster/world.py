"""A simulated cluster: one controller, brokers and proxies, each a process on a machine of its own."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from popwheel_cli.options import ClusterOptions
from popwheel_controller.app import ControllerApp
from popwheel_proxy.receive.shared_count import CountStore
from tests.sim.cluster.clients import ClientNetwork, Log
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.network import Network, Tamper
from tests.sim.cluster.programs import BrokerProgram, ControllerProgram, Place, ProxyProgram
from tests.sim.cluster.sightings import Sightings
from tests.sim.loop import SimLoop
from tests.sim.swarm import PLENTY_BYTES, READ_S_MAX
from tests.sim.trace import Trace


class ClusterWorld:
    """The machines, and the network that joins them.

    Args:
        loop: the loop.
        trace: what happens goes there.
        random_of: makes the random source for a purpose.
        options: settings of all services.
        store_of: makes a proxy's hold on the store that counts polls; None: there is none.
        tamper: what becomes of notifications.
        sync_s_max: how long a sync of a broker's disk takes at the most.
        memory: how much of the end of each of a broker's files stays in memory, in bytes.
    """

    def __init__(
        self,
        loop: SimLoop,
        trace: Trace,
        random_of: Callable[[str], random.Random],
        options: ClusterOptions,
        store_of: Callable[[], CountStore] | None = None,
        tamper: Tamper | None = None,
        sync_s_max: float = 0.0,
        memory: int = PLENTY_BYTES,
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.random_of = random_of
        self.options = options
        self.network = Network(loop, random_of("network"))
        self.findings: list[str] = []
        """What went wrong in a way that no client sees."""
        self.sightings = Sightings(loop)
        self.log = Log()
        self.clients: list[str] = []
        self.controller = self._machine("controller", lambda place: ControllerProgram(place, options.controller))
        self.brokers: dict[str, Machine[BrokerProgram]] = {}
        self.proxies: dict[str, Machine[ProxyProgram]] = {}
        self._store_of = store_of
        self._tamper = tamper
        self._sync_s_max = sync_s_max
        self._memory = memory

    def machines(self) -> Iterator[Machine[Any]]:
        """All there are."""
        yield self.controller
        yield from self.brokers.values()
        yield from self.proxies.values()

    def add_broker(self) -> Machine[BrokerProgram]:
        """A machine for one more broker; it is not started."""
        name = f"broker-{len(self.brokers)}"
        watch = self.sightings.watch_broker(name)
        options = self.options.broker.model_copy(update={"name": name})
        machine = self._machine(name, lambda place: BrokerProgram(place, options, watch, self._tamper))
        machine.disk.sync_s_max = self._sync_s_max
        machine.disk.cached_bytes, machine.disk.read_s_max = self._memory, READ_S_MAX
        self.brokers[name] = machine
        return machine

    def add_proxy(self) -> Machine[ProxyProgram]:
        """A machine for one more proxy; it is not started."""
        name = f"proxy-{len(self.proxies)}"
        watch = self.sightings.watch_proxy(name)

        def make(place: Place) -> ProxyProgram:
            store = None if self._store_of is None else self._store_of()
            return ProxyProgram(place, self.options.proxy, watch, store)

        self.proxies[name] = machine = self._machine(name, make)
        return machine

    def client(self, name: str, loyal: float = 0.5, proxy: str = "") -> ClientNetwork:
        """A client's way to the proxies, or to one of them only."""
        self.clients.append(name)
        known = (lambda: [proxy]) if proxy else self.known_proxies
        return ClientNetwork(name, self.network, self.random_of(f"{name} ways"), known, self.log, loyal)

    def known_proxies(self) -> list[str]:
        """Proxies that a load balancer would send a client to, or all if it knows of none."""
        return [name for name, machine in self.proxies.items() if machine.serving] or list(self.proxies)

    @property
    def leader(self) -> ControllerApp | None:
        """The controller while it serves, else None."""
        program = self.controller.program
        return program.app if program is not None and self.controller.serving else None

    def _machine(self, name: str, make: Callable[[Place], Any]) -> Machine[Any]:
        return Machine(name, self.network, self.trace, self.random_of, make, self._found, self.sightings.ended)

    def _found(self, finding: str, _: Exception | None = None) -> None:
        self.findings.append(finding)
