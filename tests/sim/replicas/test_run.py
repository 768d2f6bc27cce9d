"""When a run takes a group for well."""

import asyncio

from tests.sim.loop import SimLoop
from tests.sim.replicas.run import _Run
from tests.sim.replicas.swarm import draw
from tests.sim.trace import Trace

SEED = 45001018
"""Two replicas and one controller."""


def test_a_group_is_well_only_when_a_controller_leads_that_knows_of_all_who_live() -> None:
    loop = SimLoop()
    run = _Run(loop, Trace(loop), draw(SEED, only=()), ())
    world = run.world
    (controller,) = world.controllers.values()

    async def live() -> None:
        await run._begin()
        async with asyncio.timeout(30):
            while run._left():
                await asyncio.sleep(0.05)
            world.crash(controller)
            await controller.boot()
            assert world.leader is None
            assert "replicas: [0, 1]" in run._left()
            while run._left():
                await asyncio.sleep(0.05)
        assert world.leader is not None
        ages = world.leader.checkpoints.ages("broker-0", loop.time())
        assert len(ages) == len(world.slaves()) == 1

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(live())
    finally:
        asyncio.set_event_loop(None)
        for machine in world.machines():
            machine.kill()
        loop.bury()
