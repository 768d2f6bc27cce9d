"""Log lines for operators about denied calls: a limited number a second, the rest is counted."""

from collections.abc import Callable

import structlog

LINES_PER_S_MAX = 20

_logger = structlog.get_logger()


class AuditLog:
    """Writes a line for a denial.

    Args:
        monotonic: the steady clock, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._second = 0
        self._lines = 0
        self._unwritten = 0

    def denied(self, **facts: str) -> None:
        """Write one, unless there were too many in this second."""
        second = int(self._monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
            self.log_unwritten()
        if self._lines >= LINES_PER_S_MAX:
            self._unwritten += 1
            return
        self._lines += 1
        _logger.warning("access denied", **facts)

    def log_unwritten(self) -> None:
        """Log how many lines were left out."""
        if self._unwritten:
            _logger.warning("more calls were denied than are written here", count=self._unwritten)
            self._unwritten = 0
