"""Finds the open check points of a group or of a topic without going through all there are: there may be millions."""

from collections.abc import Callable

from services.broker.pop.check_point import CheckPoint


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
        """How many there are of a name."""
        return len(self._by_name.get(name, ()))
