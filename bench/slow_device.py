"""Reads of a process slowed down by the kernel, as those of a slow device are (cgroup v1 `blkio`; needs root)."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup/blkio")


def can_slow_down() -> bool:
    """Return whether this machine lets us."""
    return (_ROOT / "blkio.throttle.read_bps_device").exists() and os.access(_ROOT, os.W_OK)


@contextmanager
def slowed_down(pids: Sequence[int], folder: Path, bytes_per_s: int) -> Iterator[None]:
    """Let processes read no more a second from the device that holds a folder."""
    group = _ROOT / f"popwheel-bench-{os.getpid()}"
    device = folder.stat().st_dev
    group.mkdir()
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {bytes_per_s}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in pids:
            (_ROOT / "cgroup.procs").write_text(str(pid))
        group.rmdir()


_WRITTEN_BYTES = 64 * 1024
"""The end of a file that is being written: short memory takes what was used last of all, and these pages are it."""


def drop_cache(folder: Path) -> None:
    """Have nothing of the files in a folder be in memory but their ends, as where memory is short."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                bytes_to_drop = os.fstat(descriptor).st_size - _WRITTEN_BYTES
                if bytes_to_drop > 0:  # a length of 0 means all
                    os.posix_fadvise(descriptor, 0, bytes_to_drop, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
