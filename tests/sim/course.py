"""One seed from beginning to end, in whatever world: clients, faults, healing, and the verdict."""

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, TypeVar

from popwheel_broker.core.core import BrokerCore
from popwheel_controller.app import ControllerApp
from tests.sim.admin import Admin
from tests.sim.captured_log import CapturedLog
from tests.sim.checker import Verdict
from tests.sim.consumers import Consumer
from tests.sim.delays import NEAR_MS
from tests.sim.loop import SimLoop, StuckError
from tests.sim.outcome import Outcome
from tests.sim.swarm import FIFO_GROUPS, AnySwarm, Swarm
from tests.sim.tools import Tools
from tests.sim.trace import Trace
from tests.sim.workload import OwnTopic, Workload

Added = TypeVar("Added", bound=Workload)

HEAL_S_MAX = 120.0
"""Without faults something is got done within it, or all."""
QUIET_LOOKS = 3
"""So often in a row nothing is left to do: a message that is moved is for a moment neither here nor there."""


class Course(ABC, Generic[AnySwarm]):
    """Course of a seed: its clients, its faults, and what is judged.

    Args:
        loop: the loop.
        trace: what happens goes there.
        swarm: what was drawn.
        leader: the controller that leads now; None if none does.
        findings: what went wrong in a way that no client sees.

    Attributes:
        admin: makes topics and groups.
        clients: producers, consumers and workloads, in the order in which they begin.
        verdict: what broke before all is judged.
    """

    def __init__(
        self,
        loop: SimLoop,
        trace: Trace,
        swarm: AnySwarm,
        leader: Callable[[], ControllerApp | None],
        findings: list[str],
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.swarm = swarm
        self.admin = Admin(leader, swarm.options.controller)
        self.findings = findings
        self.verdict = Verdict()
        self.clients: list[Consumer | Workload] = []
        self._tasks: dict[Consumer | Workload, asyncio.Task[None]] = {}
        self._reforming: list[asyncio.Task[None]] = []

    @property
    def consumers(self) -> list[Consumer]:
        """Readers that a seed draws."""
        return [each for each in self.clients if isinstance(each, Consumer)]

    @property
    def workloads(self) -> list[Workload]:
        """Producers, and all other clients."""
        return [each for each in self.clients if isinstance(each, Workload)]

    @abstractmethod
    async def live(self) -> None:
        """Set up, let faults strike, heal, and wait until all work is done."""

    @abstractmethod
    def judge(self) -> Verdict:
        """Hold everything that was seen against the invariants."""

    @abstractmethod
    def kill(self) -> None:
        """Kill all processes."""

    @abstractmethod
    def counts(self) -> str:
        """Return how much there was, in words."""

    def watched(self) -> AbstractContextManager[object]:
        """Return what is patched for as long as `live` runs."""
        return nullcontext()

    def draw_consumers(self, tools_of: Callable[[str], Tools]) -> None:
        """Add the consumers that were drawn.

        Args:
            tools_of: makes the tools of a client, by its name.
        """
        number = 0
        for subscription, all_manners in self.swarm.manners.items():
            for manners in all_manners:
                name = f"c{number}"
                self.clients.append(Consumer(name, tools_of(name), self.swarm.random(name), subscription, manners))
                number += 1

    def added(self, workload: Added) -> Added:
        """Return a workload that begins after all there are by now."""
        self.clients.append(workload)
        return workload

    async def make_names(self) -> None:
        """Make all topics and groups."""
        swarm = self.swarm
        topics = {name: OwnTopic(swarm.types[name], queues) for name, queues in swarm.topics.items()}
        groups = dict(swarm.groups)
        for workload in self.workloads:
            topics.update(workload.topics)
            groups.update(workload.groups)
        for name, topic in topics.items():
            await self.admin.make_topic(name, topic)
        for name, attempts in groups.items():
            await self.admin.make_group(name, attempts, is_ordered=name in FIFO_GROUPS)

    def begin_clients(self) -> None:
        """Let all clients begin."""
        self._tasks = {each: self.loop.create_task(each.run()) for each in self.clients}

    async def end_sending(self) -> None:
        """Have everybody send no more; who only reads becomes polite, so that all is read."""
        workloads = self.workloads
        for each in workloads:
            each.stop()
        self._reforming = [self.loop.create_task(each.reform()) for each in self.consumers]
        await asyncio.wait([self._tasks[each] for each in workloads])

    async def end_clients(self) -> None:
        """Have everybody end; what one failed with is raised."""
        consumers = self.consumers
        for task in self._reforming:
            task.cancel()
        for each in consumers:
            each.stopping = True
        await asyncio.wait((*self._reforming, *(self._tasks[each] for each in consumers)))
        for workload in self.workloads:
            await workload.end()
        for task in (*self._tasks.values(), *(each for each in self._reforming if not each.cancelled())):
            task.result()

    def left_in(self, core: BrokerCore, wall_ms: int) -> str:
        """Return what a broker has not done yet, in words; empty if nothing is left.

        Args:
            core: the broker.
            wall_ms: its wall clock.
        """
        if core.state.table.open_messages:
            now_ms = core.pop_clock.now_ms()
            some = [f"{each.id // 8} {each.group} due in {each.due_ms - now_ms} ms" for each in core.state.table][:3]
            return f"{core.state.table.open_messages} messages are given out: {some}"
        if is_damaged(core):
            return f"damaged: {core.pops.damaged.values()} {core.timer.state.damaged}"
        if pending := core.timer.state.pending.histogram(wall_ms, [NEAR_MS])[0]:
            return f"{pending} messages are due soon"
        for each in self.swarm.subscriptions:
            if count := core.pops.waiting(each.group, each.topic, None):
                return f"{count} messages wait for {each.group} in {each.topic}"
        return next((left for each in self.workloads if (left := each.left(core))), "")


def is_damaged(core: BrokerCore) -> bool:
    """Return whether a broker knows of records that it can't read."""
    return bool(core.pops.damaged or core.timer.state.damaged)


def run_course(
    swarm: Swarm, make: Callable[[SimLoop, Trace], Course[AnySwarm]], module: str, *, whole_trace: bool
) -> Outcome:
    """Run a seed.

    Args:
        swarm: what was drawn.
        make: makes the course.
        module: whose seed it is: what comes after `python -m`.
        whole_trace: give the trace even if all is well.
    """
    loop = SimLoop()
    trace = Trace(loop)
    trace.add("sim", "seed", swarm.describe())
    with _nothing_collected():
        asyncio.set_event_loop(loop)
        try:
            course = make(loop, trace)
            with CapturedLog(trace, course.findings.append) as log:
                try:
                    with course.watched():
                        loop.run_until_complete(course.live())
                    verdict = course.judge()
                except StuckError as error:
                    verdict = course.verdict
                    verdict.broke("L2", str(error))
                finally:
                    digest = trace.digest
                    log.muted = True  # what comes now comes from the dead
                    course.kill()
                    loop.bury()
        finally:
            asyncio.set_event_loop(None)
    for finding in course.findings:
        verdict.broke("E1", finding)
    for failure in loop.failures:
        where = failure.get("task") or failure.get("handle")
        verdict.broke("E1", f"{failure.get('message')}: {failure.get('exception')!r} in {where}")
    counts = f"{verdict.counts()} {course.counts()} steps={loop.steps} seconds={loop.time():.1f}"
    story = (swarm.describe(), *(trace.lines() if verdict.violations or whole_trace else ()))
    return Outcome(swarm.seed, digest, tuple(verdict.violations), counts, story, module)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Keep destructors of what a killed process leaves from running in the middle."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
