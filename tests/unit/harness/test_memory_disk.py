"""The disk that tests hand in keeps its promises: synced is safe, the rest may be lost in any way, errors are true."""

import asyncio
import errno
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.disk import replace_file
from tests.harness.memory_disk import SECTOR_BYTES, DeadFileError, MemoryDisk

FOLDER = Path("/data")
PATH = FOLDER / "a"


def disk_of(seed: int, capacity_bytes: int = 1 << 30) -> MemoryDisk:
    disk = MemoryDisk(random.Random(seed), capacity_bytes)
    disk.make_folder(FOLDER)
    return disk


def run(work: Coroutine[Any, Any, None]) -> None:
    """For examples of Hypothesis, of which each needs its own loop."""
    asyncio.run(work)


async def write_safely(disk: MemoryDisk, path: Path, data: bytes) -> None:
    file = disk.open(path)
    file.write(0, [data])
    await file.sync()
    file.close()
    await disk.sync_folder(path.parent)


def content_after(seed: int, writes: list[tuple[int, bytes]], synced: int) -> bytes:
    """What is in a file after a power loss, of whose writes the first few were synced."""
    disk = disk_of(seed)

    async def write() -> None:
        await write_safely(disk, PATH, b"")
        file = disk.open(PATH)
        for number, (offset, data) in enumerate(writes):
            file.write(offset, [data])
            if number + 1 == synced:
                await file.sync()

    run(write())
    disk.crash("power")
    return disk.files()[PATH]


def test_what_is_written_is_read() -> None:
    disk = disk_of(0)
    file = disk.open(PATH)
    file.write(3, [b"ab", b"", b"cd"])
    assert (file.size(), file.read(0, 100), file.read(4, 2)) == (7, b"\0\0\0abcd", b"bc")
    file.truncate(4)
    assert disk.open(PATH).read(0, 100) == b"\0\0\0a"


def test_a_file_needs_a_folder() -> None:
    with pytest.raises(FileNotFoundError):
        disk_of(0).open(Path("/elsewhere/a"))


def test_names() -> None:
    disk = disk_of(0)
    disk.make_folder(FOLDER / "inner" / "most")
    disk.open(FOLDER / "b")
    disk.open(PATH).write(0, [b"x"])
    assert disk.list(FOLDER) == ["a", "b", "inner"]
    disk.replace(PATH, FOLDER / "b")
    disk.remove(FOLDER / "never there")
    assert (disk.list(FOLDER), disk.exists(PATH), disk.exists(FOLDER / "inner")) == (["b", "inner"], False, True)
    assert disk.files() == {FOLDER / "b": b"x"}
    with pytest.raises(FileNotFoundError):
        disk.replace(PATH, FOLDER / "b")


@given(seed=st.integers(0, 1000), data=st.binary(min_size=1, max_size=3000))
def test_a_dead_process_leaves_all_it_wrote(seed: int, data: bytes) -> None:
    disk = disk_of(seed)
    file = disk.open(PATH)
    file.write(0, [data])
    disk.crash("process")
    assert disk.files() == {PATH: data}
    with pytest.raises(DeadFileError):
        file.read(0, 1)


def test_what_a_dead_process_wrote_is_still_unsynced() -> None:
    found = set()
    for seed in range(40):
        disk = disk_of(seed)
        run(write_safely(disk, PATH, b"old"))
        disk.open(PATH).write(0, [b"new"])
        disk.crash("process")
        disk.crash("power")
        found.add(disk.files()[PATH])
    assert found == {b"old", b"new"}


@given(
    seed=st.integers(0, 10_000),
    writes=st.lists(st.tuples(st.integers(0, 3000), st.binary(min_size=1, max_size=2000)), min_size=1, max_size=6),
    synced=st.integers(0, 6),
)
def test_power_loss_keeps_what_was_synced(seed: int, writes: list[tuple[int, bytes]], synced: int) -> None:
    """Each byte is one that was written there at the last sync or later, or a zero where there was nothing."""
    synced = min(synced, len(writes))
    content = content_after(seed, writes, synced)
    base = bytearray()
    for offset, data in writes[:synced]:
        base.extend(bytes(max(0, offset + len(data) - len(base))))
        base[offset : offset + len(data)] = data
    assert len(content) >= len(base)
    for at, byte in enumerate(content):
        possible = {base[at] if at < len(base) else 0}
        possible |= {data[at - offset] for offset, data in writes[synced:] if offset <= at < offset + len(data)}
        assert byte in possible


def test_unsynced_writes_are_kept_lost_torn_and_reordered() -> None:
    whole = [(0, b"a" * 1500), (1500, b"b" * 1500)]
    found = {content_after(seed, whole, 0) for seed in range(400)}
    assert b"a" * 1500 + b"b" * 1500 in found, "kept"
    assert b"" in found, "lost"
    assert b"a" * SECTOR_BYTES in found, "torn"
    assert any(content.strip(b"\0") == b"b" * 1500 for content in found), "reordered"
    assert b"\0" * 3000 in found, "longer, but of zeros"
    for content in found:
        for start in range(0, len(content), SECTOR_BYTES):
            sector = content[start : start + SECTOR_BYTES]
            expected = 2 if start < 1500 < start + SECTOR_BYTES else 1
            assert len(set(sector) - {0}) <= expected, "no sector is torn in itself"


def test_names_are_lost_or_kept_until_their_folder_is_synced() -> None:
    found = set()
    for seed in range(100):
        disk = disk_of(seed)
        run(write_safely(disk, PATH, b"a"))
        made = disk.open(FOLDER / "made")
        run(made.sync())
        disk.remove(PATH)
        disk.crash("power")
        found.add(tuple(disk.list(FOLDER)))
    assert found == {("a",), ("a", "made"), ("made",), ()}


def test_names_are_safe_once_their_folder_is_synced() -> None:
    for seed in range(30):
        disk = disk_of(seed)
        other = FOLDER / "other"
        disk.make_folder(other)

        async def change(disk: MemoryDisk, other: Path) -> None:
            await write_safely(disk, PATH, b"a")
            await write_safely(disk, FOLDER / "b", b"b")
            disk.open(other / "unsynced")
            disk.replace(PATH, other / "moved")
            disk.remove(FOLDER / "b")
            await disk.sync_folder(FOLDER)

        run(change(disk, other))
        disk.crash("power")
        assert disk.list(FOLDER) == ["other"]
        assert disk.files()[other / "moved"] == b"a"


@given(seed=st.integers(0, 1000), steps=st.integers(0, 1))
def test_a_replaced_file_is_the_old_one_or_the_new_one(seed: int, steps: int) -> None:
    disk = disk_of(seed)
    run(write_safely(disk, PATH, b"old" * 500))
    if steps:
        run(replace_file(disk, PATH, b"new" * 600))
    else:
        new = disk.open(FOLDER / "a.new")
        new.write(0, [b"new" * 600])
        run(new.sync())
        disk.replace(FOLDER / "a.new", PATH)
    disk.crash("power")
    assert disk.files()[PATH] in ({b"new" * 600} if steps else {b"old" * 500, b"new" * 600})


def test_a_full_disk_takes_what_fits_and_says_so() -> None:
    for seed in range(20):
        disk = disk_of(seed, capacity_bytes=1000)
        file = disk.open(PATH)
        file.write(0, [b"a" * 600])
        assert disk.usage(FOLDER).free_bytes == 400
        with pytest.raises(OSError, match="No space left") as caught:
            file.write(600, [b"b" * 300, b"c" * 200])
        assert caught.value.errno == errno.ENOSPC
        assert 600 <= file.size() <= 1000
        file.truncate(600)
        file.write(0, [b"d" * 600])
        disk.fill(1)
        file.write(600, [b"e"])
        assert disk.usage(FOLDER).used_share == 1.0


def test_a_failed_write_may_have_written_anything_of_it() -> None:
    sizes = set()
    for seed in range(60):
        disk = disk_of(seed)
        file = disk.open(PATH)
        disk.fail_writes(1)
        with pytest.raises(OSError, match="Input/output"):
            file.write(0, [b"abc"])
        sizes.add(file.size())
        file.write(0, [b"abc"])
    assert sizes == {0, 1, 2, 3}


def test_what_a_failed_sync_left_is_never_made_good_by_a_later_one() -> None:
    found = set()
    for seed in range(60):
        disk = disk_of(seed)

        async def sync_twice(disk: MemoryDisk) -> bytes:
            await write_safely(disk, PATH, b"old")
            file = disk.open(PATH)
            disk.fail_syncs(1)
            file.write(0, [b"new"])
            with pytest.raises(OSError, match="Input/output"):
                await file.sync()
            shown = file.read(0, 3)
            await file.sync()
            return shown

        shown = asyncio.run(sync_twice(disk))
        disk.crash("power")
        found.add((shown, disk.files()[PATH]))
    assert found == {(b"old", b"old"), (b"new", b"new"), (b"new", b"old")}


async def test_syncs_fail_for_the_files_one_asks_for() -> None:
    disk = disk_of(0)
    one, other = disk.open(PATH), disk.open(FOLDER / "b")
    disk.fail_syncs(1, of=lambda path: path.name == "b")
    await one.sync()
    with pytest.raises(OSError, match="Input/output"):
        await other.sync()


def test_a_flipped_bit_is_another_bit_for_good() -> None:
    disk = disk_of(0)
    run(write_safely(disk, PATH, b"\0\0"))
    disk.flip_bit(PATH, 9)
    assert disk.files()[PATH] == b"\0\2"
    disk.crash("power")
    assert disk.files()[PATH] == b"\0\2"


async def test_a_sync_can_be_paused_and_covers_what_came_before_it() -> None:
    disk = disk_of(0)
    await write_safely(disk, PATH, b"0")
    file = disk.open(PATH)
    file.write(0, [b"1"])
    disk.hold_syncs()
    syncing = asyncio.create_task(file.sync())
    await asyncio.sleep(0)
    file.write(0, [b"2"])
    assert (disk.syncs_begun, disk.syncs_done, disk.unsynced_bytes) == (2, 1, 2)
    disk.release_syncs()
    await syncing
    assert (disk.syncs_done, disk.unsynced_bytes) == (2, 1)


async def test_a_sync_that_a_crash_overtakes_never_ends_well() -> None:
    disk = disk_of(0)
    file = disk.open(PATH)
    file.write(0, [b"1"])
    disk.hold_syncs()
    syncing = asyncio.create_task(file.sync())
    await asyncio.sleep(0)
    disk.crash("process")
    with pytest.raises(DeadFileError):
        await syncing
    assert disk.unsynced_bytes == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_a_sync_goes_on_when_its_waiter_is_cancelled(fails: bool) -> None:
    disk = disk_of(0)
    file = disk.open(PATH)
    file.write(0, [b"1"])
    disk.hold_syncs()
    syncing = asyncio.create_task(file.sync())
    await asyncio.sleep(0)
    syncing.cancel()
    await asyncio.gather(syncing, return_exceptions=True)
    disk.fail_syncs(fails)
    disk.release_syncs()
    assert disk.unsynced_bytes == 0
    await file.sync()  # an error is told once, and the waiter of the first sync had gone
    assert disk.syncs_done == 2 - fails


def test_one_seed_is_one_history() -> None:
    def history(seed: int) -> dict[Path, bytes]:
        disk = disk_of(seed)
        for number in range(20):
            disk.open(FOLDER / str(number)).write(number * 100, [b"x" * 1000])
        disk.crash("power")
        return disk.files()

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_a_copy_has_the_files_and_goes_its_own_way() -> None:
    disk = MemoryDisk(random.Random(1))
    for folder, name in ((FOLDER, "a"), (FOLDER / "timer", "b"), (FOLDER, "c")):
        disk.make_folder(folder)
        disk.open(folder / name).write(0, [name.encode()])
    copy = disk.copy("/timer/")
    assert copy.files() == {FOLDER / "a": b"a", FOLDER / "c": b"c"}
    assert copy.list(FOLDER) == ["a", "c", "timer"]
    copy.open(FOLDER / "a").write(1, [b"x"])
    assert (disk.contents(FOLDER / "a"), copy.contents(FOLDER / "a"), copy.contents(FOLDER / "b")) == (
        b"a",
        b"ax",
        None,
    )
    disk.crash("power")
    copy.crash("process")
    assert copy.contents(FOLDER / "c") == b"c"
