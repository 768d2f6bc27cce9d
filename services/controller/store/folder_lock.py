"""Keeps several controllers of one machine from changing a shared folder at the same moment."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

_OWNER_ONLY = 0o600


def folder_lock(path: Path) -> Callable[[], AbstractContextManager[object]]:
    """A lock that is a file; the system lets go of it when the process ends, however it ends.

    Taking it raises BlockingIOError if another process has it.

    Args:
        path: of the file; made if it is not there, its folder must be.
    """

    @contextmanager
    def held() -> Iterator[None]:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    return held
