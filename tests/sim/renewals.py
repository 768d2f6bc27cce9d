"""A proxy that keeps some messages of a pop hidden for longer, and not the others."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import RenewRequest, RenewResponse
from popwheel_rpc.methods import RENEW
from popwheel_rpc.service import Call
from tests.sim.history import Delivery, Renewed
from tests.sim.world import World

_SHARE = 0.3
_LATEST = 40
_PAUSE_S_MAX = 0.5
_MORE_MS = 1500
"""For all the same: none ends before an earlier one of its message."""


class Renewals:
    """Renews some of what was delivered a moment ago, in some of the seeds.

    Args:
        world: where the broker is.
        is_on: whether there are any at all.
    """

    def __init__(self, world: World, is_on: bool) -> None:
        self._world = world
        self._chance = world.swarm.random("renewals")
        # What a group holds that hoards, and what is left to others, is asked for by the time that was given at first.
        self._is_on = is_on and not world.swarm.hoarder and self._chance.random() < _SHARE

    async def run(self) -> None:
        """Renew until cancelled."""
        while self._is_on:
            await asyncio.sleep(self._chance.random() * _PAUSE_S_MAX)
            world = self._world
            some = _some(world.history.deliveries[-_LATEST:], self._chance)
            if some and world.serving and world.process is not None:
                world.process.spawn(self._renew(some, some[0].handle.invisible_ms + _MORE_MS))

    async def _renew(self, some: Sequence[Delivery], invisible_ms: int) -> None:
        world = self._world
        assert world.cluster is not None
        _, renew = world.cluster.broker.service.unary_handlers[RENEW.path]
        request = RenewRequest(invisible_ms=invisible_ms)
        for each in some:
            request.entries.add(group=each.group, topic=each.topic, receipt_handle=each.receipt)
        began_s = world.loop.time()
        try:
            response = await renew(Call(RENEW.path, {}, None, "local"), request)
        except (StatusError, OSError):
            return  # its proxy would be told, and nothing is promised
        assert isinstance(response, RenewResponse)
        for each, result in zip(some, response.results, strict=True):
            world.trace.add("renewal", each.message_id, each.handle.delivery, invisible_ms, result.code)
            if result.code == Code.OK:
                world.history.renewals.append(Renewed(each, began_s, invisible_ms))


def _some(deliveries: Sequence[Delivery], chance: random.Random) -> Sequence[Delivery]:
    """Some messages of a pop that gave out several, and that no proxy renews; none if there is no such pop."""
    pops: defaultdict[int, list[Delivery]] = defaultdict(list)
    for each in deliveries:
        if not each.renewed and not each.vanished:
            pops[each.handle.delivery].append(each)
    several = [pop for pop in pops.values() if len(pop) > 1]
    if not several:
        return ()
    pop = chance.choice(several)
    return chance.sample(pop, chance.randrange(1, len(pop)))
