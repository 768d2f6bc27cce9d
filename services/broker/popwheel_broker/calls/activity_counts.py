"""Counts of the topics, or groups, through which messages went since a sample was taken (in memory only)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

ROWS_MAX: Final = 10_000
"""Limit of names in one interval; further names are not counted."""


@dataclass(slots=True, eq=False)
class ActivityRow:
    """Counts of a topic or group.

    Args:
        messages_in, messages_out: since the interval began.
    """

    messages_in: int = 0
    messages_out: int = 0


class Used(NamedTuple):
    """Counts of an interval.

    Args:
        rows: by name.
        is_whole: nothing else was used.
    """

    rows: Mapping[str, ActivityRow]
    is_whole: bool

    def messages_in(self, name: str) -> int:
        """Messages that went into a topic."""
        row = self.rows.get(name)
        return 0 if row is None else row.messages_in


NOTHING: Final = Used({}, is_whole=False)


class ActivityCounts:
    """The rows of the interval.

    Args:
        rows_max: their number at the most.
    """

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._rows: dict[str, ActivityRow] = {}
        self._others = ActivityRow()
        self._is_whole = True

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, name: str) -> ActivityRow:
        """Return the row to count in now; the caller does not store it."""
        row = self._rows.get(name)
        if row is None:
            if len(self._rows) >= self._rows_max:
                self._is_whole = False
                return self._others
            row = self._rows[name] = ActivityRow()
        return row

    def forget(self, names: Collection[str]) -> None:
        """Forget the rows of deleted names."""
        for name in names:
            self._rows.pop(name, None)

    def take(self) -> Used:
        """Return the counts of the interval; a new one begins."""
        used = Used(self._rows, self._is_whole)
        self._rows, self._is_whole = {}, True
        return used
