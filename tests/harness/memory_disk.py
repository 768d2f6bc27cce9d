"""A disk in memory that tears, loses, fills up and breaks as its random source says.

What it tells apart, for each file, is what a program has *written* (it reads that back) and what has been *synced*
(power loss can't take it away). Between the two stands a list of changes that the device may have carried out or not.
Names are distinguished likewise: a file that was made, renamed or removed is so for certain only once its folder is
synced; syncing the file itself does not count, as POSIX has it. Folders last from the moment they are made.

What each fault does:

- `crash("process")`: all that was written is there, still unsynced; open files of the dead process are void.
- `crash("power")`: all that was synced is there. Of each later change to bytes and names, in their order: all, none,
  the first few, or some here and there. A write that survives may be torn into its 512-byte sectors, and one that does
  not may leave zeros where it made the file longer.
- `fill`: writes past the limit end with ENOSPC, part of them written; `usage` shows it.
- `fail_writes`: EIO, after any part of the bytes was written.
- `fail_syncs`: EIO. Each unsynced change has reached the device or never will, whatever later syncs say, and the file
  may show what is on the device or what was written. A sync that has begun goes on when its waiter is cancelled, as one
  in a thread does, and its error is asked to nobody then. It ends with its process: what a crash overtakes is unsynced.
- `flip_bit`: one bit is another, on the device and in what is read.
- `cached_bytes`: only so much of each file's end is in memory. The rest is fetched, again for each call of `reads`; a
  plain read of what never was raises BlockingReadError once `may_block` is False.

The simulator and the unit tests share it, so it knows nothing of brokers. One random source makes one history.
"""

import asyncio
import errno
import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from popwheel_common.cold_reads import ColdReads, Range
from popwheel_common.disk import DiskUsage

SECTOR_BYTES = 512

CrashKind = Literal["process", "power"]

Change = TypeVar("Change")


class DeadFileError(Exception):
    """A file was used that a process had open which has crashed since."""


class BlockingReadError(AssertionError):
    """The loop would have waited for the device, though others are served."""


@dataclass(slots=True, eq=False)
class _Write:
    """Bytes that were written at an offset."""

    offset: int
    data: bytes

    def carry_out(self, contents: bytearray) -> None:
        _lengthen(contents, self.offset)
        contents[self.offset : self.offset + len(self.data)] = self.data

    def carry_out_torn(self, contents: bytearray, random_source: random.Random) -> None:
        """Carry out only some of the sectors, in no order; the first few more often than others."""
        sectors = list(self._sectors())
        if random_source.random() < 0.5:
            kept = sectors[: random_source.randrange(len(sectors) + 1)]
        else:
            kept = [sector for sector in sectors if random_source.random() < 0.5]
        for start, end in kept:
            _Write(start, self.data[start - self.offset : end - self.offset]).carry_out(contents)

    def _sectors(self) -> list[tuple[int, int]]:
        """Where the parts of it begin and end that lie in different sectors of the file."""
        end = self.offset + len(self.data)
        cuts = [self.offset, *range(self.offset - self.offset % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES), end]
        return list(itertools.pairwise(cuts))

    def lose(self, contents: bytearray, random_source: random.Random) -> None:
        """Not carried out; but the file may have become as long as if it had been."""
        if random_source.random() < 0.25:
            _lengthen(contents, self.offset + len(self.data))


@dataclass(slots=True, eq=False)
class _Truncate:
    """A file was cut off, or made longer with zeros."""

    size: int

    def carry_out(self, contents: bytearray) -> None:
        _lengthen(contents, self.size)
        del contents[self.size :]

    def carry_out_torn(self, contents: bytearray, random_source: random.Random) -> None:
        self.carry_out(contents)

    def lose(self, contents: bytearray, random_source: random.Random) -> None:
        """Not carried out."""


def _lengthen(contents: bytearray, size: int) -> None:
    if size > len(contents):
        contents.extend(bytes(size - len(contents)))


@dataclass(eq=False, slots=True)
class _Inode:
    """The bytes of a file, whatever its name.

    Args:
        written: as the program sees them.
        synced: as the device has them for certain.
        unsynced: what makes the second into the first.
        changes_settled: how many changes there were before those.
        fetched: sectors that a thread has read.
    """

    written: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[_Write | _Truncate] = field(default_factory=list)
    changes_applied: int = 0
    fetched: set[int] = field(default_factory=set)

    @property
    def changes(self) -> int:
        """How many changes there were so far."""
        return self.changes_applied + len(self.unsynced)

    def change(self, change: _Write | _Truncate) -> None:
        change.carry_out(self.written)
        self.unsynced.append(change)

    def sync(self, changes: int) -> None:
        """The first `changes` changes of all are on the device."""
        count = max(0, changes - self.changes_applied)
        for change in self.unsynced[:count]:
            change.carry_out(self.synced)
        del self.unsynced[:count]
        self.changes_applied = max(self.changes_applied, changes)

    def settle(self, random_source: random.Random) -> None:
        """Each unsynced change reaches the device, or it never will."""
        kept = _survivors(self.unsynced, random_source)
        for change, fate in zip(self.unsynced, kept, strict=True):
            if fate == "kept":
                change.carry_out(self.synced)
            elif fate == "torn":
                change.carry_out_torn(self.synced, random_source)
            else:
                change.lose(self.synced, random_source)
        self.changes_applied = self.changes
        self.unsynced.clear()


@dataclass(slots=True, eq=False)
class _NameChange:
    """A file was made under a name, renamed to it or removed; names are whole paths."""

    made: str | None
    removed: str | None
    inode: _Inode

    def is_in(self, folder: str) -> bool:
        """Whether it changes the entries of a folder."""
        return any(name is not None and _folder_of(name) == folder for name in (self.made, self.removed))

    def carry_out(self, names: dict[str, _Inode]) -> None:
        if self.removed is not None and names.get(self.removed) is self.inode:
            del names[self.removed]
        if self.made is not None:
            names[self.made] = self.inode


def _folder_of(name: str) -> str:
    head, slash, _ = name.rpartition("/")
    return head or slash or "."


def _in_order(name: str) -> list[str]:
    """What paths are sorted by: folder by folder."""
    return name.split("/")


Fate = Literal["kept", "torn", "lost"]


def _survivors(changes: Sequence[object], random_source: random.Random) -> list[Fate]:
    """What becomes of changes at a power loss: all kept, none, the first few, or each as it comes."""
    count = len(changes)
    shape = random_source.randrange(4)
    if shape == 0:
        return ["kept"] * count
    if shape == 1:
        return ["lost"] * count
    if shape == 2:
        kept = random_source.randrange(count + 1)
        fates: list[Fate] = [*["kept"] * kept, *["lost"] * (count - kept)]  # type: ignore[list-item]
        if kept < count and random_source.random() < 0.5:
            fates[kept] = "torn"
        return fates
    return [random_source.choice(("kept", "kept", "torn", "lost", "lost")) for _ in range(count)]


class MemoryDisk:
    """A `popwheel_common.disk.Disk` with faults.

    Args:
        random_source: decides what survives a crash and how much a failed write wrote.
        capacity_bytes: how much it holds.
    """

    def __init__(self, random_source: random.Random, capacity_bytes: int = 1 << 40) -> None:
        self._random = random_source
        self._capacity_bytes = capacity_bytes
        # By text: paths take several times as long to be compared and looked up.
        self._names: dict[str, _Inode] = {}
        self._synced_names: dict[str, _Inode] = {}
        self._name_changes: list[_NameChange] = []
        self._folders: set[str] = set()
        self._used_bytes_most = 0
        """No more is used than this, which costs less to know."""
        self._life = 0
        self._failing_writes = 0
        self._failing_syncs = 0
        self._sync_fails_for: Callable[[Path], bool] = _any_path
        self._paused_syncs: list[Callable[[], None]] | None = None
        self.reads = ColdReads(self.fetch)
        self.cached_bytes = capacity_bytes
        """So much of each file's end is in memory."""
        self.may_block = True
        """Whether a plain call may read what is not in memory."""
        self.quick = False
        """Whether it syncs by plain calls, too (`File.sync_quickly`)."""
        self.syncs_begun = 0
        """How often a file was synced or was to be; folders do not count."""
        self.syncs_done = 0

    def open(self, path: Path) -> "MemoryFile":
        name = str(path)
        inode = self._names.get(name)
        if inode is None:
            if _folder_of(name) not in self._folders:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            inode = _Inode()
            self._change_names(_NameChange(name, None, inode))
        return MemoryFile(self, path, inode)

    def exists(self, path: Path) -> bool:
        name = str(path)
        return name in self._names or name in self._folders

    def make_folder(self, path: Path) -> None:
        if str(path) not in self._folders:
            self._folders.update(map(str, (path, *path.parents)))

    def list(self, path: Path) -> list[str]:
        folder = str(path)
        begin = 0 if folder == "." else len(folder.rstrip("/")) + 1
        names = [*self._names, *self._folders]
        return sorted(each[begin:] for each in names if _folder_of(each) == folder and each != folder)

    def remove(self, path: Path) -> None:
        self.reads.changed(path)
        name = str(path)
        inode = self._names.get(name)
        if inode is not None:
            self._change_names(_NameChange(None, name, inode))

    def replace(self, source: Path, target: Path) -> None:
        self.reads.changed(source, target)
        inode = self._names.get(str(source))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        self._change_names(_NameChange(str(target), str(source), inode))

    async def remove_folder(self, path: Path) -> None:
        for each in [Path(name) for name in self._names if path in Path(name).parents]:
            self.remove(each)

    async def sync_folder(self, path: Path) -> None:
        folder = str(path)
        begun = [change for change in self._name_changes if change.is_in(folder)]
        await self._through(partial(self.end_folder_sync, begun, self._life))

    def end_folder_sync(self, begun: Sequence[_NameChange], life: int) -> None:
        """Changes of names reach the device."""
        self.check_life(life)
        ids = {id(change) for change in begun}
        for change in self._name_changes:
            if id(change) in ids:
                change.carry_out(self._synced_names)
        self._name_changes = [change for change in self._name_changes if id(change) not in ids]

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(self._capacity_bytes, max(0, self._capacity_bytes - self.used_bytes))

    def copy(self, without: str = "") -> "MemoryDisk":
        """A faultless disk with the same files, all on the device, but for those whose path holds `without`."""
        copy = MemoryDisk(random.Random(0))
        for name, inode in self._names.items():
            copy.make_folder(Path(_folder_of(name)))
            if not without or without not in name:
                copy._names[name] = _Inode(bytearray(inode.written), bytearray(inode.written))
        copy._synced_names = dict(copy._names)
        copy._used_bytes_most = copy.used_bytes
        return copy

    @property
    def used_bytes(self) -> int:
        """Bytes of all files that have a name."""
        return sum(len(inode.written) for inode in self._names.values())

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that were written and that a power loss may take away. Zeros do not count: logs are filled ahead."""
        return sum(
            len(change.data)
            for inode in self._names.values()
            for change in inode.unsynced
            if isinstance(change, _Write) and change.data.strip(b"\0")
        )

    def files(self) -> dict[Path, bytes]:
        """What is in each file, as a program would read it; for comparing."""
        return {Path(name): bytes(self._names[name].written) for name in sorted(self._names, key=_in_order)}

    def contents(self, path: Path) -> bytes | None:
        """What is in one file, as a program would read it; None if there is none."""
        inode = self._names.get(str(path))
        return None if inode is None else bytes(inode.written)

    def crash(self, kind: CrashKind) -> None:
        """End the process that has files open; with `power` the machine too."""
        self._life += 1
        self._failing_writes = self._failing_syncs = 0
        self.release_syncs()
        if kind == "process":
            return
        fates = _survivors(self._name_changes, self._random)
        for change, fate in zip(self._name_changes, fates, strict=True):
            if fate == "kept":
                change.carry_out(self._synced_names)
        self._name_changes.clear()
        self._names = dict(self._synced_names)
        for name in sorted(self._names, key=_in_order):
            inode = self._names[name]
            inode.settle(self._random)
            inode.written = bytearray(inode.synced)

    def fill(self, free_bytes: int) -> None:
        """Leave so much space, by giving the disk another size."""
        self._capacity_bytes = self.used_bytes + free_bytes

    def fail_writes(self, count: int) -> None:
        """Let the next `count` writes fail with EIO."""
        self._failing_writes = count

    def fail_syncs(self, count: int, of: Callable[[Path], bool] | None = None) -> None:
        """Let the next `count` syncs of files fail with EIO; of those files only whose path `of` says yes to."""
        self._failing_syncs = count
        self._sync_fails_for = of or _any_path

    def flip_bit(self, path: Path, bit: int) -> None:
        """Let one bit of a file rot; `bit` counts from the beginning of the file."""
        inode = self._names[str(path)]
        for contents in (inode.written, inode.synced):
            if bit // 8 < len(contents):
                contents[bit // 8] ^= 1 << bit % 8

    async def fetch(self, ranges: Sequence[Range]) -> Sequence[bytes]:
        """Read from the device as a thread would."""
        await asyncio.sleep(0)
        return self.read_ranges(ranges)

    def read_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes]:
        """What is in ranges of files. Raises FileNotFoundError."""
        found: list[bytes] = []
        for path, offset, length in ranges:
            inode = self._names.get(str(path))
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            found.append(bytes(inode.written[offset : offset + length]))
            if not self.may_block:
                inode.fetched.update(_sectors(offset, length))
        return found

    def hold_syncs(self) -> None:
        """Let every sync that begins from now on wait for `release_syncs`."""
        self._paused_syncs = []

    def release_syncs(self) -> None:
        """Let the syncs that wait go on."""
        held, self._paused_syncs = self._paused_syncs or [], None
        for end in held:
            end()

    async def until_stored(self) -> None:
        """Return when a sync waits for `release_syncs`."""
        while not self._paused_syncs:
            await asyncio.sleep(0)

    def check_life(self, life: int) -> None:
        """Raises DeadFileError if there was a crash since `life`."""
        if life != self._life:
            raise DeadFileError("the process that had this open has crashed")

    @property
    def life(self) -> int:
        """Number of crashes so far."""
        return self._life

    def _change_names(self, change: _NameChange) -> None:
        change.carry_out(self._names)
        self._name_changes.append(change)

    def take_space(self, inode: _Inode, offset: int, data: bytes) -> tuple[bytes, OSError | None]:
        """How much of a write is carried out, and the error it ends with."""
        growth = max(0, offset + len(data) - len(inode.written))
        self._used_bytes_most += growth
        if self._failing_writes > 0:
            self._failing_writes -= 1
            return data[: self._random.randrange(len(data) + 1)], OSError(errno.EIO, os.strerror(errno.EIO))
        if self._used_bytes_most <= self._capacity_bytes:
            return data, None
        used_bytes = self.used_bytes
        free = max(0, self._capacity_bytes - used_bytes)  # what is written in place fits whatever took too much
        room = max(0, len(inode.written) - offset) + free
        self._used_bytes_most = used_bytes + growth
        if len(data) > room:
            # As far as it goes, or less: what the system wrote before it noticed.
            return data[: self._random.randint(0, max(0, room))], OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return data, None

    def lengthen(self, inode: _Inode, size: int) -> None:
        """A file is going to be so long, if it is not longer."""
        self._used_bytes_most += max(0, size - len(inode.written))

    async def sync_inode(self, path: Path, inode: _Inode, life: int) -> None:
        """What `MemoryFile.sync` does."""
        self.syncs_begun += 1
        await self._through(partial(self.end_sync, path, inode, inode.changes, life))

    def sync_inode_quickly(self, path: Path, inode: _Inode, life: int) -> bool:
        """What `MemoryFile.sync_quickly` does."""
        if not self.is_quick:
            return False
        self.syncs_begun += 1
        self.end_sync(path, inode, inode.changes, life)
        return True

    @property
    def is_quick(self) -> bool:
        """Whether the device takes so little time for the next sync that the loop may wait for it."""
        return self.quick and self._paused_syncs is None

    async def _through(self, sync: Callable[[], None]) -> None:
        """Do a sync when it is its turn, whoever waits then."""
        if self._paused_syncs is None:
            sync()
        else:
            synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._paused_syncs.append(partial(end_for, synced, sync))
            await synced

    def end_sync(self, path: Path, inode: _Inode, changes: int, life: int) -> None:
        """The first `changes` changes of a file reach the device, or the device refuses."""
        self.check_life(life)
        if self._failing_syncs > 0 and self._sync_fails_for(path):
            self._failing_syncs -= 1
            inode.settle(self._random)
            if self._random.random() < 0.5:
                inode.written = bytearray(inode.synced)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode.sync(changes)
        self.syncs_done += 1


class MemoryFile:
    """An open file of a `MemoryDisk`.

    Args:
        disk: where it is.
        path: the name it was opened by.
        inode: its bytes.
    """

    def __init__(self, disk: MemoryDisk, path: Path, inode: _Inode) -> None:
        self._disk = disk
        self.path = path
        self._inode = inode
        self._life = disk._life
        self._closed = False

    def size(self) -> int:
        self._check()
        return len(self._inode.written)

    def read(self, offset: int, length: int) -> bytes:
        if self._disk.reads.is_running:
            return self._disk.reads.read(self, offset, length)
        data = self.read_cached(offset, length)
        if data is None:
            if not self._disk.may_block and not self._inode.fetched.issuperset(_sectors(offset, length)):
                raise BlockingReadError(f"{length} bytes at {offset} of {self.path} are read while others wait")
            data = bytes(self._inode.written[offset : offset + length])
        return data

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """As `read`; None if it is not in memory."""
        self._check()
        written = self._inode.written
        if 0 <= offset < len(written) - self._disk.cached_bytes:
            return None
        return bytes(written[offset : offset + length])

    def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        self._check()
        data, error = self._disk.take_space(self._inode, offset, b"".join(buffers))
        if data:
            self._inode.change(_Write(offset, data))
        if error is not None:
            raise error

    async def sync(self) -> None:
        self._check()
        await self._disk.sync_inode(self.path, self._inode, self._life)

    def sync_quickly(self) -> bool:
        self._check()
        return self._disk.sync_inode_quickly(self.path, self._inode, self._life)

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.reads.changed(self.path)
        self._disk.lengthen(self._inode, size)
        self._inode.change(_Truncate(size))

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._life != self._disk._life:
            self._disk.check_life(self._life)
        if self._closed:
            raise ValueError(f"{self.path} is closed")


def end_for(waiter: asyncio.Future[None], sync: Callable[[], None]) -> None:
    """Do a sync for somebody who may have been cancelled meanwhile."""
    try:
        sync()
    except (OSError, DeadFileError) as error:
        if not waiter.done():
            waiter.set_exception(error)
    else:
        if not waiter.done():
            waiter.set_result(None)


def _sectors(offset: int, length: int) -> range:
    return range(offset // SECTOR_BYTES, (offset + length - 1) // SECTOR_BYTES + 1)


def _any_path(path: Path) -> bool:
    return True
