"""The file that says where a log begins: never later than was said last, nothing at all rather than something wrong."""

import random
from pathlib import Path

import pytest

from services.broker.files.log_start import NAME, LogStart
from tests.harness.memory_disk import MemoryDisk

FOLDER = Path("/broker")
PATH = FOLDER / NAME


def made(seed: int = 0) -> MemoryDisk:
    disk = MemoryDisk(random.Random(seed))
    disk.make_folder(FOLDER)
    return disk


def said(disk: MemoryDisk) -> int | None:
    return LogStart(disk, PATH).position


async def test_what_is_said_outlives_the_machine() -> None:
    disk = made()
    assert said(disk) is None and not disk.exists(PATH)
    await LogStart(disk, PATH).prepare(0)
    disk.crash("power")
    assert said(disk) == 0
    start = LogStart(disk, PATH)
    await start.move_to(700)
    await start.move_to(300)
    disk.crash("power")
    assert said(disk) == start.position == 700
    await LogStart(disk, PATH).set(300)
    disk.crash("power")
    assert said(disk) == 300


async def test_it_takes_no_space_once_it_is_there() -> None:
    disk = made()
    start = LogStart(disk, PATH)
    await start.prepare(0)
    disk.fill(0)
    await start.move_to(700)
    disk.crash("power")
    assert said(disk) == 700


@pytest.mark.parametrize("seed", range(40))
async def test_a_power_loss_on_the_way_leaves_one_of_both(seed: int) -> None:
    disk = made(seed)
    await LogStart(disk, PATH).prepare(100)
    start = LogStart(disk, PATH)
    disk.fail_syncs(1)
    if seed % 2:
        disk.fail_writes(1)
    with pytest.raises(OSError, match="Input/output error"):
        await start.move_to(700)
    disk.crash("power")
    assert said(disk) in (100, 700)


@pytest.mark.parametrize("seed", range(40))
async def test_what_could_not_be_said_is_said_by_the_next_try(seed: int) -> None:
    disk = made(seed)
    start = LogStart(disk, PATH)
    await start.prepare(100)
    disk.fail_syncs(1 + seed % 3)
    for _ in range(1 + seed % 3):
        with pytest.raises(OSError, match="Input/output error"):
            await start.move_to(700)
    await start.move_to(700)
    disk.crash("power")
    assert said(disk) == 700


@pytest.mark.parametrize("byte", [0, 5, 12, 3000, 4096, 4101, 4110, 8191])
async def test_one_bit_that_rots_hides_nothing_and_is_mended(byte: int) -> None:
    disk = made()
    start = LogStart(disk, PATH)
    await start.prepare(0)
    await start.move_to(700)
    good = disk.files()[PATH]
    disk.flip_bit(PATH, 8 * byte)
    assert said(disk) == 700
    await LogStart(disk, PATH).prepare(700)
    assert disk.files()[PATH] == good


@pytest.mark.parametrize("how", ["lost", "short", "damaged"])
async def test_a_file_that_is_not_whole_says_nothing_and_is_made_again(how: str) -> None:
    disk = made()
    await LogStart(disk, PATH).prepare(100)
    if how == "lost":
        disk.remove(PATH)
    elif how == "short":
        disk.open(PATH).truncate(17)
    else:
        disk.flip_bit(PATH, 8 * 20)
        disk.flip_bit(PATH, 8 * 5000)
    assert said(disk) is None
    await LogStart(disk, PATH).prepare(700)
    disk.crash("power")
    assert said(disk) == 700


@pytest.mark.parametrize("seed", range(20))
async def test_without_room_for_the_file_nothing_wrong_is_said(seed: int) -> None:
    """Then nothing misses what is deleted: a disk that was full before there was a file is freed all the same."""
    disk = made(seed)
    await LogStart(disk, PATH).prepare(100)
    disk.open(PATH).truncate(5000)
    other = disk.open(FOLDER / "other")
    other.write(0, [bytes(100)])
    disk.fill(0)
    start = LogStart(disk, PATH)
    assert start.position == 100
    disk._capacity_bytes -= 1000  # somebody takes what the file gives back
    for position in (700, 800):
        await start.move_to(position)
        assert said(disk) in (None, position)
    disk.fill(10_000)
    await start.move_to(800)
    disk.crash("power")
    assert said(disk) == 800
