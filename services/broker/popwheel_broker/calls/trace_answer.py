"""Answer to a search for a message by its id: its places, and each group's state of it there."""

from collections.abc import Sequence

from popwheel_broker.consume import delivered_message
from popwheel_broker.consume.delivery import decode_redriven
from popwheel_broker.consume.holders import client_of
from popwheel_broker.consume.quarantine_entry import QuarantineEntry
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.core.message_search import MessageSearch
from popwheel_broker.core.waiting_places import message_of, place_kind
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.log.timer_record import decode_delay
from popwheel_common.contract import names, receipt
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb


class Traces:
    """Fills an answer, in this order: `add`, `deliveries` until it is through, `ended`.

    Args:
        core: the broker's state.
        search: has found the messages.
        answer: is filled.
        topic: that the message was sent to.
        group: the state of this group alone; empty for all.
        now_ms: wall clock.
    """

    def __init__(
        self,
        core: BrokerCore,
        search: MessageSearch,
        answer: pb.MessageTraceResponse,
        topic: str,
        group: str,
        now_ms: int,
    ) -> None:
        self._core = core
        self._search = search
        self._answer = answer
        self._topic = topic
        self._group = group
        self._now_ms = now_ms
        self._found: Sequence[StoredRecord] = ()
        self._said: dict[tuple[str, int, int, str], pb.GroupHolding] = {}

    @property
    def is_open(self) -> bool:
        """True if some group has read one of them."""
        return any(each.holding == pb.DONE for each in self._said.values())

    def add(self, found: Sequence[StoredRecord]) -> None:
        """Add the places of messages, and the groups that read there.

        Raises:
            NotInMemory: something is to be read first; nothing was added.
        """
        messages = [message_of(self._core.store, each, self._topic) or each for each in found]
        quarantined = self._quarantined(found)
        filters = self._core.pops.group_filters
        self._found = found
        for stored, message in zip(found, messages, strict=True):
            traced = place(self._answer.messages.add(), stored, message)
            self._say_what_waits(traced, stored)
            entry = quarantined.get(stored.position)
            if entry is not None and not entry.group:
                traced.quarantine_id = entry.id
            for name, waits in self._search.readers(stored, self._group).items():
                holding = traced.groups.add(group=name, holding=pb.WAITS if waits else pb.DONE)
                holding.kept_back_by = filters.rejecting_filter(name, stored.topic, stored)
                if entry is not None and entry.group == name:
                    holding.holding, holding.quarantine_id = pb.POISONED, entry.id
                self._said[stored.topic, stored.queue_id, stored.queue_offset, name] = holding

    def deliveries(self, begin: int, behind_ms: int) -> int | None:
        """Add states from some deliveries; return the id to go on from, None if those were all.

        Args:
            begin: the first id to check.
            behind_ms: by how much the time of the log is behind the wall clock.
        """
        holdings, rest = self._search.holdings(self._found, self._group, begin)
        for at, name, delivery, number in holdings:
            said = self._said.get((*at, name), pb.GroupHolding())  # else it has begun to read the queue just now
            if delivery.lines:
                said.attempts = delivery.attempts[number]
            if delivery.is_blocked:
                said.holding = pb.WAITS  # it was read, and is blocked
            else:
                said.holding = pb.DELIVERED
                said.popped_ms = delivery.pop_time_ms + behind_ms
                said.due_ms = delivery.due_of(number) + behind_ms
                said.put_off = delivery.replaces is not None
                said.client_id = client_of(delivery)
        return rest

    def ended(self) -> None:
        """Mark messages that are known to be acknowledged, or to be dead letters."""
        for (topic, queue_id, queue_offset, name), holding in self._said.items():
            if holding.holding == pb.DONE:
                asked, origin = topic, receipt.FROM_TOPIC
                if names.group_of_retry_topic(topic):
                    asked, origin = names.topic_of_retry_topic(topic), receipt.FROM_RETRY_TOPIC
                if name in self._core.state.acked.of_place(asked, origin, queue_id, queue_offset):
                    holding.holding = pb.ENDED

    def _say_what_waits(self, traced: pb.TracedMessage, stored: StoredRecord) -> None:
        """Add whether a message still waits for its time, or for the end of its transaction."""
        if traced.kind == pb.DELAYED:
            delay, recalled = decode_delay(stored.origin), self._core.timer.state.recalled
            traced.due_ms = delay.due_ms
            traced.pending = delay.due_ms > self._now_ms and delay.root_at(stored.position) not in recalled
        elif traced.kind == pb.HALF:
            half = self._core.transactions.table.get(stored.position)
            traced.pending = half is not None
            traced.checks = 0 if half is None else half.checks

    def _quarantined(self, found: Sequence[StoredRecord]) -> dict[int, QuarantineEntry]:
        """Return entries of the quarantine by the position of the record that failed."""
        positions = {each.position for each in found}
        return {
            each.position: each
            for each in self._core.quarantine.table
            if each.position in positions and (each.is_delivery or each.is_timer)
        }


def place(traced: pb.TracedMessage, stored: StoredRecord, message: StoredRecord) -> pb.TracedMessage:
    """Fill in where a message is, and its facts.

    Args:
        traced: is filled.
        stored: the record there.
        message: the message that it is about.
    """
    traced.topic = stored.topic
    traced.queue_id = stored.queue_id
    traced.queue_offset = stored.queue_offset
    traced.stored_ms = stored.store_time_ms
    traced.attempts = stored.attempts
    traced.kind = place_kind(stored)
    traced.position = stored.position
    traced.redriven = decode_redriven(stored.origin) is not None
    traced.message = delivered_message.pulled_message(message, b"")
    return traced
