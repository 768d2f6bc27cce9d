"""When a replica may lose what it has: never where the set may be without the others a moment later."""

import asyncio
from collections.abc import Callable

import pytest

from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_cli.options import StandaloneOptions
from tests.sim.history import History
from tests.sim.loop import SimLoop
from tests.sim.replicas.damage import Atlas
from tests.sim.replicas.swarm import draw
from tests.sim.replicas.world import GROUP, GroupWorld
from tests.sim.trace import Trace

_POLL_S = 0.001
_READS_MAX = 20_000
_LEARNED_S = 1.0
"""By then all have learned of what is stored."""
_CUT_S = 1.0


def _ask_over_a_cut_way(world: GroupWorld) -> None:
    """Its master asks to be alone in the set, and for a second that does not arrive."""
    master = world.master
    assert master is not None
    network = world.network
    world.store.delay_s_max = 0.0
    for other in ("controller-0", *(each.name for each in world.slaves())):
        network.cut(master.name, other)
        network.cut(other, master.name)
    for each in world.slaves():
        network.break_connections(master.name, each.name)
    world.loop.outside(_CUT_S, network.mend_all)


def _transfer_in_a_slow_store(world: GroupWorld) -> None:
    """A controller writes that the slave leads now, alone in the set."""
    leader, process = world.leader, world.controllers["controller-0"].process
    assert leader is not None and process is not None
    world.store.delay_s_max = 0.2
    process.spawn(leader._transfers.switch(GROUP, None))


@pytest.mark.parametrize("begin", [_ask_over_a_cut_way, _transfer_in_a_slow_store])
def test_a_group_is_not_whole_while_it_is_under_way_that_its_set_shrinks(begin: Callable[[GroupWorld], None]) -> None:
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    random_of = draw(1, ()).random
    world = GroupWorld(loop, Trace(loop), random_of, StandaloneOptions(), ReplicationConstants(), History(), 1, 2, 0)
    atlas = Atlas(world)

    async def look_until(reached: Callable[[], bool]) -> bool:
        """Whether it was whole just before something is so."""
        for _ in range(_READS_MAX):
            was_whole = atlas.is_whole()
            await asyncio.sleep(_POLL_S)
            if reached():
                return was_whole
        pytest.fail("it did not come to that")

    async def live() -> None:
        for machine in world.machines():
            loop.create_task(machine.boot())
        await look_until(atlas.is_whole)
        await asyncio.sleep(_LEARNED_S)
        begin(world)
        assert atlas.is_whole()
        assert not await look_until(lambda: world.group is not None and len(world.group["sync_state_set"]) == 1)
        await look_until(atlas.is_whole)

    try:
        loop.run_until_complete(live())
    finally:
        asyncio.set_event_loop(None)
        for machine in world.machines():
            machine.kill()
        loop.bury()
