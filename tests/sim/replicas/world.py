"""A simulated broker group: replicas, controllers on one store, proxies, each a process on a machine of its own."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_cli.options import StandaloneOptions
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_controller.app import ControllerApp
from popwheel_controller.store.state_store import LEASE, Document, group_document_name
from popwheel_proxy.app import ProxyApp
from tests.harness.memory_disk import CrashKind
from tests.sim.cluster.clients import ClientNetwork, Log
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.network import Network
from tests.sim.cluster.programs import BrokerProgram, ControllerProgram, Place, ProxyProgram
from tests.sim.cluster.sightings import watch_sends
from tests.sim.history import Disaster, History
from tests.sim.loop import SimLoop
from tests.sim.replicas.store import SharedStore
from tests.sim.replicas.watch import Watch
from tests.sim.tools import LogEnd
from tests.sim.trace import Trace

GROUP = "broker-0"

Replica = Machine[BrokerProgram]


class GroupWorld:
    """The machines, the network that joins them, and who looks on.

    Args:
        loop: the loop.
        trace: what happens goes there.
        random_of: makes the random source for a purpose.
        options: settings of all services.
        constants: paces and sizes of replication.
        history: losses of power are noted there.
        controllers, replicas, proxies: how many there are.
    """

    def __init__(
        self,
        loop: SimLoop,
        trace: Trace,
        random_of: Callable[[str], random.Random],
        options: StandaloneOptions,
        constants: ReplicationConstants,
        history: History,
        controllers: int,
        replicas: int,
        proxies: int,
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.random_of = random_of
        self.options = options
        self._constants = constants
        self.history = history
        self.network = Network(loop, random_of("network"))
        self.findings: list[str] = []
        """What went wrong in a way that no client sees."""
        self.watch = Watch(loop, trace, options.broker)
        self.log = Log()
        self.log_end = _LongestLog(self)
        self.store = SharedStore(loop, random_of("store"), self._written)
        self._addresses = [f"controller-{number}:0" for number in range(controllers)]
        self.controllers: dict[str, Machine[ControllerProgram]] = {}
        self.replicas: dict[int, Replica] = {}
        self.proxies: dict[str, Machine[ProxyProgram]] = {}
        self.twins: dict[int, Replica] = {}
        """Second processes that claim a replica's number."""
        self.ports = dict.fromkeys(range(replicas), 0)
        """Where each replica listens in its next life."""
        self._twins_so_far = 0
        self.on_failure: Callable[[int, Exception | None], bool] = lambda number, error: False
        """Told when a replica cannot go on; whether there is an excuse."""
        for number in range(controllers):
            self._add_controller(f"controller-{number}")
        for number in range(replicas):
            self._add_replica(number)
        for number in range(proxies):
            self._add_proxy(f"proxy-{number}")

    def machines(self) -> Iterator[Machine[Any]]:
        """All there are."""
        yield from self.controllers.values()
        yield from self.replicas.values()
        yield from self.proxies.values()

    def _add_controller(self, name: str) -> None:
        def make(place: Place) -> ControllerProgram:
            program = ControllerProgram(place, self.options.controller, self.store.hold(place.process))
            self.watch.controller(program.app)
            return program

        self.controllers[name] = self._machine(name, make)

    def _add_replica(self, number: int) -> None:
        self.replicas[number] = self._replica(f"replica-{number}", number)

    def add_twin(self, number: int) -> Replica:
        """A second machine whose process is to claim a replica's number."""
        self._twins_so_far += 1
        twin = self.twins[number] = self._replica(f"twin-{self._twins_so_far}", number)
        return twin

    def end_twin(self, number: int) -> None:
        """End the one of the two processes of a number that the controller does not count on."""
        twin, machine, group = self.twins.pop(number), self.replicas[number], self.group
        identities = [each["identity"] for each in group["replicas"] if each["number"] == number] if group else []
        counts = twin.program is not None and twin.program.app.role.identity.hex() in identities
        self.trace.add("fault", "twin", number, "stays" if counts else "goes")
        self.crash(twin)
        if counts:
            self.crash(machine)
            machine.disk = twin.disk
            self.watch.wiped(machine.name)

    def _replica(self, name: str, number: int) -> Replica:
        options = self.options.broker.model_copy(update={"name": GROUP, "replica": number})

        def make(place: Place) -> BrokerProgram:
            place.port = self.ports[number]
            watch = self.watch.replica(number, place)
            return BrokerProgram(place, options, watch, None, self._addresses, self._constants)

        return self._machine(name, make)

    def _add_proxy(self, name: str) -> None:
        def watch(proxy: ProxyApp) -> None:
            watch_sends(self.history.taken.setdefault(f"{name} at {self.loop.time():.6f}", []), proxy)

        def make(place: Place) -> ProxyProgram:
            return ProxyProgram(place, self.options.proxy, watch, None, self._addresses)

        self.proxies[name] = self._machine(name, make)

    def client(self, name: str, loyal: float) -> ClientNetwork:
        """A client's way to the proxies."""
        return ClientNetwork(name, self.network, self.random_of(f"{name} ways"), self._known_proxies, self.log, loyal)

    def _known_proxies(self) -> list[str]:
        return [name for name, machine in self.proxies.items() if machine.serving] or list(self.proxies)

    # Who is what

    @property
    def leader(self) -> ControllerApp | None:
        """The controller that leads now."""
        for machine in self.controllers.values():
            if machine.program is not None and machine.serving and machine.program.app.leads:
                return machine.program.app
        return None

    @property
    def unknown(self) -> list[int]:
        """The replicas that the controller that leads does not take for living; all of them while none leads."""
        leader = self.leader
        roles = None if leader is None else leader.roles.groups.get(GROUP)
        places = [] if roles is None else [roles.master, *roles.slaves]
        known = {place.number for place in places if place is not None}
        return [number for number in self.replicas if number not in known]

    @property
    def group(self) -> Document | None:
        """The state of the group, as it is stored."""
        return self.store.document(group_document_name(GROUP))

    @property
    def master(self) -> Replica | None:
        """The replica that leads in the latest epoch, if it lives and has learned of it."""
        group = self.group
        if group is None or group["master"] < 0:
            return None
        machine = self.replicas[group["master"]]
        if machine.program is None or not machine.serving:
            return None
        leading = machine.program.app.role.leader
        return machine if leading is not None and leading.epoch == group["epoch"] else None

    @property
    def is_changing(self) -> bool:
        """Whether the group's state may become another one by what is under way: what its master has asked for, which
        a way may hold back beyond the master's end, that it passes its role on, or what a controller writes.
        """
        app = None if self.master is None or self.master.program is None else self.master.program.app
        asks = app is not None and app.role.leader is not None and app.role.leader.members._asked is not None
        passes = app is not None and app.roles._replica_server._transfer is not None
        return asks or passes or self.store.under_way[group_document_name(GROUP)] > 0

    def slaves(self) -> list[Replica]:
        """Those that run and are not the recorded master."""
        group = self.group
        return [each for number, each in self.replicas.items() if each.serving and group and number != group["master"]]

    def learned(self, number: int) -> BrokerGroup | None:
        """What a replica has learned of its group."""
        program = self.replicas[number].program
        return None if program is None else program.app.role.group

    # What is done to it

    def crash(self, machine: Machine[Any], kind: CrashKind = "process") -> None:
        """Kill a machine's process; with `power` it forgets what it has not synced."""
        if kind == "power" and machine.process is not None:
            self.note_loss(machine)
        self.watch.look()
        machine.kill(kind)

    def note_loss(self, machine: Machine[Any]) -> None:
        """A machine is about to lose what it has not synced."""
        for number, replica in self.replicas.items():
            if replica is machine and replica.program is not None:
                position = replica.program.app.files.synced_position
                disaster = Disaster(self.loop.time(), "power", position, machine.stood_still, number)
                self.history.disasters.append(disaster)

    def _written(self, name: str, old: Document | None, new: Document) -> None:
        if name == group_document_name(GROUP):
            self.watch.group_changed(old, new)
        if name == LEASE:
            machines = self.controllers.values()
            leading = [f"{each.name}:0" for each in machines if each.program is not None and each.program.app.leads]
            self.watch.lease_taken(new, leading)

    def _machine(self, name: str, make: Callable[[Place], Any]) -> Machine[Any]:
        def report(finding: str, error: Exception | None = None) -> None:
            self._failed(machine, finding, error)

        machine: Machine[Any] = Machine(name, self.network, self.trace, self.random_of, make, report, lambda name: None)
        return machine

    def _failed(self, machine: Machine[Any], finding: str, error: Exception | None) -> None:
        """A process cannot start, or go on: it ends, and is started again by who looks after it."""
        self.trace.add(machine.name, "failed", finding)
        number = next((number for number, each in self.replicas.items() if each is machine), -1)
        is_store_away = number < 0 and isinstance(error, OSError)  # its answer may have been lost before all was healed
        if not is_store_away and not self.on_failure(number, error):
            self.findings.append(finding)
        self.loop.outside(0, self.crash, machine)


class _LongestLog(LogEnd):
    """Where the longest log ends, of a living replica or of the last master: what was answered by now is not behind."""

    def __init__(self, world: GroupWorld) -> None:
        self._world = world

    @property
    def position(self) -> int:  # type: ignore[override]
        """Of the end."""
        ends = [
            each.program.app.files.end_position
            for each in self._world.replicas.values()
            if each.program is not None and each.process is not None and each.process.alive
        ]
        return max(self._world.watch.end_position, *ends, 0)
