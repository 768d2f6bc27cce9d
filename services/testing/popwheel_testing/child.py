"""Child process of `PopwheelServer`: the command `popwheel`, which ends with the process that started it.

Arguments: the number of that process, the temporary folder, and the words for `popwheel`.
"""

import os
import sys
import threading

from popwheel_cli.main import main

_POLL_S = 0.2


def _end_with(parent: int, folder: str) -> None:
    """Wait until the parent has ended, then become the command that removes the folder.

    The number of the parent is polled, without prctl: the kernel's signal is sent when the
    thread ends that started this process. A process that becomes another one no longer writes into the folder.
    """
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(_POLL_S)
    os.execvp("rm", ["rm", "-rf", folder])


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[1]), sys.argv[2]), daemon=True).start()
    main(sys.argv[3:])
