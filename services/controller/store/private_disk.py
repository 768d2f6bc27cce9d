"""The machine's disk, for files that hold secrets."""

import os
from pathlib import Path

from services.common.disk import File, SystemDisk

_OWNER_ONLY = 0o600


class PrivateDisk(SystemDisk):
    """Like `SystemDisk`, but the files it makes can be read and written by their owner alone."""

    def open(self, path: Path) -> File:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY))
        return super().open(path)
