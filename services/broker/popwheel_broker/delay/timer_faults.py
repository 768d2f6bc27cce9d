"""Handles delayed messages that always fail: puts them into quarantine, retries recalls, updates the timer's counts."""

from functools import partial

from popwheel_broker.consume.quarantine import Quarantine
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.delay.timer_state import DueUnit, TimerState
from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import Delay, decode_delay, recall_record
from popwheel_common.clock import Clock
from popwheel_common.errors import CorruptDataError, StatusError

_TRY_AGAIN_MS = 1000
_TRY_AGAIN_MS_MAX = 30_000
"""Pause between appends of recalls that fail repeatedly; progress is saved no more often meanwhile."""


class TimerFaults:
    """Faults of timers: handles those for which a stage fails.

    Args:
        state: what the stages share.
        store: where the messages are.
        quarantine: takes poison messages.
        clock: the time.
    """

    def __init__(self, state: TimerState, store: MessageStore, quarantine: Quarantine, clock: Clock) -> None:
        self._state = state
        self._store = store
        self._quarantine = quarantine
        self._clock = clock
        self._pause_ms = 0
        """Pause for recalls that failed repeatedly; twice as long each time."""
        self._anew_at_ms = 0
        """Time when they may be appended again, by `Clock.steady_ms`."""

    def of_request(self, queue_offset: int, position: int, length: int, fault: RecordFaultError) -> None:
        """Handle a record of the timer queue that could not be brought into the wheel; the caller continues behind it.

        Args:
            queue_offset, position, length: of the record.
            fault: its error.

        Raises:
            RecordFaultError: this is a slave: it waits for its master's record of it, or until it leads itself.
            StatusError: the quarantine or the disk is full; it is to be tried again.
            CorruptDataError, OSError: it can't be read whether it recalls; likewise.
        """
        state = self._state
        stored, delay = self._read(position, length)
        is_recall = stored is not None and stored.kind == RecordKind.RECALL
        if position in state.done:  # the log has its outcome
            if state.done.pop(position).topic is not None:
                self._uncount(delay)
        elif delay is not None and not is_recall and (root := delay.root_at(position)) in state.recalled:
            state.drop_recalled(root, None)
        elif not state.should_running_dequeue and not (delay is not None and is_recall and self._is_past(delay)):
            raise fault
        elif delay is not None and is_recall:
            # Once for all its records: its message names it.
            self._quarantine.record(Step.SCHEDULING, delay.root, delay.topic, 0, queue_offset, fault)
            state.unscheduled[position] = delay
        else:
            if not self._quarantine.table.has_timer(position):
                self._quarantine.quarantine_timer(position, stored, delay, queue_offset, Step.SCHEDULING, fault)
                state.done.pop(position, None)  # it is counted here
            if not is_recall:
                self._uncount(delay)

    def recalls_wait(self) -> bool:
        """Return whether recalls fail that are not to be retried yet: then progress is better not saved."""
        self._drop_past()
        has_failed, now_ms = bool(self._state.unscheduled), self._clock.steady_ms()
        if not has_failed and now_ms >= self._anew_at_ms:
            self._pause_ms = 0
        return has_failed and now_ms < self._anew_at_ms

    def append_anew(self) -> bool:
        """Append recalls that are not in the wheel to the timer queue again; then the saved state leads to them.

        So a recall that fails still recalls after a start (T4), and needs only its latest record of the log.

        Returns:
            Whether a record was appended.

        Raises:
            RecordFaultError, StatusError: they could not be appended, so nothing is to be saved; as on a slave.
        """
        state = self._state
        self._drop_past()
        if not state.unscheduled:
            return False
        if not state.should_running_dequeue:
            raise RecordFaultError("a recall that fails here is not finished on the master, either")
        with RECORD_STEP:
            anew = [
                recall_record(delay._replace(predecessor=position)) for position, delay in state.unscheduled.items()
            ]
            self._store.put(anew)
        assert not state.unscheduled, "a recall that was appended again is not known"
        self._pause_ms = min(2 * self._pause_ms or _TRY_AGAIN_MS, _TRY_AGAIN_MS_MAX)
        self._anew_at_ms = self._clock.steady_ms() + self._pause_ms
        return True

    def of_unit(self, unit: DueUnit, fault: RecordFaultError) -> None:
        """Handle a message that could not be fired or rolled. If it can't be read or quarantined, it is retried
        soon.
        """
        state = self._state
        try:
            stored, delay = self._read(unit.position, unit.length)
        except (CorruptDataError, OSError):
            self._try_again(unit)
            return
        if unit.is_recall:
            self._of_recall(unit, delay, fault)
            return
        root = unit.position if delay is None else unit.root_of(delay)
        if root in state.recalled:
            state.drop_recalled(root, unit.slot_ms)
            return
        try:
            quarantine = partial(self._quarantine.quarantine_timer, unit.position, stored, delay, 0, Step.FIRING, fault)
            state.append_for([unit], quarantine)
        except StatusError:
            self._try_again(unit)

    def _drop_past(self) -> None:
        """Drop recalls that are not in the wheel and whose time has passed."""
        state = self._state
        for position, delay in list(state.unscheduled.items()):
            if self._is_past(delay) and state.forget_dropped(delay.root):
                del state.unscheduled[position]

    def _is_past(self, delay: Delay) -> bool:
        """Return whether the time of a recall has passed; on a slave, at its master."""
        state = self._state
        return delay.due_ms <= (self._clock.wall_ms() if state.should_running_dequeue else state.log_time_ms)

    def _try_again(self, unit: DueUnit) -> None:
        self._state.await_unit(unit._replace(fire_ms=self._clock.wall_ms() + _TRY_AGAIN_MS))

    def _of_recall(self, unit: DueUnit, delay: Delay | None, fault: RecordFaultError) -> None:
        """Handle a failing recall. It never goes to the quarantine, for then its message would be delivered after the
        next start (T4). It is appended again, as its slot may not stay open: the wheel would come round to it, and all
        others wait.
        """
        state, now_ms = self._state, self._clock.wall_ms()
        topic, root = ("", unit.position) if delay is None else (delay.topic, unit.root_of(delay))
        self._quarantine.record(Step.FIRING, root, topic, 0, 0, fault)
        if delay is None or unit.due_ms <= now_ms:
            state.end_recall(root, unit)
        else:
            state.unscheduled[unit.position] = delay
            state.finish(unit.slot_ms)

    def _uncount(self, delay: Delay | None) -> None:
        pending = self._state.pending
        if delay is None:
            pending.is_exact = False
        else:
            pending.remove(delay.topic, delay.due_ms)

    def _read(self, position: int, length: int) -> tuple[StoredRecord | None, Delay | None]:
        """Return the record and its delay, as far as its own faults let them be read.

        Raises:
            CorruptDataError, OSError: it can't be read now: it may be a recall, which never goes to the quarantine.
        """
        stored = None
        try:
            with RECORD_STEP:
                stored = self._store.records.read(Entry(position, length, 0))
                return stored, decode_delay(stored.origin)
        except RecordFaultError:
            return stored, None
