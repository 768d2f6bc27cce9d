"""The command line on a device whose syncs fail for as long as the file named by FAIL_SYNCS_WHILE is there."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from popwheel_cli.main import main

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

_fdatasync = os.fdatasync


def _fdatasync_that_may_fail(fd: "FileDescriptorLike") -> None:
    if Path(os.environ["FAIL_SYNCS_WHILE"]).exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    _fdatasync(fd)


if __name__ == "__main__":
    os.fdatasync = _fdatasync_that_may_fail
    main()
