"""The machine's disk, for files that hold secrets, and a lock on a folder that several controllers share."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from popwheel_common.disk import File, SystemDisk

_OWNER_ONLY = 0o600


class PrivateDisk(SystemDisk):
    """Like `SystemDisk`, but the files it makes can be read and written by their owner alone."""

    def open(self, path: Path) -> File:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY))
        return super().open(path)


def folder_lock(path: Path) -> Callable[[], AbstractContextManager[object]]:
    """A lock that is a file, so that several controllers of a machine do not change a folder at the same moment.

    Taking it raises BlockingIOError if another process has it. The system lets go of it when the process ends, however
    it ends.

    Args:
        path: of the file; made if it is not there, its folder must be.
    """

    @contextmanager
    def held() -> Iterator[None]:
        import fcntl  # Windows has none

        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    return held
