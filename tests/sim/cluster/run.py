"""One seed of the cluster from beginning to end: faults, healing, and the verdict."""

import asyncio
import gc
from typing import Any

from popwheel_broker.core.core import BrokerCore
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from tests.sim import guests, passing_group, stored, transactions
from tests.sim.checker import Verdict
from tests.sim.clients import Consumer, Producer, Subscription
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
from tests.sim.guests import Guests
from tests.sim.history import History
from tests.sim.loop import SimLoop, StuckError
from tests.sim.ordered import BurstProducer, OrderedProducer
from tests.sim.outcome import Outcome
from tests.sim.passing_group import PassingGroup
from tests.sim.passing_topic import carried_out
from tests.sim.swarm import ORDERED_GROUP, TAGS
from tests.sim.tools import LogEnd, Tools
from tests.sim.trace import Trace
from tests.sim.transactions import Pledges
from tests.sim.world import CapturedLog

_REST_S_MAX = 1.0
_HEAL_S_MAX = 120.0
"""Without faults something is got done within it. Not all: a pop may bring one message, and a plain poll that names no
broker waits where nothing is, while a hundred are elsewhere."""
_QUIET_LOOKS = 3
"""So often in a row nothing is left to do: a message that is moved is for a moment neither here nor there."""
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
    loop = SimLoop()
    trace = Trace(loop)
    trace.add("sim", "seed", swarm.describe())
    run = _Run(loop, trace, swarm, has_lite_topics=lite.is_on(swarm, only))
    world = run.world
    collecting = gc.isenabled()
    gc.disable()  # destructors of what a killed process leaves must not run in the middle
    try:
        asyncio.set_event_loop(loop)
        with swarm.limits(), world.sightings.on(), CapturedLog(trace, world.findings.append) as log:
            try:
                loop.run_until_complete(run.live())
                verdict = run.judge()
            except StuckError as error:
                verdict = Verdict()
                verdict.broke("L2", str(error))
            finally:
                digest = trace.digest
                log.muted = True  # what comes now comes from the dead
                for machine in world.machines():
                    machine.kill()
                loop.bury()
    finally:
        asyncio.set_event_loop(None)
        if collecting:
            gc.enable()
    for finding in world.findings:
        verdict.broke("E1", finding)
    for failure in loop.failures:
        verdict.broke(
            "E1",
            f"{failure.get('message')}: {failure.get('exception')!r} in {failure.get('task') or failure.get('handle')}",
        )
    history = run.history
    counts = (
        f"{verdict.counts()} sent={len(history.sent)} got={len(history.deliveries)} polls={len(world.log.polls)} "
        f"wakes={run.wakes} vain={run.vain_wakes} lives={sum(each.lives for each in world.machines())} "
        f"faults={run.faults.count} lite={run.lite_done} steps={loop.steps} seconds={loop.time():.1f}"
    )
    story = (swarm.describe(), *(trace.lines() if verdict.violations or whole_trace else ()))
    return Outcome(seed, digest, tuple(verdict.violations), counts, story, "tests.sim.cluster")


class _Run:
    """The course of one run.

    Args:
        loop: the loop.
        trace: what happens goes there.
        swarm: what was drawn.
        has_lite_topics: whether lite topics are sent to and read, too.
    """

    def __init__(self, loop: SimLoop, trace: Trace, swarm: ClusterSwarm, *, has_lite_topics: bool) -> None:
        self.swarm = swarm
        self.history = History()
        self.verdict = Verdict()
        self.wakes = self.vain_wakes = 0
        self._counts = SharedCounts(loop, swarm.random("counts"), swarm.counting == "lying")
        self._troubles = Troubles()
        self.world = ClusterWorld(
            loop,
            trace,
            lambda purpose: swarm.random(f"cluster {purpose}"),
            swarm.options,
            None if swarm.counting == "alone" else self._counts.store,
            lambda path, message: self.faults.tamper(path, message),
            swarm.sync_s_max,
            swarm.memory,
        )
        self.history.taken = self.world.sightings.taken
        self.world.network.delay_s = (0.0, swarm.delay_s_max)
        self.faults = Faults(self.world, swarm, self._troubles)
        self._producers = [
            Producer(
                name,
                self._tools(name),
                swarm.random(name),
                swarm.plain_topics,
                TAGS,
                *settings,
                described=swarm.random(f"{name} described") if swarm.condition else None,
            )
            for number, settings in enumerate(swarm.producers)
            for name in [f"p{number}"]
        ]
        for producer in self._producers:
            producer.burst_s = swarm.burst_ways * swarm.delay_s_max
        if swarm.is_ordered:
            self._producers.append(OrderedProducer("po", self._tools("po"), swarm.random("po"), rate=_SLOW_RATE))
            way = self.world.client("pb")
            tools = Tools(way, self.history, trace, loop, LogEnd())
            self._producers.append(BurstProducer("pb", tools, swarm.random("pb"), way.to_one_proxy))
        self._consumers: list[Consumer] = []
        for subscription, all_manners in swarm.manners.items():
            for manners in all_manners:
                name = f"c{len(self._consumers)}"
                consumer = Consumer(name, self._tools(name), swarm.random(name), subscription, manners)
                consumer.rest_s_max = swarm.rest_s_max
                self._consumers.append(consumer)
        self._pledges = self._recalls = None
        if transactions.NAME in swarm.workloads:
            self._pledges = Pledges(self._tools("pt"), swarm.random("cluster pledges"), lambda _: False, _SLOW_RATE)
        if recalls.NAME in swarm.workloads:
            self._recalls = Recalls(self._tools("pr"), swarm.random("cluster recalls"), swarm.safety_s)

        self._guests = self._passing_group = None
        if guests.NAME in swarm.workloads:
            ways = {name: self.world.client(name, 1.0) for name in guests.CLIENTS}
            self._guests = Guests(
                lambda name: Tools(ways[name], self.history, trace, loop, LogEnd()),
                swarm.random("cluster guests"),
                choose_proxy=lambda name, chance: ways[name].to_one_proxy(chance),
            )
        if passing_group.NAME in swarm.workloads:
            self._passing_group = PassingGroup(
                self._tools("gq"),
                swarm.random("cluster passing group"),
                self._create_group,
                self._delete_group,
                lambda: [each.program.app.core for each in self.world.brokers.values() if each.program is not None],
            )

        self._lite: LiteReaders | None = None
        if has_lite_topics:
            self._lite = LiteReaders(
                *(lambda name: self.world.client(name, swarm.loyal), trace, loop, swarm.random("lite readers")),
                self._restart_broker,
            )

    def _tools(self, name: str) -> Tools:
        world = self.world
        return Tools(world.client(name, self.swarm.loyal), self.history, world.trace, world.loop, LogEnd())

    @property
    def lite_done(self) -> int:
        """Messages of lite topics that were done with."""
        return 0 if self._lite is None else self._lite.done

    async def live(self) -> None:
        """Set up, let faults strike, heal, and wait until all work is done."""
        world, loop = self.world, self.world.loop
        await self._begin()
        producing = [loop.create_task(producer.run()) for producer in self._producers]
        producing += [
            loop.create_task(each.run())
            for each in (self._pledges, self._recalls, self._guests, self._passing_group)
            if each is not None
        ]
        consuming = [loop.create_task(consumer.run()) for consumer in self._consumers]
        reading_lite = loop.create_task(self._lite.run()) if self._lite is not None else None
        striking = loop.create_task(self.faults.run())
        growing = loop.create_task(self._grow())
        await asyncio.sleep(self.swarm.safety_s)
        striking.cancel()
        await growing
        world.trace.add("sim", "heal")
        self._counts.lies = False
        await self.faults.heal()
        world.trace.add("sim", "healed")
        for producer in self._producers:
            producer.stopping = True
        if self._pledges is not None:
            self._pledges.stopping = True
        if self._recalls is not None:
            self._recalls.stop()
        if self._guests is not None:
            self._guests.stopping = True
        if self._passing_group is not None:
            self._passing_group.stopping = True
        if self._lite is not None:
            self._lite.stopping = True
        self._make_room()
        reforming = [loop.create_task(consumer.reform()) for consumer in self._consumers]
        await asyncio.wait(producing)
        if self._lite is not None:
            await self._lite.sent
        await self._finish_work()
        if self._lite is not None and reading_lite is not None:
            self._lite.is_over = True
            await reading_lite
        for consumer in self._consumers:
            consumer.stopping = True
        await asyncio.wait((*reforming, *consuming))
        for each in (self._pledges, self._recalls, self._guests):
            if each is not None:
                await each.end()
        for task in (*producing, *consuming, *reforming):
            task.result()
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
        for topic, queues in swarm.topics.items():
            await world.make_topic(topic, swarm.types[topic], queues)
        if self._pledges is not None:
            await world.make_topic(transactions.TOPIC, transactions.TYPE, 2)
        if self._recalls is not None:
            await world.make_topic(recalls.TOPIC, recalls.TYPE, 2)
        for group, attempts in swarm.groups.items():
            await world.make_group(group, attempts, group == ORDERED_GROUP)
        if self._guests is not None:
            await world.make_topic(guests.TOPIC, guests.TYPE, 2)
            await world.make_group(guests.GROUP, guests.ATTEMPTS_MAX)
        if self._passing_group is not None:
            await world.make_topic(passing_group.TOPIC, passing_group.TYPE, 2)
        if self._lite is not None:
            await world.make_topic(lite.TOPIC, TopicType.LITE, 1)
            await world.make_group(lite.GROUP, lite.ATTEMPTS_MAX)
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
            if world.controller.program is not None and await carried_out(world.grow_topic(name, more), 1.0):
                world.trace.add("operator", "more queues", name, more)

    async def _create_group(self) -> bool:
        there = self.world.has_group(passing_group.GROUP)
        if there is False:
            return await carried_out(self.world.make_group(passing_group.GROUP, passing_group.ATTEMPTS_MAX))
        return bool(there)

    async def _delete_group(self) -> bool:
        there = self.world.has_group(passing_group.GROUP)
        if there:
            return await carried_out(self.world.delete_group(passing_group.GROUP))
        return there is False

    def _is_calm(self, began_s: float, ended_s: float) -> bool:
        world = self.world
        machines = [each.name for each in world.machines()]
        return self._troubles.is_calm(began_s, ended_s, *machines, *world.clients)

    async def _finish_work(self) -> None:
        """Wait until nothing is left to do, within a budget of virtual time for each thing that is done (L2)."""
        loop = self.world.loop
        healed = progress = loop.time()
        done = quiet = 0
        while loop.time() < progress + _HEAL_S_MAX:
            await asyncio.sleep(0.5)
            before, done = done, self._done()
            if done > before:
                progress = loop.time()
            quiet = 0 if self._left() else quiet + 1
            if quiet == _QUIET_LOOKS:
                self.world.trace.add("sim", "finished", f"after={loop.time() - healed:.1f}")
                return
        self.verdict.broke("L2", f"for {_HEAL_S_MAX} s without faults nothing was got done of this: {self._left()}")

    def _make_room(self) -> None:
        """Have consumers rest between polls where a proxy may not hold all of them: the others could never come in. Who
        rests for long else would take hours for what has piled up.
        """
        for consumer in self._consumers:
            consumer.rest_s_max = min(consumer.rest_s_max, _REST_S_MAX)
        polls = sum(consumer.manners.polls for consumer in self._consumers)
        polls_max = self.swarm.options.proxy.receive.polls_max // 2  # a group may not take more than is free
        if polls > polls_max:
            for consumer in self._consumers:
                consumer.rest_s_max = max(consumer.rest_s_max, 2.0 * polls / polls_max)

    def _done(self) -> int:
        """How many messages were done with, each for each group."""
        done = {
            (each.delivery.group, each.delivery.message_id)
            for history in self._histories()
            for each in history.settlings
            if each.kind in ("ack", "forward") and each.outcome == "ok"
        }
        return len(done) + self.lite_done

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
            for workload in (self._pledges, self._recalls, self._guests, self._passing_group):
                if workload is not None and (left := workload.left(core)):
                    return f"{name}: {left}"
            for each in self.swarm.subscriptions:
                # What is released to its message group was given before; which pass a filter is not seen.
                by_itself = each.condition or each.group == ORDERED_GROUP
                if by_itself and (count := core.pops.waiting(each.group, each.topic, None)):
                    return f"{count} messages wait for {each.group} at {name}"
            if self._lite is not None and (left := _lite_left(core)):
                return f"{name}: {left}"
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
                self.wakes += int(metrics.wakes._value.get())
                self.vain_wakes += int(metrics.empty_wakes._value.get())

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
        if self.vain_wakes > often * swarm.proxies * reported:
            verdict.broke(
                "L1", f"{self.vain_wakes} of {self.wakes} wakes found no message, and only {reported} messages came"
            )


def _lite_left(core: BrokerCore) -> str:
    """Which lite topics of a broker have messages that wait, in words."""
    lines, buffer = core.state.table.message_group_queues, core.state.merge_buffer
    for queue in core.store.queues.lite_of(lite.TOPIC):
        if buffer.of(lite.GROUP, queue).available_at_most or lines.has(lite.GROUP, queue.topic):
            return f"messages of {queue.topic} wait"
    return ""
