"""State that the stages of the timer share: wheel, timer log, progress, the queues between them."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from popwheel_broker.delay.pending import PendingTimers
from popwheel_broker.delay.timer_log import TimerLog
from popwheel_broker.delay.unit import UnitFlag
from popwheel_broker.delay.wheel import TimerWheel
from popwheel_broker.log.record import Record
from popwheel_broker.log.timer_record import Delay
from popwheel_common.errors import CorruptDataError
from popwheel_common.shares import Shares

SLOT_MS = 1000
PUT_BYTES_MAX = 64 * 1024 * 1024
"""Limit of the records that wait to be put, in bytes: only these entries have whole messages."""
_NEVER_MS = 1 << 62


class TimerLogDamagedError(CorruptDataError):
    """Error: the timer log does not have its known content; all of it is to be rebuilt from the commit log."""


def slot_of(time_ms: int) -> int:
    """Return the slot that a time falls into, by its first millisecond."""
    return time_ms - time_ms % SLOT_MS


class TimerRequest(NamedTuple):
    """A record of the timer queue on its way into the wheel.

    Args:
        queue_offset: of the record, in the timer queue.
        position: of the record, in the commit log; it names the timer.
        length: of the record.
        is_recall: whether it recalls a message.
        delay: of the record.
    """

    queue_offset: int
    position: int
    length: int
    is_recall: bool
    delay: Delay


class DueUnit(NamedTuple):
    """A unit of the timer log whose slot was read; they sort in the order in which they are handled.

    Args:
        fire_ms: when it is handled.
        is_recall: whether it recalls a message.
        position: of its record in the commit log.
        length: of that record.
        rolls: whether it goes round again.
        slot_ms: its slot.
        due_ms: when its message is due.
    """

    fire_ms: int
    is_recall: bool
    position: int
    length: int
    rolls: bool
    slot_ms: int
    due_ms: int

    @classmethod
    def of(cls, due_ms: int, flags: int, position: int, length: int, slot_ms: int) -> "DueUnit":
        """Return the heap's entry of a unit: at one millisecond the messages come first, then the recalls.

        What rolls does so at its slot's beginning: it must not hold the slot open until it is due.
        """
        rolls = bool(flags & UnitFlag.ROLL)
        is_recall = bool(flags & UnitFlag.DELETE)
        return cls(slot_ms if rolls else due_ms, is_recall, position, length, rolls, slot_ms, due_ms)

    def root_of(self, delay: Delay) -> int:
        """Return the position of its message's first record, which names it, if its record has this delay."""
        return delay.root_at(self.position)


class Firing(NamedTuple):
    """A message that is to be put into its topic or the timer queue.

    Args:
        unit: its unit.
        delay: its delay.
        record: the record to put.
    """

    unit: DueUnit
    delay: Delay
    record: Record


class Done(NamedTuple):
    """A timer that is finished by the log, and whose unit was not read yet.

    Args:
        scan_position: position of the commit log from which a recovery finds its end again.
        topic: of its message, which counts as pending until the unit is met; None if it does not count any more.
        queue_offset: of the timer queue: a record before it may be its own.
        slot_ms: the latest slot that its unit may be in.
    """

    scan_position: int
    topic: str | None = None
    queue_offset: int = 0
    slot_ms: int = _NEVER_MS


@dataclass(slots=True)
class OpenSlot:
    """A slot that is begun and not done.

    Args:
        begin_position: end of the commit log when it was begun: its firings stand behind.
        outstanding: units that are not handled.
        next_position: where to read on in its chain; -1 if all is read.
        units: read so far, while the chain is being read.
        blocked_slots: earlier slots that wait for this one to be done, as often as for a unit of their own.
    """

    begin_position: int
    outstanding: int = 0
    next_position: int = -1
    units: list[DueUnit] = field(default_factory=list)
    blocked_slots: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Recall:
    """A message that is not to be delivered, until both its own record and that which recalls it are handled.

    Either may come first: a message that rolls late comes behind the record that recalls it.

    Args:
        due_ms: its due time.
        topic: of the message.
        is_dropped: whether the message's own record was read, and left out.
        unit: of the record that recalls it, if its time has come before that; its slot stays open.
        slot_ms: where the message's own record was read, or -1.
    """

    due_ms: int
    topic: str
    is_dropped: bool = False
    unit: DueUnit | None = None
    slot_ms: int = -1


class TimerState:
    """The state of one broker's timers.

    Args:
        wheel: the slots.
        log: the units that are chained into them.
        pending: counts.
        stage_entries_max: how many entries a queue between two stages may hold.
        log_end: where the commit log ends now, as long as this broker writes it.
    """

    def __init__(
        self,
        wheel: TimerWheel,
        log: TimerLog,
        pending: PendingTimers,
        stage_entries_max: int,
        log_end: Callable[[], int],
    ) -> None:
        self.wheel = wheel
        self.log = log
        self.pending = pending
        self.stage_entries_max = stage_entries_max
        self._log_end = log_end
        self.should_running_dequeue = False
        """True if due messages are fired: by the master, and not before its recovery is finished."""
        self.recorded_position = 0
        """Position up to which the commit log's records are known until then."""
        self.log_time_ms = 0
        """Time until then when the latest record was stored that was recorded, or read from the timer queue."""
        self.curr_queue_offset = 0
        """Offset of the timer queue that is read next."""
        self.commit_queue_offset = 0
        """Offset of the timer queue before which everything is in the timer log, or done."""
        self.curr_write_time_ms = 0
        """The second in which entries are enqueued now."""
        self.curr_read_time_ms = 0
        """The slot that is being read; new messages that are due in it, or before, are put into it."""
        self.late_slot_ms = 0
        """The latest slot into which an earlier process put overdue messages, as it was being read then."""
        self.commit_read_time_ms = 0
        """The oldest slot that is not done."""
        self.handed: deque[TimerRequest] = deque()
        """Records just appended to the timer queue: they need not be read again if they are enqueued soon."""
        self.enqueue_put_queue: deque[TimerRequest] = deque()
        self.dequeue_get_queue: deque[DueUnit] = deque()
        self.dequeue_put_queue: deque[Firing] = deque()
        self.due_heap: list[DueUnit] = []
        self.loading: deque[int] = deque()
        self.opened_slots: dict[int, OpenSlot] = {}
        self.recalled: dict[int, Recall] = {}
        """Recalled messages that are not finished, by their roots."""
        self.unscheduled: dict[int, Delay] = {}
        """Recalls that failed as they were scheduled or rolled, by position: appended again before progress is saved.
        All are of messages in `recalled`, which has a limit.
        """
        self.recalls = Shares()
        """Number of recalls by topic."""
        self.put_bytes = 0
        """Size of the records in `dequeue_put_queue`."""
        self.damaged: dict[int, str] = {}
        """Position of each damaged record -> its error. Its slot stays open."""
        self.stood_still: list[DueUnit] = []
        """Units that are due, and whose records are damaged."""
        self.fired_until_ms = 0
        """No message due at this time or before can be recalled any more."""
        self.done: OrderedDict[int, Done] = OrderedDict()
        """Timers that fired or rolled by the log, by their positions, until their units are read."""
        self.awaited: dict[int, DueUnit] = {}
        """Units until the log has their outcome: on a slave, in place of the heap, those of slots that were read; on a
        master those whose records are being written."""

    @property
    def log_end(self) -> int:
        """Position of the commit log up to which its records are known here."""
        return self._log_end() if self.should_running_dequeue else self.recorded_position

    def begin_position(self) -> int:
        """Return the position of the commit log behind which the firings of a slot stand that is begun now."""
        return next(iter(self.done.values())).scan_position if self.done else self.log_end

    def is_done(self, position: int, due_ms: int) -> bool:
        """Return whether the timer whose unit, or record, is read here fired or rolled; it is read only once."""
        if position not in self.done:
            return False
        topic = self.done.pop(position).topic
        if topic is not None:
            self.pending.remove(topic, due_ms)
        return True

    def forget_unmet(self) -> None:
        """Drop the oldest of those whose units would have been read by now.

        One broker may have ended a recall by its clock before another, whose clock was set back, rolled it.
        """
        while self.done:
            done = next(iter(self.done.values()))
            if self.commit_queue_offset < done.queue_offset or self.commit_read_time_ms <= done.slot_ms:
                return
            self.done.popitem(last=False)

    def await_units(self, units: list[DueUnit]) -> None:
        """Wait for units: they fire when they are due, or the master fires them."""
        if self.should_running_dequeue:
            self.due_heap += units
            heapq.heapify(self.due_heap)
        else:
            self.awaited.update((unit.position, unit) for unit in units)

    def await_unit(self, unit: DueUnit) -> None:
        """Wait for a single unit, likewise."""
        if self.should_running_dequeue:
            heapq.heappush(self.due_heap, unit)
        else:
            self.awaited[unit.position] = unit

    def append_for(self, units: Sequence[DueUnit], append: Callable[[], object]) -> None:
        """Append the records by which these units fired, rolled or went to the quarantine; on the master.

        Raises:
            StatusError, RecordFaultError: as `append` does; then they are as before.
        """
        self.awaited.update((unit.position, unit) for unit in units)
        try:
            append()
        finally:
            for unit in units:
                self.awaited.pop(unit.position, None)

    def damage_mended(self) -> None:
        """Retry units that stood still at records which are mended; those that are damaged still are found again."""
        self.damaged.clear()
        self.due_heap += self.stood_still
        heapq.heapify(self.due_heap)
        self.stood_still.clear()

    def opened(self, slot_ms: int) -> OpenSlot:
        """Return an open slot; open it for a unit that has just been put into it."""
        slot = self.opened_slots.get(slot_ms)
        if slot is None:
            slot = self.opened_slots[slot_ms] = OpenSlot(self.begin_position())
        return slot

    def finish(self, slot_ms: int) -> None:
        """Count one unit of a slot as handled."""
        slot = self.opened_slots[slot_ms]
        slot.outstanding -= 1
        assert slot.outstanding >= 0, "a unit is handled twice (T2)"
        if not slot.outstanding:
            self.close_if_done(slot_ms)

    def close_if_done(self, slot_ms: int) -> None:
        """Close a slot that is done. The one being read stays open: more may be put into it."""
        slot = self.opened_slots.get(slot_ms)
        if slot_ms == self.curr_read_time_ms or (slot is not None and (slot.outstanding or slot.next_position >= 0)):
            return
        if slot is not None:
            del self.opened_slots[slot_ms]
        self.wheel.clear(slot_ms)
        for earlier_ms in () if slot is None else slot.blocked_slots:
            self.finish(earlier_ms)
        self.advance_commit()

    def advance_commit(self) -> None:
        """Advance the time up to which all is done."""
        oldest_ms = next(iter(self.opened_slots), self.curr_read_time_ms)  # they are opened in their order
        self.commit_read_time_ms = max(self.commit_read_time_ms, oldest_ms)

    @property
    def scan_position(self) -> int:
        """Return the position of the log from which the records have all firings of slots that are not done."""
        oldest = next(iter(self.opened_slots.values()), None)
        begin = self.log_end if oldest is None else oldest.begin_position
        return min(begin, self.begin_position())

    def recall(self, root: int, topic: str, due_ms: int) -> None:
        """Record that a message is not to be delivered."""
        self.remember(root, Recall(due_ms, topic))
        self.pending.remove(topic, due_ms)

    def remember(self, root: int, recall: Recall) -> None:
        """Record a recall in place of an earlier one of the message."""
        self._forget(root)
        self.recalled[root] = recall
        self.recalls.take(recall.topic)

    def _forget(self, root: int) -> Recall | None:
        recall = self.recalled.pop(root, None)
        if recall is not None:
            self.recalls.give(recall.topic)
        return recall

    def drop_recalled(self, root: int, slot_ms: int | None) -> None:
        """Drop the record of a recalled message, from a slot or, None, on its way there."""
        recall = self.recalled[root]
        recall.is_dropped = True
        if slot_ms is not None:
            recall.slot_ms = slot_ms
            self.finish(slot_ms)
        if recall.unit is not None:
            self._forget_recall(root, recall.unit)

    def drop_homeless(self, unit: DueUnit, delay: Delay) -> None:
        """Drop a message whose topic is gone."""
        root = unit.root_of(delay)
        if root in self.recalled:
            self.drop_recalled(root, unit.slot_ms)
        else:
            self.pending.remove(delay.topic, delay.due_ms)
            self.finish(unit.slot_ms)

    def end_recall(self, root: int, unit: DueUnit) -> None:
        """End a recall when the time of its message has come; return whether it is finished."""
        recall = self.recalled.get(root)
        if recall is not None and not recall.is_dropped:
            recall.unit = unit
            return
        self._forget_recall(root, unit)

    def forget_dropped(self, root: int) -> bool:
        """Forget a recall without a unit, if no start finds its message any more; return whether it is gone."""
        recall = self.recalled.get(root)
        if recall is not None and not (recall.is_dropped and recall.slot_ms < self.commit_read_time_ms):
            return False
        self._forget(root)
        return True

    def _forget_recall(self, root: int, unit: DueUnit) -> None:
        """End both the message and its recall; but the next start must not find the message without its recall."""
        recall = self._forget(root)
        slot = None if recall is None or recall.slot_ms <= unit.slot_ms else self.opened_slots.get(recall.slot_ms)
        if slot is None:
            self.finish(unit.slot_ms)
        else:
            slot.blocked_slots.append(unit.slot_ms)
