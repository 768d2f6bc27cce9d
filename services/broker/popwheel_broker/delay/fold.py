"""Fold of the commit log into a timer: live at the master, and as the log is read by slaves and at starts.

`apply` is the one place that counts messages as pending or done, and accepts recalls. It forwards delayed messages to
the enqueue stages, so that a slave's wheel and timer log are as warm as the master's.

A unit is *awaited* until a record says that it fired, rolled or went to the quarantine. On the master it is awaited
while that record is written. A slave begins slots when the log's own time comes to them, and awaits their units. It
delivers nothing. Units that the master leaves out without a record, since they recall, were recalled or have no topic
any more, are released once the master reports the slots of that time as done.

So the log alone decides on the outcome of each timer (T2); the master's progress only saves memory.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice

from popwheel_broker.consume.quarantine_entry import decode_stored_entry
from popwheel_broker.consume.quarantine_table import QuarantineTable
from popwheel_broker.delay.dequeue_stages import TimerDequeueGet, TimerDequeueGetMessage
from popwheel_broker.delay.recovery import delay_of, done_timer
from popwheel_broker.delay.timer_state import Done, DueUnit, TimerRequest, TimerState, slot_of
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import NONE, Delay, decode_delay


class TimerFold:
    """Applies the commit log's records to the timer's state (`log.fold.Fold`).

    Args:
        state: what the stages share.
        dequeue_get: reads slots.
        get_message: decides which messages are left out.
        enqueue_lag: how many records of the timer queue are not in the wheel yet.
        quarantine: poison messages; a message that comes from there is not in the timer.
    """

    def __init__(
        self,
        state: TimerState,
        dequeue_get: TimerDequeueGet,
        get_message: TimerDequeueGetMessage,
        enqueue_lag: Callable[[], int],
        quarantine: QuarantineTable,
    ) -> None:
        self._state = state
        self._dequeue_get = dequeue_get
        self._get_message = get_message
        self._enqueue_lag = enqueue_lag
        self._quarantine = quarantine
        self._master_done_ms = 0
        """The master has done the slots before it, by the log up to `_master_position`."""
        self._master_position = 0
        self._applied_ms = 0
        self._lingering: deque[DueUnit] = deque()
        """Units that the master may have left out."""

    @property
    def now_ms(self) -> int:
        """Return the time for enqueuing: the log's own, so that slots are those of the master."""
        return max(self._state.log_time_ms, self._state.curr_read_time_ms)

    def apply(self, found: StoredRecord) -> None:
        """Apply one record; those that the recovery has read already are skipped."""
        state = self._state
        if found.position < state.recorded_position:
            return
        if found.kind in (RecordKind.TIMER, RecordKind.RECALL):
            self._arrived(found, found.decoded or decode_delay(found.origin))
            return
        timer = done_timer(found)
        if timer != NONE and not self._quarantine.has_timer(timer):
            topic, due_until_ms = found.topic, found.store_time_ms
            if found.kind == RecordKind.QUARANTINE:
                kept = decode_stored_entry(found)
                topic, delay = kept.entry.topic, delay_of(found._replace(origin=kept.inner_origin))
                if delay is None:
                    state.pending.is_exact = False
                else:  # its master may have put it into quarantine as it rolled, long before it was due
                    due_until_ms = delay.due_ms
            self._done(timer, found, topic or None, due_until_ms)
            state.fired_until_ms = max(state.fired_until_ms, found.store_time_ms)

    def passed(self, found: StoredRecord) -> None:
        """Pass over a record that was read from the log."""
        state = self._state
        state.log_time_ms = max(state.log_time_ms, found.store_time_ms)
        state.recorded_position = max(state.recorded_position, found.position + found.length)

    def _arrived(self, found: StoredRecord, delay: Delay) -> None:
        state = self._state
        is_recall = found.kind == RecordKind.RECALL
        if delay.predecessor != NONE and not self._quarantine.has_timer(delay.predecessor):
            self._done(delay.predecessor, found, None, delay.due_ms)  # it still counts
        elif not is_recall:
            state.pending.add(delay.topic, delay.due_ms)
        elif delay.root not in state.recalled:
            state.recall(delay.root, delay.topic, delay.due_ms)
        if len(state.handed) < state.stage_entries_max:
            state.handed.append(TimerRequest(found.queue_offset, found.position, found.length, is_recall, delay))

    def _done(self, timer: int, found: StoredRecord, topic: str | None, due_until_ms: int) -> None:
        """Record that a timer, due at a time or before, fired, rolled or went to the quarantine."""
        state = self._state
        if state.unscheduled.pop(timer, None) is not None:
            return  # a recall that has no unit was appended again
        unit = state.awaited.pop(timer, None)
        if unit is None:
            slot_ms = max(state.curr_read_time_ms, state.late_slot_ms, slot_of(due_until_ms))
            queue_end = state.commit_queue_offset + self._enqueue_lag()
            state.done[timer] = Done(found.position, topic, queue_end, slot_ms)
            return
        if topic is not None:
            state.pending.remove(topic, unit.due_ms)
        state.finish(unit.slot_ms)

    def progress(self, high_watermark: int, last_read_time_ms: int) -> None:
        """Record that the master has done all slots before a time, with their firings in the log up to a position."""
        if last_read_time_ms > self._master_done_ms:
            self._master_position, self._master_done_ms = high_watermark, last_read_time_ms

    def step(self, count: int) -> int:
        """Read up to `count` units of due slots, and release up to `count`; return how much was done.

        Raises:
            TimerLogDamagedError: the timer log is damaged.
        """
        state = self._state
        has_all_notes = self._master_done_ms > self._applied_ms and state.recorded_position >= self._master_position
        if has_all_notes:
            state.log_time_ms = max(state.log_time_ms, self._master_done_ms)
            state.fired_until_ms = max(state.fired_until_ms, self._master_done_ms - 1)
        done = self._dequeue_get.read(state.log_time_ms, count)
        if has_all_notes and not (state.loading or self._lingering) and self._enqueue_lag() <= 0:
            self._applied_ms = self._master_done_ms
            self._lingering.extend(unit for unit in state.awaited.values() if slot_of(unit.due_ms) < self._applied_ms)
        return done + self._release_finished(count)

    def _release_finished(self, count: int) -> int:
        lingering, awaited = self._lingering, self._state.awaited
        units = list(islice(lingering, count))
        self._get_message.release_finished([unit for unit in units if unit.position in awaited])
        for _ in units:
            lingering.popleft()
        return len(units)

    def finish(self) -> None:
        """End following: the log is this broker's to write from now on, and due messages fire."""
        state = self._state
        state.should_running_dequeue = True
        state.damage_mended()  # still damaged records are found again as they fire
        units = list(state.awaited.values())
        state.awaited.clear()
        state.await_units(units)
        self._lingering.clear()
