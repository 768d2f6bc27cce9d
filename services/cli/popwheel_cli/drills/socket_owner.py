"""Owner of a TCP socket: the process of this machine (Linux, proc(5))."""

from collections.abc import Sequence
from pathlib import Path

_LOCAL_ADDRESS, _INODE = 1, 9


def owner_of_port(port: int, pids: Sequence[int]) -> int | None:
    """The process that calls from a port, if it is one of these.

    Args:
        port: the caller's own.
        pids: numbers of processes of this user.
    """
    inodes = _inodes_of(port)
    if not inodes:
        return None
    for pid in pids:
        try:
            for file in Path(f"/proc/{pid}/fd").iterdir():
                if str(file.readlink()) in inodes:
                    return pid
        except OSError:  # it, or one of its files, has gone meanwhile
            continue
    return None


def _inodes_of(port: int) -> set[str]:
    """Return the names in `/proc/PID/fd` of the sockets that are bound to a port."""
    wanted = f":{port:04X}"
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with Path(table).open() as lines:
                next(lines, None)
                for line in lines:
                    words = line.split()
                    if words[_LOCAL_ADDRESS].endswith(wanted) and words[_INODE] != "0":
                        found.add(f"socket:[{words[_INODE]}]")
        except OSError:
            continue
    return found
