"""What is not in memory is read in a thread, once for each call, with all others going on."""

import asyncio
import errno
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from popwheel_common import disk
from popwheel_common.cold_reads import AT_ONCE_MAX, ColdReads, NotInMemory, Range
from popwheel_common.disk import SystemDisk
from tests.harness.memory_disk import BlockingReadError, MemoryDisk

FOLDER = Path("/folder")
NAME = FOLDER / "file"


class SlowDisk(MemoryDisk):
    """A disk whose threads read when they are asked to."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fetched: list[Range] = []
        self.at_once = self.at_once_most = 0
        self.make_folder(FOLDER)
        self.file = self.open(NAME)
        self.file.write(0, [bytes(range(256))])
        self.cached_bytes = 0

    async def fetch(self, ranges: Sequence[Range]) -> Sequence[bytes]:
        self.fetched += ranges
        self.at_once += 1
        self.at_once_most = max(self.at_once_most, self.at_once)
        await self.go_on.wait()
        self.at_once -= 1
        return self.read_ranges(ranges)

    def reading(self, offset: int, length: int) -> Callable[[], bytes]:
        return lambda: self.file.read(offset, length)


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_is_in_memory_is_read_at_once() -> None:
    slow = SlowDisk()
    slow.cached_bytes = 256
    assert await slow.reads.run(slow.reading(3, 2)) == b"\3\4"
    assert slow.fetched == []


async def test_each_range_is_fetched_once_however_short_memory_is() -> None:
    slow = SlowDisk()

    def work() -> list[bytes]:
        return [slow.file.read(0, 10), slow.file.read(200, 100), slow.file.read(2, 3)]

    assert await slow.reads.run(work) == [bytes(range(10)), bytes(range(200, 256)), b"\2\3\4"]
    assert slow.fetched == [Range(NAME, 0, 10), Range(NAME, 200, 100)]
    assert slow.reads.fetched_bytes == 66


async def test_others_go_on_meanwhile() -> None:
    slow = SlowDisk()
    slow.go_on.clear()
    waiting = asyncio.create_task(slow.reads.run(slow.reading(0, 1)))
    await some_turns()
    assert slow.reads.waiting == 1
    assert await slow.reads.run(lambda: 5) == 5
    slow.go_on.set()
    assert await waiting == b"\0"
    assert slow.reads.waiting == 0


async def test_calls_of_a_line_keep_their_order() -> None:
    """The second would find what the first has not taken yet, and fetch it once more."""
    slow = SlowDisk()
    slow.go_on.clear()
    taken: list[bytes] = []

    def take() -> None:
        taken.append(slow.file.read(len(taken), 1))

    async def of_line(line: str) -> None:
        await slow.reads.run(take, line)

    calls = [asyncio.create_task(of_line("a")) for _ in range(3)]
    await some_turns()
    assert slow.fetched == [Range(NAME, 0, 1)]
    other = asyncio.create_task(of_line("b"))
    await some_turns()
    assert len(slow.fetched) == 2
    other.cancel()
    slow.go_on.set()
    await asyncio.gather(*calls)
    assert taken == [b"\0", b"\1", b"\2"]
    assert not slow.reads._lines


async def test_a_call_that_is_given_up_leaves_its_place_to_the_next() -> None:
    slow = SlowDisk()
    slow.go_on.clear()
    calls = [asyncio.create_task(slow.reads.run(slow.reading(each, 1), "line")) for each in range(2)]
    await some_turns()
    calls[0].cancel()
    slow.go_on.set()
    assert await calls[1] == b"\1"


async def test_only_that_many_are_read_for_at_once() -> None:
    slow = SlowDisk()
    slow.go_on.clear()
    calls = [asyncio.create_task(slow.reads.run(slow.reading(each, 1))) for each in range(AT_ONCE_MAX + 5)]
    await some_turns()
    assert slow.at_once == AT_ONCE_MAX
    assert slow.reads.waiting == AT_ONCE_MAX + 5
    slow.go_on.set()
    assert await asyncio.gather(*calls) == [bytes([each]) for each in range(AT_ONCE_MAX + 5)]
    assert slow.at_once_most == AT_ONCE_MAX


async def test_what_was_read_is_kept_though_other_files_change_meanwhile() -> None:
    slow = SlowDisk()
    other = FOLDER / "other"
    slow.open(other).write(0, [b"x"])
    slow.go_on.clear()
    waiting = asyncio.create_task(slow.reads.run(lambda: slow.file.read(0, 2) + slow.file.read(9, 2)))
    await some_turns()
    slow.replace(other, FOLDER / "another")
    slow.remove(FOLDER / "another")
    slow.go_on.set()
    assert await waiting == b"\0\1\x09\x0a"
    assert [each.offset for each in slow.fetched] == [0, 9]


async def test_what_is_removed_before_its_turn_is_not_asked_for() -> None:
    slow = SlowDisk()
    other = FOLDER / "other"
    slow.open(other).write(0, [b"x"])
    slow.go_on.clear()
    before = [asyncio.create_task(slow.reads.run(slow.reading(each, 1))) for each in range(AT_ONCE_MAX)]
    await some_turns()
    last = asyncio.create_task(slow.reads.run(lambda: slow.open(other).read(0, 1) if slow.exists(other) else b"gone"))
    await some_turns()
    slow.remove(other)
    slow.go_on.set()
    await asyncio.gather(*before)
    assert await last == b"gone"


async def test_what_was_cut_off_meanwhile_is_not_given() -> None:
    slow = SlowDisk()
    slow.go_on.clear()
    waiting = asyncio.create_task(slow.reads.run(slow.reading(0, 4)))
    await some_turns()
    slow.file.truncate(0)
    slow.file.write(0, [b"new!"])
    slow.go_on.set()
    assert await waiting == b"new!"


async def test_the_end_of_a_file_that_has_grown_is_read_anew() -> None:
    slow = SlowDisk()
    parts: list[bytes] = []

    def work() -> bytes:
        parts.append(slow.file.read(250, 100))
        if len(parts) == 1:
            slow.file.write(256, [b"more"])
            raise NotInMemory([Range(NAME, 0, 1)])
        return parts[-1]

    assert await slow.reads.run(work) == bytes(range(250, 256)) + b"more"


async def test_a_file_that_was_removed_is_asked_for_no_more() -> None:
    slow = SlowDisk()
    calls = 0

    def work() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            slow.remove(NAME)
            raise NotInMemory([Range(NAME, 0, 1)])
        return "gone"

    with pytest.raises(FileNotFoundError):
        await slow.reads.run(work)
    calls = 0
    slow.go_on.clear()
    slow.open(NAME).write(0, [b"x"])
    waiting = asyncio.create_task(slow.reads.run(lambda: slow.file.read(0, 1) if slow.exists(NAME) else b"gone"))
    await some_turns()
    slow.remove(NAME)
    slow.go_on.set()
    assert await waiting == b"gone"


def test_the_memory_disk_reports_plain_reads_that_wait() -> None:
    cold = SlowDisk()
    assert cold.file.read(0, 1) == b"\0"
    cold.may_block = False
    with pytest.raises(BlockingReadError):
        cold.file.read(0, 1)


@pytest.mark.parametrize("reported", [True, False])
async def test_files_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: bool) -> None:
    """Whatever of it is in memory, and whether or not the file system tells."""
    data = os.urandom(1 << 20)
    system = SystemDisk()
    try:
        file = system.open(tmp_path / "file")
        file.write(0, [data])
        await file.sync()
        if not reported:
            monkeypatch.setattr(os, "preadv", _refused)
        descriptor = os.open(tmp_path / "file", os.O_RDONLY)
        for drop in (False, True):
            if drop:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for offset, length in ((0, 100), (70_000, 300_000), (len(data) - 10, 50), (len(data), 10)):
                assert await system.reads.run(partial(file.read, offset, length)) == data[offset:][:length]
                assert file.read(offset, length) == data[offset:][:length]
        assert reported or system.reads.fetched_bytes == 2 * (100 + 300_000 + 10)
        os.close(descriptor)
        file.close()
    finally:
        system.close()


def test_what_the_system_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    system = SystemDisk()
    file = system.open(tmp_path / "file")
    assert isinstance(file, disk.SystemFile)
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(OSError, match="broken"):
        file.read_cached(0, 10)
    file.close()
    system.close()


def _refused(*_: object) -> int:
    raise OSError(errno.EOPNOTSUPP, "not supported")


async def test_an_error_of_the_device_is_notified_to_the_caller() -> None:
    async def fails(ranges: Sequence[Range]) -> Sequence[bytes]:
        raise OSError(errno.EIO, "broken")

    def work() -> None:
        raise NotInMemory([Range(NAME, 0, 1)])

    reads = ColdReads(fails)
    with pytest.raises(OSError, match="broken"):
        await reads.run(work, "line")
    assert (reads.waiting, reads._lines) == (0, {})
