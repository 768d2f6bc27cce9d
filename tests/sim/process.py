"""One life of a simulated process: its context, its clock, its hold on the disk. Killed, all of it is inert."""

import asyncio
import contextvars
import errno
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from popwheel_common.clock import Uptime
from popwheel_common.cold_reads import ColdReads, Range
from popwheel_common.disk import DiskUsage, File
from tests.harness.memory_disk import MemoryDisk, MemoryFile
from tests.sim.loop import PROCESS, SimLoop

Result = TypeVar("Result")

START_MS = 1_800_000_000_000


class ProcessKilledError(BaseException):
    """Thrown into code of a process that was killed in the middle of a step; no handler may mistake it for an error."""


class MachineClock:
    """The machine's wall clock, which an operator or NTP may set.

    Args:
        loop: whose time passes.
    """

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.boots = 1
        """How often the machine was started."""
        self._rate = 0.0
        self._rate_since_s = 0.0
        self.offset_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        drift_ms = int((self._loop.time() - self._rate_since_s) * 1000 * self._rate) if self._rate else 0
        return START_MS + int(self._loop.time() * 1000) + self.offset_ms + drift_ms

    def drift(self, rate: float) -> None:
        """Run too fast from now on, by a number of seconds in a second; too slow if it is less than 0."""
        self.offset_ms = self.wall_ms() - START_MS - int(self._loop.time() * 1000)
        self._rate, self._rate_since_s = rate, self._loop.time()


class ProcessClock:
    """`popwheel_common.clock.Clock` of one life of a process: the steady clock begins with the wall clock's time.

    Args:
        loop: whose time passes.
        machine: the wall clock.
    """

    def __init__(self, loop: SimLoop, machine: MachineClock) -> None:
        self._loop = loop
        self._machine = machine
        self._steady_offset_ms = machine.wall_ms() - int(loop.time() * 1000)

    def wall_ms(self) -> int:
        return self._machine.wall_ms()

    def steady_ms(self) -> int:
        return self._steady_offset_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def uptime(self) -> Uptime:
        return Uptime(f"{self._machine.boots}", int(self._loop.time() * 1000))


class Process:
    """One life.

    Args:
        loop: it runs there.
        number: how many lives there were, this one included.
        machine: its wall clock.
        name: what it is called in traces.
    """

    def __init__(self, loop: SimLoop, number: int, machine: MachineClock, name: str = "log") -> None:
        self.number = number
        self.name = name
        self.alive = True
        self.held: deque[Any] | None = None
        self.paused_since: float | None = None
        self.clock = ProcessClock(loop, machine)
        self._loop = loop
        self.context = contextvars.copy_context()
        """Callbacks that are scheduled in it are the process's own: dead or paused, it does not run them."""
        self.context.run(PROCESS.set, self)
        self._on_death: dict[asyncio.Future[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, Result], name: str | None = None) -> "asyncio.Task[Result]":
        """Run a task that dies with the process."""
        return self._loop.create_task(work, context=self.context.copy(), name=name)

    def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call a plain function as the process would."""
        return self.context.copy().run(function, *args)

    def report_death(self, waiter: asyncio.Future[Any]) -> None:
        """Have a future of somebody outside fail with ConnectionResetError when the process dies."""
        self._on_death[waiter] = None

    def report_no_more(self, waiter: asyncio.Future[Any]) -> None:
        """The future needs no reporting any more."""
        self._on_death.pop(waiter, None)

    def pause(self) -> None:
        """Stand still, as on SIGSTOP: its clocks go on, and what comes due waits."""
        if self.alive and self.held is None:
            self.held = deque()
            self.paused_since = self._loop.time()

    def resume(self) -> None:
        """Go on with all that has come due meanwhile."""
        held, self.held = self.held, None
        self.paused_since = None
        if held is not None and self.alive:
            self._loop.take_up(held)

    def die(self) -> None:
        """End at once; nothing of it runs any more."""
        self.alive = False
        self.held = None
        for waiter in self._on_death:
            if not waiter.done():
                waiter.set_exception(ConnectionResetError("the process has died"))
        self._on_death.clear()


class ProcessDisk:
    """A process's hold on the disk (`popwheel_common.disk.Disk`): it counts what is changed, and may die at any of it.

    Args:
        disk: the device.
        process: who holds it.
        kill: ends the process.
    """

    def __init__(self, disk: MemoryDisk, process: Process, kill: Callable[[], None]) -> None:
        self.device = disk
        self._process = process
        self._kill = kill
        self.reads = ColdReads(self._fetch)
        self.operations = 0
        self.die_at_operation = -1
        self.is_out_of_files = False
        """Whether the process has as many files open as it may have (EMFILE)."""
        self.appending: Callable[[int, Sequence[int]], None] = lambda position, lengths: None
        """Told of each append to the commit log before its bytes are written: where, each record's length."""
        self.appended: Callable[[int], None] = lambda position: None
        """Told where the commit log ends then."""

    @property
    def may_die(self) -> bool:
        """Whether it is to die at one of the next operations."""
        return self.die_at_operation > self.operations

    def step(self) -> None:
        """Count one operation that changes something; raises ProcessKilledError if the process is dead, or dies now."""
        self.operations += 1
        if self.operations == self.die_at_operation:
            self._kill()
        self.check()

    def check(self) -> None:
        """Raises ProcessKilledError if the process is dead."""
        if not self._process.alive:
            raise ProcessKilledError

    async def _fetch(self, ranges: Sequence[Range]) -> Sequence[bytes]:
        self.check()
        return await self.device.fetch(ranges)

    def open(self, path: Path) -> File:
        self.step()
        if self.is_out_of_files:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return _ProcessFile(self, self.device.open(path), path)

    def exists(self, path: Path) -> bool:
        self.check()
        return self.device.exists(path)

    def make_folder(self, path: Path) -> None:
        self.step()
        self.device.make_folder(path)

    def list(self, path: Path) -> list[str]:
        self.check()
        return self.device.list(path)

    def remove(self, path: Path) -> None:
        self.step()
        self.reads.changed(path)
        self.device.remove(path)

    async def remove_folder(self, path: Path) -> None:
        self.step()
        self.reads.changed(path)
        await self.device.remove_folder(path)

    def replace(self, source: Path, target: Path) -> None:
        self.step()
        self.reads.changed(source, target)
        self.device.replace(source, target)

    async def sync_folder(self, path: Path) -> None:
        self.step()
        await self.device.sync_folder(path)

    def usage(self, path: Path) -> DiskUsage:
        self.check()
        return self.device.usage(path)


class _ProcessFile:
    def __init__(self, disk: ProcessDisk, file: MemoryFile, path: Path) -> None:
        self._disk = disk
        self._file = file
        self.path = path
        self._log_start = int(path.stem) if str(path).endswith(".log") and path.parent.name == "commitlog" else None

    def size(self) -> int:
        self._disk.check()
        return self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        self._disk.check()
        if self._disk.reads.is_running:
            return self._disk.reads.read(self, offset, length)
        return self._file.read(offset, length)

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`; None if it is not in memory."""
        return self._file.read_cached(offset, length)

    def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        self._disk.step()
        if self._log_start is None or len(buffers) == 1:  # records from a master are one piece
            self._file.write(offset, buffers)
            return
        sizes = [len(each) for each in buffers]
        lengths = [head + rest for head, rest in zip(sizes[::2], sizes[1::2], strict=True)]
        position = self._log_start + offset
        self._disk.appending(position, lengths)
        self._file.write(offset, buffers)
        self._disk.appended(position + sum(lengths))

    async def sync(self) -> None:
        self._disk.step()
        await self._file.sync()

    def sync_quickly(self) -> bool:
        self._disk.step()
        return self._file.sync_quickly()

    def truncate(self, size: int) -> None:
        self._disk.step()
        self._disk.reads.changed(self.path)
        self._file.truncate(size)

    def close(self) -> None:
        self._disk.check()
        self._file.close()
