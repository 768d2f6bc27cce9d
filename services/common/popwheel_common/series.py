"""Series by topic or group: bounded in number, as clients choose the names, and dropped with the topic or group.

Without the first, a client that uses ever new names fills the memory of this process and of whoever scrapes it; without
the second, the series of deleted topics and groups stay for as long as the process lives.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from heapq import nlargest
from typing import Final, Generic, TypeVar

Row = TypeVar("Row")

SERIES_MAX: Final = 10_000
"""Series of one metric; what comes beyond is counted together, as `OTHER`."""

OTHER: Final = "(other)"
"""A label that no topic and no group can have as its name."""

Labels = tuple[str, ...]

_AT_ONCE = 500


class Series(Generic[Row]):
    """Rows of counts, one for each combination of labels.

    Args:
        label_count: labels of each.
        make: gives an empty row.
        series_max: as many rows; one more is for all others.
    """

    def __init__(self, label_count: int, make: Callable[[], Row], series_max: int = SERIES_MAX) -> None:
        self._make = make
        self._series_max = series_max
        self._rows: dict[Labels, Row] = {}
        self._other = (OTHER,) * label_count

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Labels, Row]]:
        """Labels and row of each."""
        return iter(self._rows.items())

    def row(self, *labels: str) -> Row:
        """Return the row to count in; the caller does not keep it."""
        row = self._rows.get(labels)
        if row is None:
            if len(self._rows) >= self._series_max:
                labels = self._other
            row = self._rows.get(labels)
            if row is None:
                row = self._rows[labels] = self._make()
        return row

    def get(self, *labels: str) -> Row | None:
        """Return the row of labels; None if it has none of its own."""
        return self._rows.get(labels)

    def retain(self, known: Callable[..., bool]) -> None:
        """Drop the rows whose labels are not known any more; what was counted together stays."""
        for _ in self.retain_in_steps(known):
            pass

    def retain_in_steps(self, known: Callable[..., bool]) -> Iterator[None]:
        """Keep as `retain` does, and yield between two steps of the work."""
        for number, labels in enumerate(list(self._rows), 1):
            if labels != self._other and not known(*labels):
                self._rows.pop(labels, None)
            if number % _AT_ONCE == 0:
                yield


def bounded_in_steps(
    rows: Iterable[tuple[Labels, int]], known: Callable[..., bool], series_max: int = SERIES_MAX
) -> Generator[None, None, Mapping[Labels, int]]:
    """Do as `bounded` with any number of values; it yields between two steps of the work, and returns what is shown.

    Args:
        rows: labels and value of each.
        known: says by its labels whether a value is to be shown.
        series_max: as for `bounded`.
    """
    shown: dict[Labels, int] = {}
    others = 0
    for number, (labels, value) in enumerate(rows, 1):
        if known(*labels):
            shown[labels] = shown.get(labels, 0) + value
        if len(shown) > 2 * series_max:
            shown = dict(bounded(shown, series_max))
            others += shown.pop((OTHER,) * len(labels), 0)
        if number % _AT_ONCE == 0:
            yield
    shown = dict(bounded(shown, series_max))
    if others:
        labels = (OTHER,) * len(next(iter(shown)))
        shown[labels] = shown.get(labels, 0) + others
    return shown


def bounded(values: Mapping[Labels, int], series_max: int = SERIES_MAX) -> Mapping[Labels, int]:
    """Return at most `series_max` of these values, the largest, and the sum of all others."""
    if len(values) <= series_max:
        return values
    shown = dict(nlargest(series_max, values.items(), key=lambda each: each[1]))
    labels = next(iter(values))
    shown[(OTHER,) * len(labels)] = sum(values.values()) - sum(shown.values())
    return shown
