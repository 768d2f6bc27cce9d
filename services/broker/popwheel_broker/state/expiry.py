"""Which of the log's oldest segments may go, and what has to be moved so that they can."""

from collections import deque
from collections.abc import Callable

from popwheel_broker.options import BrokerOptions
from popwheel_broker.pop.relocation import Relocation
from popwheel_broker.progress.check_point import REVIVE_QUEUES, CheckPoint
from popwheel_broker.progress.revive_table import ReviveTable
from popwheel_broker.quarantine.entry import Step
from popwheel_broker.quarantine.quarantine import Quarantine
from popwheel_broker.records.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.store.consume_queue import ConsumeQueue
from popwheel_broker.store.message_store import MessageStore
from popwheel_broker.store.retention import SegmentAges, delete_before
from popwheel_broker.timer.message_timer import MessageTimer
from popwheel_broker.transactions.table import TransactionTable
from popwheel_common.clock import Clock
from popwheel_common.disk import DiskUsage


class Expiry:
    """The end of records. Decides, and deletes nothing.

    Args:
        store: the log.
        table: open CKs, which need messages.
        timer: needs messages that are not due.
        relocation: moves what open CKs need.
        quarantine: needs what was set aside without a copy; told of what fails by itself.
        transactions: need half messages that are open.
        options: how long records are held.
        clock: the time.
        usage: how full the disk is.
        revive_topic: where CKs are.
    """

    def __init__(
        self,
        store: MessageStore,
        table: ReviveTable,
        timer: MessageTimer,
        relocation: Relocation,
        quarantine: Quarantine,
        transactions: TransactionTable,
        options: BrokerOptions,
        clock: Clock,
        usage: Callable[[], DiskUsage],
        revive_topic: Callable[[], str],
    ) -> None:
        self._store = store
        self._table = table
        self._timer = timer
        self._relocation = relocation
        self._quarantine = quarantine
        self._transactions = transactions
        self._options = options.retention
        self._clock = clock
        self._usage = usage
        self._revive_topic = revive_topic
        self._ages = SegmentAges(store, self._failed)

    def expired_before(self) -> int:
        """The position before which segments are past their time, and not needed by what there is now.

        Raises:
            CorruptDataError: as `needed_from` does.
        """
        return self._past_time(self.needed_from(), disk_is_short=self._disk_is_short())

    def to_relocate(self) -> deque[CheckPoint]:
        """The open CKs that keep segments which are past their time: what they need is to be moved (`Relocation`).

        Where the disk is short, and the oldest segment is to go before its time, only if that frees half of it: else
        one would be written for each that goes.

        Raises:
            CorruptDataError: a queue, or a record that it leads to, is damaged: it can't be told.
        """
        start, relocation, topic = self._store.log.start_position, self._relocation, self._revive_topic()
        needed = [each for each in (self._timer.needed_from(), self._transactions.needed_from()) if each is not None]
        not_moved = min(needed, default=None)
        position = self._past_time(not_moved, disk_is_short=False)
        if position > start:
            return relocation.standing_before(position, topic)
        position = self._past_time(not_moved, disk_is_short=self._disk_is_short())
        if position <= start:
            return deque()
        found = relocation.standing_before(position, topic)
        return found if 2 * relocation.open_bytes(found) <= position - start else deque()

    def needed_from(self) -> int | None:
        """The least position that an open CK needs, of its message or of its own record, that a timer or an open
        transaction needs, or that was set aside without a copy.

        Raises:
            CorruptDataError: a queue, or a record that it leads to, is damaged: it can't be told.
        """
        needed = (
            *(self._table.first_position(), self._timer.needed_from()),
            *(self._quarantine.table.needed_from(), self._transactions.needed_from()),
        )
        positions = [position for position in needed if position is not None]
        topic = self._revive_topic()
        for number in range(REVIVE_QUEUES):
            queue = self._store.queue(topic, number)
            if queue is not None:
                positions += self._position_of(queue, self._table.oldest_offset(number, queue.max_offset))
        return min(positions, default=None)

    def _position_of(self, queue: ConsumeQueue, offset: int) -> list[int]:
        """Where the record of an offset stands; the log's start if it fails by itself: then nothing may go."""
        try:
            with RECORD_STEP:
                position = self._store.records.position_of(queue, offset)
                return [] if position is None else [position]
        except RecordFaultError as fault:
            start = self._store.log.start_position
            self._failed(start, fault)
            return [start]

    def _failed(self, position: int, fault: RecordFaultError) -> None:
        self._quarantine.note(Step.RETENTION, position, "", 0, 0, fault)

    def _past_time(self, needed_from: int | None, *, disk_is_short: bool) -> int:
        # The more careful of both clocks: a wall clock that is set forward deletes nothing before its time.
        now_ms = min(self._clock.wall_ms(), self._clock.steady_ms())
        return delete_before(self._ages.all(), now_ms, self._options.hours, disk_is_short, needed_from)

    def _disk_is_short(self) -> bool:
        return self._usage().used_share > self._options.disk_used_share_max
