"""A disk in memory that stops at a chosen step and then loses what was not synced, or not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from popwheel_common.cold_reads import ColdReads, Range
from popwheel_common.disk import DiskUsage


class CrashError(Exception):
    """The machine went off."""


@dataclass(eq=False)
class _Contents:
    now: bytes = b""
    synced: bytes = b""


@dataclass
class FaultDisk:
    """A `popwheel_common.disk.Disk`.

    Args:
        steps_left: steps that may change something before one raises.
        error: what it raises: `CrashError`, or an OSError that the caller lives to see.
    """

    steps_left: int = 1_000_000
    error: Exception = field(default_factory=CrashError)
    names: dict[Path, _Contents] = field(default_factory=dict)
    synced_names: dict[Path, _Contents] = field(default_factory=dict)
    reads: ColdReads = field(default_factory=lambda: ColdReads(_all_is_in_memory))

    def step(self) -> None:
        if self.steps_left == 0:
            raise self.error
        self.steps_left -= 1

    def after_power_loss(self, *, names_kept: bool, bytes_kept: bool) -> "FaultDisk":
        """What is found when the machine comes back. What was not synced may be there or not."""
        names = self.names if names_kept else self.synced_names
        kept = {path: file.now if bytes_kept else file.synced for path, file in names.items()}
        contents = {path: _Contents(data, data) for path, data in kept.items()}
        return FaultDisk(names=contents, synced_names=dict(contents))

    def open(self, path: Path) -> "_FaultFile":
        if path not in self.names:
            self.step()
            self.names[path] = _Contents()
        return _FaultFile(self, self.names[path])

    def exists(self, path: Path) -> bool:
        return path in self.names

    def make_folder(self, path: Path) -> None:
        pass

    def list(self, path: Path) -> list[str]:
        return sorted(each.name for each in self.names if each.parent == path)

    def remove(self, path: Path) -> None:
        self.step()
        del self.names[path]

    async def remove_folder(self, path: Path) -> None:
        self.step()
        self.names = {name: held for name, held in self.names.items() if path not in name.parents}

    def replace(self, source: Path, target: Path) -> None:
        self.step()
        self.names[target] = self.names.pop(source)

    async def sync_folder(self, path: Path) -> None:
        self.step()
        self.synced_names = dict(self.names)

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(1, 1)


class _FaultFile:
    def __init__(self, disk: FaultDisk, contents: _Contents) -> None:
        self._disk = disk
        self._contents = contents

    def size(self) -> int:
        return len(self._contents.now)

    def read(self, offset: int, length: int) -> bytes:
        return self._contents.now[offset : offset + length]

    def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        assert offset == len(self._contents.now)
        data = b"".join(buffers)
        self._contents.now += data[: len(data) // 2]
        self._disk.step()  # a crash in the middle of it leaves half
        self._contents.now += data[len(data) // 2 :]

    async def sync(self) -> None:
        self._disk.step()
        self._contents.synced = self._contents.now

    def sync_quickly(self) -> bool:
        return False

    def truncate(self, size: int) -> None:
        self._disk.step()
        self._contents.now = self._contents.now[:size]

    def close(self) -> None:
        pass


async def _all_is_in_memory(ranges: Sequence[Range]) -> Sequence[bytes]:
    raise AssertionError(f"nothing is to be fetched: {ranges}")
