"""One data folder, one process."""

import os
from pathlib import Path

import pytest

from services.cli.process.data_lock import DataLock
from services.common.errors import ConfigurationError


def test_a_folder_is_made_and_held_and_let_go(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    first, second = DataLock(folder), DataLock(folder)
    first.acquire()
    with pytest.raises(ConfigurationError, match=f"in use by process {os.getpid()}; stop it or give another folder"):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used as a data folder") as caught:
        DataLock(tmp_path / "file").acquire()
    assert caught.value.key == "--data-dir"
