"""Events of a message at some places: its records in the log there, and the latest deliveries."""

from collections.abc import Sequence
from typing import Final

from popwheel_broker.consume.delivery import decode_redriven
from popwheel_broker.consume.delivery_events import UNKNOWN_ATTEMPTS, DeliveryEvents
from popwheel_broker.consume.holders import client_of
from popwheel_broker.consume.pop_state import stored_topic
from popwheel_broker.core.waiting_places import WAITING_TOPICS, place_kind
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.log.timer_record import NONE, decode_delay, fired_timer
from popwheel_broker.transactions.half import committed_half
from popwheel_common.contract import names, receipt
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb

_OF_PLACES: Final = {
    pb.DELAYED: pb.MESSAGE_STORED,
    pb.RECALLED: pb.MESSAGE_RECALLED,
    pb.HALF: pb.MESSAGE_STORED,
    pb.ROLLED_BACK: pb.MESSAGE_ROLLED_BACK,
    pb.GIVEN_UP: pb.MESSAGE_ROLLED_BACK,
}


class EventAnswer:
    """Fills an answer: `add_stored` first, then `add_deliveries` until it is through.

    events: the latest deliveries.
        events: the latest deliveries.
        answer: is filled.
        group: events for this group alone; empty for all.
    """

    def __init__(self, events: DeliveryEvents, answer: pb.MessageEventsResponse, group: str) -> None:
        self._events = events
        self._answer = answer
        self._group = group
        self._places: set[tuple[str, int, int]] = set()
        self._queues: set[tuple[str, int, int]] = set()
        self._offsets: set[int] = set()
        self._attempts: dict[tuple[str, str, int, int], int] = {}
        """Latest delivery by group and place."""

    def add_stored(self, found: Sequence[StoredRecord]) -> None:
        """Add events from the records of a message, and prepare the search for deliveries of it there."""
        for stored in found:
            self._add_stored(stored)
            topic, origin = stored.topic, receipt.FROM_TOPIC
            if topic in WAITING_TOPICS:
                continue
            if names.group_of_retry_topic(topic):
                topic, origin = names.topic_of_retry_topic(topic), receipt.FROM_RETRY_TOPIC
            self._places.add((stored.topic, stored.queue_id, stored.queue_offset))
            self._queues.add((topic, origin, stored.queue_id))
            self._offsets.add(stored.queue_offset)

    def _add_stored(self, stored: StoredRecord) -> None:
        group = names.group_of_retry_topic(stored.topic)
        attempt = until_ms = 0
        place = place_kind(stored)
        if place == pb.DELAYED:
            delay = decode_delay(stored.origin)
            if delay.predecessor != NONE:
                return  # it rolled: the same message still waits
            until_ms = delay.due_ms
        if place != pb.STORED:
            kind = _OF_PLACES[place]
        elif decode_redriven(stored.origin) is not None:
            if not group:
                return  # a dead letter without a topic stands at the end of its queue now
            kind, attempt = pb.MESSAGE_REDRIVEN, stored.attempts + 1
        elif group:
            kind, attempt = pb.MESSAGE_REVIVED, stored.attempts + 1
        elif stored.topic.startswith(names.DEAD_LETTER_PREFIX):
            kind, group = pb.MESSAGE_DEAD, stored.topic.removeprefix(names.DEAD_LETTER_PREFIX)
        elif fired_timer(stored) != NONE:
            kind = pb.MESSAGE_FIRED
        else:
            kind = pb.MESSAGE_STORED if committed_half(stored) == NONE else pb.MESSAGE_COMMITTED
        self._answer.events.add(
            time_ms=stored.store_time_ms,
            kind=kind,
            group=group,
            attempt=attempt,
            until_ms=until_ms,
            topic=stored.topic,
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            position=stored.position,
        )

    def add_deliveries(self, begin: int) -> int | None:
        """Add events from some of the latest deliveries; return where to go on, None if those were all.

        Args:
            begin: the first one to check.
        """
        if not self._places:
            return None
        found, rest = self._events.step(self._queues, self._offsets, self._group, begin)
        for each in found:
            delivery = each.delivery
            offset = delivery.offsets[each.message_index]
            place = stored_topic(delivery), delivery.queue_id, offset
            if place not in self._places:
                continue
            latest = (delivery.group, *place)
            if each.attempts != UNKNOWN_ATTEMPTS:
                self._attempts[latest] = each.attempts + 1
            self._answer.events.add(
                time_ms=each.time_ms,
                kind=pb.MessageEventKind.ValueType(each.kind),
                group=delivery.group,
                client_id=client_of(delivery),
                attempt=self._attempts.get(latest, 0),
                until_ms=each.until_ms,
                topic=place[0],
                queue_id=delivery.queue_id,
                queue_offset=offset,
                position=each.position,
            )
        return rest
