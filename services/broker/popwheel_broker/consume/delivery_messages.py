"""The messages of deliveries: where each one stands now, and its record."""

from collections.abc import Iterator, Sequence

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.pop_state import stored_topic
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.topics.system_topics import SystemTopics

DeliveryMessage = tuple[Delivery, int]
"""A message of a delivery: the delivery, and the message's index there."""

Place = tuple[ConsumeQueue, int]
"""A queue and an offset in it."""


class DeliveryMessages:
    """Finds and reads messages of deliveries.

    Args:
        store: the messages.
        topics: where the copies of messages stand whose segments are gone.
    """

    def __init__(self, store: MessageStore, topics: SystemTopics) -> None:
        self._store = store
        self._topics = topics

    def message(self, delivery: Delivery, index: int) -> StoredRecord | None:
        """Return a message of a delivery, or its copy; None if it is gone. Raises CorruptDataError: it is damaged."""
        return self.read([(delivery, index)])[0]

    def read(self, messages: Sequence[DeliveryMessage]) -> list[StoredRecord | None]:
        """Return messages of deliveries, or their copies; adjacent ones take one read. None for each that is gone, or
        was skipped by an operator as it was damaged.
        """
        found: list[StoredRecord | None] = []
        for place, count in side_by_side([self.place(delivery, index) for delivery, index in messages]):
            records: list[StoredRecord] = []
            if place is not None:
                queue, offset = place
                entries = queue.read(offset, count)
                records = self._store.records.read_checked(queue, range(offset, offset + len(entries)), entries)
            found += [None if each.kind == RecordKind.SKIPPED else each for each in records]
            found += [None] * (count - len(records))
        for number, (delivery, index) in enumerate(messages):
            stored = found[number]
            if delivery.lines and stored is not None and stored.attempts != delivery.attempts[index]:
                # In an ordered group a message stays in its queue, so its delivery counts its attempts.
                found[number] = stored._replace(attempts=delivery.attempts[index])
        return found

    def is_in_flight(self, delivery: Delivery, index: int) -> bool:
        """Return whether a message of a delivery is open, and not gone."""
        return bool(delivery.open_bits >> index & 1) and self.place(delivery, index) is not None

    def place(self, delivery: Delivery, index: int) -> Place | None:
        """Return the place of a delivery's message, or of its copy; None if it is gone."""
        copy = delivery.copies.get(index)
        if copy is None:
            queue = self._store.queue(stored_topic(delivery), delivery.queue_id)
            offset = delivery.offsets[index]
        else:
            queue, offset = self._store.queue(self._topics.revive, delivery.revive_queue), copy
        return None if queue is None or offset < queue.min_offset else (queue, offset)


def side_by_side(places: Sequence[Place | None]) -> Iterator[tuple[Place | None, int]]:
    """Yield the first of those places that follow one another in a queue, and how many do."""
    first = 0
    for end in range(1, len(places) + 1):
        here, behind = places[end - 1], places[end] if end < len(places) else None
        if here is not None and behind is not None and behind == (here[0], here[1] + 1):
            continue
        yield places[first], end - first
        first = end
