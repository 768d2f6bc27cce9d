"""Figures of the operating system on processes: CPU time and memory."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 2**20


def cpu_s(pids: Sequence[int]) -> float:
    """Seconds of CPU, user and system, that processes have used, with all threads and with children that ended."""
    ticks = 0
    for pid in pids:
        # The name in brackets may hold anything, spaces and brackets too.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S


def machine_cpu_s() -> float:
    """Seconds of CPU that anything on this machine has used."""
    with Path("/proc/stat").open() as file:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def anonymous_mib(pids: Sequence[int]) -> float:
    """MiB of anonymous memory that is resident: heaps and stacks, without mapped files."""
    return _status_mib(pids, "RssAnon:")


def peak_mib(pids: Sequence[int]) -> float:
    """MiB of memory that was resident at the most, since each process began; mapped files included."""
    return _status_mib(pids, "VmHWM:")


def _status_mib(pids: Sequence[int], name: str) -> float:
    total_kib = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                total_kib += int(line.split()[1])
    return total_kib / 1024


def resident_mib(pids: Sequence[int]) -> float:
    """MiB of memory that is resident, mapped files included."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


@dataclass(frozen=True)
class Usage:
    """CPU seconds used so far by the server, by this process, and by everything on the machine.

    Args:
        server_s: of all processes of the server.
        loader_s: of this process.
        machine_s: of everything.
        each_s: of each process of the server, in their order.
    """

    server_s: float
    loader_s: float
    machine_s: float
    each_s: tuple[float, ...] = ()

    @classmethod
    def now(cls, pids: Sequence[int]) -> Self:
        """Return the use up to now."""
        each_s = tuple(cpu_s([pid]) for pid in pids)
        return cls(sum(each_s), time.process_time(), machine_cpu_s(), each_s)

    def since(self, before: "Usage") -> "Usage":
        """Return the use since `before`."""
        return Usage(
            self.server_s - before.server_s,
            self.loader_s - before.loader_s,
            self.machine_s - before.machine_s,
            tuple(now - then for now, then in zip(self.each_s, before.each_s, strict=True)),
        )

    @property
    def others_s(self) -> float:
        """CPU that neither server nor load generator used: what disturbed the run."""
        return max(0.0, self.machine_s - self.server_s - self.loader_s)
