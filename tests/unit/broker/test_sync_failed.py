"""After a sync that failed, the system shows bytes that the device may not have, and says nothing of it any more."""

import errno
import os
import random
from pathlib import Path

import pytest

from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.record import Record, RecordKind, encode
from tests.harness.memory_disk import MemoryDisk

FOLDER = Path("/log")
SEEDS = range(40)


def append(log: CommitLog, count: int) -> None:
    """Append records of one message each."""
    for _ in range(count):
        length, buffers = encode(Record(RecordKind.MESSAGE, "topic", 0, b"body" * 100), log.end_position, 1, 0, 0)
        log.append([length], buffers)


def out_of_files(path: Path) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("is_out_of_files", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_the_next_process_reads_is_on_the_device_once_it_has_synced(
    seed: int, is_out_of_files: bool, is_quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk(random.Random(seed))
    disk.quick = is_quick
    log = CommitLog(disk, FOLDER, 4096)
    append(log, 3)
    await log.sync()
    known_good = log.synced_position
    append(log, 3 if is_quick else 5)  # the first three are in one segment with those before
    disk.fail_syncs(1)
    with monkeypatch.context() as patch:
        if is_out_of_files:
            patch.setattr(disk, "open", out_of_files)
        with pytest.raises(OSError, match="Input/output"):
            if not is_quick:
                await log.sync()
            elif log.sync_quickly():
                pytest.fail("it was not refused")
        assert log.stopped is not None
        assert not log.sync_quickly()
    disk.crash("process")

    again = CommitLog(disk, FOLDER, 4096)
    found = list(again.scan(0, known_good))
    await again.sync()
    disk.crash("power")

    assert list(CommitLog(disk, FOLDER, 4096).scan(0, again.synced_position)) == found
    assert [name for name in disk.list(FOLDER) if not name.endswith(".log")] in ([], ["sync-failed"])
