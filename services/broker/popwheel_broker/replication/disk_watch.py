"""Usage of the disk, checked from time to time, and when much was written since."""

from pathlib import Path

import structlog

from popwheel_common.clock import Clock
from popwheel_common.disk import Disk, DiskUsage

_log = structlog.get_logger()

_POLL_INTERVAL_S = 0.5
_POLL_BYTES_MIN = 1024 * 1024


class DiskWatch:
    """Decides whether sends are refused, by the free space.

    Args:
        disk: where the folder is.
        folder: of the broker.
        clock: the time.
        full_share: the share of the disk above which it counts as full.
    """

    def __init__(self, disk: Disk, folder: Path, clock: Clock, full_share: float) -> None:
        self._disk = disk
        self._folder = folder
        self._clock = clock
        self._full_share = full_share
        self._polled_at_s = -_POLL_INTERVAL_S
        self._poll_at_position = 0
        self._full = False

    def usage(self) -> DiskUsage:
        """Return its current usage."""
        return self._disk.usage(self._folder)

    def is_full(self, position: int) -> bool:
        """Return whether sends are to be refused, of a broker whose log ends at `position`."""
        now_s = self._clock.monotonic()
        if now_s - self._polled_at_s >= _POLL_INTERVAL_S or position >= self._poll_at_position:
            usage = self.usage()
            left_bytes = usage.free_bytes - int((1.0 - self._full_share) * usage.total_bytes)
            self._polled_at_s = now_s
            self._poll_at_position = position + max(_POLL_BYTES_MIN, left_bytes // 4)
            full = left_bytes < 0
            if full != self._full:
                _log.warning("disk nearly full, sends are refused" if full else "disk has space again")
            self._full = full
        return self._full
