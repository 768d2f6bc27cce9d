"""A histogram in plain numbers, for paths that are too hot for `prometheus_client`'s."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Histogram of durations.

    Args:
        bounds_ms: upper bounds of its buckets, ascending.
    """

    __slots__ = ("_bounds_ms", "_row")

    def __init__(self, bounds_ms: Sequence[int]) -> None:
        self._bounds_ms = bounds_ms
        self._row = [0.0] * (len(bounds_ms) + 2)

    def observe(self, milliseconds: float, count: int = 1) -> None:
        """Count one observation, or several of the same value."""
        row = self._row
        row[-1] += milliseconds * count
        row[bisect_left(self._bounds_ms, milliseconds)] += count

    @property
    def total_ms(self) -> float:
        """Sum of all."""
        return self._row[-1]

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds and how many took no longer, as Prometheus has it."""
        return list(zip((*map(str, self._bounds_ms), "+Inf"), accumulate(self._row[:-1]), strict=True))


def in_seconds(buckets: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Buckets whose bounds are milliseconds, as Prometheus wants them."""
    return [(f"{int(bound) / 1000:g}" if bound.isdigit() else bound, below) for bound, below in buckets]


class HistogramTable:
    """Histogram of calls' durations, by method and status code.

    Args:
        bounds_ms: as for `Histogram`.
    """

    __slots__ = ("_bounds_ms", "rows")

    def __init__(self, bounds_ms: Sequence[int]) -> None:
        self._bounds_ms = bounds_ms
        self.rows: dict[tuple[str, int], Histogram] = {}

    def observe(self, method: str, code: int, milliseconds: float) -> None:
        """Count one call."""
        row = self.rows.get((method, code))
        if row is None:
            row = self.rows[method, code] = Histogram(self._bounds_ms)
        row.observe(milliseconds)
