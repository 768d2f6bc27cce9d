"""Releases of messages in flight by an operator: finds one by its place, and ends its delivery or says how it would
end.
"""

from typing import NamedTuple

from popwheel_broker.consume.acks import Acks
from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.delivery_events import RELEASED
from popwheel_broker.consume.delivery_messages import DeliveryMessage
from popwheel_broker.consume.holders import client_of
from popwheel_broker.consume.in_flight import message_facts
from popwheel_broker.consume.pop_state import PopState, stored_topic
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError

_DELIVERIES_AT_ONCE = 2_048


class MessagePlace(NamedTuple):
    """A message of a group.

    Args:
        group: the group.
        topic: of the queue with its offset: the topic, or the group's retry topic.
        queue_id: the queue.
        queue_offset: its offset.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int


class EndedDelivery(NamedTuple):
    """A delivery that an operator has ended, or would end.

    Args:
        message_id: of its message; empty if it can't be read.
        attempt: which delivery it was, from 1; 0 if it can't be read.
        is_dead: the message is a dead letter after it.
        client_id: the client that had it; empty if unknown.
    """

    message_id: str
    attempt: int
    is_dead: bool
    client_id: str


class MessageRelease:
    """Releases messages in flight, one at a time.

    Args:
        state: messages in flight, and progress.
        acks: ends deliveries.
    """

    def __init__(self, state: PopState, acks: Acks) -> None:
        self._state = state
        self._acks = acks

    def step(self, place: MessagePlace, begin: int) -> tuple[DeliveryMessage | None, int | None]:
        """Search some deliveries for a message; return it and where to go on, None if those were all.

        Whatever replaces a delivery meanwhile has a higher id, so the search finds it. A delivery that is being revoked
        is no client's.

        Args:
            place: of the message.
            begin: the first id to search.
        """
        group, topic, queue_id, queue_offset = place
        for count, delivery in enumerate(self._state.table.begin_at(begin, group)):
            if count == _DELIVERIES_AT_ONCE:
                return None, delivery.id
            if delivery.queue_id != queue_id or delivery.group != group or stored_topic(delivery) != topic:
                continue
            index = delivery.index_of(queue_offset)
            if index >= 0 and delivery.open_bits >> index & 1 and not self._state.is_revoked(delivery):
                return (delivery, index), delivery.id + 1
        return None, None

    def end(self, delivery: Delivery, index: int, *, is_dry_run: bool) -> EndedDelivery | None:
        """End a delivery as if its invisible duration were over; return None if it has ended meanwhile.

        Raises:
            StatusError: the disk, or the quarantine, is full; nothing has changed.
            CorruptDataError: the message is damaged; likewise.
        """
        if self._state.table.get(delivery.id) is not delivery or not delivery.open_bits >> index & 1:
            return None
        stored = None
        try:
            with RECORD_STEP:
                stored = self._acks.messages.message(delivery, index)
        except RecordFaultError:
            pass  # it goes to the quarantine as its delivery ends
        facts = message_facts(delivery, index, stored)
        is_dead = stored is not None and self._acks.was_last_attempt(delivery, index, stored)
        ended = EndedDelivery(facts.message_id, facts.attempt, is_dead, client_of(delivery))
        if not is_dry_run:
            self._acks.redeliver([(delivery, index)], attempted=True, cause=RELEASED)
        return ended
