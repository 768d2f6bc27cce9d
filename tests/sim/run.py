"""One seed from beginning to end: faults, healing, and the verdict."""

import asyncio
import gc
from itertools import zip_longest
from typing import Any

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.record import StoredRecord
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.pause import pause_group
from popwheel_rpc.service import Method
from tests.sim import guests, lite, passing_group, steering, stored, timers, transactions
from tests.sim.checker import Checker, Verdict
from tests.sim.clients import Consumer, Producer
from tests.sim.delays import NEAR_MS
from tests.sim.failing_records import FailingRecords
from tests.sim.faults import Faults
from tests.sim.guests import Guests
from tests.sim.lite import LiteWorkload
from tests.sim.lives import BriefProducer, LifeWatch
from tests.sim.loop import SimLoop, StuckError
from tests.sim.ordered import OrderedProducer
from tests.sim.outcome import Outcome
from tests.sim.passing_group import PassingGroup
from tests.sim.passing_topic import REST_MS, TOPIC, PassingTopic, carried_out
from tests.sim.priorities import PriorityProducer, PriorityWatch
from tests.sim.process import Process, ProcessClock
from tests.sim.renewals import Renewals
from tests.sim.steering import Operator, Steered
from tests.sim.stored import StoredMessage
from tests.sim.swarm import BRIEF_TOPIC, FIFO_GROUPS, TAGS, draw
from tests.sim.timers import Timers
from tests.sim.tools import Tools
from tests.sim.trace import Trace
from tests.sim.transactions import Pledges
from tests.sim.world import DATA, CapturedLog, World

_HEAL_S_MAX = 120.0
_QUIET_LOOKS = 3
"""So often in a row nothing is left to do: a message that is moved is for a moment neither here nor there."""


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
    loop = SimLoop()
    trace = Trace(loop)
    trace.add("sim", "seed", swarm.describe())
    world = World(loop, swarm, trace)
    failing = FailingRecords(swarm.random("failing records"), trace, world.history, only)
    has_room = not swarm.hoarder  # else there are enough groups that share what is left
    run = _Run(
        *(world, failing, Renewals(world, only is None)),
        has_transactions=transactions.is_on(seed, only),
        has_operator=has_room and steering.is_on(seed, only),
        has_lite_topics=has_room and lite.is_on(seed, only),
        has_guests=has_room and guests.is_on(seed, only),
        has_passing_group=has_room and passing_group.is_on(seed, only),
    )
    collecting = gc.isenabled()
    gc.disable()  # destructors of what a killed process leaves must not run in the middle
    try:
        asyncio.set_event_loop(loop)
        with CapturedLog(trace, world.findings.append) as log:
            try:
                with failing.spread(), run.priorities.on(), run.lives.on():
                    loop.run_until_complete(run.live())
                verdict = run.judge()
            except StuckError as error:
                verdict = Verdict()
                verdict.broke("L2", str(error))
            finally:
                digest = trace.digest
                log.muted = True  # what comes now comes from the dead
                world.crash("process")
                loop.bury()
    finally:
        asyncio.set_event_loop(None)
        if collecting:
            gc.enable()
    for finding in world.findings:
        verdict.broke("E1", f"the server's log: {finding}")
    for failure in loop.failures:
        verdict.broke(
            "E1",
            f"{failure.get('message')}: {failure.get('exception')!r} in {failure.get('task') or failure.get('handle')}",
        )
    history = world.history
    counts = (
        f"{verdict.counts()} sent={len(history.sent)} got={len(history.deliveries)} lives={world.lives} "
        f"faults={run.faults.count} steps={loop.steps} seconds={loop.time():.1f}"
    )
    story = (swarm.describe(), *(trace.lines() if verdict.violations or whole_trace else ()))
    return Outcome(seed, digest, tuple(verdict.violations), counts, story)


class _Run:
    """The course of one run.

    Args:
        world: where it takes place.
        failing: messages that fail by themselves.
        renewals: messages that are hidden for longer than others of their pop.
        has_transactions: whether half messages are sent.
        has_operator: whether an operator resets offsets and redrives dead letters.
        has_lite_topics: whether lite topics are sent to and read.
        has_guests: whether there are push consumers that say goodbye.
        has_passing_group: whether a group is deleted while its consumers poll.
    """

    def __init__(
        self,
        world: World,
        failing: FailingRecords,
        renewals: Renewals,
        *,
        has_transactions: bool,
        has_operator: bool,
        has_lite_topics: bool,
        has_guests: bool,
        has_passing_group: bool,
    ) -> None:
        self.world = world
        self._renewals = renewals
        self._failing = failing
        self.faults = Faults(world)
        self.verdict = Verdict()
        self._state: dict[str, Any] | None = None
        self._learned_deletion: Process | None = None
        """In which the broker must have learned of the topic's last deletion as it was made; one that comes later keeps
        what the controllers do not know."""
        self._tools = Tools(world.network, world.history, world.trace, world.loop, world.log_end)
        swarm = world.swarm
        self._producers = [
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
            self._producers.append(OrderedProducer("po", self._tools, swarm.random("po")))
        if swarm.levels:
            self._producers.append(PriorityProducer("pp", self._tools, swarm.random("pp")))
        if swarm.expired:
            self._producers.append(BriefProducer("pb", self._tools, swarm.random("pb")))
        self.lives = LifeWatch()
        self.priorities = PriorityWatch(world.loop.time, swarm.options.broker.pop.priority_wait_ms, swarm.levels)
        consumers: list[Consumer] = []
        for subscription, all_manners in swarm.manners.items():
            for manners in all_manners:
                name = f"c{len(consumers)}"
                consumers.append(Consumer(name, self._tools, swarm.random(name), subscription, manners))
        self._consumers = consumers
        self._passing = PassingTopic(
            self._tools, swarm.random("passing"), self._create_passing, self._delete_passing, swarm.delays
        )

        self._pledges: Pledges | None = None
        if has_transactions:
            self._pledges = Pledges(self._tools, swarm.random("pledges"), failing.fails)
        self._lite: LiteWorkload | None = None
        if has_lite_topics:
            self._lite = LiteWorkload(
                *(world.broker_network, world.trace, world.loop, lambda: world.log_end.position),
                *(swarm.random("lite workload"), failing.fails),
            )
        self._guests: Guests | None = None
        if has_guests:
            self._guests = Guests(lambda _: self._tools, swarm.random("guests"), failing.fails)
        self._passing_group: PassingGroup | None = None
        if has_passing_group:
            self._passing_group = PassingGroup(
                self._tools,
                swarm.random("passing group"),
                self._create_group,
                self._delete_group,
                lambda: [self.world.cluster.broker.core] if self.world.serving and self.world.cluster else [],
                failing.fails,
                self._pause_group,
                swarm.random("pauses of the passing group"),
            )
        self._operator: Operator | None = None
        if has_operator:
            self._operator = Operator(self._tools, swarm.random("operator"), self._ask, failing.fails)

    async def _ask(self, method: Method[Any, Any], request: Any) -> Any:
        """Call the broker as the controller does."""
        world = self.world
        served = None
        if world.serving and world.process is not None and world.cluster is not None:
            served = world.process, world.cluster.broker.service
        return await steering.ask(world.loop, served, method, request)

    async def live(self) -> None:
        """Set up, let faults strike, heal, and wait until all work is done."""
        world, loop = self.world, self.world.loop
        await world.boot()
        await self._make_topics()
        world.weather.delay_s_max = world.swarm.delay_s_max
        producing = [loop.create_task(producer.run()) for producer in self._producers]
        consuming = [loop.create_task(consumer.run()) for consumer in self._consumers]
        passing = loop.create_task(self._passing.run())
        if self._pledges is not None:
            producing.append(loop.create_task(self._pledges.run()))
        if self._operator is not None:
            producing.append(loop.create_task(self._operator.run()))
        if self._lite is not None:
            producing.append(loop.create_task(self._lite.run()))
        if self._guests is not None:
            producing.append(loop.create_task(self._guests.run()))
        if self._passing_group is not None:
            producing.append(loop.create_task(self._passing_group.run()))
        striking = [loop.create_task(self.faults.run()), loop.create_task(self.faults.keep_alive())]
        renewing = loop.create_task(self._renewals.run())
        await asyncio.sleep(world.swarm.safety_s)
        striking[0].cancel()
        renewing.cancel()
        world.trace.add("sim", "heal")
        self.faults.heal()
        self._failing.heal()
        for producer in self._producers:
            producer.stopping = True
        if self._pledges is not None:
            self._pledges.stopping = True
        if self._operator is not None:
            self._operator.stopping = True
        if self._lite is not None:
            self._lite.stopping = True
        if self._guests is not None:
            self._guests.stopping = True
        if self._passing_group is not None:
            self._passing_group.stopping = True
        reforming = [loop.create_task(consumer.reform()) for consumer in self._consumers]
        self._passing.stopping = True
        await asyncio.wait((*producing, passing))
        if world.findings or loop.failures:
            world.trace.add("sim", "findings", len(world.findings))
        await self._finish_work()
        for task in reforming:
            task.cancel()
        await asyncio.wait(reforming)
        for consumer in self._consumers:
            consumer.stopping = True
        await asyncio.wait(consuming)
        if self._pledges is not None:
            await self._pledges.end()
        if self._operator is not None:
            await self._operator.end()
        if self._lite is not None:
            await self._lite.end()
        if self._guests is not None:
            await self._guests.end()
        striking[1].cancel()
        await asyncio.wait(striking)
        for task in (*producing, *consuming, passing):
            task.result()
        await self._stand_still()
        self._note_end_state()
        await world.stop()

    async def _make_topics(self) -> None:
        cluster = self.world.cluster
        process = self.world.process
        assert cluster is not None and process is not None
        options = self.world.swarm.options.controller
        state_writer = cluster.controller._state_writer
        topics, types = dict(self.world.swarm.topics), dict(self.world.swarm.types)
        if self._pledges is not None:
            topics[transactions.TOPIC], types[transactions.TOPIC] = 2, transactions.TYPE
        groups = dict(self.world.swarm.groups)
        if self._operator is not None:
            topics[steering.TOPIC], types[steering.TOPIC] = 2, steering.TYPE
            groups[steering.GROUP] = steering.attempts_of(self.world.swarm.seed)
        if self._guests is not None:
            topics[guests.TOPIC], types[guests.TOPIC] = 2, guests.TYPE
            groups[guests.GROUP] = guests.ATTEMPTS_MAX
        if self._passing_group is not None:
            topics[passing_group.TOPIC], types[passing_group.TOPIC] = 2, passing_group.TYPE
        for name, queues in topics.items():

            def topic(state: ClusterState, name: str = name, queues: int = queues) -> Any:
                settings = {"expired_messages": self.world.swarm.expired} if name == BRIEF_TOPIC else {}
                return state.create_topic(options, name, types[name], queues, settings)

            await state_writer.change(topic)
        if self._lite is not None:
            expiration_ms = self._lite.expiration_ms
            await state_writer.change(
                lambda state: state.create_topic(
                    options, lite.TOPIC, TopicType.LITE, settings={"lite_expiration_ms": expiration_ms}
                )
            )
            groups[lite.GROUP] = lite.ATTEMPTS_MAX
        for name, attempts in groups.items():

            def group(state: ClusterState, name: str = name, attempts: int = attempts) -> Any:
                return state.create_group(options, name, attempts, name in FIFO_GROUPS)

            await state_writer.change(group)

    async def _create_passing(self) -> bool:
        cluster, options = self.world.cluster, self.world.swarm.options.controller
        if cluster is None or not self.world.serving:
            return False
        if TOPIC in cluster.controller.state.topics:
            return True
        change, kind = cluster.controller._state_writer.change, self._passing.kind
        return await carried_out(change(lambda state: state.create_topic(options, TOPIC, kind, 1)))

    async def _delete_passing(self) -> bool:
        cluster = self.world.cluster
        if cluster is None or not self.world.serving:
            return False
        if TOPIC not in cluster.controller.state.topics:
            return True
        process = self.world.process
        controller = cluster.controller
        now_ms = controller._clock.wall_ms()
        is_deleted = await carried_out(
            controller._state_writer.change(lambda state: state.delete_topic(TOPIC, now_ms, REST_MS))
        )
        if is_deleted and self._passing.stopping and "bad ways" not in self.world.swarm.faults:
            self._learned_deletion = process
        return is_deleted

    async def _create_group(self) -> bool:
        cluster, options, name = self.world.cluster, self.world.swarm.options.controller, passing_group.GROUP
        if cluster is None or not self.world.serving:
            return False
        if name in cluster.controller.state.groups:
            return True
        change = cluster.controller._state_writer.change
        return await carried_out(change(lambda state: state.create_group(options, name, passing_group.ATTEMPTS_MAX)))

    async def _pause_group(self, paused: bool) -> bool:
        cluster = self.world.cluster
        if cluster is None or not self.world.serving or passing_group.GROUP not in cluster.controller.state.groups:
            return False
        change = cluster.controller._state_writer.change
        return await carried_out(change(lambda state: pause_group(state, passing_group.GROUP, int(paused))))

    async def _delete_group(self) -> bool:
        cluster, name = self.world.cluster, passing_group.GROUP
        if cluster is None or not self.world.serving:
            return False
        if name not in cluster.controller.state.groups:
            return True
        controller = cluster.controller
        now_ms = controller._clock.wall_ms()
        return await carried_out(
            controller._state_writer.change(lambda state: state.delete_group(name, now_ms, REST_MS))
        )

    async def _finish_work(self) -> None:
        """Wait until nothing is left to do, within a budget of virtual time (L2)."""
        world = self.world
        until = world.loop.time() + _HEAL_S_MAX
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
            if quiet == _QUIET_LOOKS:
                world.trace.add("sim", "finished", f"after={world.loop.time() - healed:.1f}")
                return
            if world.process is None:
                self.faults.mend()
            elif world.serving and world.cluster is not None and _is_damaged(world.cluster.broker.core):
                await world.stop()  # an operator has restored what was damaged and starts the server anew
        self.verdict.broke(
            "L2", f"after {_HEAL_S_MAX} s without faults there is still work: {self._left()}; {world.refusals[-1:]}"
        )

    def _left(self) -> str:
        """What is not done yet, in words."""
        world = self.world
        if world.cluster is None:
            return "no server"
        core = world.cluster.broker.core
        if core.state.table.open_messages:
            now_ms = core.pop_clock.now_ms()
            some = [f"{each.id // 8} {each.group} due in {each.due_ms - now_ms} ms" for each in core.state.table][:3]
            return f"{core.state.table.open_messages} messages are given out: {some}"
        if _is_damaged(core):
            return f"damaged: {core.pops.damaged.values()} {core.timer.state.damaged}"
        if pending := core.timer.state.pending.histogram(world.machine.wall_ms(), [NEAR_MS])[0]:
            return f"{pending} messages are due soon"
        waiting = {
            f"{each.group} {each.topic}": count
            for each in world.swarm.subscriptions
            if (count := core.pops.waiting(each.group, each.topic, None))
        }
        if waiting:
            return f"waiting: {waiting}"
        if self._pledges is not None and (left := self._pledges.left(core)):
            return left
        if self._operator is not None and (left := self._operator.left(core)):
            return left
        if self._lite is not None and (left := self._lite.left(core)):
            return left
        if self._guests is not None and (left := self._guests.left(core)):
            return left
        if self._passing_group is not None and (left := self._passing_group.left(core)):
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
            self._progress = stored.progress(world.cluster.broker.core)
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
        verdict.violations += self.priorities.violations(messages, world.history)
        verdict.violations += self.lives.violations(messages, world.history)
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


def _is_damaged(core: BrokerCore) -> bool:
    return bool(core.pops.damaged or core.timer.state.damaged)


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
