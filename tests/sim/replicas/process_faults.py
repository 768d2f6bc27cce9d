"""Processes of a broker group that end, stand still, or are there twice."""

import asyncio
from typing import Any

from tests.harness.memory_disk import CrashKind
from tests.sim.cluster.machine import Machine
from tests.sim.replicas.ground import Acts, Ground

_TWIN_LOOKS = 40
_TWIN_LOOK_S = 0.25


class ProcessFaults:
    """Strikes at processes.

    Args:
        ground: where.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._world = ground.world
        self._chance = ground.chance

    def acts(self) -> Acts:
        """What it can do."""
        world, ground, chance = self._world, self._ground, self._chance
        return {
            "kill master": lambda: self._kill(world.master),
            "kill slave": lambda: self._kill(ground.slave()),
            "kill at an operation": self._kill_at_an_operation,
            "kill all": lambda: self._kill_all("process"),
            "kill controller": lambda: self._kill(ground.controller()),
            "kill proxy": lambda: self._kill(chance.choice(list(world.proxies.values()))),
            "power of master": lambda: self._kill(world.master, "power"),
            "power of slave": lambda: self._kill(ground.slave(), "power"),
            "power of all": lambda: self._kill_all("power"),
            "restart": lambda: self.restart(chance.choice(list(world.machines()))),
            "pause master": lambda: self._pause(world.master),
            "pause slave": lambda: self._pause(ground.slave()),
            "pause controller": lambda: self._pause(ground.controller()),
            "changed address": self._change_address,
            "second process": self._run_a_twin,
            "left behind": self._leave_behind,
        }

    async def _kill(self, machine: Machine[Any] | None, kind: CrashKind = "process") -> None:
        if machine is None:
            return
        await asyncio.sleep(self._chance.random() * 0.1)
        self._world.crash(machine, kind)

    async def _kill_at_an_operation(self) -> None:
        """Have a replica die at one of its next changes of the disk, also as it starts or changes its role."""
        machine = self._chance.choice(list(self._world.replicas.values()))
        if machine.process_disk is not None:
            machine.process_disk.die_at_operation = machine.process_disk.operations + self._chance.randint(1, 60)

    async def _kill_all(self, kind: CrashKind) -> None:
        for machine in self._world.replicas.values():
            await self._kill(machine, kind)

    async def restart(self, machine: Machine[Any]) -> None:
        """Have a process end gracefully."""
        await asyncio.shield(asyncio.get_running_loop().create_task(machine.stop()))

    async def _pause(self, machine: Machine[Any] | None) -> None:
        if machine is not None:
            machine.pause()
            await asyncio.sleep(self._chance.choice((0.2, 1.0, 4.0, 8.0)))
            machine.resume()

    async def _change_address(self) -> None:
        """Have a replica come back at another address, as a pod does."""
        number, machine = self._ground.any_replica()
        self._world.crash(machine)
        self._world.ports[number] += 1
        self._world.trace.add("fault", "address", machine.name, self._world.ports[number])

    async def _leave_behind(self) -> None:
        """Keep a slave down for so long that its master may have deleted what it would go on with."""
        slaves = self._world.slaves()
        if not slaves:
            return
        machine = self._ground.rare.choice(slaves)
        number = self._ground.atlas.number(machine)
        if number in self._ground.atlas.kept_down:
            return
        self._world.crash(machine)
        self._ground.atlas.kept_down.add(number)
        try:
            await asyncio.sleep(self._ground.rare.choice((4.0, 8.0, 8.0)))
        finally:
            self._ground.atlas.kept_down.discard(number)

    async def _run_a_twin(self) -> None:
        """Have a second process claim a replica's number, with a volume of its own, while the first one goes on.

        In the end an operator lets that one go on whose volume the controller has recorded: the other one's was never
        counted on.
        """
        atlas, rare = self._ground.atlas, self._ground.rare
        if len(self._world.replicas) < 2 or not atlas.is_whole():
            return
        number, _ = self._ground.any_replica()
        twin = self._world.add_twin(number)
        atlas.wiped = number
        try:
            booting = asyncio.get_running_loop().create_task(twin.boot())
            await asyncio.sleep(rare.choice((1.0, 4.0, 8.0)))
            booting.cancel()
            struck = rare.choice((None, self._world.replicas[number], self._world.master))
            if struck is not None:
                self._world.crash(struck)
                await asyncio.sleep(rare.random())
            for _ in range(_TWIN_LOOKS):
                group = self._world.group
                if group is not None and set(group["sync_state_set"]) - {number}:
                    break
                await asyncio.sleep(_TWIN_LOOK_S)
        finally:
            self._world.end_twin(number)
