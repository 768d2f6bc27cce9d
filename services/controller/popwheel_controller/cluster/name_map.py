"""Immutable sorted map by name: a change makes a new map, which shares all untouched parts (pure).

So a change among 100,000 names costs as much as one among a few hundred, and a map is compared with its successor by
the parts that they do not share. It is sorted, so it can be listed in pages.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")

_PART_MAX: Final = 64


class NameMap(Mapping[str, Value], Generic[Value]):
    """Values by name, in parts of at most 64 adjacent names.

    Args:
        values: its entries.
    """

    __slots__ = ("_firsts", "_length", "_parts")

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        items = iter(sorted((values or {}).items()))
        self._parts: list[dict[str, Value]] = []
        while part := dict(islice(items, _PART_MAX // 2)):
            self._parts.append(part)
        self._firsts = [next(iter(part)) for part in self._parts]
        """First names of the parts, as lower bounds; the first part has no lower bound."""
        self._length = len(values or ())

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> Value:
        if not self._parts:
            raise KeyError(name)
        return self._parts[self._place(name)][name]

    def __iter__(self) -> Iterator[str]:
        """Yield all names, sorted."""
        return self.after("")

    def after(self, name: str) -> Iterator[str]:
        """Yield the names after a given one, sorted."""
        first = self._place(name) if self._parts else 0
        for number in range(first, len(self._parts)):
            names = sorted(self._parts[number])
            yield from names[bisect_right(names, name) :] if number == first and name else names

    def count_before(self, name: str) -> int:
        """Return the number of names that sort before one."""
        if not self._parts:
            return 0
        place = self._place(name)
        return sum(map(len, self._parts[:place])) + sum(each < name for each in self._parts[place])

    def changed(self, come: Mapping[str, Value], gone: Iterable[str]) -> "NameMap[Value]":
        """Return the map after a change.

        Args:
            come: added entries; they replace those of the same name.
            gone: removed names; each must exist.
        """
        made = NameMap[Value]()
        made._parts, made._firsts, made._length = self._parts.copy(), self._firsts.copy(), self._length
        fresh: set[int] = set()
        for name in gone:
            part = made._part(name, fresh)
            del part[name]
            made._length -= 1
            if not part:
                place = made._place(name)
                del made._parts[place], made._firsts[place]
        for name, value in come.items():
            part = made._part(name, fresh)
            made._length += name not in part
            part[name] = value
            if len(part) > _PART_MAX:
                made._split(made._place(name), fresh)
        return made

    def difference(self, before: "NameMap[Value]") -> tuple[dict[str, Value], dict[str, Value]]:
        """Return the entries added and removed since another map; a replaced entry is in both."""
        shared = {id(part) for part in self._parts} & {id(part) for part in before._parts}
        here = [part for part in self._parts if id(part) not in shared]
        there = [part for part in before._parts if id(part) not in shared]
        old = {name: value for part in there for name, value in part.items()}
        come: dict[str, Value] = {}
        for part in here:
            for name, value in part.items():
                known = old.pop(name, None)
                if known is not value and known != value:
                    come[name] = value
                    if known is not None:
                        old[name] = known
        return come, old

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NameMap):
            return len(self) == len(other) and self.difference(other) == ({}, {})
        return dict(self) == other

    __hash__ = None  # type: ignore[assignment]

    def _place(self, name: str) -> int:
        """Return the index of the part for a name."""
        return max(0, bisect_right(self._firsts, name) - 1)

    def _part(self, name: str, fresh: set[int]) -> dict[str, Value]:
        """Return the part for a name, as a copy that only this map has."""
        if not self._parts:
            self._parts, self._firsts = [{}], [name]
        place = self._place(name)
        if id(self._parts[place]) not in fresh:
            self._parts[place] = self._parts[place].copy()
            fresh.add(id(self._parts[place]))
        return self._parts[place]

    def _split(self, place: int, fresh: set[int]) -> None:
        items = sorted(self._parts[place].items())
        halves = [dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])]
        self._parts[place : place + 1] = halves
        self._firsts[place : place + 1] = [items[0][0], items[len(items) // 2][0]]
        fresh.update(id(half) for half in halves)
