"""What becomes of a broker group's controllers, of their store, and of what operators do."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from popwheel_common.errors import StatusError
from popwheel_controller.app import ControllerApp
from popwheel_rpc.service import Call
from popwheel_rpc.status import RpcError
from tests.sim.cluster.machine import Machine
from tests.sim.history import Disaster
from tests.sim.replicas.ground import Acts, Ground
from tests.sim.replicas.process_faults import ProcessFaults
from tests.sim.replicas.world import GROUP

_LONG_S = 60.0
_UNCLEAN_TRIES = 40


class ControlFaults:
    """Strikes at controllers and their store, and acts as operators do.

    Args:
        ground: where.
        processes: ends processes.
    """

    def __init__(self, ground: Ground, processes: ProcessFaults) -> None:
        self._ground = ground
        self._world = ground.world
        self._chance = ground.chance
        self._rare = ground.rare
        self._processes = processes
        self._was_long_away = False
        self.lasting: asyncio.Event = asyncio.Event()
        """Not set while something is under way that is to be seen to its end before all is healed."""
        self.lasting.set()

    def acts(self) -> Acts:
        """What it can do."""
        return {
            "controllers away": self._take_controllers,
            "store away": self._take_store,
            "lost answers of the store": self._lose_answers,
            "old checkpoint": self._repeat_checkpoint,
            "switchover": self._switch,
            "store away for a minute": self._take_store_for_long,
            "conflicts in the store": self._have_others_write,
            "stale reads": self._report_before,
            "unclean election": self._elect_unclean,
        }

    async def _take_controllers(self) -> None:
        how = self._chance.choice(("kill", "stop", "pause", "pause"))
        seconds = self._chance.choice((0.2, 2.0, 5.0, 10.0))
        for machine in self._world.controllers.values():
            if how == "pause":
                machine.pause()
            elif how == "kill":
                machine.kill()
            else:
                await self._processes.restart(machine)
        await asyncio.sleep(seconds)
        for machine in self._world.controllers.values():
            machine.resume()

    async def _take_store(self) -> None:
        self._world.store.is_away = True
        await asyncio.sleep(self._chance.choice((0.2, 2.0, 5.0, 10.0)))
        self._world.store.is_away = False

    async def _take_store_for_long(self) -> None:
        """Take the store for a minute; the master may die meanwhile, and nobody can be elected."""
        if self._was_long_away:
            return
        self._was_long_away = True
        self.lasting.clear()
        try:
            self._world.store.is_away = True
            before_s = self._rare.choice((1.0, 10.0, 30.0))
            await asyncio.sleep(before_s)
            self._world.store.is_away = True  # another fault may have given it back
            if self._rare.random() < 0.7 and self._world.master is not None:
                self._world.crash(self._world.master)
            await asyncio.sleep(_LONG_S - before_s)
        finally:
            self._world.store.is_away = False
            self.lasting.set()

    async def _lose_answers(self) -> None:
        self._world.store.lost_share = self._chance.choice((0.1, 0.5))
        await asyncio.sleep(self._chance.random() * 5)
        self._world.store.lost_share = 0.0

    async def _have_others_write(self) -> None:
        """Somebody else changes documents between a controller's read and its write."""
        self._world.store.conflict_share = self._rare.choice((0.2, 0.6))
        await asyncio.sleep(self._rare.random() * 5)
        self._world.store.conflict_share = 0.0

    async def _report_before(self) -> None:
        """Reads give what documents were some time ago."""
        self._world.store.stale_share = self._rare.choice((0.2, 0.6))
        await asyncio.sleep(self._rare.random() * 5)
        self._world.store.stale_share = 0.0

    async def _switch(self) -> None:
        """An operator asks for another master."""
        leader = self._world.leader
        if leader is None:
            return
        to = self._chance.choice((None, *self._world.replicas))
        await self._ask(leader, lambda: leader._transfers.switch(GROUP, to), f"switched {to}")

    async def _ask(self, leader: ControllerApp, ask: Callable[[], Awaitable[Any]], what: str) -> None:
        """Have the controller that leads do something, and do not wait for it."""
        process = next(each.process for each in self._world.controllers.values() if _is_of(each, leader))
        assert process is not None

        async def asked() -> None:
            try:
                await ask()
                self._world.trace.add("fault", what)
            except (StatusError, RpcError) as error:
                self._world.trace.add("fault", "not", what, error)

        process.spawn(asked())

    async def _repeat_checkpoint(self) -> None:
        """What a controller sent that stood still since, or does not lead any more, arrives at a replica."""
        machine, seen = self._ground.some(), self._world.watch.checkpoints
        if not seen or machine.program is None or machine.process is None or not machine.serving:
            return
        given, checkpoints = self._chance.choice(seen), machine.program.app.checkpoints

        async def store() -> None:
            with contextlib.suppress(StatusError):
                await checkpoints.store(Call("", {}, None, ""), given)

        machine.process.spawn(store())

    async def _elect_unclean(self) -> None:
        """Take all members of the set for good, as it seems, and have an operator choose who is left."""
        world, atlas = self._world, self._ground.atlas
        slaves = world.slaves()
        if not slaves or not atlas.is_whole():
            return
        chosen = self._rare.choice(slaves)
        number = atlas.number(chosen)
        others = [each for each in world.replicas if each != number]
        ways = [
            way
            for other in others
            for name in [world.replicas[other].name]
            for way in ((name, chosen.name), (chosen.name, name))
        ]
        try:
            for way in ways:
                world.network.cut(*way)
            await asyncio.sleep(self._rare.choice((4.0, 6.0)))
            group = world.group
            if group is None or number in group["sync_state_set"]:
                return
            atlas.kept_down.update(others)
            for other in others:
                world.crash(world.replicas[other])
            for way in ways:
                world.network.mend(*way)
            await self.say_the_word(number, is_lossy=True)
        finally:
            for way in ways:
                world.network.mend(*way)
            atlas.kept_down.clear()

    async def say_the_word(self, number: int, is_lossy: bool = False) -> None:
        """Have an operator choose a master, whatever may be lost.

        Args:
            number: of the replica.
            is_lossy: whether anything may be: if not, it has all that was acknowledged, and only can't know it.
        """
        world = self._world
        for _ in range(_UNCLEAN_TRIES):
            await asyncio.sleep(0.25)
            leader, program, group = world.leader, world.replicas[number].program, world.group
            if group is not None and group["master"] == number:
                return
            if leader is None or program is None:
                continue
            if is_lossy:
                if not world.watch.unclean:
                    world.watch.unclean = True
                    world.trace.add("fault", "unclean election", number)
                # What only the others have is gone, also what they answer until they are dead, which they are.
                position = world.watch.lost_from(program.app)
                world.history.disasters.append(Disaster(world.loop.time(), "power", position))
            elect = partial(leader._transfers.elect_unclean, GROUP, number, f"lose-messages-of-{GROUP}")
            await self._ask(leader, elect, "elected unclean")


def _is_of(machine: Machine[Any], app: object) -> bool:
    return machine.program is not None and machine.program.app is app
