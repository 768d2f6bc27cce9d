"""Lock on data folders: one process per folder, and none in a foreign folder."""

import os
import re
from pathlib import Path
from types import TracebackType

import structlog

from popwheel_common.errors import ConfigurationError

_logger = structlog.get_logger()

FILE_NAME = "lock"

_OURS = re.compile(r"lock|(broker|controller)(-\d+){0,2}")
"""Names of which every data folder has at least one at its top: `DESIGN.md`, 5."""
_OF_THE_SYSTEM = ("lost+found",)
"""Names on a new, empty volume."""


class DataLock:
    """Lock on a data folder for this process; the system releases it when the process ends, however it ends.

    Args:
        data_dir: the folder; made if it is not there.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor: int | None = None
        self.left_by = ""
        """Number of the last process with the folder, if it crashed; empty if it ended well."""

    def check(self) -> None:
        """Check that the folder can be locked, without changing it.

        Raises:
            ConfigurationError: another process has it, it is a foreign folder, or it cannot be read.
        """
        try:
            names = [path.name for path in self._data_dir.iterdir()]
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error) from error
        theirs = sorted(name for name in names if not name.startswith(".") and name not in _OF_THE_SYSTEM)
        if theirs and not any(_OURS.fullmatch(name) for name in theirs):
            raise ConfigurationError(
                "--data-dir",
                f"{self._data_dir} is no Popwheel folder: it holds {theirs[0]!r} and nothing of Popwheel; give another "
                "one, new or empty",
            )
        if FILE_NAME in names:
            try:
                descriptor = os.open(self._data_dir / FILE_NAME, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise self._unusable(error) from error
            try:
                self._hold(descriptor)
            finally:
                os.close(descriptor)

    def acquire(self) -> None:
        """Lock the folder.

        Raises:
            ConfigurationError: another process has it, it is a foreign folder, or it cannot be made or written.
        """
        self.check()
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._hold(descriptor)
        except ConfigurationError:
            os.close(descriptor)
            raise
        self.left_by = _words(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """Descriptor of the locked file. A child that inherits it has the lock as well, for as long as it lives.

        Raises:
            ValueError: the folder is not locked.
        """
        if self._descriptor is None:
            raise ValueError("take the folder first")
        return self._descriptor

    def serves(self, **recovered: float) -> None:
        """Log once, after recovery, if the last process crashed.

        Args:
            recovered: figures for the log.
        """
        if self.left_by:
            _logger.warning("the last run did not end by itself", process=self.left_by, **recovered)
        self.left_by = ""

    def release(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Unlock the folder; at the end of a stack, with the exception of its other callbacks.

        The file is empty then, but not if something could not be saved, or if what the last process left was not
        recovered.
        """
        if self._descriptor is not None:
            if error is None and not self.left_by:
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _hold(self, descriptor: int) -> None:
        """Lock the file while it is open."""
        import fcntl  # Windows has none

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _words(descriptor)
            who = f"process {holder}" if holder else "another process"
            raise ConfigurationError(
                "--data-dir", f"{self._data_dir} is in use by {who}; stop it or give another folder"
            ) from error

    def _unusable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError("--data-dir", f"{self._data_dir} cannot be used as a data folder: {error.strerror}")


def _words(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip()
