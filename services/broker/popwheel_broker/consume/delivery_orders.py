"""The open deliveries in three orders: by name, by place in the log, by id.

There may be millions of them. So no lookup scans all of them to find the first, or those of one group.
"""

from collections.abc import Callable, Iterator

from popwheel_broker.consume.delivery import Delivery

_LOG_STRETCH_BITS = 22
"""A stretch is 4 MiB: a log of 300 GB has 75,000 of them, and 20,000 of the smallest messages stand in one."""


class LogStretches:
    """Open deliveries by the stretch of the log in which their `first_position` is."""

    def __init__(self) -> None:
        self._stretches: dict[int, dict[int, Delivery]] = {}

    def add(self, delivery: Delivery) -> None:
        """Add a delivery that was opened, or moved to its present place."""
        self._stretches.setdefault(delivery.first_position >> _LOG_STRETCH_BITS, {})[delivery.id] = delivery

    def remove(self, delivery: Delivery) -> None:
        """Remove a delivery that was closed, or is about to be moved."""
        number = delivery.first_position >> _LOG_STRETCH_BITS
        stretch = self._stretches[number]
        del stretch[delivery.id]
        if not stretch:
            del self._stretches[number]

    def first_position(self) -> int | None:
        """Return the least position that one of them needs; None if there are none."""
        if not self._stretches:
            return None
        return min(each.first_position for each in self._stretches[min(self._stretches)].values())

    def before(self, position: int) -> Iterator[Delivery]:
        """Yield those that need something before a position."""
        last = position >> _LOG_STRETCH_BITS
        for number in sorted(each for each in self._stretches if each <= last):
            for delivery in self._stretches[number].values():
                if number < last or delivery.first_position < position:
                    yield delivery


class DeliveryIndex:
    """A selection of the open deliveries, by one of their names.

    Args:
        name_of: returns that name of a delivery, which never changes.
    """

    def __init__(self, name_of: Callable[[Delivery], str]) -> None:
        self._name_of = name_of
        self._by_name: dict[str, dict[int, Delivery]] = {}

    def add(self, delivery: Delivery) -> None:
        """Have it be found."""
        self._by_name.setdefault(self._name_of(delivery), {})[delivery.id] = delivery

    def remove(self, delivery: Delivery) -> None:
        """Have it be found no more, if it was."""
        name = self._name_of(delivery)
        found = self._by_name.get(name)
        if found is not None and found.pop(delivery.id, None) is not None and not found:
            del self._by_name[name]

    def of(self, name: str) -> list[Delivery]:
        """Return the deliveries of a name."""
        return list(self._by_name.get(name, {}).values())

    def count(self, name: str) -> int:
        """Return the number of deliveries of a name."""
        return len(self._by_name.get(name, ()))


_ID_STRETCH_BITS = 16
"""A stretch is of 8,192 ids (three bits are the revive queue): 1 ms to sort. At 10,000 pops a second, 12 hours of them
are 53,000 stretches."""


class DeliverySequence:
    """Open deliveries by the stretch of their ids."""

    def __init__(self) -> None:
        self._stretches: dict[int, dict[int, Delivery]] = {}

    def add(self, delivery: Delivery) -> None:
        """Add an opened delivery."""
        self._stretches.setdefault(delivery.id >> _ID_STRETCH_BITS, {})[delivery.id] = delivery

    def remove(self, delivery: Delivery) -> None:
        """Remove a closed delivery."""
        number = delivery.id >> _ID_STRETCH_BITS
        stretch = self._stretches[number]
        del stretch[delivery.id]
        if not stretch:
            del self._stretches[number]

    def first(self) -> Delivery | None:
        """Return the delivery with the least id, which is the oldest one."""
        if not self._stretches:
            return None
        stretch = self._stretches[min(self._stretches)]
        return stretch[min(stretch)]

    def begin_at(self, delivery_id: int) -> Iterator[Delivery]:
        """Yield those from an id on; none of them may change meanwhile."""
        first = delivery_id >> _ID_STRETCH_BITS
        for number in sorted(each for each in self._stretches if each >= first):
            stretch = self._stretches[number]
            for identity in sorted(stretch):
                if identity >= delivery_id:
                    yield stretch[identity]
