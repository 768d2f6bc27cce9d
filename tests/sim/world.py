"""The whole standalone server under the simulator: it boots, serves, dies and boots again, on one disk."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry

from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_cli.process.in_process import InProcessCluster
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_rpc.service import Channel, Service
from tests.sim.device import SimDisk
from tests.sim.history import Disaster, History
from tests.sim.loop import SimLoop
from tests.sim.network import InnerChannel, Network, Weather
from tests.sim.process import MachineClock, Process, ProcessDisk
from tests.sim.swarm import READ_S_MAX, Swarm
from tests.sim.tools import LogEnd
from tests.sim.trace import Trace

DATA = Path("/data")
COMMIT_LOG = DATA / "broker" / "commitlog"

Ending = Literal["process", "power"]


class World:
    """One simulated machine with its one server.

    Args:
        loop: the loop.
        swarm: what this seed has drawn.
        trace: what happens goes there.
    """

    def __init__(self, loop: SimLoop, swarm: Swarm, trace: Trace) -> None:
        self.loop = loop
        self.swarm = swarm
        self.trace = trace
        self.history = History()
        self.disk = SimDisk(swarm.random("disk"), trace)
        self.disk.sync_s_max = swarm.sync_s_max
        self.disk.cached_bytes, self.disk.read_s_max = swarm.memory, READ_S_MAX
        self.machine = MachineClock(loop)
        self.weather = Weather()
        self.log_end = LogEnd()
        self.lives = 0
        self.process: Process | None = None
        self.process_disk: ProcessDisk | None = None
        self.cluster: InProcessCluster | None = None
        self.serving = False
        self.refusals: list[str] = []
        """Why the server would not start, in its own words."""
        self.findings: list[str] = []
        """What went wrong in a way that no client sees: errors in the log that no fault explains."""
        self.arrivals: dict[tuple[str, int, int], float] = {}
        """When each entry of a queue became readable, by topic, queue and offset."""
        self.appends: dict[int, tuple[int, float]] = {}
        """When each record was appended, by its position: by the wall clock of then, and in virtual time."""
        self._chance = swarm.random("world")
        self.network = Network(loop, swarm.random("network"), self.weather, self._served)
        self.broker_network = Network(
            *(loop, swarm.random("broker network"), self.weather, self._served_by_broker, StatusError)
        )
        """For those who speak to the broker as a proxy does."""
        self._synced_position = 0
        self._ended = asyncio.Event()
        self._ended.set()

    @property
    def controller(self) -> ControllerApp | None:
        """The controller while it serves, else None."""
        return self.cluster.controller if self.serving and self.cluster is not None else None

    def _served(self) -> tuple[Process, Service] | None:
        if not self.serving or self.process is None or self.cluster is None:
            return None
        return self.process, self.cluster.proxy.service

    def _served_by_broker(self) -> tuple[Process, Service] | None:
        if not self.serving or self.process is None or self.cluster is None:
            return None
        return self.process, self.cluster.broker.service

    async def boot(self) -> bool:
        """Start the server; whether it serves. If not, `refusals` says why, or it was killed while it started."""
        assert self.process is None
        self.lives += 1
        process = Process(self.loop, self.lives, self.machine)
        disk = ProcessDisk(self.disk, process, lambda: self.crash("process"))
        self.process, self.process_disk = process, disk
        self._ended.clear()
        self.trace.add("server", "boot", self.lives)
        outcome: asyncio.Future[str] = self.loop.create_future()
        process.report_death(outcome)
        process.spawn(self._start(process, disk, outcome), "start")
        try:
            refusal = await outcome
        except ConnectionResetError:
            return False
        process.report_no_more(outcome)
        if refusal:
            self.trace.add("server", "refused", refusal)
            self.refusals.append(refusal)
            self.crash("process")
            return False
        self.serving = True
        self.trace.add("server", "serves", self.log_end.position)
        return True

    async def _start(self, process: Process, disk: ProcessDisk, outcome: "asyncio.Future[str]") -> None:
        swarm = self.swarm
        try:
            cluster = InProcessCluster(
                Runtime(process.clock, swarm.random(f"server {process.number}"), CollectorRegistry()),
                swarm.options,
                DATA,
                disk,
                self._worse,
            )
            self.cluster = cluster
            self._watch_arrivals(cluster, disk)
            await cluster.start()
        except (CorruptDataError, UnknownFormatError, OSError) as error:
            if isinstance(error, OSError):
                self._note_disaster("sync")  # a sync may have been refused as it started
            if not outcome.done():
                outcome.set_result(f"{type(error).__name__}: {error}")
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this simulator is there to find
            self.findings.append(f"the server failed as it started: {error!r}")
            if not outcome.done():
                outcome.set_result(repr(error))
            return
        process.spawn(self._watch_failure(cluster), "watch failure")
        # As a client would see it: it serves when the proxy knows of the broker.
        while not cluster.proxy.ready:
            await asyncio.sleep(0.01)
        if not outcome.done():
            outcome.set_result("")

    def _worse(self, channel: Channel) -> Channel:
        assert self.process is not None
        return InnerChannel(channel, self._chance, self.weather)

    def _watch_arrivals(self, cluster: InProcessCluster, disk: ProcessDisk) -> None:
        store = cluster.broker.core.store
        reported = store._on_arrival

        def arrived(queue: ConsumeQueue, tag_hashes: Sequence[int]) -> None:
            for offset in range(queue.max_offset - len(tag_hashes), queue.max_offset):
                self.arrivals[queue.topic, queue.queue_id, offset] = self.loop.time()
            reported(queue, tag_hashes)

        store._on_arrival = arrived

        def appending(position: int, lengths: Sequence[int]) -> None:
            now = self.machine.wall_ms(), self.loop.time()
            for length in lengths:
                self.appends[position] = now
                position += length

        def appended(position: int) -> None:
            self.log_end.position = position

        disk.appending, disk.appended = appending, appended

    async def _watch_failure(self, cluster: InProcessCluster) -> None:
        """What `popwheel_cli.process.run` does: end loudly when the broker cannot go on."""
        error = await cluster.broker.failure
        self.trace.add("server", "failed", error)
        self.serving = False
        self._note_disaster("sync")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await cluster.stop()
        self.loop.outside(0, self.crash, "process")

    async def stop(self) -> None:
        """End gracefully, as on SIGTERM."""
        process, cluster = self.process, self.cluster
        if process is None or cluster is None or not self.serving:
            return
        self.trace.add("server", "drain")
        self.serving = False
        cluster.proxy.drain()
        done: asyncio.Future[None] = self.loop.create_future()
        process.report_death(done)

        async def stopping() -> None:
            await cluster.stop()
            if not done.done():
                done.set_result(None)

        process.spawn(stopping(), "stop")
        try:
            async with asyncio.timeout(40):
                await done
        except ConnectionResetError:
            return
        except TimeoutError:
            self.findings.append("the server did not stop within 40 s")
        process.report_no_more(done)
        self.trace.add("server", "stopped")
        self.crash("process")

    def crash(self, kind: Ending) -> None:
        """Kill the process, and with `power` the machine."""
        process = self.process
        self._learn_synced()
        if process is not None:
            process.alive = False
            self.serving = False
            self.trace.add("server", "dies", kind, self.log_end.position)
            self.history.troubles.append((self.loop.time(), self.loop.time() + 5.0))
        if kind == "power":
            self._note_disaster("power")
            self.machine.boots += 1
        self.disk.crash(kind)
        if process is not None:
            self.process = self.process_disk = self.cluster = None
            process.die()
        self._ended.set()

    def _note_disaster(self, kind: Literal["power", "sync"]) -> None:
        self._learn_synced()
        self.history.disasters.append(Disaster(self.loop.time(), kind, self._synced_position))
        self.trace.add("server", "disaster", kind, self._synced_position)

    def _learn_synced(self) -> None:
        """Up to here the log is on the device, as the server has it."""
        if self.cluster is not None:
            log = self.cluster.broker.core.store.log
            self._synced_position = max(self._synced_position, log.synced_position)

    async def ended(self) -> None:
        """Return when no process lives."""
        await self._ended.wait()
