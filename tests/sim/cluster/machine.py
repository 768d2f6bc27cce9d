"""A simulated machine: a name on the network, a disk, a clock, and one life of a process after the other."""

import asyncio
import random
from collections.abc import Callable
from typing import Generic, TypeVar

from tests.harness.memory_disk import CrashKind
from tests.sim.cluster.network import Network
from tests.sim.cluster.programs import Place, Program
from tests.sim.device import SimDisk
from tests.sim.process import MachineClock, Process, ProcessDisk
from tests.sim.trace import Trace

Kind = TypeVar("Kind", bound=Program)

_STOP_S = 60.0


class Machine(Generic[Kind]):
    """One machine. All of it is to be called by the simulator, not from within a process.

    Args:
        name: of the machine and of its processes; unique on the network.
        network: where it is.
        trace: what happens goes there.
        random_of: makes the random source for a purpose.
        make: makes the program, in its process.
        report: told of what should not happen, and of the error if there is one.
        ended: told of the name when a process is no more.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        trace: Trace,
        random_of: Callable[[str], random.Random],
        make: Callable[[Place], Kind],
        report: Callable[..., None],
        ended: Callable[[str], None],
    ) -> None:
        self.name = name
        self.network = network
        self.disk = SimDisk(random_of(f"{name} disk"), trace)
        self.clock = MachineClock(network.loop)
        self.lives = 0
        self.process: Process | None = None
        self.process_disk: ProcessDisk | None = None
        self.program: Kind | None = None
        self.serving = False
        self.is_stopping = False
        self._trace = trace
        self._random_of = random_of
        self._make = make
        self._report = report
        self._ended = ended
        self._stood_still: list[tuple[float, float]] = []
        self._still_since: float | None = network.loop.time()

    @property
    def is_paused(self) -> bool:
        """Whether its process stands still."""
        return self.process is not None and self.process.held is not None

    async def boot(self) -> bool:
        """Start the process; whether it serves. It does not if it was killed while it started."""
        assert self.process is None
        loop = self.network.loop
        self._succeeded()
        self.lives += 1
        process = self.process = Process(loop, self.lives, self.clock, self.name)
        disk = self.process_disk = ProcessDisk(self.disk, process, self.kill)
        chance = self._random_of(f"{self.name} {self.lives}")
        self._trace.add(self.name, "boot", self.lives)
        started: asyncio.Future[None] = loop.create_future()
        process.report_death(started)

        async def live() -> None:
            try:
                self.program = program = self._make(Place(process, disk, chance, self.network))
                await program.start()
            except Exception as error:  # noqa: BLE001 - nothing is wrong with the disk, so it must start
                self._report(f"{self.name} failed as it started: {error!r}", error)
                return
            self.serving = True  # here, as who waits for it may have given up
            self._trace.add(self.name, "serves")
            if not started.done():
                started.set_result(None)
            failure = await program.failed()
            self._report(f"{self.name} cannot go on: {failure!r}", failure)

        process.spawn(live(), f"{self.name} lives")
        try:
            await started
        except ConnectionResetError:
            return False
        process.report_no_more(started)
        return True

    async def stop(self) -> None:
        """End gracefully, as on SIGTERM."""
        process, program = self.process, self.program
        if process is None or program is None or not self.serving:
            return
        self._trace.add(self.name, "stop")
        self.serving = False
        self.is_stopping = True
        stopped: asyncio.Future[None] = self.network.loop.create_future()
        process.report_death(stopped)

        async def stopping() -> None:
            await program.stop()
            if not stopped.done():
                stopped.set_result(None)

        process.spawn(stopping(), f"{self.name} stops")
        try:
            async with asyncio.timeout(_STOP_S):
                await stopped
        except ConnectionResetError:
            return
        except TimeoutError:
            self._report(f"{self.name} did not stop within {_STOP_S} s")
        process.report_no_more(stopped)
        if self.process is process:
            self.kill()

    def kill(self, kind: CrashKind = "process") -> None:
        """End the process at once, as on SIGKILL; what it has written is there. With `power`, what it has synced."""
        process = self.process
        if process is None:
            return
        self._trace.add(self.name, "dies", *(() if kind == "process" else (kind,)))
        self._stands_still()
        self.process = self.process_disk = self.program = None
        self.serving = self.is_stopping = False
        process.alive = False
        self.disk.crash(kind)
        self.clock.boots += kind == "power"
        self.network.died(process)
        process.die()
        self._ended(self.name)

    def pause(self) -> None:
        """Have the process stand still, as on SIGSTOP."""
        if self.process is not None and not self.is_paused:
            self._trace.add(self.name, "pauses")
            self._stands_still()
            self.process.pause()
            self.network.paused(self.process)

    def resume(self) -> None:
        """Have it go on."""
        if self.process is not None and self.is_paused:
            self._trace.add(self.name, "resumes")
            self._succeeded()
            self.process.resume()

    @property
    def stood_still(self) -> tuple[tuple[float, float], ...]:
        """From when to when no process of it could run so far: there was none, or it was paused."""
        if self._still_since is None:
            return tuple(self._stood_still)
        return (*self._stood_still, (self._still_since, self.network.loop.time()))

    def _stands_still(self) -> None:
        if self._still_since is None:
            self._still_since = self.network.loop.time()

    def _succeeded(self) -> None:
        self._stood_still = list(self.stood_still)
        self._still_since = None
