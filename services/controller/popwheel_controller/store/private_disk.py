"""Disk for files with secrets, and a lock on a folder that several controllers share."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from popwheel_common.disk import File, SystemDisk

_OWNER_ONLY = 0o600


class PrivateDisk(SystemDisk):
    """`SystemDisk` whose files only their owner can read and write."""

    def open(self, path: Path) -> File:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY))
        return super().open(path)


def folder_lock(path: Path) -> Callable[[], AbstractContextManager[object]]:
    """Return a file lock against concurrent changes of a folder by several controllers of a machine.

    Acquiring it raises BlockingIOError if another process has it. The system releases it when the process ends in any
    way.

    Args:
        path: of the file; created if missing, in an existing folder.
    """

    @contextmanager
    def locked() -> Iterator[None]:
        import fcntl  # not on Windows

        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    return locked
