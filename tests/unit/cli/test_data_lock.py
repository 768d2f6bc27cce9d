"""One data folder, one process; a folder of somebody else is left alone; a run that did not end by itself is seen."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from popwheel_cli.process.data_lock import DataLock
from popwheel_common.errors import ConfigurationError


def test_a_folder_is_made_and_locked_and_let_go(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    first, second = DataLock(folder), DataLock(folder)
    first.acquire()
    for take in (second.check, second.acquire):
        with pytest.raises(ConfigurationError, match=f"in use by process {os.getpid()}; stop it or give another"):
            take()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for take in (DataLock.check, DataLock.acquire):
        with pytest.raises(ConfigurationError, match="cannot be used as a data folder") as caught:
            take(DataLock(tmp_path / "file"))
        assert caught.value.key == "--data-dir"


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    DataLock(tmp_path / "data").check()
    assert not (tmp_path / "data").exists()
    lock = DataLock(tmp_path)
    lock.acquire()
    os.close(lock.descriptor)  # as a kill -9 does
    before = (tmp_path / "lock").read_bytes()
    DataLock(tmp_path).check()
    assert (tmp_path / "lock").read_bytes() == before != b""


@pytest.mark.parametrize("theirs", ["photo.jpg", "logs", "broker.txt", "my-controller"])
def test_a_folder_of_somebody_else_is_refused_and_left_alone(theirs: str, tmp_path: Path) -> None:
    (tmp_path / theirs).write_text("theirs")
    for take in (DataLock.check, DataLock.acquire):
        with pytest.raises(ConfigurationError, match=f"is no Popwheel folder: it holds '{theirs}' and nothing of Pop"):
            take(DataLock(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [theirs]


@pytest.mark.parametrize("ours", ["lock", "broker", "controller", "broker-3", "broker-0-1", "controller-1"])
def test_a_folder_of_ours_may_hold_more(ours: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    if ours == "lock":
        (tmp_path / ours).write_text("")
    else:
        (tmp_path / ours).mkdir()
    lock = DataLock(tmp_path)
    lock.acquire()
    lock.release()


@pytest.mark.parametrize("names", [(), ("lost+found",), (".snapshot", ".DS_Store")])
def test_a_new_volume_is_as_good_as_empty(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    lock = DataLock(tmp_path)
    lock.acquire()
    lock.release()


def lines_of_a_start(folder: Path, *, recovers: bool = True) -> tuple[DataLock, list[str]]:
    """A process that has the folder, and what it warned of."""
    lock = DataLock(folder)
    lock.acquire()
    with capture_logs() as lines:
        if recovers:
            lock.serves(records=3)
    return lock, [f"{line['event']}: {line['process']}, {line['records']}" for line in lines]


def test_a_run_that_did_not_end_by_itself_is_reported_of_once(tmp_path: Path) -> None:
    line = f"the last run did not end by itself: {os.getpid()}, 3"
    lock, lines = lines_of_a_start(tmp_path)
    assert not lines, "the first run of all"
    os.close(lock.descriptor)  # kill -9
    lock, lines = lines_of_a_start(tmp_path, recovers=False)
    lock.release()  # a start that failed
    lock, lines = lines_of_a_start(tmp_path)
    assert lines == [line]
    lock.release()
    lock, lines = lines_of_a_start(tmp_path)
    assert not lines
    lock.release(OSError, OSError("something was not saved"))
    lock, lines = lines_of_a_start(tmp_path)
    assert lines == [line]
    lock.release()
