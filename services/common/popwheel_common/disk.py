"""Files, as they are handed to the stores (DESIGN 3): the simulator hands in a disk that tears and loses.

Writing is a plain call: it copies into the page cache, which costs some 2 us, far less than the way to a thread and
back (80 us). Syncing waits for the device, so it runs in a thread and is awaited. Where the device is known to be quick
a little may be synced by a plain call (`File.sync_quickly`). Reading is a plain call, too, which waits for the device
unless it is run by `Disk.reads`.
"""

import asyncio
import errno
import os
import shutil
import sys
from collections.abc import Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import coroutine
from typing import Any, Final, Protocol, TypeVar

from popwheel_common.clock import SystemClock
from popwheel_common.cold_reads import AT_ONCE_MAX, ColdReads, Range

QUICK_SYNC_S: Final = 0.001
"""Syncs that take no longer may hold the loop up: the way to a thread and back costs about as much."""
_PACE_WEIGHT: Final = 1 / 16
_BUFFERS_PER_WRITE = 512
_NOT_CACHED = (errno.EAGAIN, errno.EOPNOTSUPP)
"""A file system that does not know what is in memory (tmpfs, NFS, FUSE) has all reads wait in a thread."""
_CACHED_ONLY = getattr(os, "RWF_NOWAIT", None)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Usage of the file system.

    Args:
        total_bytes: its size.
        free_bytes: what this process may still write.
    """

    total_bytes: int
    free_bytes: int

    @property
    def used_share(self) -> float:
        """Share in use, from 0 (empty) to 1 (full)."""
        return 1.0 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


class File(Protocol):
    """An open file, written and read at explicit offsets. All methods raise OSError as the system does."""

    def size(self) -> int:
        """Bytes in it."""

    def read(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes from `offset`; fewer only at the file's end.

        Raises NotInMemory instead of waiting for the device while `Disk.reads` runs something.
        """

    def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        """Write the buffers one after another from `offset` on. After an error none, some or all of it is written."""

    async def sync(self) -> None:
        """Return when all that was written before the call is on the device."""

    def sync_quickly(self) -> bool:
        """Bring all that was written to the device without a thread, if the device is quick; else nothing is done, and
        `sync` will have to do it. Whether it was done.
        """

    def truncate(self, size: int) -> None:
        """Cut the file off at `size`."""

    def close(self) -> None:
        """Close it."""


class Disk(Protocol):
    """A place for files."""

    @property
    def reads(self) -> ColdReads:
        """Runs what reads files, without waiting for the device on the loop."""

    def open(self, path: Path) -> File:
        """Open a file for reading and writing; it is made if it is not there (its folder must be)."""

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder of this name."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it, where they are not there."""

    def list(self, path: Path) -> list[str]:
        """Names in a folder, sorted; empty if there is no such folder."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    async def remove_folder(self, path: Path) -> None:
        """Remove a folder with all that is in it, if there is one; links are not followed."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, in place of the target if there is one."""

    async def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the device."""

    def usage(self, path: Path) -> DiskUsage:
        """Return the usage of the file system of `path`."""


@coroutine
def to_its_end(work: Coroutine[Any, Any, Result]) -> Generator[Any, None, Result]:
    """Wait for work on the device that is done to its end, whoever waits.

    What a thread has begun can't be called back, and the system reports an error once. So a cancellation waits until
    the work is through, and is raised then; no thread is left with a file that is closed, or with an outcome that
    nobody takes. It needs no task, which would cost more than all else of a sync.

    Args:
        work: takes down itself what comes of it: a cancellation goes before its error. It is a part of the task that
            waits, so there must be no time-out in it.
    """
    cancelled: asyncio.CancelledError | None = None
    try:
        while True:
            future = work.send(None)
            try:
                if future is None:
                    yield
                    continue
                future._asyncio_future_blocking = False  # it is waited for, as a task that is given it says
                while not future.done():
                    ended = future.get_loop().create_future()
                    future.add_done_callback(partial(_resolve, ended))
                    try:
                        yield from ended
                    except asyncio.CancelledError as error:
                        cancelled = error
            except asyncio.CancelledError as error:
                cancelled = error
    except StopIteration as end:
        if cancelled is not None:
            raise cancelled from None
        return end.value  # type: ignore[no-any-return]
    except Exception as error:
        if cancelled is not None:
            raise cancelled from error
        raise
    finally:
        cancelled = None  # an error and a frame that keeps it are a cycle
        work.close()


def _resolve(ended: asyncio.Future[None], of: asyncio.Future[Any]) -> None:
    if not ended.done():
        ended.set_result(None)


async def replace_file(disk: Disk, path: Path, data: bytes) -> None:
    """Give a small file new contents so that a crash at any moment leaves the old or the new ones, whole. It is done
    to its end, whoever waits; after an error it may be either of both.
    """
    await to_its_end(_replace_file(disk, path, data))


async def _replace_file(disk: Disk, path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    file = disk.open(new)
    try:
        file.truncate(0)
        file.write(0, [data])
        await file.sync()
    finally:
        file.close()
    disk.replace(new, path)
    await disk.sync_folder(path.parent)


class SyncPace:
    """Pace of a device's syncs, and whether the loop may wait for them: `QUICK_SYNC_S` on average at most.

    A slow device is never waited for. One that is slow now and then is, but for a while after each slow sync.
    """

    def __init__(self) -> None:
        self._mean_s = -1.0

    @property
    def is_quick(self) -> bool:
        """True if the loop may wait for the next sync."""
        return 0.0 <= self._mean_s <= QUICK_SYNC_S

    def took(self, seconds: float) -> None:
        """Record how long a small sync has taken, by the loop or in a thread."""
        self._mean_s = seconds if self._mean_s < 0 else self._mean_s + _PACE_WEIGHT * (seconds - self._mean_s)


class SystemFile:
    """A file of the operating system.

    Args:
        path: its name.
        executor: where it is synced.
        reads: runs what reads it.
        pace: of its device.
        clock: by which the device is measured.
    """

    def __init__(
        self, path: Path, executor: ThreadPoolExecutor, reads: ColdReads, pace: SyncPace, clock: SystemClock
    ) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._executor = executor
        self._reads = reads
        self._pace = pace
        self._clock = clock
        self.path = path

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        if self._reads.is_running:
            return self._reads.read(self, offset, length)
        return _read(self._descriptor, offset, length)

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """Read as `read` does; return None if that would wait for the device."""
        if _CACHED_ONLY is None:
            return None
        buffer = bytearray(length)
        got = 0
        while got < length:
            try:
                more = os.preadv(self._descriptor, [memoryview(buffer)[got:]], offset + got, _CACHED_ONLY)
            except OSError as error:
                if error.errno in _NOT_CACHED:
                    return None
                raise
            if not more:
                break
            got += more
        return bytes(memoryview(buffer)[:got])

    def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        for start in range(0, len(buffers), _BUFFERS_PER_WRITE):
            part = buffers[start : start + _BUFFERS_PER_WRITE]
            length = sum(map(len, part))
            written = os.pwritev(self._descriptor, part, offset)
            if written != length:
                self._write_rest(offset + written, b"".join(part)[written:])
            offset += length

    def _write_rest(self, offset: int, data: bytes) -> None:
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[written:]
            offset += written

    async def sync(self) -> None:
        self._pace.took(await asyncio.get_running_loop().run_in_executor(self._executor, self._sync))

    def sync_quickly(self) -> bool:
        if not self._pace.is_quick:
            return False
        self._pace.took(self._sync())
        return True

    def _sync(self) -> float:
        """Sync, and say how many seconds that took."""
        began = self._clock.monotonic()
        _flush(self._descriptor)
        return self._clock.monotonic() - began

    def truncate(self, size: int) -> None:
        self._reads.changed(self.path)
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        os.close(self._descriptor)


class SystemDisk:
    """The disk of this machine."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="disk-sync")
        self._readers = ThreadPoolExecutor(max_workers=AT_ONCE_MAX, thread_name_prefix="disk-read")
        self._reads = ColdReads(self._fetch)
        self._clock = SystemClock()
        self._pace = SyncPace()

    @property
    def reads(self) -> ColdReads:
        return self._reads

    async def _fetch(self, ranges: Sequence[Range]) -> Sequence[bytes]:
        return await asyncio.get_running_loop().run_in_executor(self._readers, _read_all, ranges)

    def open(self, path: Path) -> File:
        return SystemFile(path, self._executor, self._reads, self._pace, self._clock)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def list(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def remove(self, path: Path) -> None:
        self._reads.changed(path)
        path.unlink(missing_ok=True)

    async def remove_folder(self, path: Path) -> None:
        self._reads.changed(path)
        if self.exists(path):
            await asyncio.get_running_loop().run_in_executor(self._executor, shutil.rmtree, path)

    def replace(self, source: Path, target: Path) -> None:
        self._reads.changed(source, target)
        source.replace(target)

    async def sync_folder(self, path: Path) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, _sync_folder, path)

    def usage(self, path: Path) -> DiskUsage:
        status = os.statvfs(path)
        return DiskUsage(
            total_bytes=(status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize,
            free_bytes=status.f_bavail * status.f_frsize,
        )

    def close(self) -> None:
        """End the threads; no file of this disk may be synced afterwards."""
        self._executor.shutdown()
        self._readers.shutdown()


def _read(descriptor: int, offset: int, length: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length:
        data = os.pread(descriptor, length - got, offset + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def _read_all(ranges: Sequence[Range]) -> Sequence[bytes]:
    """Read in a thread.

    The file is opened there, too: the caller may have closed it, or the log may remove it meanwhile.
    """
    found: list[bytes] = []
    for path, offset, length in ranges:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found.append(_read(descriptor, offset, length))
        finally:
            os.close(descriptor)
    return found


def _flush(descriptor: int) -> None:
    """Flush a file to the device."""
    if sys.platform == "darwin":  # there is no fdatasync, and fsync leaves them in the device's own cache
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
