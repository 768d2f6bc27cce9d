"""Sets delayed messages aside that fail by themselves, and keeps the timer's account of them."""

from services.broker.quarantine.entry import Step
from services.broker.quarantine.fault import RECORD_STEP, RecordFaultError
from services.broker.quarantine.quarantine import Quarantine
from services.broker.store.consume_queue import Entry
from services.broker.store.message_store import MessageStore
from services.broker.store.record import RecordKind, StoredRecord
from services.broker.timer.delay import Delay, decode_delay
from services.broker.timer.timer_state import Done, DueUnit, TimerState
from services.common.clock import Clock
from services.common.errors import CorruptDataError, StatusError

_TRY_AGAIN_MS = 1000


class TimerFaults:
    """What becomes of a timer that a stage fails for.

    Args:
        state: what the stages share.
        store: where the messages are.
        quarantine: takes them.
        clock: the time.
    """

    def __init__(self, state: TimerState, store: MessageStore, quarantine: Quarantine, clock: Clock) -> None:
        self._state = state
        self._store = store
        self._quarantine = quarantine
        self._clock = clock

    def of_request(self, queue_offset: int, position: int, length: int, fault: RecordFaultError) -> None:
        """A record of the timer queue could not be brought into the wheel; the caller goes on behind it.

        Raises:
            RecordFaultError: this is a slave: it waits for what the master says of it, or until it leads itself.
            StatusError: the quarantine or the disk is full; it is to be tried again.
        """
        state = self._state
        if state.done.pop(position, None) is not None:
            return  # the log tells what has become of it
        if not state.should_running_dequeue:
            raise fault
        stored, delay = self._read(position, length)
        if not self._quarantine.table.has_timer(position):
            self._quarantine.set_aside_timer(position, stored, delay, queue_offset, Step.SCHEDULING, fault)
        if stored is None or stored.kind == RecordKind.TIMER:
            self._uncount(delay)
        # A unit that was half put in is passed over if it is met.
        state.done[position] = Done(state.log_end, None, queue_offset + 1)

    def of_unit(self, unit: DueUnit, fault: RecordFaultError) -> None:
        """A message could not be fired or rolled. If it can't be set aside either, it is tried again a second later."""
        state = self._state
        stored, delay = self._read(unit.position, unit.length)
        if unit.is_recall:
            self._of_recall(unit, delay, fault)
            return
        root = unit.position if delay is None else unit.root_of(delay)
        if root in state.recalled:
            state.drop_recalled(root, unit.slot_ms)
            return
        try:
            self._quarantine.set_aside_timer(unit.position, stored, delay, 0, Step.FIRING, fault)
        except StatusError:
            state.await_unit(unit._replace(fire_ms=self._clock.wall_ms() + _TRY_AGAIN_MS))
            return
        self._uncount(delay)
        state.finish(unit.slot_ms)

    def _of_recall(self, unit: DueUnit, delay: Delay | None, fault: RecordFaultError) -> None:
        """A recall is not set aside, for then its message would come after the next start (T4). It is tried again."""
        topic = "" if delay is None else delay.topic
        self._quarantine.note(Step.FIRING, unit.position, topic, 0, 0, fault)
        now_ms = self._clock.wall_ms()
        if delay is None or unit.due_ms <= now_ms:
            self._state.end_recall(unit.position if delay is None else unit.root_of(delay), unit)
        else:
            self._state.await_unit(unit._replace(fire_ms=now_ms + _TRY_AGAIN_MS))

    def _uncount(self, delay: Delay | None) -> None:
        pending = self._state.pending
        if delay is None:
            pending.is_exact = False
        else:
            pending.remove(delay.topic, delay.due_ms)

    def _read(self, position: int, length: int) -> tuple[StoredRecord | None, Delay | None]:
        """The record and what it says, as far as both can be told."""
        stored = None
        try:
            with RECORD_STEP:
                stored = self._store.read(Entry(position, length, 0))
                return stored, decode_delay(stored.origin)
        except (RecordFaultError, CorruptDataError, OSError):
            return stored, None
