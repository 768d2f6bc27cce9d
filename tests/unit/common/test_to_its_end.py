"""Work on the device is done to its end, whoever waits for it."""

import asyncio
import os
import random
import threading
from pathlib import Path

import pytest

from popwheel_common.disk import SystemDisk, replace_file, to_its_end
from tests.harness.memory_disk import MemoryDisk


async def test_it_gives_what_the_work_gives() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return 1

    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError("no")

    assert await to_its_end(work()) == 1
    with pytest.raises(OSError, match="no"):
        await to_its_end(fails())


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_waits_and_goes_before_an_error(fails: bool) -> None:
    steps: list[str] = []
    goes_on = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        steps.append("one")
        await goes_on.wait()
        await asyncio.sleep(0)
        steps.append("two")
        if fails:
            raise OSError("no")

    async def waits() -> None:
        await to_its_end(work())

    task = asyncio.create_task(waits())
    for _ in range(5):
        await asyncio.sleep(0)
        task.cancel()
    assert not task.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert steps == ["one", "two"]
    assert isinstance(caught.value.__cause__, OSError) == fails


async def test_a_time_out_ends_when_the_work_does() -> None:
    async def work() -> None:
        await asyncio.sleep(0.02)
        done.append(1)

    done: list[int] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await to_its_end(work())
    assert done == [1]
    await asyncio.sleep(0)  # the time-out has taken its cancellation back


async def test_a_file_is_replaced_though_its_writer_is_cancelled() -> None:
    disk = MemoryDisk(random.Random(1))
    disk.make_folder(Path("/f"))
    for data in (b"old", b"new"):
        disk.hold_syncs()
        task = asyncio.create_task(replace_file(disk, Path("/f/a"), data))
        await disk.until_stored()
        task.cancel()
        disk.release_syncs()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        disk.crash("power")
        assert disk.files()[Path("/f/a")] == data


async def test_no_file_is_closed_while_a_thread_syncs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    sizes: list[int] = []

    def slow(descriptor: int) -> None:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait(10)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", slow)
    disk = SystemDisk()
    task = asyncio.create_task(replace_file(disk, tmp_path / "a", b"data"))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), sizes, (tmp_path / "a").read_bytes()) == (True, [4], b"data")
    disk.close()
