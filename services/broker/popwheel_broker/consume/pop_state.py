"""The pop state of a broker: the progress of each group, and the messages that are hidden from it.

It follows the records of the log (`log.fold`), as they are appended and as they are read again; a snapshot saves
recovery reading all that came before (S6).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from popwheel_broker.consume import delivery as codec
from popwheel_broker.consume import progress_record
from popwheel_broker.consume.ack_memory import NOBODY, AckMemory
from popwheel_broker.consume.delivery import ORIGIN_BYTES, REDRIVEN_BYTES, REVIVE_QUEUES, Delivery, Origin
from popwheel_broker.consume.delivery_events import ENTRIES_MAX, DeliveryEvents
from popwheel_broker.consume.merge_buffer import MergeBuffer, Popped
from popwheel_broker.consume.pop_clock import LogTime
from popwheel_broker.consume.revive_table import ReviveTable
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_common.contract import names, receipt


@dataclass(frozen=True, slots=True)
class PopSnapshot:
    """Snapshot of the pop state in a checkpoint.

    Args:
        offsets: by group, topic and queue: committed and popped offset.
        revive_offsets: of each revive queue: where its oldest open delivery stands.
        next_number: see `ReviveTable.next_number`.
        time: when it was taken.
    """

    offsets: dict[str, dict[str, dict[int, tuple[int, int]]]] = field(default_factory=dict)
    revive_offsets: tuple[int, ...] = (0,) * REVIVE_QUEUES
    next_number: int = 1
    time: LogTime = LogTime()  # noqa: RUF009 - a NamedTuple does not change


class Revocation(NamedTuple):
    """Deliveries of a group and topic that a reset is revoking, some at a time.

    Args:
        below: those with lesser ids.
        queue_id: of this queue alone; None for all of the topic, and its retries.
    """

    below: int
    queue_id: int | None

    def has(self, delivery: Delivery) -> bool:
        """Return whether a delivery of the group and topic is one of those."""
        return delivery.id < self.below and is_read_from(delivery, self.queue_id)


def is_read_from(delivery: Delivery, queue_id: int | None) -> bool:
    """Return whether a delivery's messages were read from a queue of its topic. None stands for any, and for
    retries.
    """
    return queue_id is None or (delivery.origin == receipt.FROM_TOPIC and delivery.queue_id == queue_id)


_ORIGINS = frozenset((ORIGIN_BYTES, REDRIVEN_BYTES))


class PopState:
    """Merge buffer and revive table, changed together: a `Fold`.

    Args:
        stay_ms: see `MergeBuffer`.
        deliveries_max: see `MergeBuffer`.
        pairs_max: see `MergeBuffer`.
        blocked_max: see `MessageGroupQueues`.
        queue: gives a queue of the store by its topic and number.
        events_max: see `DeliveryEvents`.
    """

    def __init__(
        self,
        stay_ms: int,
        deliveries_max: int,
        pairs_max: int,
        blocked_max: int,
        queue: Callable[[str, int], ConsumeQueue | None],
        events_max: int = ENTRIES_MAX,
    ) -> None:
        self._queue = queue
        self._apply_by_kind: dict[int, Callable[[StoredRecord], None]] = {
            RecordKind.MESSAGE: self._message,
            RecordKind.DELIVERY: self._delivery,
            RecordKind.ACK: self._ack,
            RecordKind.RENEWAL: self._renew,
            RecordKind.FORGET_TOPIC: self._forget_topic,
            RecordKind.FORGET_GROUP: self._forget_group,
            RecordKind.OFFSET: self._offset,
            RecordKind.PROGRESS: self._passed,
            RecordKind.QUARANTINE: self._quarantined,
        }
        self.merge_buffer = MergeBuffer(stay_ms, deliveries_max, pairs_max)
        self.table = ReviveTable(blocked_max)
        self.events = DeliveryEvents(events_max)
        """Recent events of messages. They are a master's own, and not folded."""
        self.acked = AckMemory()
        self.revoking: dict[tuple[str, str], Revocation] = {}
        """Deliveries that are being revoked, by group and topic, some at a time; no client has them any more.

        They are a master's own, and not folded: for a new master those that are open are as all others.
        """

    @property
    def kinds(self) -> frozenset[RecordKind]:
        """Kinds of records that open, change or end a delivery, or set an offset."""
        return frozenset(map(RecordKind, self._apply_by_kind))

    def is_revoked(self, delivery: Delivery) -> bool:
        """Return whether a delivery is being revoked."""
        revoking = self.revoking.get((delivery.group, delivery.topic))
        return revoking is not None and revoking.has(delivery)

    def begin_to_lead(self, wall_ms: int) -> None:
        """Begin to record the holders of messages, and the events of messages."""
        self.table.holders.known_since_ms = self.events.began_ms = wall_ms

    def concerns(self, kind: int, origin: bytes) -> bool:
        """Return whether a record is of a delivery or an offset; a message is if it left a delivery or the dead
        letters.
        """
        if kind == RecordKind.MESSAGE:
            return len(origin) in _ORIGINS
        return kind != RecordKind.QUARANTINE or len(origin) == ORIGIN_BYTES

    def apply(self, found: StoredRecord) -> None:
        """Apply any record that is newer than the snapshot. At a replay it is in its queue of the store."""
        self._apply_by_kind[found.kind](found)

    def apply_before_snapshot(self, found: StoredRecord) -> None:
        """Apply a record of a revive queue that is older than the snapshot: it does not change offsets."""
        if found.kind == RecordKind.DELIVERY:
            self._open(found)
        elif found.kind == RecordKind.ACK:
            self._close(*codec.decode_ack(found.payload))
        elif found.kind == RecordKind.RENEWAL:
            self._renew(found)

    def _delivery(self, found: StoredRecord) -> None:
        """Apply a delivery record: a pop, what is left of one, or a copy of it."""
        delivery = self._open(found)
        if isinstance(found.decoded, Popped):
            self.merge_buffer.popped(found.decoded.progress, delivery)
            return  # else it is read from the log, or was read before
        queue = self._queue(stored_topic(delivery), delivery.queue_id)
        if queue is not None and delivery.next_offset > queue.begin_offset:  # else it is of a deleted topic
            self.merge_buffer.read_to(delivery.group, queue, delivery.next_offset)

    def _open(self, found: StoredRecord) -> Delivery:
        decoded = found.decoded
        if isinstance(decoded, Popped):
            delivery = decoded.delivery
        elif isinstance(decoded, Delivery):
            delivery = decoded
        else:
            delivery = Delivery.decode(found.payload, found.queue_offset)
        delivery.revive_offset = found.queue_offset
        self._done(self.table.open(delivery))
        if delivery.sources:
            bits_of: dict[int, int] = {}
            for source in delivery.sources:
                bits_of[source.delivery_id] = bits_of.get(source.delivery_id, 0) | 1 << source.index
            for delivery_id, bits in bits_of.items():
                self._close(delivery_id, bits)
        return delivery

    def _ack(self, found: StoredRecord) -> None:
        """Apply an ACK record: messages are done; or they have left their delivery, mostly by a record before this
        one.
        """
        delivery_id, bits = codec.decode_ack(found.payload)
        if found.origin == codec.CLOSED:
            self._close(delivery_id, bits)
            self.acked.name(delivery_id, bits, NOBODY)
        else:
            self._finish(delivery_id, bits, codec.decode_call(found.origin))

    def _renew(self, found: StoredRecord) -> None:
        self.table.renew(*codec.decode_renewal(found.payload))

    def _message(self, found: StoredRecord) -> None:
        """Apply a message that left a delivery (retry or dead letter), or a dead letter that was redriven."""
        if len(found.origin) == ORIGIN_BYTES:
            origin = Origin.decode(found.origin)
            done = self._finish if found.topic.startswith(names.DEAD_LETTER_PREFIX) else self._close
            done(origin.delivery_id, 1 << origin.index)
        elif (offset := codec.decode_redriven(found.origin)) is not None:
            group = names.group_of_retry_topic(found.topic) or found.topic.removeprefix(names.DEAD_LETTER_PREFIX)
            letters = self._queue(names.dead_letter_topic(group), 0)
            if letters is not None:
                self.merge_buffer.read_to(group, letters, offset + 1)

    def _quarantined(self, found: StoredRecord) -> None:
        origin = Origin.decode(found.origin)
        self._close(origin.delivery_id, 1 << origin.index)

    def _offset(self, found: StoredRecord) -> None:
        """Apply an offset that was set. Deliveries that a reset revokes are closed by records behind it."""
        commit = codec.OffsetCommit.decode(found.payload)
        queue = self._queue(commit.topic, commit.queue_id)
        if queue is not None:  # else nothing was there: a group begins at the first message
            set_offset = self.merge_buffer.reset if found.origin == codec.RESET else self.merge_buffer.commit
            set_offset(commit.group, queue, commit.offset)

    def _passed(self, found: StoredRecord) -> None:
        """Apply offsets of groups that have passed messages without a delivery."""
        for each in progress_record.decode(found.payload):
            queue = self._queue(each.topic, each.queue_id)
            if queue is not None:
                self.merge_buffer.recorded(each.group, queue, each.committed, each.popped)

    def _forget_topic(self, found: StoredRecord) -> None:
        """Apply the deletion of a topic. Its open deliveries lapse when they are due, as their messages are gone (P4);
        those whose copies stand elsewhere, and blocked ones, are closed at once.
        """
        for delivery in self.table.lasting_of(found.payload.decode()):
            self._close(delivery.id, delivery.open_bits)

    def _forget_group(self, found: StoredRecord) -> None:
        """Apply the deletion of a group: nothing is hidden from it any more."""
        group = found.payload.decode()
        self.merge_buffer.forget_group(group)
        for delivery in self.table.of_group(group):
            self._close(delivery.id, delivery.open_bits)

    def _close(self, delivery_id: int, bits: int) -> None:
        """Remove messages from a delivery."""
        self._done(self.table.close(delivery_id, bits))

    def _finish(self, delivery_id: int, bits: int, call: int = 0) -> None:
        """Record that messages of a delivery are done for good; those of them that were so before do not count.

        Args:
            delivery_id: the delivery.
            bits: the messages.
            call: which call of a client asked for it; 0 if unknown.
        """
        delivery = self.table.get(delivery_id)
        open_bits = 0 if delivery is None else delivery.open_bits & bits
        if delivery is not None and open_bits:
            self.acked.record(delivery, open_bits, call)
            self._close(delivery_id, open_bits)
        elif call:
            self.acked.name(delivery_id, bits, call)

    def snapshot(self, revive_ends: tuple[int, ...], time: LogTime) -> PopSnapshot:
        """Return what to save but for the offsets, given where each revive queue ends now, and the time of
        deliveries.
        """
        return PopSnapshot(
            revive_offsets=tuple(self.table.oldest_offset(number, end) for number, end in enumerate(revive_ends)),
            next_number=self.table.next_number,
            time=time,
        )

    def restore(self, snapshot: PopSnapshot, take_up: Callable[[str, int], ConsumeQueue]) -> None:
        """Restore the offsets of a snapshot; its open deliveries are then read from the revive queues."""
        for group, topics in snapshot.offsets.items():
            for topic, queues in topics.items():
                for queue_id, (committed, popped) in queues.items():
                    self.merge_buffer.restore(group, take_up(topic, queue_id), committed, popped)

    def _done(self, delivery: Delivery | None) -> None:
        if delivery is not None:
            self.merge_buffer.done(delivery)


def stored_topic(delivery: Delivery) -> str:
    """Return the topic that a delivery's messages are stored in: the client's, or its retry topic."""
    if delivery.origin == receipt.FROM_RETRY_TOPIC:
        return names.stored_retry_topic(delivery.group, delivery.topic)
    return delivery.topic
