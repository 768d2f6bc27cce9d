"""Retrial of poison messages by operators: shown, released to where they failed, or dropped.

The record that releases a message is the very one that failed before. It names its origin, so it ends the entry by
itself, and a crash can neither lose nor double it.
"""

from collections.abc import Callable

from popwheel_broker.consume.delivery import Delivery, Origin
from popwheel_broker.consume.quarantine import Quarantine
from popwheel_broker.consume.quarantine_entry import (
    EntryFlag,
    QuarantineEntry,
    StoredEntry,
    decode_stored_entry,
    key_of,
)
from popwheel_broker.consume.redelivery import redelivered
from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_common.clock import Clock
from popwheel_common.contract import receipt
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code


class Retrial:
    """Releases and drops entries of the quarantine.

    Args:
        store: where records are put.
        quarantine: the quarantine.
        view: groups.
        knows_group: whether a group exists in the log, which may be ahead of `view`.
        timer: where delayed messages return to.
        clock: the time.
    """

    def __init__(
        self,
        store: MessageStore,
        quarantine: Quarantine,
        view: ClusterView,
        knows_group: Callable[[str], bool],
        timer: MessageTimer,
        clock: Clock,
    ) -> None:
        self._store = store
        self._quarantine = quarantine
        self._view = view
        self._knows_group = knows_group
        self._timer = timer
        self._clock = clock

    def entry(self, entry_id: str) -> QuarantineEntry | None:
        """Return an entry; None if there is none (any more).

        Raises:
            StatusError: BAD_REQUEST: that is no id.
        """
        key = key_of(entry_id)
        if key is None:
            raise StatusError(
                Code.BAD_REQUEST, f"{entry_id!r} is no id of the quarantine; popwheel admin quarantine list shows them"
            )
        return self._quarantine.table.get(key)

    def message(self, entry: QuarantineEntry) -> StoredRecord:
        """Return the message of an entry, as it was stored.

        Raises:
            StatusError: MESSAGE_NOT_FOUND: retention has taken it. INTERNAL_ERROR: it can't be read.
            CorruptDataError: it is damaged, and will be mended if another replica has it.
        """
        is_copied = bool(entry.flags & EntryFlag.COPIED)
        try:
            with RECORD_STEP:
                found = self._read(entry.record_position if is_copied else entry.position)
                return _message_of(decode_stored_entry(found), found) if is_copied else found
        except RecordFaultError as fault:
            raise StatusError(Code.INTERNAL_ERROR, f"it can't be read: {fault}") from fault

    def _read(self, position: int) -> StoredRecord:
        log = self._store.log
        if not log.start_position <= position < log.end_position:
            raise StatusError(
                Code.MESSAGE_NOT_FOUND, "retention has taken the message; only the entry is left, drop it"
            )
        try:
            return self._store.records.record_at(position)
        except CorruptDataError:
            log.record_damage(position)
            raise

    def retry(self, entry_id: str) -> bool:
        """Release a message to where it failed; return False if no entry has that id (any more).

        The entry of a message that stayed in place, or has no topic or group any more, is just removed.

        Raises:
            StatusError: INTERNAL_ERROR: it fails again, and stays in quarantine. Or the disk is full.
            CorruptDataError: it is damaged.
        """
        entry = self.entry(entry_id)
        if entry is None:
            return False
        if not entry.origin:
            self._quarantine.end(entry)
            return True
        stored = self.message(entry)
        try:
            with RECORD_STEP:
                record = self._redelivery(entry, stored) if entry.is_delivery else self._timed(entry, stored)
                if record is not None:
                    self._store.put([record])
        except RecordFaultError as fault:
            raise StatusError(Code.INTERNAL_ERROR, f"it fails again ({fault}), and stays in quarantine") from fault
        if record is None:
            self._quarantine.end(entry)
            return True
        return True

    def drop(self, entry_id: str) -> bool:
        """Drop a message for good; return False if no entry has that id (any more).

        Raises:
            StatusError: the disk is full; nothing has changed.
        """
        entry = self.entry(entry_id)
        if entry is not None:
            self._quarantine.end(entry)
        return entry is not None

    def _redelivery(self, entry: QuarantineEntry, stored: StoredRecord) -> Record | None:
        """Return the record that `Acks.redeliver` makes; None if the group is gone."""
        group = self._view.groups.get(entry.group)
        if group is None and not self._knows_group(entry.group):
            return None
        origin = Origin.decode(entry.origin)
        delivery = Delivery(
            id=origin.delivery_id,
            group=entry.group,
            topic=entry.topic,
            origin=receipt.FROM_TOPIC,
            queue_id=entry.queue_id,
            start_offset=entry.queue_offset,
            next_offset=entry.queue_offset + 1,
            pop_time_ms=0,
            invisible_ms=0,
            due_ms=0,
            first_position=entry.position,
            offsets=(entry.queue_offset,),
        )
        return redelivered(
            delivery,
            origin.index,
            stored,
            attempted=bool(entry.flags & EntryFlag.ATTEMPTED) and group is not None,
            attempts_max=stored.attempts + 1 if group is None else group.max_attempts,
        )

    def _timed(self, entry: QuarantineEntry, stored: StoredRecord) -> Record | None:
        """Return the record that the timer makes: of its topic if it is due, else of the timer queue;

        None if nothing is to be put.
        """
        if stored.kind != RecordKind.TIMER:
            return None
        return self._timer.released(entry.position, stored, self._clock.wall_ms())


def _message_of(kept: StoredEntry, found: StoredRecord) -> StoredRecord:
    """Return the record that failed, as far as its copy has it."""
    entry = kept.entry
    return found._replace(
        kind=kept.kind,
        topic=entry.topic,
        queue_id=entry.queue_id,
        payload=kept.payload,
        origin=kept.inner_origin,
        position=entry.position,
        queue_offset=entry.queue_offset,
    )
