"""Moves messages that are hidden for long to the end of the log, so that an open delivery does not pin its segment.

A message that an open delivery needs is copied into the delivery's revive queue, which is read only by place; then the
delivery is written again, with the places of the copies. Handles, attempts and due times stay the same. If a crash
comes between the two, the copies mean nothing and are made once more.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from popwheel_broker.consume.acks import Acks
from popwheel_broker.consume.delivery import REVIVE_QUEUES, Delivery
from popwheel_broker.consume.quarantine import Quarantine
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.consume.revive_table import ReviveTable
from popwheel_broker.consume.store_time import with_first_stored
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_common.errors import CorruptDataError

_BYTES_AT_ONCE = 1 << 20
_DELIVERIES_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Copied:
    """A delivery whose messages were copied.

    Args:
        delivery: the delivery.
        copies: by index of a message: where in the revive queue its copy stands.
        first_position: of those copies in the log; where the log ended, if there are none.
    """

    delivery: Delivery
    copies: dict[int, int]
    first_position: int


class Relocation:
    """Moves open deliveries.

    Args:
        store: where all records are.
        table: the open deliveries.
        acks: writes them again, and reads their messages.
        quarantine: counts what fails.

    Attributes:
        messages: number of copied messages.
    """

    def __init__(self, store: MessageStore, table: ReviveTable, acks: Acks, quarantine: Quarantine) -> None:
        self._store = store
        self._quarantine = quarantine
        self._table = table
        self._acks = acks
        self._reader = acks.messages
        self.messages = 0

    def standing_before(self, position: int, revive_topic: str) -> deque[Delivery]:
        """Return the open deliveries of which a message, or the record itself, stands before a position of the log."""
        before = [0] * REVIVE_QUEUES
        for number in range(REVIVE_QUEUES):
            queue = self._store.queue(revive_topic, number)
            if queue is not None:
                before[number] = queue.first_at_or_after(position)
        return deque(self._table.standing_before(position, before))

    def open_bytes(self, deliveries: Sequence[Delivery]) -> int:
        """Return the size of their messages that can be copied, in bytes."""
        return sum(stored.length for each in deliveries for _, stored in self._messages(each) or ())

    def copy(
        self, waiting: deque[Delivery], revive_topic: str, deliveries_max: int = _DELIVERIES_AT_ONCE
    ) -> list[Copied]:
        """Copy the messages of the first waiting deliveries, a bounded number of them; then they are to be made
        durable.

        Deliveries with a damaged message stay where they are: it has to be restored there. So do those with a poison
        message, until they are done.

        Raises:
            StatusError: the disk is full; nothing was copied.
        """
        taken: list[tuple[Delivery, list[tuple[int, StoredRecord]]]] = []
        size = 0
        looked_at = 0
        for delivery in waiting:
            if size >= _BYTES_AT_ONCE or len(taken) >= deliveries_max:
                break
            looked_at += 1
            if self._table.get(delivery.id) is not delivery:
                continue
            messages = self._messages(delivery)
            if messages is None:
                continue
            size += sum(stored.length for _, stored in messages)
            taken.append((delivery, messages))
        end = self._store.log.end_position
        numbered = [(each.revive_queue, stored) for each, messages in taken for _, stored in messages]
        try:
            with RECORD_STEP:
                appended = self._store.put([_copy(stored, revive_topic, number) for number, stored in numbered])
        except RecordFaultError as fault:
            if len(taken) > 1:
                return self.copy(waiting, revive_topic, 1)
            self._failed(taken[0][0], fault)
            taken = []
        for _ in range(looked_at):
            waiting.popleft()
        if not taken:
            return []
        self.messages += len(appended.positions)
        places = iter(zip(appended.queue_offsets, appended.positions, strict=True))
        copied: list[Copied] = []
        for delivery, messages in taken:
            stands = {index: next(places) for index, _ in messages}
            copies = {index: offset for index, (offset, _) in stands.items()}
            first_position = min((position for _, position in stands.values()), default=end)
            copied.append(Copied(delivery, copies, first_position))
        return copied

    def _messages(self, delivery: Delivery) -> list[tuple[int, StoredRecord]] | None:
        """Return the open messages of a delivery; None if one is damaged or poison."""
        try:
            with RECORD_STEP:
                found = [(index, self._reader.message(delivery, index)) for index in delivery.open_indexes()]
        except CorruptDataError:
            return None
        except RecordFaultError as fault:
            self._failed(delivery, fault)
            return None
        return [(index, stored) for index, stored in found if stored is not None]

    def _failed(self, delivery: Delivery, fault: RecordFaultError) -> None:
        self._quarantine.count(Step.RETENTION, delivery.first_position, fault)

    def rewrite(self, copied: Sequence[Copied]) -> None:
        """Let deliveries use their copies, which are durable now, as far as the deliveries have not changed.

        Raises:
            StatusError: the disk is full; nothing has changed.
        """
        moved: list[Delivery] = []
        for each in copied:
            delivery = each.delivery
            if self._table.get(delivery.id) is delivery:
                # A message that was deleted meanwhile, with its topic, must not reappear by its copy.
                copies = {index: at for index, at in each.copies.items() if self._reader.is_in_flight(delivery, index)}
                moved.append(replace(delivery, copies=copies, first_position=each.first_position))
        self._acks.rewrite(moved)


def _copy(stored: StoredRecord, revive_topic: str, revive_queue: int) -> Record:
    return Record(
        RecordKind.COPY,
        revive_topic,
        revive_queue,
        stored.payload,
        with_first_stored(stored),
        stored.tag_hash,
        stored.attempts,
    )
