"""A disk in memory whose process ends before any step that it counts: what a crash between two steps leaves."""

from collections.abc import Sequence
from pathlib import Path

from tests.harness.memory_disk import CrashKind, MemoryDisk, _Inode, _NameChange


class StoppedError(BaseException):
    """The process has ended at a step; no handler may mistake it for an error of the device."""


class StoppingDisk(MemoryDisk):
    """Counts each change of bytes and of names, and each sync: the process ends before the chosen one is done."""

    steps = 0
    """The number of steps that there were."""
    stop_at = -1
    """The number of the one that is not done any more; none if it is less than what was done."""

    def crash(self, kind: CrashKind) -> None:
        self.stop_at = -1
        super().crash(kind)

    def take_space(self, inode: _Inode, offset: int, data: bytes) -> tuple[bytes, OSError | None]:
        self._step()
        return super().take_space(inode, offset, data)

    def lengthen(self, inode: _Inode, size: int) -> None:
        self._step()
        super().lengthen(inode, size)

    def end_sync(self, path: Path, inode: _Inode, changes: int, life: int) -> None:
        self._step()
        super().end_sync(path, inode, changes, life)

    def end_folder_sync(self, begun: Sequence[_NameChange], life: int) -> None:
        self._step()
        super().end_folder_sync(begun, life)

    def _change_names(self, change: _NameChange) -> None:
        self._step()
        super()._change_names(change)

    def _step(self) -> None:
        if 0 <= self.stop_at <= self.steps:
            raise StoppedError
        self.steps += 1
