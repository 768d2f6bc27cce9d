"""Ways between the machines of a broker group that are cut, slow, or break what goes along them."""

import asyncio
from collections.abc import Iterable

from tests.sim.replicas.ground import Acts, Ground

Ways = Iterable[tuple[str, str]]


class NetworkFaults:
    """Strikes at ways.

    Args:
        ground: where.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._world = ground.world
        self._chance = ground.chance

    def acts(self) -> Acts:
        """What it can do."""
        world = self._world
        return {
            "cut": self._cut,
            "isolate": self._isolate,
            "master without controller": lambda: self._cut_master(world.controllers),
            "master without slaves": lambda: self._cut_master(each.name for each in world.slaves()),
            "slaves without controller": self._cut_slaves,
            "break connections": self._break_connections,
            "bad ways": self._worsen_ways,
            "bridge": self._bridge,
            "ring": self._ring,
            "swizzle": self._swizzle,
            "half-open": self._lose_one_end,
        }

    async def _cut(self) -> None:
        first, second = self._two()
        ways = self._chance.choice((((first, second),), ((second, first),), ((first, second), (second, first))))
        await self._cut_for(ways)

    async def _isolate(self) -> None:
        names = self._names()
        alone = self._chance.choice(names)
        await self._cut_for([way for name in names if name != alone for way in ((name, alone), (alone, name))])

    async def _cut_master(self, others: Iterable[str]) -> None:
        master = self._world.master
        if master is not None:
            there = [(master.name, other) for other in others]
            back = [(other, way) for way, other in there]
            await self._cut_for(self._chance.choice((there, back, there + back)))

    async def _cut_slaves(self) -> None:
        """Cut all slaves off from the controllers, but not from their master."""
        slaves = [each.name for each in self._world.slaves()]
        there = [(slave, controller) for slave in slaves for controller in self._world.controllers]
        back = [(controller, slave) for slave, controller in there]
        await self._cut_for(self._chance.choice((there, back, there + back)))

    async def _cut_for(self, ways: Ways) -> None:
        await self._cut_so_long(ways, self._chance.choice((0.2, 2.0, 5.0, 10.0)))

    async def _cut_so_long(self, ways: Ways, seconds: float) -> None:
        network = self._world.network
        for way in ways:
            self._world.trace.add("fault", "cut", *way, seconds)
            network.cut(*way)
        await asyncio.sleep(seconds)
        for way in ways:
            network.mend(*way)

    async def _bridge(self) -> None:
        """Part all machines in two, but for one that sees both sides."""
        rare, names = self._ground.rare, self._names()
        rare.shuffle(names)
        one, other = names[1 : (len(names) + 1) // 2], names[(len(names) + 1) // 2 :]
        self._world.trace.add("fault", "bridge", names[0])
        ways = [way for first in one for second in other for way in ((first, second), (second, first))]
        await self._cut_so_long(ways, rare.choice((2.0, 5.0, 10.0)))

    async def _ring(self) -> None:
        """Have each machine see a majority, its neighbours in a ring, and none the same one."""
        rare, names = self._ground.rare, self._names()
        rare.shuffle(names)
        count = len(names)
        reach = max(1, count // 4)
        ways = [
            (first, second)
            for here, first in enumerate(names)
            for there, second in enumerate(names)
            if min((here - there) % count, (there - here) % count) > reach
        ]
        await self._cut_so_long(ways, rare.choice((2.0, 5.0, 10.0)))

    async def _swizzle(self) -> None:
        """Cut machines off, one after another, and have them back in another order."""
        rare, names = self._ground.rare, self._names()
        chosen = rare.sample(names, rare.randint(2, len(names) - 1))
        ways = {
            each: [way for name in names if name != each for way in ((name, each), (each, name))] for each in chosen
        }
        for each in chosen:
            self._world.trace.add("fault", "cut off", each)
            for way in ways[each]:
                self._world.network.cut(*way)
            await asyncio.sleep(rare.random())
        await asyncio.sleep(rare.random() * 4)
        rare.shuffle(chosen)
        for each in chosen:
            for way in ways[each]:
                self._world.network.mend(*way)
            await asyncio.sleep(rare.random())

    async def _lose_one_end(self) -> None:
        """Have one end of all connections between two machines vanish, and the other one learn of it only when it
        hears nothing for long enough.
        """
        first, second = self._two_by_rare()
        if self._ground.rare.random() < 0.5:
            first, second = second, first
        self._world.trace.add("fault", "half-open", first, second)
        self._world.network.lose_ends(first, second)

    async def _break_connections(self) -> None:
        self._world.network.break_connections(*self._two())

    async def _worsen_ways(self) -> None:
        first, second = self._two()
        ways = [self._world.network.way(*way) for way in ((first, second), (second, first))]
        for way in ways:
            way.delay_s = (0.0, self._chance.choice((0.01, 0.3, 2.0)))
            way.broken_share = self._chance.choice((0.0, 0.1, 0.3))
        await asyncio.sleep(self._chance.random() * 5)
        for way in ways:
            way.delay_s, way.broken_share = self._world.network.delay_s, 0.0

    def _names(self) -> list[str]:
        return [machine.name for machine in self._world.machines()]

    def _two(self) -> tuple[str, str]:
        """A replica, and somebody else that it talks with."""
        world, chance = self._world, self._chance
        replica = chance.choice(list(world.replicas.values())).name
        others = [machine.name for machine in world.machines() if machine.name != replica]
        return replica, chance.choice(others)

    def _two_by_rare(self) -> tuple[str, str]:
        _, replica = self._ground.any_replica()
        return replica.name, self._ground.rare.choice([name for name in self._names() if name != replica.name])
