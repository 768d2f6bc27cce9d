"""Strikes at a chosen moment: as an answer leaves, or when all lose their power and the master does not come back."""

import asyncio

from tests.sim.replicas.control_faults import ControlFaults
from tests.sim.replicas.ground import Acts, Ground

_ANSWER_S = 3.0
_SLOW_S = (0.05, 0.2, 1.0)
_ANSWERS_MAX = 8
_POLL_S = 0.05
_ELECTED_LOOKS = 200
_HELP_S = 10.0
_WHOLE_S = 60.0


class MomentFaults:
    """Strikes at masters.

    Args:
        ground: where.
        control: acts as operators do.
    """

    def __init__(self, ground: Ground, control: ControlFaults) -> None:
        self._ground = ground
        self._world = ground.world
        self._atlas = ground.atlas
        self._chance = ground.latest
        self._control = control
        self._is_armed = False
        """Whether an answer is waited for."""

    def acts(self) -> Acts:
        """What it can do."""
        return {
            "kill at an answer": lambda: self._kill_at_an_answer(is_slow=False),
            "kill while slaves are slow": lambda: self._kill_at_an_answer(is_slow=True),
            "power of all, master away": self._lose_power_and_master,
            "power of all, master wiped": self._lose_power_and_volume,
            "wiped volume, others away": self._leave_wiped_alone,
        }

    # As an answer leaves

    async def _kill_at_an_answer(self, is_slow: bool) -> None:
        """Have the master die when one of its answers has just left, with what is under way to its slaves, and stay
        away for some time.

        Args:
            is_slow: whether the ways to its slaves are slow from some time before on, and until it is dead.
        """
        world, chance, master, group = self._world, self._chance, self._world.master, self._world.group
        if master is None or group is None or self._is_armed or (is_slow and len(group["sync_state_set"]) < 2):
            return
        self._is_armed = True
        number, process = self._atlas.number(master), master.process
        slaves = [each.name for each in world.slaves()]
        ways = [world.network.way(master.name, slave) for slave in slaves]
        left = chance.randint(1, _ANSWERS_MAX)
        answered: asyncio.Future[None] = world.loop.create_future()

        def leaves(who: int) -> None:
            nonlocal left
            left -= who == number
            if left <= 0 and not answered.done():
                answered.set_result(None)

        try:
            for way in ways if is_slow else ():
                way.delay_s = (chance.choice(_SLOW_S),) * 2
            world.watch.promises.on_answer = leaves
            async with asyncio.timeout(_ANSWER_S):
                await answered
        except TimeoutError:
            pass  # it dies all the same
        finally:
            world.watch.promises.on_answer = lambda who: None
            self._is_armed = False
            if master.process is process and process is not None:
                if chance.random() < 0.7:
                    for slave in slaves:
                        world.network.break_connections(master.name, slave)
                world.crash(master, chance.choice(("process", "power")))
            for way in ways:
                way.delay_s = world.network.delay_s
        await self._keep_down((number,), chance.choice((0.0, 4.0, 8.0)))

    async def _keep_down(self, numbers: tuple[int, ...], seconds: float) -> None:
        """Have nobody start these again for some time."""
        held = set(numbers) - self._atlas.kept_down
        self._atlas.kept_down |= held
        try:
            await asyncio.sleep(seconds)
        finally:
            self._atlas.kept_down -= held

    # All at once, and the master does not come back

    async def _lose_power_and_master(self) -> None:
        """Power goes everywhere, soon after an election perhaps, and the master stays away for some time."""
        await self._have_another_elected()
        master = self._world.master
        if master is None:
            return
        number = self._atlas.number(master)
        self._lose_power()
        await self._keep_down((number,), self._chance.choice((4.0, 8.0, 16.0)))

    async def _lose_power_and_volume(self) -> None:
        """Power goes everywhere, and the master comes back with an empty volume, before the others perhaps."""
        await self._have_another_elected()
        world, atlas, master = self._world, self._atlas, self._world.master
        if master is None or not self._ground.may_take_a_copy():
            return
        number = atlas.number(master)
        others = tuple(each for each in world.replicas if each != number)
        atlas.is_quiet = True
        self._control.lasting.clear()
        try:
            self._lose_power()
            atlas.wipe(master)
            await self._keep_down(others, self._chance.choice((0.0, 0.0, 4.0, 8.0)))
            await self._help(others)
        finally:
            atlas.is_quiet = False
            self._control.lasting.set()

    async def _leave_wiped_alone(self) -> None:
        """Have a replica come back with an empty volume, while all others are away for some time."""
        world, atlas = self._world, self._atlas
        number = self._chance.choice(list(world.replicas))
        others = tuple(each for each in world.replicas if each != number)
        if not others or not atlas.is_whole():
            return
        for each in others:
            world.crash(world.replicas[each])
        atlas.wipe(world.replicas[number])
        await self._keep_down(others, self._chance.choice((2.0, 4.0, 8.0)))

    def _lose_power(self) -> None:
        for machine in self._world.replicas.values():
            self._world.crash(machine, "power")

    async def _have_another_elected(self) -> None:
        """Have the master die first, in half of the cases, and go on within half a second after the next one leads."""
        world, chance, master = self._world, self._chance, self._world.master
        if master is None or chance.random() < 0.5 or len(world.replicas) < 2:
            return
        world.crash(master)
        for _ in range(_ELECTED_LOOKS):
            await asyncio.sleep(_POLL_S)
            if world.master not in (None, master):
                break
        await asyncio.sleep(chance.random() * 0.5)

    async def _help(self, others: tuple[int, ...]) -> None:
        """Wait until all have everything again. What an operator does where those that lived are in doubt, as the only
        one they could ask is gone for good: let the one lead that has most. It has all that was acknowledged.
        """
        world = self._world
        loop = world.loop
        began_s = since_s = loop.time()
        while not self._atlas.is_whole() and loop.time() - began_s < _WHOLE_S:
            await asyncio.sleep(_POLL_S)
            group = world.group
            if world.master is not None or group is None:
                since_s = loop.time()
            elif loop.time() - since_s >= _HELP_S:
                doubtful = [each for each in others if each in group["sync_state_set"] and self._is_suspect(each)]
                if doubtful:
                    world.trace.add("fault", "in doubt", *doubtful)
                    await self._control.say_the_word(max(doubtful, key=self._end_of))
                since_s = loop.time()

    def _is_suspect(self, number: int) -> bool:
        program = self._world.replicas[number].program
        return program is not None and program.app.files.is_suspect

    def _end_of(self, number: int) -> int:
        program = self._world.replicas[number].program
        return -1 if program is None else program.app.files.end_position
