"""Ties of a child process to its parent: it does not outlive it, and Ctrl-C reaches the parent alone."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(pid: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux, prctl(2)); ends at once if it has ended already.

    Killed, not asked: a parent that stops asks its children first, so this is for one that crashed or
    was killed, whose data folder must not stay in use.

    Args:
        pid: the parent.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != pid:
        sys.exit(1)
