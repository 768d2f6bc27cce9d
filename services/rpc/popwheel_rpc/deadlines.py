"""Deadlines of many items, exact to ten milliseconds; much cheaper than one timer for each."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

STEP_S = 0.01
_SPARE = 64


class Deadlines(Generic[Item]):
    """Items by deadline, in steps of `STEP_S`: none is reported early, and each at most one step late."""

    def __init__(self) -> None:
        # In the order in which they came, so that they are reported in the same order each time.
        self._items: dict[int, dict[Item, None]] = {}
        self._steps: list[int] = []

    def add(self, deadline: float, item: Item) -> int:
        """Report `item` once `deadline` (seconds of the monotonic clock) has passed; gives what `remove` wants."""
        step = int(deadline / STEP_S) + 1
        items = self._items.get(step)
        if items is None:
            self._items[step] = {item: None}
            heappush(self._steps, step)
        else:
            items[item] = None
        return step

    def remove(self, step: int, item: Item) -> None:
        """Forget an item (also one that was reported)."""
        items = self._items.get(step)
        if items is None:
            return
        items.pop(item, None)
        if not items:
            del self._items[step]
            if len(self._steps) > 2 * len(self._items) + _SPARE:
                self._steps = list(self._items)
                heapify(self._steps)

    def next(self) -> float | None:
        """Return when `expired` is to be called next; None if there are no items."""
        while self._steps and self._steps[0] not in self._items:
            heappop(self._steps)
        return self._steps[0] * STEP_S if self._steps else None

    def expired(self, now: float) -> list[Item]:
        """The items whose deadline has passed; they are forgotten."""
        reached = int(now / STEP_S)
        found: list[Item] = []
        while self._steps and self._steps[0] <= reached:
            found.extend(self._items.pop(heappop(self._steps), ()))
        return found
