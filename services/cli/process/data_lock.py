"""Keeps two processes from sharing one data folder."""

import fcntl
import os
from pathlib import Path

from services.common.errors import ConfigurationError

FILE_NAME = "lock"


class DataLock:
    """Holds a data folder for this process; the system lets go of it when the process ends, however it ends.

    Args:
        data_dir: the folder; made if it is not there.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the folder.

        Raises:
            ConfigurationError: another process has it, or it cannot be made or written.
        """
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(
                "--data-dir", f"{self._data_dir} cannot be used as a data folder: {error.strerror}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            who = f"process {holder}" if holder else "another process"
            raise ConfigurationError(
                "--data-dir", f"{self._data_dir} is in use by {who}; stop it or give another folder"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """The file that is locked. A child that is handed it holds the folder as well, for as long as it lives.

        Raises:
            ValueError: the folder is not held.
        """
        if self._descriptor is None:
            raise ValueError("take the folder first")
        return self._descriptor

    def release(self) -> None:
        """Let others have the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
