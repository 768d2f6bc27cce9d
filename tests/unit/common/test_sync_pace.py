"""Whether the loop itself may wait for a device: only where that takes little on average."""

import asyncio
from pathlib import Path

from popwheel_common.disk import QUICK_SYNC_S, SyncPace, SystemDisk


def after(*seconds: float) -> SyncPace:
    pace = SyncPace()
    for each in seconds:
        pace.took(each)
    return pace


def test_nothing_is_known_of_a_device_before_its_first_sync() -> None:
    assert not after().is_quick
    assert after(QUICK_SYNC_S).is_quick


def test_a_slow_device_is_never_waited_for() -> None:
    assert not after(*[2 * QUICK_SYNC_S] * 1000).is_quick


def test_one_slow_sync_sends_the_next_ones_to_a_thread_until_enough_were_quick() -> None:
    pace = after(*[0.0002] * 100, 0.1)
    in_threads = 0
    while not pace.is_quick:
        pace.took(0.0002)
        in_threads += 1
    assert 10 < in_threads < 100


def test_a_device_that_is_slow_now_and_then_holds_nobody_up_for_much_on_average() -> None:
    pace = after(0.0002)
    waited = []
    for turn in range(10_000):
        seconds = 0.02 if turn % 10 == 0 else 0.0002
        if pace.is_quick:
            waited.append(seconds)
        pace.took(seconds)
    assert sum(waited) < 10_000 * QUICK_SYNC_S / 4


def test_the_disk_measures_its_device(tmp_path: Path) -> None:
    disk = SystemDisk()
    file = disk.open(tmp_path / "file")
    file.write(0, [b"x"])
    assert not file.sync_quickly()
    asyncio.run(file.sync())
    assert disk._pace._mean_s > 0
    disk._pace._mean_s = QUICK_SYNC_S / 2
    assert file.sync_quickly()
    file.close()
    disk.close()
