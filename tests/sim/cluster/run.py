"""One seed of the cluster from beginning to end: faults, healing, and the verdict."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from popwheel_broker.core.core import BrokerCore
from popwheel_common.errors import CorruptDataError
from tests.sim import guests, passing_group, stored, transactions
from tests.sim.checker import Verdict
from tests.sim.cluster import lite, recalls
from tests.sim.cluster.checker import ClusterChecker, wanted_by
from tests.sim.cluster.counts import SharedCounts
from tests.sim.cluster.faults import Faults
from tests.sim.cluster.lite import LiteReaders
from tests.sim.cluster.programs import DATA
from tests.sim.cluster.recalls import Recalls
from tests.sim.cluster.swarm import ENOUGH_INTERESTS, ClusterSwarm, draw
from tests.sim.cluster.troubles import Troubles
from tests.sim.cluster.world import ClusterWorld
from tests.sim.consumers import Subscription
from tests.sim.course import HEAL_S_MAX, QUIET_LOOKS, Course, run_course
from tests.sim.guests import Guests
from tests.sim.history import History
from tests.sim.loop import SimLoop
from tests.sim.ordered import BurstProducer, OrderedProducer
from tests.sim.outcome import Outcome
from tests.sim.passing_group import PassingGroup
from tests.sim.producers import Producer
from tests.sim.swarm import ORDERED_GROUP, TAGS
from tests.sim.tools import LogEnd, Tools
from tests.sim.trace import Trace
from tests.sim.transactions import Pledges

_REST_S_MAX = 1.0
_MORE_QUEUES_MAX = 4
_BEGIN_S = 1.0
_SLOW_RATE = 0.7
"""Of calls with message groups and of half messages: there are many brokers, and much time."""
_SHORT_WAY_S = 0.02


def run_seed(
    seed: int, only: tuple[str, ...] | None = None, settings: dict[str, Any] | None = None, whole_trace: bool = False
) -> Outcome:
    """Run one seed.

    Args:
        seed: decides everything.
        only: faults that may be on; None for all.
        settings: settings of the proxy that are not drawn.
        whole_trace: give the trace even if all is well.
    """
    swarm = draw(seed, only, settings)
    return run_course(
        swarm, lambda loop, trace: _Run(loop, trace, swarm, only), "tests.sim.cluster", whole_trace=whole_trace
    )


class _Run(Course[ClusterSwarm]):
    """The course of one run.

    Args:
        loop: the loop.
        trace: what happens goes there.
        swarm: what was drawn.
        only: faults and workloads that may be on; None for all.
    """

    def __init__(self, loop: SimLoop, trace: Trace, swarm: ClusterSwarm, only: tuple[str, ...] | None) -> None:
        self.history = History()
        self._wakes = self._vain_wakes = 0
        self._counts = SharedCounts(loop, swarm.random("counts"), swarm.counting == "lying")
        self._troubles = Troubles()
        self.world = world = ClusterWorld(
            loop,
            trace,
            lambda purpose: swarm.random(f"cluster {purpose}"),
            swarm.options,
            None if swarm.counting == "alone" else self._counts.store,
            lambda path, message: self.faults.tamper(path, message),
            swarm.sync_s_max,
            swarm.memory,
        )
        super().__init__(loop, trace, swarm, lambda: world.leader, world.findings)
        self.history.taken = world.sightings.taken
        world.network.delay_s = (0.0, swarm.delay_s_max)
        self.faults = Faults(world, swarm, self._troubles)
        for number, settings in enumerate(swarm.producers):
            name = f"p{number}"
            described = swarm.random(f"{name} described") if swarm.condition else None
            producer = Producer(
                name, self._tools(name), swarm.random(name), swarm.plain_topics, TAGS, *settings, described=described
            )
            producer.burst_s = swarm.burst_ways * swarm.delay_s_max
            self.clients.append(producer)
        if swarm.is_ordered:
            self.clients.append(OrderedProducer("po", self._tools("po"), swarm.random("po"), rate=_SLOW_RATE))
            way = world.client("pb")
            tools = Tools(way, self.history, trace, loop, LogEnd())
            self.clients.append(BurstProducer("pb", tools, swarm.random("pb"), way.to_one_proxy))
        self._pledges: Pledges | None = None
        if transactions.NAME in swarm.workloads:
            chance = swarm.random("cluster pledges")
            self._pledges = self.added(Pledges(self._tools("pt"), chance, lambda _: False, _SLOW_RATE))
        self._recalls: Recalls | None = None
        if recalls.NAME in swarm.workloads:
            self._recalls = self.added(Recalls(self._tools("pr"), swarm.random("cluster recalls"), swarm.safety_s))
        self._guests: Guests | None = None
        if guests.NAME in swarm.workloads:
            ways = {name: world.client(name, 1.0) for name in guests.CLIENTS}
            self._guests = self.added(
                Guests(
                    lambda name: Tools(ways[name], self.history, trace, loop, LogEnd()),
                    swarm.random("cluster guests"),
                    choose_proxy=lambda name, chance: ways[name].to_one_proxy(chance),
                )
            )
        self._passing_group: PassingGroup | None = None
        if passing_group.NAME in swarm.workloads:
            chance = swarm.random("cluster passing group")
            self._passing_group = self.added(PassingGroup(self._tools("gq"), chance, self.admin, self._cores))
        self.draw_consumers(self._tools)
        for consumer in self.consumers:
            consumer.rest_s_max = swarm.rest_s_max
        self._lite: LiteReaders | None = None
        if lite.is_on(swarm, only):
            chance = swarm.random("lite readers")
            self._lite = self.added(
                LiteReaders(lambda name: world.client(name, swarm.loyal), trace, loop, chance, self._restart_broker)
            )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Set the limits that were drawn, and watch all pops."""
        with self.swarm.limits(), self.world.sightings.on():
            yield

    def kill(self) -> None:
        """Kill all machines."""
        for machine in self.world.machines():
            machine.kill()

    def counts(self) -> str:
        """Return how much there was, in words."""
        history, world = self.history, self.world
        return (
            f"sent={len(history.sent)} got={len(history.deliveries)} polls={len(world.log.polls)} "
            f"wakes={self._wakes} vain={self._vain_wakes} lives={sum(each.lives for each in world.machines())} "
            f"faults={self.faults.count} lite={self._lite_done}"
        )

    def _cores(self) -> list[BrokerCore]:
        return [each.program.app.core for each in self.world.brokers.values() if each.program is not None]

    def _tools(self, name: str) -> Tools:
        world = self.world
        return Tools(world.client(name, self.swarm.loyal), self.history, world.trace, world.loop, LogEnd())

    @property
    def _lite_done(self) -> int:
        """Messages of lite topics that were done with."""
        return 0 if self._lite is None else self._lite.done

    async def live(self) -> None:
        """Set up, let faults strike, heal, and wait until all work is done."""
        world, loop = self.world, self.loop
        await self._begin()
        self.begin_clients()
        striking = loop.create_task(self.faults.run())
        growing = loop.create_task(self._grow())
        await asyncio.sleep(self.swarm.safety_s)
        striking.cancel()
        await growing
        self.trace.add("sim", "heal")
        self._counts.lies = False
        await self.faults.heal()
        self.trace.add("sim", "healed")
        self._make_room()
        await self.end_sending()
        await self._finish_work()
        await self.end_clients()
        self._count_wakes()
        for machine in world.machines():
            await machine.stop()

    async def _restart_broker(self) -> None:
        """Kill a broker, and have it serve again at once."""
        machine = self.swarm.random("lite restart").choice(list(self.world.brokers.values()))
        trouble = self._troubles.begin((machine.name,), self.world.loop.time())
        machine.kill()
        await machine.boot()
        while not machine.serving:
            await asyncio.sleep(0.1)
        trouble.ended_s = self.world.loop.time()

    async def _begin(self) -> None:
        world, swarm = self.world, self.swarm
        await world.controller.boot()
        await self.make_names()
        for _ in range(swarm.brokers):
            await world.add_broker().boot()
        for _ in range(swarm.proxies):
            await world.add_proxy().boot()
        await asyncio.sleep(_BEGIN_S)

    async def _grow(self) -> None:
        """Give topics more queues while they are used, in every other seed."""
        chance, world = self.swarm.random("growth"), self.world
        steps = chance.choice((0, 0, 0, 1, 2, 4))
        for _ in range(steps):
            await asyncio.sleep(chance.uniform(0.0, self.swarm.safety_s / steps))
            name, more = chance.choice(sorted(self.swarm.topics)), chance.randint(1, _MORE_QUEUES_MAX)
            if await self.admin.grow_topic(name, more):
                world.trace.add("operator", "more queues", name, more)

    def _is_calm(self, began_s: float, ended_s: float) -> bool:
        world = self.world
        machines = [each.name for each in world.machines()]
        return self._troubles.is_calm(began_s, ended_s, *machines, *world.clients)

    async def _finish_work(self) -> None:
        """Wait until nothing is left to do, within a budget of virtual time for each thing that is done (L2)."""
        loop = self.world.loop
        healed = progress = loop.time()
        done = quiet = 0
        while loop.time() < progress + HEAL_S_MAX:
            await asyncio.sleep(0.5)
            before, done = done, self._done()
            if done > before:
                progress = loop.time()
            quiet = 0 if self._left() else quiet + 1
            if quiet == QUIET_LOOKS:
                self.world.trace.add("sim", "finished", f"after={loop.time() - healed:.1f}")
                return
        self.verdict.broke("L2", f"for {HEAL_S_MAX} s without faults nothing was got done of this: {self._left()}")

    def _make_room(self) -> None:
        """Have consumers rest between polls where a proxy may not hold all of them: the others could never come in. Who
        rests for long else would take hours for what has piled up.
        """
        for consumer in self.consumers:
            consumer.rest_s_max = min(consumer.rest_s_max, _REST_S_MAX)
        polls = sum(consumer.manners.polls for consumer in self.consumers)
        polls_max = self.swarm.options.proxy.receive.polls_max // 2  # a group may not take more than is free
        if polls > polls_max:
            for consumer in self.consumers:
                consumer.rest_s_max = max(consumer.rest_s_max, 2.0 * polls / polls_max)

    def _done(self) -> int:
        """How many messages were done with, each for each group."""
        done = {
            (each.delivery.group, each.delivery.message_id)
            for history in self._histories()
            for each in history.settlings
            if each.kind in ("ack", "forward") and each.outcome == "ok"
        }
        return len(done) + self._lite_done

    def _histories(self) -> list[History]:
        workloads = (each for each in (self._pledges, self._recalls, self._guests) if each is not None)
        return [self.history, *(each.history for each in workloads)]

    def _left(self) -> str:
        """What is not done yet, in words."""
        for name, machine in self.world.brokers.items():
            if machine.program is None:
                return f"{name} does not run"
            core = machine.program.app.core
            if core.state.table.open_messages:
                return f"{core.state.table.open_messages} messages of {name} are given out"
            if left := next((left for workload in self.workloads if (left := workload.left(core))), ""):
                return f"{name}: {left}"
            for each in self.swarm.subscriptions:
                # What is released to its message group was given before; which pass a filter is not seen.
                by_itself = each.condition or each.group == ORDERED_GROUP
                if by_itself and (count := core.pops.waiting(each.group, each.topic, None)):
                    return f"{count} messages wait for {each.group} at {name}"
        for each in self.swarm.subscriptions:
            if each.condition:
                continue
            if waiting := self.world.sightings.waiting(each.group, each.topic, wanted_by(each)):
                return f"{len(waiting)} messages wait for {each.group}: {waiting[:3]}"
        return ""

    def _count_wakes(self) -> None:
        for machine in self.world.proxies.values():
            if machine.program is not None:
                metrics = machine.program.app.poll_metrics
                self._wakes += int(metrics.wakes._value.get())
                self._vain_wakes += int(metrics.empty_wakes._value.get())

    def judge(self) -> Verdict:
        """Hold everything that was seen against the invariants."""
        world, swarm = self.world, self.swarm
        segment_bytes = swarm.options.broker.log.segment_bytes
        try:
            records = {
                name: stored.records_in_log(machine.disk, DATA, segment_bytes)
                for name, machine in world.brokers.items()
            }
        except CorruptDataError as error:
            self.verdict.broke("S7", f"in the end a log is damaged, and nobody has said so: {error}")
            return self.verdict
        found = {name: stored.messages_of(each) for name, each in records.items()}
        verdict = ClusterChecker(swarm, self.history, found, world.sightings, world.log, self._troubles).judge()
        verdict.violations[:0] = self.verdict.violations
        if self._lite is not None:
            verdict.violations += self._lite.judge(found, swarm.lite_bound_s)
        self._check_wakes(verdict)
        way_s = swarm.delay_s_max + swarm.sync_s_max
        if self._guests is not None:
            verdict.violations += self._guests.judge(
                self.history, swarm.options.proxy, way_s, self._is_calm, swarm.brokers
            )
        if self._passing_group is not None:
            verdict.violations += self._passing_group.judge(self.history, self._is_calm)
        if self._pledges is not None:
            logs, is_calm = list(records.values()), not self.faults.count
            verdict.violations += self._pledges.judge(logs, self.history, is_lossy=False, is_calm=is_calm)
        if self._recalls is not None:
            verdict.violations += self._recalls.judge(found, is_calm=not self.faults.count)
        return verdict

    def _check_wakes(self, verdict: Verdict) -> None:
        """L1: few polls are woken without a message; asked where nothing was wrong and no broker refused interests."""
        swarm = self.swarm
        is_calm = not self.faults.count and "bad notifications" not in swarm.faults
        if not is_calm or swarm.options.broker.pop.notify_interests_max < ENOUGH_INTERESTS:
            return
        if self._guests is not None or self._passing_group is not None:
            return  # polls are there of clients that end, and of a group that is gone
        if self._lite is not None:
            return  # several readers may be notified of one message of a lite topic that they share
        more = (Subscription(transactions.GROUP, transactions.TOPIC), Subscription(recalls.GROUP, recalls.TOPIC))
        reported = sum(
            self.world.sightings.arrivals_for(each.group, each.topic) for each in (*swarm.subscriptions, *more)
        )
        # Brokers tell all proxies of what still waits after some 20 ms, be it that the pop is on a long way.
        often = 1 if swarm.delay_s_max <= _SHORT_WAY_S else 2
        if self._vain_wakes > often * swarm.proxies * reported:
            verdict.broke(
                "L1", f"{self._vain_wakes} of {self._wakes} wakes found no message, and only {reported} messages came"
            )
