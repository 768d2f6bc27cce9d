"""Count of the cores that this process may use, for as many workers."""

import os
from pathlib import Path

_CGROUP_2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_1 = Path("/sys/fs/cgroup/cpu")


def usable_cores() -> int:
    """Return the cores that the system lets this process run on, at most as many as a container's CPU limit."""
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores_within(may_use, _limit())


def cores_within(cores: int, limit: str) -> int:
    """Return the whole cores within a limit; at least one.

    Args:
        cores: that there are.
        limit: as `cpu.max` of a cgroup has it: microseconds of CPU time, or `max`, and the period
            in microseconds. Text of another form is no limit.
    """
    quota, _, period = limit.partition(" ")
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return max(1, cores)
    return max(1, min(cores, int(quota) // int(period)))


def _limit() -> str:
    """Return the limit of the container's cgroup; empty if there is none."""
    try:
        return _CGROUP_2.read_text().strip()
    except OSError:
        pass
    try:
        return " ".join((_CGROUP_1 / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return ""
