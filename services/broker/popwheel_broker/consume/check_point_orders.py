"""The open check points in three orders: by name, by place in the log, by id.

There may be millions of them. So nobody goes through all of them to find the first, or those of one group.
"""

from collections.abc import Callable, Iterator

from popwheel_broker.consume.check_point import CheckPoint

_LOG_STRETCH_BITS = 22
"""A stretch is 4 MiB: a log of 300 GB has 75,000 of them, and 20,000 of the smallest messages stand in one."""


class LogStretches:
    """Open CKs by the stretch of the log in which their `first_position` is."""

    def __init__(self) -> None:
        self._stretches: dict[int, dict[int, CheckPoint]] = {}

    def add(self, check_point: CheckPoint) -> None:
        """A CK was opened, or moved to where it is now."""
        self._stretches.setdefault(check_point.first_position >> _LOG_STRETCH_BITS, {})[check_point.id] = check_point

    def remove(self, check_point: CheckPoint) -> None:
        """A CK was closed, or is about to be moved."""
        number = check_point.first_position >> _LOG_STRETCH_BITS
        stretch = self._stretches[number]
        del stretch[check_point.id]
        if not stretch:
            del self._stretches[number]

    def first_position(self) -> int | None:
        """The least position that one of them needs; None if there are none."""
        if not self._stretches:
            return None
        return min(each.first_position for each in self._stretches[min(self._stretches)].values())

    def before(self, position: int) -> Iterator[CheckPoint]:
        """Those that need something before a position."""
        last = position >> _LOG_STRETCH_BITS
        for number in sorted(each for each in self._stretches if each <= last):
            for check_point in self._stretches[number].values():
                if number < last or check_point.first_position < position:
                    yield check_point


class CheckPointIndex:
    """Some of the open CKs, by one of their names.

    Args:
        name_of: gives that name of a CK, which never changes.
    """

    def __init__(self, name_of: Callable[[CheckPoint], str]) -> None:
        self._name_of = name_of
        self._by_name: dict[str, dict[int, CheckPoint]] = {}

    def add(self, check_point: CheckPoint) -> None:
        """Have it be found."""
        self._by_name.setdefault(self._name_of(check_point), {})[check_point.id] = check_point

    def remove(self, check_point: CheckPoint) -> None:
        """Have it be found no more, if it was."""
        name = self._name_of(check_point)
        found = self._by_name.get(name)
        if found is not None and found.pop(check_point.id, None) is not None and not found:
            del self._by_name[name]

    def of(self, name: str) -> list[CheckPoint]:
        """Those of a name."""
        return list(self._by_name.get(name, {}).values())

    def count(self, name: str) -> int:
        """Return the number of CKs of a name."""
        return len(self._by_name.get(name, ()))


_ID_STRETCH_BITS = 16
"""A stretch is of 8,192 ids (three bits are the revive queue): 1 ms to sort. At 10,000 pops a second, 12 hours of them
are 53,000 stretches."""


class CheckPointSequence:
    """Open CKs by the stretch of ids in which theirs is."""

    def __init__(self) -> None:
        self._stretches: dict[int, dict[int, CheckPoint]] = {}

    def add(self, check_point: CheckPoint) -> None:
        """A CK was opened."""
        self._stretches.setdefault(check_point.id >> _ID_STRETCH_BITS, {})[check_point.id] = check_point

    def remove(self, check_point: CheckPoint) -> None:
        """A CK was closed."""
        number = check_point.id >> _ID_STRETCH_BITS
        stretch = self._stretches[number]
        del stretch[check_point.id]
        if not stretch:
            del self._stretches[number]

    def first(self) -> CheckPoint | None:
        """The one with the least id, which is the oldest one."""
        if not self._stretches:
            return None
        stretch = self._stretches[min(self._stretches)]
        return stretch[min(stretch)]

    def begin_at(self, check_point_id: int) -> Iterator[CheckPoint]:
        """Those from an id on, to be gone through before any of them changes."""
        first = check_point_id >> _ID_STRETCH_BITS
        for number in sorted(each for each in self._stretches if each >= first):
            stretch = self._stretches[number]
            for identity in sorted(stretch):
                if identity >= check_point_id:
                    yield stretch[identity]
