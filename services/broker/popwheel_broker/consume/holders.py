"""The clients that hold messages, and how many each: what the deliveries of this master's own pops say.

It is in memory only. The log does not name clients, so of what was delivered before this master began to lead, and by
masters before it, the holder is not known.
"""

from collections.abc import Iterable
from typing import Final

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.delivery_orders import DeliverySequence
from popwheel_broker.consume.holder import Holder
from popwheel_common.shares import room

HOLDERS_MAX: Final = 50_000
"""Pairs of a group and a client that are distinguished; groups share them."""
_IDLE_MAX: Final = 1_000
"""Limit of clients without messages that are kept, as they will have some soon."""


class Unknown:
    """Messages of a group whose clients are not known."""

    __slots__ = ("client_id", "deliveries", "in_flight")

    def __init__(self) -> None:
        self.client_id = ""
        self.in_flight = 0
        self.deliveries = DeliverySequence()
        """Recovery does not open them in the order of their ids."""

    def oldest_popped_ms(self) -> int | None:
        """Return the same as `Holder` does."""
        first = self.deliveries.first()
        return None if first is None else first.pop_time_ms


class GroupHolders:
    """Holders of a group."""

    __slots__ = ("clients", "holding", "unknown")

    def __init__(self) -> None:
        self.clients: dict[str, Holder] = {}
        """Holders by client id, also those without messages at the moment."""
        self.holding = 0
        """Number of them with messages."""
        self.unknown: Unknown | None = None


class Holders:
    """Holders of open deliveries. Their counts are kept up to date, never computed by a scan.

    Args:
        holders_max: see `HOLDERS_MAX`.
    """

    def __init__(self, holders_max: int = HOLDERS_MAX) -> None:
        self._holders_max = holders_max
        self._groups: dict[str, GroupHolders] = {}
        self._idle: dict[Holder, None] = {}
        """Holders without messages, the longest idle first."""
        self._known = 0
        self.unnamed = 0
        """Pops whose client was not recorded, as there was no room for it."""
        self.known_since_ms = 0
        """Wall-clock time when this master began to lead."""

    def __len__(self) -> int:
        """Return the number of clients with messages, counted in each group."""
        return self._known - len(self._idle)

    def of(self, group: str, client_id: str) -> Holder | None:
        """Return the holder of a client that is about to get messages; None if it is not named, or there is no room."""
        of_group = self._groups.get(group)
        holder = None if of_group is None else of_group.clients.get(client_id)
        return self._new(group, client_id) if holder is None and client_id else holder

    def _new(self, group: str, client_id: str) -> Holder | None:
        of_group = self._of_group(group)
        if not room(self._holders_max, self._known, len(of_group.clients)):
            self.unnamed += 1
            return None
        holder = of_group.clients[client_id] = Holder(group, client_id)
        self._known += 1
        self._idle[holder] = None
        return holder

    def _of_group(self, group: str) -> GroupHolders:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = GroupHolders()
        return found

    def opened(self, delivery: Delivery, messages: int) -> None:
        """Record a delivery that was opened, with the number of its messages."""
        holder = delivery.holder
        if holder is None:
            of_group = self._of_group(delivery.group)
            if of_group.unknown is None:
                of_group.unknown = Unknown()
            of_group.unknown.in_flight += messages
            of_group.unknown.deliveries.add(delivery)
            return
        if not holder.in_flight:
            del self._idle[holder]
            self._groups[holder.group].holding += 1
        holder.in_flight += messages
        holder.deliveries[delivery.id] = delivery

    def ended(self, delivery: Delivery, messages: int, *, is_closed: bool) -> None:
        """Record messages of a delivery that a client has no longer.

        Args:
            delivery: of the messages.
            messages: how many.
            is_closed: the delivery has no others.
        """
        holder = delivery.holder
        if holder is None:
            self._ended_unknown(delivery, messages, is_closed=is_closed)
            return
        holder.in_flight -= messages
        if is_closed:
            del holder.deliveries[delivery.id]
        if messages and not holder.in_flight:
            self._groups[holder.group].holding -= 1
            self._idle[holder] = None
            if len(self._idle) > _IDLE_MAX:
                self._forget(next(iter(self._idle)))

    def _ended_unknown(self, delivery: Delivery, messages: int, *, is_closed: bool) -> None:
        of_group = self._groups[delivery.group]
        unknown = of_group.unknown
        assert unknown is not None, "a delivery ends that was not opened"
        unknown.in_flight -= messages
        if is_closed:
            unknown.deliveries.remove(delivery)
        if not unknown.in_flight:
            of_group.unknown = None
            if not of_group.clients:
                del self._groups[delivery.group]

    def _forget(self, holder: Holder) -> None:
        """Forget a holder without messages."""
        del self._idle[holder]
        self._known -= 1
        of_group = self._groups[holder.group]
        del of_group.clients[holder.client_id]
        if not of_group.clients and of_group.unknown is None:
            del self._groups[holder.group]

    def clients_of(self, group: str) -> int:
        """Return the number of a group's clients with messages."""
        of_group = self._groups.get(group)
        return 0 if of_group is None else of_group.holding

    def clients_by_group(self) -> dict[str, int]:
        """Return the number of clients with messages of each group that has some."""
        return {group: each.holding for group, each in self._groups.items() if each.holding}

    def of_group(self, group: str) -> list[Holder | Unknown]:
        """Return the holders of a group with messages; last the one that stands for all unknown ones."""
        of_group = self._groups.get(group)
        if of_group is None:
            return []
        found: list[Holder | Unknown] = [each for each in of_group.clients.values() if each.in_flight]
        return found if of_group.unknown is None else [*found, of_group.unknown]

    def of_client(self, client_id: str, group: str) -> list[Holder]:
        """Return a client's holder in a group, or in all groups if none is named."""
        groups: Iterable[str] = (group,) if group else self._groups
        of_groups = (self._groups.get(each) for each in groups)
        return [
            holder
            for each in of_groups
            if each is not None and (holder := each.clients.get(client_id)) is not None and holder.in_flight
        ]


def client_of(delivery: Delivery) -> str:
    """Return the client that has a delivery, or had it; empty if unknown."""
    return "" if delivery.holder is None else delivery.holder.client_id
