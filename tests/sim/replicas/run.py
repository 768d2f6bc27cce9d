"""One seed of a broker group from beginning to end: faults, healing, and the verdict."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.record import RecordKind
from popwheel_common.errors import CorruptDataError
from popwheel_rpc.service import Method
from tests.sim import steering, stored, timers, transactions
from tests.sim.checker import Verdict
from tests.sim.cluster.programs import DATA
from tests.sim.course import HEAL_S_MAX, QUIET_LOOKS, Course, run_course
from tests.sim.failing_records import FailingRecords
from tests.sim.history import Disaster, History
from tests.sim.lives import BriefProducer, LifeWatch
from tests.sim.loop import SimLoop
from tests.sim.ordered import BurstProducer, OrderedProducer
from tests.sim.outcome import Outcome
from tests.sim.passing_topic import TOPIC, PassingTopic, mixed
from tests.sim.priorities import PriorityProducer, PriorityWatch
from tests.sim.process import ProcessClock
from tests.sim.producers import Producer
from tests.sim.replicas.checker import GroupChecker
from tests.sim.replicas.faults import Faults
from tests.sim.replicas.probes import Probes
from tests.sim.replicas.swarm import HOUR_MS, GroupSwarm, draw
from tests.sim.replicas.world import GroupWorld
from tests.sim.run import _difference
from tests.sim.steering import Operator, Steered
from tests.sim.swarm import READ_S_MAX, TAGS
from tests.sim.timers import Timers, TimerSnapshot
from tests.sim.tools import Tools
from tests.sim.trace import Trace
from tests.sim.transactions import Pledges

_BURSTS_SHARE = 0.5
"""How often a seed with message groups has a producer that waits for no answers."""
_BEGIN_S_MAX = 30.0
_POLL_S = 0.2
_LATE_S_MAX = 15.0
"""So long after the last fault timers may be late: a master must be found first."""


def run_seed(
    seed: int, only: tuple[str, ...] | None = None, settings: dict[str, Any] | None = None, whole_trace: bool = False
) -> Outcome:
    """Run one seed.

    Args:
        seed: decides everything.
        only: faults that may be on; None for all.
        settings: settings of the brokers that are not drawn.
        whole_trace: give the trace even if all is well.
    """
    swarm = draw(seed, only, settings)
    return run_course(
        swarm, lambda loop, trace: _Run(loop, trace, swarm, only), "tests.sim.replicas", whole_trace=whole_trace
    )


class _SteeredChecker(Steered, GroupChecker):
    """Judges what belongs to the operator's workload."""


_RECOVERIES = (
    ("recovery", ""),
    ("recovery without index files", "queueindex"),
    ("recovery without timer files", "/timer/"),
)
"""Ways in which a master's files are recovered in the end; of a slave's one of them."""


class _Run(Course[GroupSwarm]):
    """The course of one run.

    Args:
        loop: the loop.
        trace: what happens goes there.
        swarm: what was drawn.
        only: faults and workloads that may be on; None for all.
    """

    def __init__(self, loop: SimLoop, trace: Trace, swarm: GroupSwarm, only: tuple[str, ...] | None) -> None:
        self.history = History()
        # Where retention is of some seconds it takes what is quarantined before anybody gives it back.
        may_fail = () if swarm.has_retention else only
        chance = swarm.random("replicas failing records")
        self._failing = failing = FailingRecords(chance, trace, self.history, may_fail)
        self.world = world = GroupWorld(
            loop,
            trace,
            lambda purpose: swarm.random(f"replicas {purpose}"),
            swarm.options,
            swarm.constants,
            self.history,
            swarm.controllers,
            swarm.replicas,
            swarm.proxies,
        )
        super().__init__(loop, trace, swarm, lambda: world.leader, world.findings)
        self.verdict.violations = world.watch.broken  # what the watch sees is part of the verdict
        world.network.delay_s = (0.0, swarm.delay_s_max)
        for machine in world.machines():
            machine.disk.sync_s_max = swarm.sync_s_max
            machine.disk.cached_bytes, machine.disk.read_s_max = swarm.memory, READ_S_MAX
        for replica, offset_ms in zip(world.replicas.values(), swarm.clock_offsets_ms(), strict=True):
            replica.clock.offset_ms = offset_ms
        self.faults = Faults(world, swarm)
        self._end: dict[int, _Open] = {}
        self._end_seen = 0
        self._topic_ids: dict[str, int] = {}
        self._master = -1
        self._chance = swarm.random("replicas recoveries")
        producers = [
            Producer(
                name,
                self._tools(name),
                swarm.random(name),
                swarm.plain_topics,
                TAGS,
                *settings,
                swarm.types,
                swarm.delays,
                swarm.random(f"p{number} odd") if swarm.odd else None,
            )
            for number, settings in enumerate(swarm.producers)
            for name in [f"p{number}"]
        ]
        self._first_producer = producers[0]
        self.clients += producers
        if swarm.is_ordered:
            self.clients.append(OrderedProducer("po", self._tools("po"), swarm.random("po")))
            if swarm.random("replicas bursts").random() < _BURSTS_SHARE:
                way = world.client("pb", swarm.loyal)
                tools = Tools(way, self.history, trace, loop, world.log_end)
                self.clients.append(BurstProducer("pb", tools, swarm.random("pb"), way.to_one_proxy))
        if swarm.levels:
            self.clients.append(PriorityProducer("pp", self._tools("pp"), swarm.random("pp")))
        if swarm.expired:
            self.clients.append(BriefProducer("pl", self._tools("pl"), swarm.random("pl"), swarm))
        self._lives = LifeWatch()
        self._priorities = PriorityWatch(loop.time, swarm.options.broker.pop.priority_wait_ms, swarm.levels)
        self.draw_consumers(self._tools)
        self._passing: PassingTopic | None = None
        if "topic comes and goes" in swarm.faults:
            self._passing = self.added(
                PassingTopic(
                    self._tools("passing"),
                    swarm.random("replicas passing"),
                    self.admin,
                    swarm.delays,
                    self._passing_is_known,
                    self._passing_is_gone,
                )
            )
        self._pledges: Pledges | None = None
        if transactions.is_on(swarm.seed, only):
            self._pledges = self.added(Pledges(self._tools("pledges"), swarm.random("replicas pledges"), failing.fails))
        self._operator: Operator | None = None
        if steering.is_on(swarm.seed, only) and not swarm.has_retention:
            chance, attempts = swarm.random("replicas operator"), steering.attempts_of(swarm.seed)
            self._operator = self.added(Operator(self._tools("operator"), chance, self._ask, failing.fails, attempts))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have messages fail, and watch all pops."""
        with self._failing.spread(), self._priorities.on(), self._lives.on():
            yield

    def kill(self) -> None:
        """Kill all machines."""
        for machine in (*self.world.machines(), *self.world.twins.values()):
            machine.kill()

    def counts(self) -> str:
        """Return how much there was, in words."""
        history, world = self.history, self.world
        return (
            f"sent={len(history.sent)} got={len(history.deliveries)} epochs={len(world.watch.epochs)} "
            f"lives={sum(each.lives for each in world.machines())} faults={self.faults.count}"
        )

    async def _ask(self, method: Method[Any, Any], request: Any) -> Any:
        """Call the master as a controller does."""
        master = self.world.master
        served = None
        if master is not None and master.serving and master.process is not None and master.program is not None:
            served = master.process, master.program.app.service
        return await steering.ask(self.world.loop, served, method, request)

    def _tools(self, name: str) -> Tools:
        world = self.world
        return Tools(world.client(name, self.swarm.loyal), self.history, world.trace, world.loop, world.log_end)

    async def live(self) -> None:
        """Set up, let faults strike, heal, and wait until all work is done."""
        world, loop = self.world, self.loop
        await self._begin()
        self.begin_clients()
        striking = loop.create_task(self.faults.run())
        tending = [loop.create_task(self.faults.keep_alive()), loop.create_task(self._end_idle_often())]
        await asyncio.sleep(self.swarm.safety_s)
        striking.cancel()
        await self.faults.until_seen()
        self.trace.add("sim", "heal")
        await self.faults.heal()
        self._failing.heal()
        if self.faults.count:
            self.history.troubles.append((0.0, loop.time() + _LATE_S_MAX))
        await self.end_sending()
        await self._finish_work()
        if not self.verdict.violations and self.swarm.is_probed and not self._failing.is_on:
            await self._probe()
        await self.end_clients()
        self.faults.restore()
        await self._stand_still()
        world.watch.look()
        self._note_end_state()
        for task in tending:
            task.cancel()
        await asyncio.wait(tending)
        for machine in world.machines():  # controllers first, so that nobody leads anew and goes on
            await machine.stop()

    async def _begin(self) -> None:
        world, loop = self.world, self.loop
        for machine in world.machines():
            loop.create_task(machine.boot())
        until_s = loop.time() + _BEGIN_S_MAX
        while world.leader is None and loop.time() < until_s:
            await asyncio.sleep(0.05)
        await self.make_names()
        while world.master is None and loop.time() < until_s:
            await asyncio.sleep(0.05)
        world.trace.add("sim", "begun")

    def _passing_is_known(self) -> bool:
        """Whether all proxies know of the topic as it is now."""
        proxies, controllers = self.world.proxies.values(), self.world.controllers.values()
        known = [each.program.app.view.topics.get(TOPIC) for each in proxies if each.program is not None]
        there = [each.program.app.state.topics.get(TOPIC) for each in controllers if each.program is not None]
        newest = max((topic.id for topic in there if topic is not None), default=0)
        return all(topic is not None and topic.id == newest for topic in known)

    def _passing_is_gone(self) -> bool:
        """Whether all proxies know that the topic is deleted."""
        views = [each.program.app.view for each in self.world.proxies.values() if each.program is not None]
        return all(view.topics.get(TOPIC) is None for view in views)

    async def _end_idle_often(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            self.world.watch.look()

    async def _finish_work(self) -> None:
        """Wait until nothing is left to do, within a budget of virtual time (L2); a timer that catches up has more."""
        loop = self.world.loop
        healed = progress = loop.time()
        quiet, behind_ms = 0, HOUR_MS
        while loop.time() < progress + HEAL_S_MAX:
            await asyncio.sleep(0.5)
            if self._timer_behind_ms() < behind_ms - 1000:  # its clock was slow, and it has an hour of turns to make
                progress, behind_ms = loop.time(), self._timer_behind_ms()
            quiet = 0 if self._left() or self._released() else quiet + 1
            if quiet == QUIET_LOOKS:
                self.world.trace.add("sim", "finished", f"after={loop.time() - healed:.1f}")
                return
        self.verdict.broke("L2", f"for {HEAL_S_MAX} s without faults nothing was got done of this: {self._left()}")

    def _released(self) -> int:
        """An operator asks the master to go on with what is quarantined; how much of it still is."""
        master = self.world.master
        return self._failing.hand_over(master.program.app.core) if master and master.program and master.serving else 0

    def _timer_behind_ms(self) -> int:
        master = self.world.master
        if master is None or master.program is None:
            return HOUR_MS
        return max(0, master.clock.wall_ms() - master.program.app.core.timer.state.commit_read_time_ms)

    async def _probe(self) -> None:
        probes = Probes(self.world, self.swarm, self.history, self.verdict)
        await probes.wake(self._first_producer, self.consumers)
        await probes.report_the_age()
        await self._finish_work()

    def _left(self) -> str:
        """What is not done yet, in words."""
        world = self.world
        for machine in world.machines():
            if not machine.serving:
                return f"{machine.name} does not serve"
        master, group = world.master, world.group
        if master is None or group is None or master.program is None:
            return f"there is no master: {group}"
        if set(group["sync_state_set"]) != set(world.replicas):
            return f"the sync-state set is {group['sync_state_set']}"
        if unknown := world.unknown:
            return f"no controller leads that knows of these living replicas: {unknown}"
        app = master.program.app
        for proxy in world.proxies.values():
            if proxy.program is None or not any(each.address for each in proxy.program.app.view.brokers.values()):
                return f"{proxy.name} knows of no master"
        core = app.core
        end, self._end_seen = self._end_seen, app.files.end_position
        if app.files.high_watermark < min(end, app.files.end_position):
            return f"what is behind {app.files.high_watermark} is not confirmed, so nobody can have it yet"
        if count := core.state.merge_buffer.unrecorded:
            return f"the log does not say of {count} groups and queues what they have passed"
        return self.left_in(core, master.clock.wall_ms())

    async def _stand_still(self) -> None:
        """End what appends by itself, and wait until all replicas have the same."""
        world = self.world
        master = world.master
        if master is None or master.program is None or master.process is None:
            return
        app = master.program.app
        leading = app.role.leader
        assert leading is not None

        async def stop_timer() -> None:
            await leading.timer.stop()
            await leading.timer.save()  # a broker that stops does, and may append recalls anew for it
            await leading.reviver.stop()
            await leading.transactions.stop()
            deque(leading.core.record_progress(), 0)
            await leading.flusher.sync()

        await master.process.spawn(stop_timer())
        for _ in range(100):
            files = [each.program.app.files for each in world.replicas.values() if each.program is not None]
            end = app.files.end_position
            if all(each.end_position == each.synced_position == each.high_watermark == end for each in files):
                return
            await asyncio.sleep(0.1)
        ends = {
            number: (each.end_position, each.synced_position, each.high_watermark)
            for number, machine in world.replicas.items()
            if machine.program is not None
            for each in [machine.program.app.files]
        }
        self.verdict.broke("L2", f"replicas do not get to one end, one synced and one confirmed position: {ends}")

    def _note_end_state(self) -> None:
        world = self.world
        master = world.master
        if master is None or master.program is None:
            return
        self._master = next(number for number, each in world.replicas.items() if each is master)
        self._topic_ids = dict(master.program.app.core.topic_registry.topic_ids)
        self._failing.record(master.program.app.core)
        if self._operator is not None:
            self._listed = steering.listed_in(master.program.app.core)
        for number, machine in world.replicas.items():
            if machine.program is not None:
                self._end[number] = _Open(machine.program.app.core, machine.clock.wall_ms())
        if self.swarm.is_safe:
            self.history.disasters = [each for each in self.history.disasters if world.watch.was_felt(each)]
        else:
            # A new master lacks what its predecessor had answered, also later, behind where the epoch begins.
            starts = {each.epoch: each.position for each in master.program.app.files.epochs}
            for epoch, _, elected_s in world.watch.epochs[1:]:
                start = min((position for each, position in starts.items() if each >= epoch), default=0)
                self.history.disasters += [Disaster(when, "power", start) for when in (elected_s, world.loop.time())]

    def judge(self) -> Verdict:
        """Hold everything that was seen against the invariants."""
        world, swarm, broker = self.world, self.swarm, self.swarm.options.broker
        if self._master < 0:
            return self.verdict  # there was no master in the end, which is said already
        try:
            records = {
                number: stored.records_in_log(machine.disk, DATA, broker.log.segment_bytes)
                for number, machine in world.replicas.items()
            }
        except CorruptDataError as error:
            self.verdict.broke("S7", f"in the end a log is damaged, and nobody has said so: {error}")
            return self.verdict
        log = records[self._master]
        deleted = log[0].position if log else 0
        if swarm.has_retention and deleted:
            before = world.watch.confirmed_before(deleted)
            world.trace.add("sim", "deleted", deleted)
            log = [*stored.records_of(before), *log]
            if len(before) < deleted:
                self.verdict.broke("S1", f"the log begins at {deleted}, and was confirmed up to {len(before)} only")
        epochs = [epoch for epoch, _, _ in world.watch.epochs]
        fails = self._failing.fails
        messages = stored.messages_of(log)
        others = [each for each in messages if not steering.is_own(each.topic)]
        verdict = GroupChecker(swarm, self.history, others, deleted, epochs, fails).judge()
        verdict.violations[:0] = self.verdict.violations
        if not swarm.has_retention:  # which takes what it was still to be seen by when it was stored
            verdict.violations += self._priorities.violations(messages, self.history)
        verdict.violations += self._lives.violations(messages, self.history)
        for number in records:
            self._check_same(verdict, number, records)
        appends = world.watch.appends(log)
        delayed = Timers(swarm, self.history, log, appends, self._topic_ids, verdict, fails)
        delayed.judge(self._end[self._master].wall_ms)
        if self._pledges is not None:
            verdict.violations += self._pledges.judge([log], self.history, is_lossy=swarm.is_lossy, deleted=deleted)
        if self._operator is not None:
            own = [each for each in messages if steering.is_own(each.topic)]
            history = self._operator.history_after(self.history)
            checker = _SteeredChecker(self._operator.swarm_of(swarm), history, own, deleted, epochs, fails)
            verdict.violations += self._operator.judge(checker, log, self._listed)
        if self._passing is not None:
            # One who was deposed knows what his successor's log says when he learns of it. Only where he waits for no
            # slave may he give messages out until then.
            forgotten = [
                (0 if swarm.is_safe else each.epoch, appends[each.position][1])
                for each in log
                if each.kind == RecordKind.FORGET_TOPIC and each.payload.decode() == TOPIC
                if each.position in appends
            ]
            verdict.violations += self._passing.violations(forgotten)
            verdict.violations += self._passing.lost(log, appends)
            verdict.violations += mixed(log, world.watch.puts)
        for number, held in self._end.items():
            self._check_derived(verdict, delayed, number, held)
        return verdict

    def _check_same(self, verdict: Verdict, number: int, records: dict[int, Any]) -> None:
        """S4: all replicas hold the same, as far as they go back."""
        of_master, own = records[self._master], records[number]
        begin = max(each[0].position for each in (of_master, own)) if of_master and own else 0
        one = [each for each in of_master if each.position >= begin]
        other = [each for each in own if each.position >= begin]
        if one != other:
            different = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]][:1]
            verdict.broke(
                "S4", f"replica {number} holds {len(other)} records, the master {len(one)}; different: {different}"
            )

    def _check_derived(self, verdict: Verdict, delayed: Timers, number: int, held: "_Open") -> None:
        """S6: what each replica has folded is what follows from its log."""
        world, broker = self.world, self.swarm.options.broker
        machine = world.replicas[number]
        if number == self._master:
            delayed.compare(f"replica {number}", held.timer, held.wall_ms)
        clock = ProcessClock(world.loop, machine.clock)
        ways = _RECOVERIES if number == self._master else (self._chance.choice(_RECOVERIES),)
        for what, without in ways:
            disk = machine.disk.copy(without)
            try:
                core = stored.recovered(disk, DATA, broker, clock, self.swarm.options.controller.cluster_name)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what this simulator is there to find
                verdict.broke("S6", f"{what} of replica {number} fails: {error!r}")
                continue
            state = stored.derived_state(core)
            before = _less_deleted(held.state, state) if self.swarm.has_retention else held.state
            if state != before:
                verdict.broke("S6", f"{what} of replica {number} gives another state: {_difference(before, state)}")
            delayed.compare(f"{what} of replica {number}", timers.state_of(core), held.wall_ms)


class _Open:
    """What a replica holds in the end.

    Args:
        core: its core.
        wall_ms: its wall clock.
    """

    def __init__(self, core: BrokerCore, wall_ms: int) -> None:
        self.state = stored.derived_state(core)
        self.timer: TimerSnapshot = timers.state_of(core)
        self.wall_ms = wall_ms


def _less_deleted(held: dict[str, Any], recovered: dict[str, Any]) -> dict[str, Any]:
    """What a replica held, less what retention has deleted while its process ended."""
    queues = {}
    for name, (begin, entries) in held["queues"].items():
        later, _ = recovered["queues"].get(name, (begin, []))
        deleted = max(0, later - begin)
        queues[name] = begin + deleted, entries[deleted:]
    return {**held, "queues": queues}
