"""Messages in flight of groups, in pages: there may be a million of them."""

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from google.protobuf.message import DecodeError

from popwheel_broker.consume.delivery import REVIVE_QUEUES, Delivery
from popwheel_broker.consume.delivery_messages import DeliveryMessage, DeliveryMessages, Place, side_by_side
from popwheel_broker.consume.holders import client_of
from popwheel_broker.consume.pop_state import stored_topic
from popwheel_broker.consume.revive_table import ReviveTable
from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.log.stored_records import check_place
from popwheel_common.contract import names
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, SystemProperties

_DELIVERIES_AT_ONCE = 2_048
_MESSAGES_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 20
_id_of = attrgetter("id")
_PLACE = re.compile(r"([0-9]{1,20})\.([0-9]{1,5})\.([0-9]{1,20})")


def named_place(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """Return the parts of a page token.

    Raises:
        StatusError: BAD_REQUEST, it is none.
    """
    match = pattern.fullmatch(text)
    if match is None:
        raise StatusError(Code.BAD_REQUEST, "invalid page token; pass the `next` value of the previous page")
    return match


class InFlightPlace(NamedTuple):
    """Place where a list of messages in flight continues. They stand in the order of their deliveries' ids.

    A delivery made after a list began is left out, or a list would never come to an end. But one that replaces an
    earlier delivery is not.

    Args:
        delivery_id: at this delivery, or the first behind it.
        number: in that very delivery at the message with this index, or the first behind it.
        end: ids from here on were made after the list began; 0 if it begins now.
    """

    delivery_id: int = 0
    number: int = 0
    end: int = 0

    def __str__(self) -> str:
        return f"{self.delivery_id}.{self.number}.{self.end}"

    @classmethod
    def of(cls, text: str) -> "InFlightPlace":
        """Return the place that a text names, as `str` has made it; the first of all for an empty one.

        Raises:
            StatusError: BAD_REQUEST, it names none.
        """
        if not text:
            return cls()
        match = named_place(_PLACE, text)
        return cls(int(match[1]), int(match[2]), int(match[3]))


class MessageFacts(NamedTuple):
    """Facts of a message.

    Args:
        message_id: its own; empty if the message can't be read.
        attempt: which delivery this is, from 1; 0 if it can't be read.
        message_group: whose order it is in; empty for none, or if it can't be read.
        born_ms: when its sender made it, by the sender's clock; 0 if unknown.
    """

    message_id: str = ""
    attempt: int = 0
    message_group: str = ""
    born_ms: int = 0


class InFlightMessage(NamedTuple):
    """A message in flight.

    Args:
        delivery: its delivery.
        number: index of the message there.
        message_id, attempt, message_group, born_ms: as in `MessageFacts`.
        client_id: the client that has it; empty if unknown.
    """

    delivery: Delivery
    number: int
    message_id: str
    attempt: int
    message_group: str
    born_ms: int
    client_id: str

    @property
    def topic(self) -> str:
        """Topic in which it has its offset: a topic, or a retry topic."""
        return stored_topic(self.delivery)

    @property
    def due_ms(self) -> int:
        """Time until which it is hidden (`PopClock`)."""
        return self.delivery.due_of(self.number)

    @property
    def queue_offset(self) -> int:
        """Offset in its queue, also if it was moved from there meanwhile."""
        return self.delivery.offsets[self.number]


class InFlight:
    """Lists messages in flight.

    Args:
        table: the open deliveries.
        messages: reads the messages of deliveries.
        store: the messages.
    """

    def __init__(self, table: ReviveTable, messages: DeliveryMessages, store: MessageStore) -> None:
        self._table = table
        self._messages = messages
        self._store = store

    def step(
        self, topic: str, group: str, begin: InFlightPlace, messages_max: int, client_id: str = ""
    ) -> tuple[list[InFlightMessage], InFlightPlace | None]:
        """Return some messages in the order of their places, and where there may be more; None if these are the last.

        A message that is in flight for the whole time in which a client pages through the list is listed, at least
        once. A step takes a few milliseconds, so it may find none and still return a next place. Messages that are
        gone, with their segment or their topic, are left out.

        Args:
            topic: that consumers asked for; empty for all topics.
            group: of the messages; empty for all groups.
            begin: the first place to return.
            messages_max: limit of the messages.
            client_id: which client of the group; empty for all clients.
        """
        if group and topic and (group, topic) not in self._table.in_flight:
            return [], None
        begin = begin if begin.end else begin._replace(end=self._table.next_number * REVIVE_QUEUES)
        messages, rest = self._page(topic, group, begin, min(messages_max, _MESSAGES_AT_ONCE), client_id)
        places = [self._messages.place(delivery, index) for delivery, index in messages]
        entries = self._entries(places)
        size, count = 0, 0
        for entry in entries:
            if size >= _BYTES_AT_ONCE:
                rest = InFlightPlace(messages[count][0].id, messages[count][1], begin.end)
                break
            size += 0 if entry is None else entry.length
            count += 1
        records = self._records(places[:count], entries[:count])
        found = [
            InFlightMessage(
                delivery,
                index,
                *message_facts(delivery, index, stored),
                client_of(delivery),
            )
            for (delivery, index), place, stored in zip(messages, places, records, strict=False)
            if place is not None
        ]
        return found, rest

    def _page(
        self, topic: str, group: str, begin: InFlightPlace, messages_max: int, client_id: str
    ) -> tuple[list[DeliveryMessage], InFlightPlace | None]:
        messages: list[DeliveryMessage] = []
        looked_at = 0
        of_client = self._few_of(client_id, group, begin.delivery_id) if client_id else None
        deliveries = self._table.begin_at(begin.delivery_id, group) if of_client is None else iter(of_client)
        for delivery in deliveries:
            if looked_at == _DELIVERIES_AT_ONCE:
                return messages, InFlightPlace(delivery.id, 0, begin.end)
            looked_at += 1
            if delivery.is_blocked or (group and delivery.group != group):
                continue
            if client_id and client_of(delivery) != client_id:
                continue
            asked_for = names.client_topic(delivery.topic) if delivery.lines else delivery.topic
            if topic and asked_for != topic:
                continue
            if delivery.id >= begin.end and delivery.replaces is None:
                continue
            first = begin.number if delivery.id == begin.delivery_id else 0
            for index in delivery.open_indexes():
                if index >= first:
                    if len(messages) == messages_max:
                        return messages, InFlightPlace(delivery.id, index, begin.end)
                    messages.append((delivery, index))
        return messages, None

    def _few_of(self, client_id: str, group: str, begin: int) -> list[Delivery] | None:
        """Return the deliveries of a client from an id on, in their order; None if it has many."""
        holders = self._table.holders.of_client(client_id, group)
        if sum(len(each.deliveries) for each in holders) > _DELIVERIES_AT_ONCE:
            return None
        found = (self._table.get(identity) for each in holders for identity in each.deliveries if identity >= begin)
        return sorted((each for each in found if each is not None), key=_id_of)

    def _entries(self, places: Sequence[Place | None]) -> list[Entry | None]:
        """Return where each record stands in the log; None for one that is gone, or whose queue is damaged."""
        found: list[Entry | None] = []
        for place, count in side_by_side(places):
            entries: list[Entry] = []
            if place is not None:
                queue, offset = place
                try:
                    entries = queue.read(offset, count)
                except CorruptDataError:
                    entries = []
            found += [*entries, *[None] * (count - len(entries))]
        return found

    def _records(self, places: Sequence[Place | None], entries: Sequence[Entry | None]) -> list[StoredRecord | None]:
        """Return the records; None for each that can't be read."""
        try:
            return self._read(places, entries)
        except (CorruptDataError, RecordFaultError):
            found: list[StoredRecord | None] = []
            for place, entry in zip(places, entries, strict=True):
                try:
                    found += self._read([place], [entry])
                except (CorruptDataError, RecordFaultError):
                    found.append(None)
            return found

    def _read(self, places: Sequence[Place | None], entries: Sequence[Entry | None]) -> list[StoredRecord | None]:
        found: list[StoredRecord | None] = [None] * len(entries)
        known = [(number, entry) for number, entry in enumerate(entries) if entry is not None]
        with RECORD_STEP:
            records = self._store.records.read_many([entry for _, entry in known])
            for (number, _), stored in zip(known, records, strict=True):
                place = places[number]
                if place is not None:
                    check_place(*place, stored)
                    found[number] = stored
        return found


def message_facts(delivery: Delivery, index: int, stored: StoredRecord | None) -> MessageFacts:
    """Return the facts of a delivery's message; `stored` is None if it cannot be read."""
    if stored is None:
        return MessageFacts()
    try:
        properties = SystemProperties.FromString(stored.system_properties)
    except DecodeError:
        properties = SystemProperties()
    attempts = delivery.attempts[index] if delivery.lines else stored.attempts
    born_ms = properties.born_timestamp.ToMilliseconds()
    return MessageFacts(properties.message_id, attempts + 1, properties.message_group, born_ms)
