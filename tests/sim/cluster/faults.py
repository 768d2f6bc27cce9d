"""Does what the swarm has drawn: kills, stops and pauses machines, cuts and worsens ways; heals all in the end."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from popwheel_rpc.methods import NOTIFY
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.swarm import ClusterSwarm
from tests.sim.cluster.troubles import BROKEN_RECOVERY_S, Trouble, Troubles
from tests.sim.cluster.world import ClusterWorld

_BROKERS_MAX = 8
_BAD_SHARE = 0.3


class Faults:
    """The faults of one run.

    Args:
        world: where they strike.
        swarm: which.
        troubles: where it is noted what is wrong.
    """

    def __init__(self, world: ClusterWorld, swarm: ClusterSwarm, troubles: Troubles) -> None:
        self._world = world
        self._swarm = swarm
        self._troubles = troubles
        self._chance = swarm.random("cluster faults")
        self._bad_notifications = swarm.random("bad notifications")
        self._work: dict[asyncio.Task[None], None] = {}
        self._open: dict[Trouble, None] = {}
        self._tampers = "bad notifications" in swarm.faults
        self.count = 0

    async def run(self) -> None:
        """Strike until cancelled."""
        chance = self._chance
        acts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "kill broker": lambda: self._kill(self._some(self._world.brokers)),
            "kill proxy": lambda: self._kill(self._some(self._world.proxies)),
            "restart broker": lambda: self._restart(self._some(self._world.brokers), chance.choice((0.1, 3.0))),
            "restart proxy": lambda: self._restart(self._some(self._world.proxies), chance.choice((0.1, 3.0))),
            "pause broker": lambda: self._pause(self._some(self._world.brokers)),
            "pause proxy": lambda: self._pause(self._some(self._world.proxies)),
            "new broker": self._add_broker,
            "remove broker": lambda: self._restart(self._some(self._world.brokers), 1000.0),
            "controller away": self._take_controller,
            "cut": self._cut,
            "isolate": self._isolate,
            "break connections": self._break_connections,
            "bad ways": self._worsen_ways,
            "slow device": self._slow_down,
        }
        names = [name for name, weight in self._swarm.faults.items() if weight]
        weights = [self._swarm.faults[name] for name in names]
        while names:
            await asyncio.sleep(chance.expovariate(self._swarm.faults_per_s))
            name = chance.choices(names, weights)[0]
            self._world.trace.add("fault", name)
            self.count += 1
            task = asyncio.get_running_loop().create_task(acts[name](), name=name)
            self._work[task] = None
            task.add_done_callback(lambda done: self._work.pop(done, None))

    def tamper(self, path: str, message: bytes) -> Iterable[tuple[bytes, float]]:
        """Notifications that are lost, repeated, late and out of order (`network.Tamper`)."""
        chance = self._bad_notifications
        if path != NOTIFY.path or not self._tampers or chance.random() >= _BAD_SHARE:
            return ((message, 0.0),)
        fate = chance.choice(("lost", "twice", "late", "twice and late"))
        if fate == "lost":
            return ()
        late_s = chance.choice((0.01, 0.3, 5.0))
        return {
            "twice": ((message, 0.0), (message, 0.0)),
            "late": ((message, late_s),),
            "twice and late": ((message, 0.0), (message, late_s)),
        }[fate]

    async def heal(self) -> None:
        """End all faults, and have every machine serve that there is."""
        world = self._world
        if self._tampers:
            self._tampers = False
            # What a proxy was told wrong on a stream stays wrong for as long as the stream lives.
            for ends in itertools.product(world.proxies, world.brokers):
                world.network.break_connections(*ends)
        for task in list(self._work):
            task.cancel()
        if self._work:
            await asyncio.wait(set(self._work))
        world.network.mend_all()
        for broker in world.brokers.values():
            broker.disk.sync_s_max = self._swarm.sync_s_max
        for machine in world.machines():
            machine.resume()
        for machine in world.machines():
            while machine.is_stopping:
                await asyncio.sleep(0.1)
            if machine.process is None:
                await machine.boot()
            while not machine.serving:
                await asyncio.sleep(0.01)
        for trouble in self._open:
            trouble.ended_s = world.loop.time()
        self._open.clear()

    def _some(self, machines: "dict[str, Any]") -> Machine[Any] | None:
        serving = [machine for machine in machines.values() if machine.serving and not machine.is_paused]
        return self._chance.choice(serving) if serving else None

    async def _kill(self, machine: Machine[Any] | None) -> None:
        """Kill it at some moment soon, and start it again some time later."""
        if machine is None:
            return
        await asyncio.sleep(self._chance.random() * 0.1)
        if machine.process is None or machine.is_paused:
            return
        trouble = self._begin(machine.name)
        machine.kill()
        await asyncio.sleep(self._chance.choice((0.0, 0.3, 2.0, 8.0)))
        await self._boot(machine, trouble)

    async def _restart(self, machine: Machine[Any] | None, after_s: float) -> None:
        if machine is None:
            return
        trouble = self._begin(machine.name)
        await _stop(machine)
        await asyncio.sleep(after_s)
        await self._boot(machine, trouble)

    async def _boot(self, machine: Machine[Any], trouble: Trouble) -> None:
        if machine.process is None:
            await machine.boot()
        while not machine.serving:
            await asyncio.sleep(0.1)
        self._end(trouble)

    async def _pause(self, machine: Machine[Any] | None) -> None:
        if machine is None:
            return
        trouble = self._begin(machine.name)
        machine.pause()
        await asyncio.sleep(self._chance.choice((0.2, 1.0, 4.0, 12.0)))
        machine.resume()
        self._end(trouble)

    async def _add_broker(self) -> None:
        if len(self._world.brokers) < _BROKERS_MAX:
            machine = self._world.add_broker()
            await machine.boot()

    async def _take_controller(self) -> None:
        controller = self._world.controller
        if not controller.serving or controller.is_paused:
            return
        how = self._chance.choice(("kill", "stop", "pause"))
        trouble = self._begin(controller.name)
        if how == "pause":
            controller.pause()
        elif how == "kill":
            controller.kill()
        else:
            await _stop(controller)
        await asyncio.sleep(self._chance.choice((0.2, 2.0, 10.0, 20.0)))
        controller.resume()
        await self._boot(controller, trouble)

    async def _cut(self) -> None:
        """Cut a way between two machines, or both, for a while."""
        first, second = self._two()
        ways = self._chance.choice((((first, second),), ((second, first),), ((first, second), (second, first))))
        await self._cut_for(ways, self._chance.choice((0.2, 2.0, 6.0, 14.0)), {first, second})

    async def _isolate(self) -> None:
        """Cut a machine off from all others but clients."""
        names = [machine.name for machine in self._world.machines()]
        alone = self._chance.choice(names)
        ways = [way for name in names if name != alone for way in ((name, alone), (alone, name))]
        await self._cut_for(ways, self._chance.choice((0.2, 2.0, 6.0, 14.0)), {alone})

    async def _cut_for(self, ways: Iterable[tuple[str, str]], seconds: float, hosts: set[str]) -> None:
        network = self._world.network
        trouble = self._begin(*hosts)
        for way in ways:
            self._world.trace.add("fault", "cut", *way, seconds)
            network.cut(*way)
        await asyncio.sleep(seconds)
        for way in ways:
            network.mend(*way)
        self._end(trouble)

    async def _break_connections(self) -> None:
        """Break all connections between two machines, one of which may be a client's."""
        first, second = self._two(also_clients=True)
        self._world.trace.add("fault", "break", first, second)
        trouble = self._begin(first, second, recovery_s=BROKEN_RECOVERY_S)
        self._world.network.break_connections(first, second)
        self._end(trouble)

    async def _worsen_ways(self) -> None:
        """Have ways between two machines be slow for a while, or break what is sent along them."""
        first, second = self._two(also_clients=True)
        trouble = self._begin(first, second)
        ways = [self._world.network.way(*way) for way in ((first, second), (second, first))]
        for way in ways:
            way.delay_s = (0.0, self._chance.choice((0.01, 0.3, 2.0)))
            way.broken_share = self._chance.choice((0.0, 0.1, 0.3))
        await asyncio.sleep(self._chance.random() * 5)
        for way in ways:
            way.delay_s, way.broken_share = self._world.network.delay_s, 0.0
        self._end(trouble)

    async def _slow_down(self) -> None:
        machine = self._some(self._world.brokers)
        if machine is None:
            return
        trouble = self._begin(machine.name)
        machine.disk.sync_s_max = self._chance.choice((0.1, 0.5, 2.0))
        await asyncio.sleep(self._chance.random() * 5)
        machine.disk.sync_s_max = self._swarm.sync_s_max
        self._end(trouble)

    def _two(self, also_clients: bool = False) -> tuple[str, str]:
        """Two machines that talk with each other: a proxy or the controller, and somebody else."""
        world, chance = self._world, self._chance
        proxy = chance.choice(list(world.proxies))
        others = [*world.brokers, *world.brokers, "controller"]
        if also_clients:
            others += world.clients
        if chance.random() < 0.1:
            return "controller", chance.choice(list(world.brokers))
        return proxy, chance.choice(others)

    def _begin(self, *hosts: str, recovery_s: float | None = None) -> Trouble:
        now_s = self._world.loop.time()
        trouble = self._troubles.begin(hosts, now_s, *(() if recovery_s is None else (recovery_s,)))
        self._open[trouble] = None
        return trouble

    def _end(self, trouble: Trouble) -> None:
        trouble.ended_s = self._world.loop.time()
        self._open.pop(trouble, None)


async def _stop(machine: Machine[Any]) -> None:
    """Stop a machine; this goes on when it is healed meanwhile."""
    await asyncio.shield(asyncio.get_running_loop().create_task(machine.stop()))
