"""Schedule of the checks of half messages (pure): the first after a while, then more, up to a limit."""

import heapq
from collections.abc import Iterable

from popwheel_broker.options import TransactionOptions
from popwheel_broker.transactions.table import OpenHalf, TransactionTable

_STALE_MAX = 1000


class CheckSchedule:
    """Due times of the checks of open half messages; those that have ended are passed over.

    The remaining wait is computed by the wall clock of the replica that stored the half message, or checked it last,
    but is never more than the whole wait. From then on a steady clock counts.

    Args:
        table: the open half messages.
        options: intervals and limits.
    """

    def __init__(self, table: TransactionTable, options: TransactionOptions) -> None:
        self._table = table
        self._options = options
        self._due: list[tuple[int, int]] = []

    def begin(self, wall_ms: int, steady_ms: int) -> None:
        """Add all open half messages, as a broker begins to lead."""
        self._due = []
        for half in self._table:
            wait_ms = self.wait_ms(half)
            rest_ms = min(wait_ms, max(0, half.asked_ms + wait_ms - wall_ms))
            self._due.append((steady_ms + rest_ms, half.position))
        heapq.heapify(self._due)

    def wait_ms(self, half: OpenHalf) -> int:
        """Return how long after it was stored, or last checked, a half message is checked."""
        if half.checks:
            return self._options.check_interval_ms
        return half.target.first_check_ms or self._options.first_check_ms

    def add(self, halves: Iterable[OpenHalf], steady_ms: int) -> None:
        """Add half messages that were stored, or checked, just now."""
        for half in halves:
            heapq.heappush(self._due, (steady_ms + self.wait_ms(half), half.position))
        if len(self._due) > 2 * len(self._table) + _STALE_MAX:
            self._due = [each for each in self._due if self._table.get(each[1]) is not None]
            heapq.heapify(self._due)

    def take_due(self, steady_ms: int, count: int) -> list[OpenHalf]:
        """Take up to `count` half messages that are due; the caller adds those again that stay open."""
        due: list[OpenHalf] = []
        while self._due and len(due) < count and self._due[0][0] <= steady_ms:
            half = self._table.get(heapq.heappop(self._due)[1])
            if half is not None:
                due.append(half)
        return due

    def put_back(self, halves: Iterable[OpenHalf], steady_ms: int) -> None:
        """Put back half messages of `take_due` that could not be processed yet."""
        for half in halves:
            heapq.heappush(self._due, (steady_ms, half.position))

    def is_last(self, half: OpenHalf) -> bool:
        """Return whether its producers were asked as often as the limit allows."""
        return half.checks >= self._options.checks_max
