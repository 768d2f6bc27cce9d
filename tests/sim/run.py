"""One seed from beginning to end: faults, healing, and the verdict."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from popwheel_broker.log.record import StoredRecord
from popwheel_common.errors import CorruptDataError
from popwheel_rpc.service import Method
from tests.sim import guests, lite, passing_group, steering, stored, timers, transactions
from tests.sim.checker import Checker, Verdict
from tests.sim.course import HEAL_S_MAX, QUIET_LOOKS, Course, is_damaged, run_course
from tests.sim.failing_records import FailingRecords
from tests.sim.faults import Faults
from tests.sim.guests import Guests
from tests.sim.lite import LiteWorkload
from tests.sim.lives import BriefProducer, LifeWatch
from tests.sim.loop import SimLoop
from tests.sim.ordered import OrderedProducer
from tests.sim.outcome import Outcome
from tests.sim.passing_group import PassingGroup
from tests.sim.passing_topic import TOPIC, PassingTopic
from tests.sim.priorities import PriorityProducer, PriorityWatch
from tests.sim.process import Process, ProcessClock
from tests.sim.producers import Producer
from tests.sim.renewals import Renewals
from tests.sim.steering import Operator, Steered
from tests.sim.stored import StoredMessage
from tests.sim.swarm import TAGS, Swarm, draw
from tests.sim.timers import Timers
from tests.sim.tools import Tools
from tests.sim.trace import Trace
from tests.sim.transactions import Pledges
from tests.sim.world import DATA, World


def run_seed(
    seed: int, only: tuple[str, ...] | None = None, settings: dict[str, Any] | None = None, whole_trace: bool = False
) -> Outcome:
    """Run one seed.

    Args:
        seed: decides everything.
        only: faults that may be on; None for all.
        settings: settings of the broker that are not drawn.
        whole_trace: give the trace even if all is well.
    """
    swarm = draw(seed, only, settings)
    return run_course(swarm, lambda loop, trace: _Run(loop, trace, swarm, only), "tests.sim", whole_trace=whole_trace)


class _Run(Course[Swarm]):
    """The course of one run.

    Args:
        loop: the loop.
        trace: what happens goes there.
        swarm: what was drawn.
        only: faults and workloads that may be on; None for all.
    """

    def __init__(self, loop: SimLoop, trace: Trace, swarm: Swarm, only: tuple[str, ...] | None) -> None:
        self.world = world = World(loop, swarm, trace)
        super().__init__(loop, trace, swarm, lambda: world.controller, world.findings)
        self._failing = failing = FailingRecords(swarm.random("failing records"), trace, world.history, only)
        self._renewals = Renewals(world, only is None)
        self.faults = Faults(world)
        self._state: dict[str, Any] | None = None
        self._learned_deletion: Process | None = None
        """In which the broker must have learned of the topic's last deletion as it was made; one that comes later keeps
        what the controllers do not know."""
        self._tools = Tools(world.network, world.history, trace, loop, world.log_end)
        self.clients += [
            Producer(
                f"p{number}",
                self._tools,
                swarm.random(f"p{number}"),
                swarm.plain_topics,
                TAGS,
                *settings,
                swarm.types,
                swarm.delays,
                swarm.random(f"p{number} odd") if swarm.odd else None,
                swarm.random(f"p{number} described") if swarm.condition else None,
            )
            for number, settings in enumerate(swarm.producers)
        ]
        if swarm.is_ordered:
            self.clients.append(OrderedProducer("po", self._tools, swarm.random("po")))
        if swarm.levels:
            self.clients.append(PriorityProducer("pp", self._tools, swarm.random("pp")))
        if swarm.expired:
            self.clients.append(BriefProducer("pb", self._tools, swarm.random("pb"), swarm))
        self._lives = LifeWatch()
        self._priorities = PriorityWatch(loop.time, swarm.options.broker.pop.priority_wait_ms, swarm.levels)
        self.draw_consumers(lambda _: self._tools)
        self._passing = PassingTopic(
            self._tools, swarm.random("passing"), self.admin, swarm.delays, delete=self._delete_passing
        )
        self.clients.append(self._passing)
        has_room = not swarm.hoarder  # else there are enough groups that share what is left
        self._pledges: Pledges | None = None
        if transactions.is_on(swarm.seed, only):
            self._pledges = self.added(Pledges(self._tools, swarm.random("pledges"), failing.fails))
        self._operator: Operator | None = None
        if has_room and steering.is_on(swarm.seed, only):
            attempts = steering.attempts_of(swarm.seed)
            self._operator = self.added(
                Operator(self._tools, swarm.random("operator"), self._ask, failing.fails, attempts)
            )
        self._lite: LiteWorkload | None = None
        if has_room and lite.is_on(swarm.seed, only):
            chance, position = swarm.random("lite workload"), lambda: world.log_end.position
            self._lite = self.added(LiteWorkload(world.broker_network, trace, loop, position, chance, failing.fails))
        self._guests: Guests | None = None
        if has_room and guests.is_on(swarm.seed, only):
            self._guests = self.added(Guests(lambda _: self._tools, swarm.random("guests"), failing.fails))
        self._passing_group: PassingGroup | None = None
        if has_room and passing_group.is_on(swarm.seed, only):
            self._passing_group = self.added(
                PassingGroup(
                    self._tools,
                    swarm.random("passing group"),
                    self.admin,
                    lambda: [world.cluster.broker.core] if world.serving and world.cluster else [],
                    failing.fails,
                    swarm.random("pauses of the passing group"),
                )
            )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have messages fail, and watch all pops."""
        with self._failing.spread(), self._priorities.on(), self._lives.on():
            yield

    def kill(self) -> None:
        """Kill the server."""
        self.world.crash("process")

    def counts(self) -> str:
        """Return how much there was, in words."""
        history, lives = self.world.history, self.world.lives
        return f"sent={len(history.sent)} got={len(history.deliveries)} lives={lives} faults={self.faults.count}"

    async def _delete_passing(self) -> bool:
        process, controller = self.world.process, self.world.controller
        was_there = controller is not None and TOPIC in controller.state.topics
        is_deleted = await self.admin.delete_topic(TOPIC)
        if is_deleted and was_there and self._passing.stopping and "bad ways" not in self.swarm.faults:
            self._learned_deletion = process
        return is_deleted

    async def _ask(self, method: Method[Any, Any], request: Any) -> Any:
        """Call the broker as the controller does."""
        world = self.world
        served = None
        if world.serving and world.process is not None and world.cluster is not None:
            served = world.process, world.cluster.broker.service
        return await steering.ask(world.loop, served, method, request)

    async def live(self) -> None:
        """Set up, let faults strike, heal, and wait until all work is done."""
        world, loop = self.world, self.loop
        await world.boot()
        await self.make_names()
        world.weather.delay_s_max = self.swarm.delay_s_max
        self.begin_clients()
        striking = [loop.create_task(self.faults.run()), loop.create_task(self.faults.keep_alive())]
        renewing = loop.create_task(self._renewals.run())
        await asyncio.sleep(self.swarm.safety_s)
        striking[0].cancel()
        renewing.cancel()
        self.trace.add("sim", "heal")
        self.faults.heal()
        self._failing.heal()
        await self.end_sending()
        if world.findings or loop.failures:
            self.trace.add("sim", "findings", len(world.findings))
        await self._finish_work()
        await self.end_clients()
        striking[1].cancel()
        await asyncio.wait(striking)
        await self._stand_still()
        self._note_end_state()
        await world.stop()

    async def _finish_work(self) -> None:
        """Wait until nothing is left to do, within a budget of virtual time (L2)."""
        world = self.world
        until = world.loop.time() + HEAL_S_MAX
        healed = world.loop.time()
        quiet = 0
        while world.loop.time() < until:
            await asyncio.sleep(0.5)
            if world.serving and world.cluster is not None and self._failing.hand_over(world.cluster.broker.core):
                quiet = 0
                continue
            quiet = quiet + 1 if world.serving and not self._left() else 0
            if quiet and world.cluster is not None and not timers.is_readable(world.cluster.broker.core):
                quiet = 0
                await world.stop()  # a bit has rotted that is not read for days; the next start makes it again
            if quiet == QUIET_LOOKS:
                world.trace.add("sim", "finished", f"after={world.loop.time() - healed:.1f}")
                return
            if world.process is None:
                self.faults.mend()
            elif world.serving and world.cluster is not None and is_damaged(world.cluster.broker.core):
                await world.stop()  # an operator has restored what was damaged and starts the server anew
        self.verdict.broke(
            "L2", f"after {HEAL_S_MAX} s without faults there is still work: {self._left()}; {world.refusals[-1:]}"
        )

    def _left(self) -> str:
        """What is not done yet, in words."""
        world = self.world
        if world.cluster is None:
            return "no server"
        core = world.cluster.broker.core
        if left := self.left_in(core, world.machine.wall_ms()):
            return left
        if self._learned_deletion is world.process and TOPIC in core.topic_registry.topic_ids:
            return f"the broker still has {TOPIC}, which was deleted"
        return ""

    async def _stand_still(self) -> None:
        """End what appends by itself: timers that are far off roll for ever."""
        world = self.world
        if world.cluster is None or world.process is None:
            return
        broker = world.cluster.broker
        if broker.role.leader is None:
            return  # it never took its role, and what it left undone was told

        async def stop_timer() -> None:
            await broker.leader.transactions.stop()
            await broker.leader.timer.stop()
            await broker.leader.timer.save()  # appends recalls that fail
            await broker.leader.flusher.sync()

        await world.process.spawn(stop_timer())

    def _note_end_state(self) -> None:
        world = self.world
        if world.cluster is not None:
            self._state = stored.derived_state(world.cluster.broker.core)
            self._failing.record(world.cluster.broker.core)
            if self._operator is not None:
                self._listed = steering.listed_in(world.cluster.broker.core)
            self._stood_still_ms = world.machine.wall_ms()
            self._topic_ids = dict(world.cluster.broker.core.topic_registry.topic_ids)
            self._timer_state = timers.state_of(world.cluster.broker.core)

    def judge(self) -> Verdict:
        """Hold everything that was seen against the invariants."""
        world, swarm = self.world, self.world.swarm
        folder = DATA / "broker"
        try:
            messages = stored.messages_in_log(world.disk, folder, swarm.options.broker.log.segment_bytes)
        except CorruptDataError as error:
            self.verdict.broke("S7", f"in the end the log is damaged, and the server has not said so: {error}")
            return self.verdict
        others = [each for each in messages if not steering.is_own(each.topic)]
        verdict = Checker(swarm, world.history, others, world.arrivals, self._failing.fails).judge()
        verdict.violations[:0] = self.verdict.violations + self._passing.violations()
        verdict.violations += self._priorities.violations(messages, world.history)
        verdict.violations += self._lives.violations(messages, world.history)
        if self._state is None:
            return verdict  # there was no server in the end, which is said already
        records = stored.records_in_log(world.disk, folder, swarm.options.broker.log.segment_bytes)
        if self._pledges is not None:
            verdict.violations += self._pledges.judge([records], world.history, is_lossy=swarm.is_lossy)
        if self._operator is not None:
            verdict.violations += self._judge_operator(self._operator, messages, records)
        if self._lite is not None:
            verdict.violations += self._lite.judge(
                records, world.history, is_lossy=swarm.is_lossy, clocks_differ=swarm.clocks_differ
            )
        if self._guests is not None:
            way_s = swarm.delay_s_max + swarm.sync_s_max
            verdict.violations += self._guests.judge(world.history, swarm.options.proxy, way_s, world.history.is_calm)
        if self._passing_group is not None:
            verdict.violations += self._passing_group.judge(world.history, world.history.is_calm)
        delayed = Timers(swarm, world.history, records, world.appends, self._topic_ids, verdict, self._failing.fails)
        delayed.judge(self._stood_still_ms)
        delayed.compare("the running server", self._timer_state, self._stood_still_ms)
        clock = ProcessClock(world.loop, world.machine)
        for what, without in (
            ("recovery", ""),
            ("recovery without index files", "queueindex"),
            ("recovery without timer files", "/timer/"),
        ):
            disk = world.disk.copy(without)
            try:
                core = stored.recovered(
                    disk, folder, swarm.options.broker, clock, swarm.options.controller.cluster_name
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what this simulator is there to find
                verdict.broke("S6", f"{what} fails: {error!r}")
                continue
            state = stored.derived_state(core)
            if state != self._state:
                verdict.broke("S6", f"{what} gives another state: {_difference(self._state, state)}")
            delayed.compare(what, timers.state_of(core), self._stood_still_ms)
        return verdict

    def _judge_operator(
        self, operator: Operator, messages: list[StoredMessage], records: list[StoredRecord]
    ) -> list[str]:
        own = [each for each in messages if steering.is_own(each.topic)]
        swarm, history = operator.swarm_of(self.world.swarm), operator.history_after(self.world.history)
        checker = _SteeredChecker(swarm, history, own, {}, self._failing.fails)
        return operator.judge(checker, records, self._listed)


class _SteeredChecker(Steered, Checker):
    """Judges what belongs to the operator's workload."""


def _difference(first: dict[str, Any], second: dict[str, Any]) -> str:
    for kind, values in first.items():
        for key in {**values, **second[kind]}:
            one, other = values.get(key), second[kind].get(key)
            if one != other:
                if kind == "queues" and one is not None and other is not None:
                    parts = [pair for pair in zip_longest(one[1], other[1]) if pair[0] != pair[1]]
                    return f"{kind} {key}: {one[0]}+{len(one[1])}, {other[0]}+{len(other[1])}, first {parts[:1]}"
                return f"{kind} {key}: {one} against {other}"
    return "none"
