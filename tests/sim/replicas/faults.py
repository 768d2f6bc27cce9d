"""Does what the swarm has drawn: kills, cuts, pauses, loses power and files; heals all in the end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.cluster.machine import Machine
from tests.sim.replicas.swarm import GroupSwarm
from tests.sim.replicas.world import GroupWorld, Replica


class Faults:
    """The faults of one run.

    Args:
        world: where they strike.
        swarm: which.
    """

    def __init__(self, world: GroupWorld, swarm: GroupSwarm) -> None:
        self._world = world
        self._swarm = swarm
        self._chance = swarm.random("replicas faults")
        self._work: dict[asyncio.Task[None], None] = {}
        self.count = 0

    async def run(self) -> None:
        """Strike until cancelled."""
        chance, world = self._chance, self._world
        acts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "kill master": lambda: self._kill(world.master),
        }
        names = list(self._swarm.faults)
        weights = [self._swarm.faults[name] for name in names]
        while names:
            await asyncio.sleep(chance.expovariate(self._swarm.faults_per_s))
            name = chance.choices(names, weights)[0]
            world.trace.add("fault", name)
            self.count += 1
            task = asyncio.get_running_loop().create_task(acts[name](), name=name)
            self._work[task] = None
            task.add_done_callback(lambda done: self._work.pop(done, None))

    async def keep_alive(self) -> None:
        """Start again what has ended, some time later, until cancelled: whoever looks after processes does so."""
        world, chance = self._world, self._chance
        while True:
            await asyncio.sleep(0.1)
            for machine in world.machines():
                if machine.process is None and not machine.is_held:
                    machine.is_held = True
                    asyncio.get_running_loop().create_task(
                        self._boot_later(machine, chance.choice((0.0, 0.3, 2.0, 8.0)))
                    )

    async def _boot_later(self, machine: Machine[Any], after_s: float) -> None:
        await asyncio.sleep(after_s if not self.is_healed else 0.1)
        machine.is_held = False
        if machine.process is None:
            await machine.boot()

    is_healed = False

    async def heal(self) -> None:
        """End all faults."""
        world = self._world
        for task in list(self._work):
            task.cancel()
        if self._work:
            await asyncio.wait(set(self._work))
        self.is_healed = True
        world.network.mend_all()
        world.store.is_away = False
        world.store.lost_share = 0.0
        for machine in world.machines():
            machine.clock.offset_ms = 0
            machine.disk.sync_s_max = self._swarm.sync_s_max
            machine.resume()

    async def _kill(self, machine: Replica | None) -> None:
        if machine is None:
            return
        await asyncio.sleep(self._chance.random() * 0.1)
        self._world.crash(machine)
