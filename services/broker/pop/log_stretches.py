"""Where in the log the open check points stand, so that nobody has to go through all of them to find the first."""

from collections.abc import Iterator

from services.broker.pop.check_point import CheckPoint

_STRETCH_BITS = 22
"""A stretch is 4 MiB: a log of 300 GB has 75,000 of them, and 20,000 of the smallest messages stand in one."""


class LogStretches:
    """Open CKs by the stretch of the log in which their `first_position` is."""

    def __init__(self) -> None:
        self._stretches: dict[int, dict[int, CheckPoint]] = {}

    def add(self, check_point: CheckPoint) -> None:
        """A CK was opened, or moved to where it is now."""
        self._stretches.setdefault(check_point.first_position >> _STRETCH_BITS, {})[check_point.id] = check_point

    def remove(self, check_point: CheckPoint) -> None:
        """A CK was closed, or is about to be moved."""
        number = check_point.first_position >> _STRETCH_BITS
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
        last = position >> _STRETCH_BITS
        for number in sorted(each for each in self._stretches if each <= last):
            for check_point in self._stretches[number].values():
                if number < last or check_point.first_position < position:
                    yield check_point
