"""What all faults of a broker group have in common: where they strike, by which chance, and what is known of damage."""

from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.cluster.machine import Machine
from tests.sim.replicas.damage import Atlas
from tests.sim.replicas.swarm import GroupSwarm
from tests.sim.replicas.world import GroupWorld, Replica

Acts = dict[str, Callable[[], Coroutine[Any, Any, None]]]
"""By the fault's name, what does it."""


class Ground:
    """Where faults strike.

    Args:
        world: the machines.
        swarm: what was drawn.
        atlas: what is damaged.
    """

    def __init__(self, world: GroupWorld, swarm: GroupSwarm, atlas: Atlas) -> None:
        self.world = world
        self.swarm = swarm
        self.atlas = atlas
        self.chance = swarm.random("replicas faults")
        self.rare = swarm.random("replicas rare faults")
        """Of the faults that came later, lest one more of them change what all others draw."""
        self.latest = swarm.random("replicas latest faults")
        """Of those that came later still."""
        self.is_alone: Callable[[], bool] = lambda: False
        """Whether nothing else strikes at this moment."""

    def some(self) -> Replica:
        """Any replica."""
        return self.chance.choice(list(self.world.replicas.values()))

    def any_replica(self) -> tuple[int, Replica]:
        """Any replica and its number, for the rare faults."""
        return self.rare.choice(list(self.world.replicas.items()))

    def slave(self) -> Replica | None:
        """A slave, if there is one."""
        slaves = self.world.slaves()
        return self.chance.choice(slaves) if slaves else None

    def controller(self) -> Machine[Any]:
        """Any controller."""
        return self.chance.choice(list(self.world.controllers.values()))

    def may_take_a_copy(self) -> bool:
        """Whether one replica may lose what it has without knowing it: all have all, and nothing else is wrong."""
        ways = self.world.network.are_whole()
        latent = any(
            each.is_paused or (each.process_disk is not None and each.process_disk.may_die) or each.disk.may_refuse
            for each in self.world.replicas.values()
        )
        return len(self.world.replicas) > 1 and self.is_alone() and ways and not latent and self.atlas.is_whole()
