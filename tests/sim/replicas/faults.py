"""Does what the swarm has drawn, starts again what has ended, and heals all in the end."""

import asyncio
from typing import Any

from tests.sim.cluster.machine import Machine
from tests.sim.replicas.control_faults import ControlFaults
from tests.sim.replicas.damage import Atlas
from tests.sim.replicas.disk_faults import DiskFaults
from tests.sim.replicas.ground import Ground
from tests.sim.replicas.moment_faults import MomentFaults
from tests.sim.replicas.network_faults import NetworkFaults
from tests.sim.replicas.process_faults import ProcessFaults
from tests.sim.replicas.swarm import DRAWN, GroupSwarm
from tests.sim.replicas.world import GroupWorld

_POLL_S = 0.1


class Faults:
    """The faults of one run.

    Args:
        world: where they strike.
        swarm: which.
    """

    def __init__(self, world: GroupWorld, swarm: GroupSwarm) -> None:
        self._world = world
        self._swarm = swarm
        self._atlas = Atlas(world)
        self._ground = Ground(world, swarm, self._atlas)
        self._ground.is_alone = lambda: len(self._work) == 1
        self._chance = self._ground.chance
        processes = ProcessFaults(self._ground)
        self._control = ControlFaults(self._ground, processes)
        kinds = (
            processes,
            NetworkFaults(self._ground),
            DiskFaults(self._ground),
            self._control,
            MomentFaults(self._ground, self._control),
        )
        self._acts = {name: act for kind in kinds for name, act in kind.acts().items()}
        self._work: dict[asyncio.Task[None], None] = {}
        self._booting: dict[Machine[Any], asyncio.Task[None]] = {}
        self.is_healed = False
        self.count = 0

    async def run(self) -> None:
        """Strike until cancelled."""
        chance = self._chance
        names = [name for name in self._swarm.faults if name not in DRAWN]
        weights = [self._swarm.faults[name] for name in names]
        while names:
            await asyncio.sleep(chance.expovariate(self._swarm.faults_per_s))
            name = chance.choices(names, weights)[0]
            if self._atlas.is_quiet:
                continue
            self._world.trace.add("fault", name)
            self.count += 1
            task = asyncio.get_running_loop().create_task(self._acts[name](), name=name)
            self._work[task] = None
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._world.findings.append(f"the simulator's fault {task.get_name()} failed: {task.exception()!r}")

    async def until_seen(self) -> None:
        """Return when nothing is under way that is to be seen to its end."""
        await self._control.lasting.wait()

    async def keep_alive(self) -> None:
        """Start again what has ended, some time later, until cancelled: whoever looks after processes does so."""
        world, chance = self._world, self._chance
        while True:
            await asyncio.sleep(_POLL_S)
            self._atlas.look()
            kept_down = [world.replicas[number] for number in self._atlas.kept_down]
            for machine in world.machines():
                if machine.process is None and machine not in self._booting and machine not in kept_down:
                    after_s = 0.1 if self.is_healed else chance.choice((0.0, 0.3, 2.0, 8.0))
                    work = self._boot_later(machine, after_s)
                    self._booting[machine] = asyncio.get_running_loop().create_task(work)

    async def _boot_later(self, machine: Machine[Any], after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            if machine.process is None:
                await machine.boot()
        finally:
            self._booting.pop(machine, None)

    async def heal(self) -> None:
        """End all faults."""
        world = self._world
        for task in list(self._work):
            task.cancel()
        if self._work:
            await asyncio.wait(set(self._work))
        self.is_healed = True
        self._atlas.remake_queues()
        world.network.mend_all()
        world.store.heal()
        for machine in world.machines():
            machine.clock.drift(0.0)
            machine.clock.offset_ms = 0
            machine.disk.sync_s_max = self._swarm.sync_s_max
            machine.disk.fill(1 << 40)
            if machine.process_disk is not None:
                machine.process_disk.die_at_operation = -1
            machine.resume()

    def restore(self) -> None:
        """Put back what nobody has read since."""
        self._atlas.restore()
