"""A client that holds messages."""

from typing import Protocol


class OpenDelivery(Protocol):
    """Delivery of one pop to a client, with open messages."""

    id: int
    pop_time_ms: int


class Holder:
    """Holder of messages: a client of a group, and its deliveries.

    Args:
        group: its consumer group.
        client_id: its own.
    """

    __slots__ = ("client_id", "deliveries", "group", "held")

    def __init__(self, group: str, client_id: str) -> None:
        self.group = group
        self.client_id = client_id
        self.held = 0
        """Number of messages."""
        self.deliveries: dict[int, OpenDelivery] = {}
        """Deliveries with open messages, by id, the oldest first."""

    def oldest_popped_ms(self) -> int | None:
        """Return when the oldest of them was delivered, or its invisible duration last changed (`PopClock`)."""
        first = next(iter(self.deliveries.values()), None)
        return None if first is None else first.pop_time_ms
