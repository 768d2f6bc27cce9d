"""History of the last hour: of the cluster, and of recently active topics and groups (pure).

Rows are flat arrays of floats, exact for whole numbers up to 2^53. An unknown value is NaN there and None outside. A
key has a row for each sample that names it. A sample that named all active keys means zero for the others; else their
values are unknown.
"""

from array import array
from collections.abc import Callable, Container, Sequence
from math import isnan, nan
from typing import Final, Literal, NamedTuple

SAMPLES_MAX: Final = 360
INTERVAL_MS: Final = 10_000
KEYS_MAX: Final = 1_000
"""Limit of topics, and of groups; the least recently active one is evicted."""
_SLACK: Final = 40

Kind = Literal["topic", "group"]
Number = float | int | None


class Values(NamedTuple):
    """Values at one moment; None where unknown.

    Args:
        in_rate, out_rate: messages per second.
        lag: messages not acknowledged.
        lag_ms: age of the oldest of these.
        held: messages in flight.
        delayed: messages that are not due yet.
    """

    in_rate: float | None = None
    out_rate: float | None = None
    lag: int | None = None
    lag_ms: int | None = None
    held: int | None = None
    delayed: int | None = None


UNKNOWN: Final = Values()
_NOTHING: Final[dict[Kind, Values]] = {
    "topic": Values(in_rate=0.0, out_rate=0.0),
    "group": Values(in_rate=0.0, out_rate=0.0, lag=0, lag_ms=0, held=0),
}
_COLUMNS: Final = {
    "cluster": Values._fields,
    "topic": ("in_rate", "out_rate", "lag", "delayed"),
    "group": ("in_rate", "out_rate", "lag", "lag_ms", "held"),
}
_RATES: Final = ("in_rate", "out_rate")


class _Rows:
    """Rows of one key, by number of the sample."""

    __slots__ = ("_columns", "_data")

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._data = array("d")

    def add(self, number: int, values: Values) -> None:
        """Append a row; sample numbers grow."""
        self._data.append(number)
        self._data.extend(nan if (each := getattr(values, name)) is None else each for name in self._columns)
        size = len(self._columns) + 1
        if len(self._data) > (SAMPLES_MAX + _SLACK) * size:
            del self._data[: _SLACK * size]

    def since(self, first: int) -> dict[int, Values]:
        """Return the rows from a sample number on."""
        size = len(self._columns) + 1
        found: dict[int, Values] = {}
        for start in range(0, len(self._data), size):
            if self._data[start] >= first:
                row = self._data[start + 1 : start + size]
                fields = {name: _number(name, each) for name, each in zip(self._columns, row, strict=True)}
                found[int(self._data[start])] = Values(**fields)  # type: ignore[arg-type]
        return found


class Past(NamedTuple):
    """Values of the last hour.

    Args:
        since_ms: time of the first value, wall clock.
        values: one for each interval.
    """

    since_ms: int
    values: list[Values]


class History:
    """Rolling history of one hour.

    Args:
        keys_max: limit of topics, and of groups.
    """

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._began_ms = 0
        self._last = -1
        self._cluster = _Rows(_COLUMNS["cluster"])
        self._keys: dict[Kind, dict[str, _Rows]] = {"topic": {}, "group": {}}
        self._whole: dict[Kind, dict[int, None]] = {"topic": {}, "group": {}}
        """Numbers of the samples that named all active keys."""

    def __len__(self) -> int:
        """Number of topics and groups with rows."""
        return sum(map(len, self._keys.values()))

    @property
    def has_begun(self) -> bool:
        """True once a sample was taken."""
        return self._last >= 0

    def begin(self, now_ms: int, values: Values, *, all_topics: bool, all_groups: bool) -> bool:
        """Begin a new sample.

        Args:
            now_ms: the wall clock.
            values: of the cluster.
            all_topics, all_groups: whether all active ones will be added.

        Returns:
            False if it belongs to the interval of the previous sample, or to an earlier one: add nothing.
        """
        if self._last < 0:
            self._began_ms = now_ms
        number = (now_ms - self._began_ms + INTERVAL_MS // 2) // INTERVAL_MS
        if number <= self._last:
            return False
        self._last = number
        self._cluster.add(number, values)
        said: dict[Kind, bool] = {"topic": all_topics, "group": all_groups}
        for kind, is_whole in said.items():
            whole = self._whole[kind]
            if is_whole:
                whole[number] = None
            while whole and next(iter(whole)) <= number - SAMPLES_MAX:
                del whole[next(iter(whole))]
        return True

    def add(self, kind: Kind, name: str, values: Values) -> None:
        """Add the sample's values of a topic or group."""
        keys = self._keys[kind]
        rows = keys.pop(name, None)
        if rows is None:
            if len(keys) >= self._keys_max:
                del keys[next(iter(keys))]
            rows = _Rows(_COLUMNS[kind])
        keys[name] = rows
        rows.add(self._last, values)

    def retain(self, kind: Kind, known: Container[str]) -> None:
        """Drop topics, or groups, that no longer exist."""
        keys = self._keys[kind]
        for name in [each for each in keys if each not in known]:
            del keys[name]

    def of_cluster(self) -> Past:
        """Values of the cluster."""
        return self._past(self._cluster, lambda number: UNKNOWN)

    def of(self, kind: Kind, name: str) -> Past:
        """Return the rows of a topic or group."""
        whole = self._whole[kind]
        rows = self._keys[kind].get(name) or _Rows(_COLUMNS[kind])
        # An evicted key has lost its rows: a key without rows may have been active.
        is_known = name in self._keys[kind] or len(self._keys[kind]) < self._keys_max
        return self._past(rows, lambda number: _NOTHING[kind] if is_known and number in whole else UNKNOWN)

    def _past(self, rows: _Rows, absent: Callable[[int], Values]) -> Past:
        first = max(0, self._last - SAMPLES_MAX + 1)
        there = rows.since(first)
        values = [there.get(number) or absent(number) for number in range(first, self._last + 1)]
        return Past(self._began_ms + first * INTERVAL_MS, values)


def _number(name: str, value: float) -> Number:
    if isnan(value):
        return None
    return value if name in _RATES else int(value)
