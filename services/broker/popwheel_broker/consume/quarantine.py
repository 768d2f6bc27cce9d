"""Puts poison messages into quarantine: removes what always fails from its delivery or timer, so that all others go on.

Only a master writes. A failure in the fold of the log, on a slave or at a start, is the same wherever the log is
folded, so it goes into the table without a record.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import structlog

from popwheel_broker.consume.delivery import Delivery, Origin, close_record
from popwheel_broker.consume.pop_state import PopState, stored_topic
from popwheel_broker.consume.quarantine_entry import QUARANTINE_QUEUE, EntryFlag, QuarantineEntry, Step, encode_end
from popwheel_broker.consume.quarantine_table import QuarantineTable, holder_of
from popwheel_broker.consume.store_time import with_first_stored
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import RECORD_BYTES_MAX, Record, RecordKind, StoredRecord
from popwheel_broker.log.timer_record import Delay, fired_origin
from popwheel_broker.topics.system_topics import SystemTopics
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

_log = structlog.get_logger()

_HEADERS_BYTES_MAX = 4096
"""Size of a QUARANTINE record's headers, besides the message: at least what its names and its reason can take."""


class Quarantine:
    """Quarantine of a broker's poison messages.

    Args:
        store: where the records go.
        state: messages in flight; a message in quarantine leaves its delivery.
        topics: where records stand.
        entries_max: limit of records in quarantine.
        leads: whether this replica writes the log now.
    """

    def __init__(
        self,
        store: MessageStore,
        state: PopState,
        topics: SystemTopics,
        entries_max: int,
        leads: Callable[[], bool],
    ) -> None:
        self._store = store
        self._state = state
        self._topics = topics
        self.entries_max = entries_max
        self._leads = leads
        self.table = QuarantineTable()
        self.faults: Counter[Step] = Counter()
        """Number of failures by step, also where no record was put into quarantine."""

    @property
    def topic(self) -> str:
        """Topic of the records."""
        return self._topics.quarantine

    def quarantine_delivery(
        self,
        delivery: Delivery,
        index: int,
        stored: StoredRecord | None,
        step: Step,
        fault: RecordFaultError,
        *,
        attempted: bool,
    ) -> None:
        """Take a message out of its delivery.

        Args:
            delivery, index: the message.
            stored: its record; None if it could not be read: then it stays where it is, and so does its segment.
            step: what failed.
            fault: its error.
            attempted: whether the delivery that ends counts as an attempt.

        Raises:
            StatusError: the quarantine or the disk is full; nothing has changed.
        """
        position = self._position(delivery, index) if stored is None else stored.position
        entry = QuarantineEntry(
            step,
            EntryFlag.ATTEMPTED if attempted and not delivery.is_suspended else EntryFlag(0),
            Origin(delivery.id, index).encode(),
            position,
            position,
            delivery.group,
            delivery.topic,
            delivery.queue_id,
            delivery.offsets[index],
            str(fault),
        )
        bits = 1 << index
        revive_topic = self._topics.revive
        # The ACK record saves recovery a search for what closed the delivery, as that of a redelivery does.
        self._put(entry, stored, [close_record(revive_topic, delivery.id, bits)])

    def _position(self, delivery: Delivery, index: int) -> int:
        """Return the position of a message that could not be read, or of one before it."""
        queue = self._store.queue(stored_topic(delivery), delivery.queue_id)
        entries = [] if queue is None else queue.read(delivery.offsets[index], 1)
        return entries[0].position if entries else delivery.first_position

    def quarantine_timer(
        self,
        position: int,
        stored: StoredRecord | None,
        delay: Delay | None,
        queue_offset: int,
        step: Step,
        fault: RecordFaultError,
    ) -> None:
        """Take a delayed message out of the timer; the caller keeps the timer's own account.

        Args:
            position: of its record.
            stored: that record; None if it could not be read.
            delay: its delay; None if that could not be read.
            queue_offset: in the timer queue; 0 if it is not known.
            step, fault: what failed, and its error.

        Raises:
            StatusError: the quarantine or the disk is full; nothing has changed.
        """
        root = position if delay is None else delay.root_at(position)
        topic, queue_id = ("", 0) if delay is None else (delay.topic, delay.queue_id)
        origin = fired_origin(position)
        entry = QuarantineEntry(
            step, EntryFlag(0), origin, position, root, "", topic, queue_id, queue_offset, str(fault)
        )
        self._put(entry, stored, [])

    def record(
        self, step: Step, position: int, topic: str, queue_id: int, queue_offset: int, fault: RecordFaultError
    ) -> None:
        """Record that a record failed and stays where it is; once while that is known, and on a master only.

        Args:
            step, fault: what failed, and its error.
            position, topic, queue_id, queue_offset: where the record stands.
        """
        entry = QuarantineEntry(
            step, EntryFlag(0), b"", position, position, "", topic, queue_id, queue_offset, str(fault)
        )
        if self.table.get(entry.key) is not None or not self._leads():
            self.count(step, position, fault)
            return
        try:
            self._put(entry, None, [])
        except StatusError as error:
            _log.error("a failing record could not be recorded", position=position, why=str(error))

    def fold_failed(self, found: StoredRecord, fault: RecordFaultError) -> None:
        """Record that a record of the log could not be folded in; the fold skips it."""
        self.count(Step.FOLD, found.position, fault)
        if len(self.table) < self.entries_max:
            self.table.record_fault(
                QuarantineEntry(
                    Step.FOLD,
                    EntryFlag(0),
                    b"",
                    found.position,
                    found.position,
                    "",
                    found.topic,
                    found.queue_id,
                    found.queue_offset,
                    str(fault),
                    found.store_time_ms,
                )
            )

    def count(self, step: Step, position: int, fault: RecordFaultError) -> None:
        """Count a failure of a record at a step."""
        self.faults[step] += 1
        _log.error("a poison message failed, all others go on", step=step.label, position=position, why=str(fault))

    def end(self, entry: QuarantineEntry) -> None:
        """End an entry for good.

        Raises:
            StatusError: the disk is full; nothing has changed.
        """
        record = Record(RecordKind.QUARANTINE_END, self.topic, QUARANTINE_QUEUE, encode_end(entry.key))
        self._store.put([record])

    def _put(self, entry: QuarantineEntry, stored: StoredRecord | None, more: list[Record]) -> None:
        self.count(entry.step, entry.position, RecordFaultError(entry.reason))
        holder, shares = holder_of(entry), self.table.shares
        if not shares.room(holder, self.entries_max):
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"{len(self.table)} messages are in quarantine, {shares.share(holder)} of {holder or 'no topic'}: "
                "that is its share of the limit (broker.quarantine_max); popwheel admin quarantine list shows them, "
                "retry or drop some",
            )
        if stored is not None and stored.length + _HEADERS_BYTES_MAX <= RECORD_BYTES_MAX:
            try:
                with RECORD_STEP:
                    copied = replace(entry, flags=entry.flags | EntryFlag.COPIED)
                    self._store.put([self._copy(copied, stored), *more])
                return
            except RecordFaultError as fault:
                self.count(entry.step, entry.position, fault)  # it stays where it is
        body = entry.encode(0, b"", b"")
        record = Record(RecordKind.QUARANTINE, self.topic, QUARANTINE_QUEUE, body, origin=entry.origin)
        self._store.put([record, *more])

    def _copy(self, entry: QuarantineEntry, stored: StoredRecord) -> Record:
        is_message = stored.kind == RecordKind.MESSAGE  # the time of a timer or a half message begins with its message
        return Record(
            RecordKind.QUARANTINE,
            self.topic,
            QUARANTINE_QUEUE,
            entry.encode(stored.kind, stored.origin, stored.payload),
            with_first_stored(stored) if is_message else stored.system_properties,
            stored.tag_hash,
            stored.attempts,
            entry.origin,
        )
