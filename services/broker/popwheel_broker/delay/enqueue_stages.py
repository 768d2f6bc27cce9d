"""The first two stages of a delayed message: from the timer queue into the wheel and the timer log.

    timer queue -> TimerEnqueueGet -> enqueue_put_queue -> TimerEnqueuePut -> wheel and timer log

The names are those of the articles. Steps are plain functions joined by bounded queues. None of them waits or reads the
clock; `service` calls the steps, with the time.
"""

from collections.abc import Iterable, Sequence

from popwheel_broker.delay.timer_faults import TimerFaults
from popwheel_broker.delay.timer_state import SLOT_MS, DueUnit, TimerRequest, TimerState, slot_of
from popwheel_broker.delay.unit import UnitFlag, hash_topic
from popwheel_broker.log.consume_queue import ConsumeQueue, Entry
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import TIMER_QUEUE, TIMER_TOPIC, decode_delay
from popwheel_common.errors import CorruptDataError

_DELAY_MS_MAX = (1 << 32) - 1
"""The longest delay that fits in a unit of the timer log."""


class TimerEnqueueGet:
    """Reads the records of the timer queue, in their order.

    Args:
        state: what the stages share.
        store: where the timer queue is.
        faults: handles poison messages.
    """

    def __init__(self, state: TimerState, store: MessageStore, faults: TimerFaults) -> None:
        self._state = state
        self._store = store
        self._faults = faults

    def step(self, count: int) -> int:
        """Read up to `count` records that can be read by now; return how many.

        Raises:
            CorruptDataError: one is damaged, and those before it were read; it is tried again by the next step.
            RecordFaultError, StatusError: one is poison, and can't be put into quarantine yet; likewise.
        """
        state = self._state
        queue = self._store.queue(TIMER_TOPIC, TIMER_QUEUE)
        if queue is None:
            return 0
        count = min(count, state.stage_entries_max - len(state.enqueue_put_queue))
        first = state.curr_queue_offset = max(state.curr_queue_offset, queue.min_offset)
        handed = state.handed
        while handed and handed[0].queue_offset < first:
            handed.popleft()
        if handed:
            if handed[0].queue_offset == first:
                return self._take_handed(min(count, queue.max_offset - first))
            count = min(count, handed[0].queue_offset - first)
        entries = queue.read(first, count)
        offsets = range(first, first + len(entries))
        try:
            with RECORD_STEP:
                self._take(zip(offsets, self._store.records.read_checked(queue, offsets, entries), strict=True))
        except (CorruptDataError, RecordFaultError):
            self._take_one_by_one(queue, state.curr_queue_offset, entries[state.curr_queue_offset - first :])
        return state.curr_queue_offset - first

    def _take(self, records: Iterable[tuple[int, StoredRecord]]) -> None:
        state = self._state
        for offset, stored in records:
            state.log_time_ms = max(state.log_time_ms, stored.store_time_ms)
            state.enqueue_put_queue.append(
                TimerRequest(
                    offset,
                    stored.position,
                    stored.length,
                    stored.kind == RecordKind.RECALL,
                    decode_delay(stored.origin),
                )
            )
            state.curr_queue_offset = offset + 1

    def _take_one_by_one(self, queue: ConsumeQueue, first: int, entries: Sequence[Entry]) -> None:
        """Take records up to a poison one; that one is handled when all before it are in the wheel.

        Raises:
            CorruptDataError: one is damaged, and all before it were taken.
        """
        state = self._state
        for offset, entry in enumerate(entries, first):
            try:
                with RECORD_STEP:
                    self._take([(offset, self._store.records.read_checked(queue, (offset,), (entry,))[0])])
            except RecordFaultError as fault:
                if not state.enqueue_put_queue:
                    self._faults.of_request(offset, entry.position, entry.length, fault)
                    state.curr_queue_offset = state.commit_queue_offset = offset + 1
                return

    def _take_handed(self, count: int) -> int:
        """Take up to `count` readable entries from those that were forwarded; return how many."""
        state = self._state
        handed = state.handed
        first = offset = handed[0].queue_offset
        end = first + count
        while offset < end and handed and handed[0].queue_offset == offset:
            state.enqueue_put_queue.append(handed.popleft())
            offset += 1
        state.curr_queue_offset = offset
        return offset - first


class TimerEnqueuePut:
    """Chains records into the slot of their second, or into that of the roll window's end if they are due later.

    Args:
        state: what the stages share.
        roll_window_ms: how far ahead a slot may be.
        faults: handles poison messages.
    """

    def __init__(self, state: TimerState, roll_window_ms: int, faults: TimerFaults) -> None:
        self._state = state
        self._faults = faults
        self._roll_window_ms = roll_window_ms

    def step(self, now_ms: int, count: int) -> int:
        """Take up to `count` requests; return how many were taken.

        Raises:
            OSError: the timer log cannot be written; the request waits.
            CorruptDataError, RecordFaultError, StatusError: one is poison, and can't be put into quarantine yet;
            likewise.
        """
        state = self._state
        state.curr_write_time_ms = max(state.curr_write_time_ms, slot_of(now_ms))
        farthest_ms = slot_of(
            min(
                slot_of(now_ms) + self._roll_window_ms,
                # Beyond it the wheel has come round to slots that are not done.
                state.commit_read_time_ms + state.wheel.span_ms - SLOT_MS,
            )
        )
        requests = state.enqueue_put_queue
        taken = 0
        while requests and taken < count:
            request = requests[0]
            if not state.is_done(request.position, request.delay.due_ms):
                try:
                    with RECORD_STEP:
                        self._chain_in(request, now_ms, farthest_ms)
                except RecordFaultError as fault:
                    self._faults.of_request(request.queue_offset, request.position, request.length, fault)
            requests.popleft()
            state.commit_queue_offset = request.queue_offset + 1
            taken += 1
        assert state.commit_queue_offset <= state.curr_queue_offset, "more of the timer queue is done than was read"
        return taken

    def _chain_in(self, request: TimerRequest, now_ms: int, farthest_ms: int) -> None:
        """Chain a unit into the slot of its due time; into the farthest, to be rolled there, if that is earlier."""
        state = self._state
        wheel = state.wheel
        delay = request.delay
        due_ms = delay.due_ms
        due_slot_ms = slot_of(due_ms)
        slot_ms = max(state.curr_read_time_ms, min(due_slot_ms, farthest_ms))
        flags = UnitFlag.DELETE if request.is_recall else UnitFlag.TIMER
        if slot_ms < due_slot_ms:
            flags |= UnitFlag.ROLL
        position = state.log.append(
            (
                wheel.last(slot_ms),
                flags,
                # The clock may have been set back by more than fits in a unit.
                min(max(now_ms, due_ms - _DELAY_MS_MAX), due_ms),
                due_ms,
                slot_ms,
                request.position,
                request.length,
                hash_topic(delay.topic),
            )
        )
        try:
            wheel.add(slot_ms, position)
        except BaseException:
            state.log.undo_append()  # a start would find it, besides that of the next try
            raise
        if slot_ms == state.curr_read_time_ms:
            # Its slot is being read already.
            state.opened(slot_ms).outstanding += 1
            state.await_unit(DueUnit.of(due_ms, flags, request.position, request.length, slot_ms))
