"""The last three stages of a delayed message: from the wheel to its topic, or into the timer queue again (roll).

    wheel and timer log -> TimerDequeueGet -> dequeue_get_queue -> TimerDequeueGetMessage -> dequeue_put_queue
    -> TimerDequeuePutMessage -> its topic, or the timer queue again

Like the first two (`enqueue_stages`), they neither wait nor read the clock.
"""

import heapq
from collections.abc import Callable, Sequence

from popwheel_broker.delay.timer_faults import TimerFaults
from popwheel_broker.delay.timer_state import (
    PUT_BYTES_MAX,
    SLOT_MS,
    DueUnit,
    Firing,
    OpenSlot,
    TimerLogDamagedError,
    TimerState,
    slot_of,
)
from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.log.timer_record import (
    NONE,
    TIMER_QUEUE,
    TIMER_TOPIC,
    Delay,
    decode_delay,
    fired_origin,
    recall_record,
)
from popwheel_common.errors import CorruptDataError

_LEAD_MS = 500
"""Time by which a slot is read early: reading the chain of a full one takes a while."""
_SLOTS_READ_AHEAD = 60
_TRY_AGAIN_MS = 1000
_SLOTS_LOADED_AT_ONCE = 2


class TimerDequeueGet:
    """Reads the slots that are due, and passes on each of their messages at its own millisecond.

    Args:
        state: what the stages share.
    """

    def __init__(self, state: TimerState) -> None:
        self._state = state

    def step(self, now_ms: int, count: int) -> int:
        """Read up to `count` units of slots, pass on up to `count` that are due; return how much was done.

        Raises:
            TimerLogDamagedError: the timer log is damaged.
        """
        state = self._state
        loaded = self.read(now_ms + _LEAD_MS, count)
        given = 0
        while state.due_heap and given < count and state.due_heap[0].fire_ms <= now_ms:
            if len(state.dequeue_get_queue) >= state.stage_entries_max:
                break
            state.dequeue_get_queue.append(heapq.heappop(state.due_heap))
            given += 1
        if given:
            state.fired_until_ms = max(state.fired_until_ms, now_ms)
        return loaded + given

    def read(self, until_ms: int, count: int) -> int:
        """Begin to read the slots up to a time, and the late ones; return how many units, up to `count`, were read.

        Raises:
            TimerLogDamagedError: the timer log is damaged.
        """
        # A late slot has units that are due before it: the clock that put them there was ahead, and was corrected.
        self._open_slots(max(until_ms, self._state.late_slot_ms))
        return self._load(count)

    def _open_slots(self, last_ms: int) -> None:
        state = self._state
        while len(state.loading) < _SLOTS_LOADED_AT_ONCE:
            # While older slots cannot be finished the wheel must not come round to them.
            until_ms = slot_of(min(last_ms, state.commit_read_time_ms + state.wheel.span_ms // 2))
            if state.curr_read_time_ms >= until_ms:
                break
            next_ms = state.wheel.next_occupied(state.curr_read_time_ms + SLOT_MS, until_ms + SLOT_MS)
            left_ms, state.curr_read_time_ms = state.curr_read_time_ms, until_ms if next_ms is None else next_ms
            if next_ms is not None:
                self.open(next_ms)
            state.close_if_done(left_ms)
            state.advance_commit()

    def open(self, slot_ms: int) -> None:
        """Begin to read a slot."""
        state = self._state
        slot = state.wheel.slot(slot_ms)
        if slot is not None:
            state.opened_slots[slot_ms] = OpenSlot(state.begin_position(), slot.count, slot.last)
            state.loading.append(slot_ms)

    def _load(self, count: int) -> int:
        state = self._state
        if not state.loading:
            return 0
        slot_ms = state.loading[0]
        slot = state.opened_slots[slot_ms]
        try:
            units, next_position = state.log.read_chain(slot.next_position, count)
        except CorruptDataError as error:
            raise TimerLogDamagedError(str(error)) from error
        for _, unit in units:
            if unit.slot_ms != slot_ms:
                raise TimerLogDamagedError(f"a unit of slot {unit.slot_ms} stands in the chain of slot {slot_ms}")
        slot.next_position = next_position
        slot.units += [DueUnit.of(each.due_ms, each.flags, each.position, each.length, slot_ms) for _, each in units]
        if slot.next_position == NONE:
            # Only now, and all at once: a recall must not come before the message that it recalls.
            state.loading.popleft()
            loaded, slot.units = slot.units, []
            if state.done:
                left = [unit for unit in loaded if not state.is_done(unit.position, unit.due_ms)]
                slot.outstanding -= len(loaded) - len(left)
                loaded = left
            state.await_units(loaded)
            state.close_if_done(slot_ms)
        return len(units)

    def next_time_ms(self) -> int | None:
        """Return when the next step is due, if nothing is enqueued before; None if there is nothing to wait for."""
        state = self._state
        times = [state.due_heap[0].fire_ms] if state.due_heap else []
        after_ms = state.curr_read_time_ms + SLOT_MS
        next_ms = state.wheel.next_occupied(after_ms, after_ms + _SLOTS_READ_AHEAD * SLOT_MS)
        if next_ms is not None:
            times.append(next_ms - _LEAD_MS)
        elif state.wheel.units_total:
            times.append(after_ms + _SLOTS_READ_AHEAD * SLOT_MS - _LEAD_MS)
        return min(times, default=None)


class TimerDequeueGetMessage:
    """Reads due messages, and leaves out those that were recalled or whose topic is gone.

    Args:
        state: what the stages share.
        store: where the messages are.
        is_alive: whether the topic of that name is still the one with that id.
        faults: handles poison messages.
    """

    def __init__(
        self, state: TimerState, store: MessageStore, is_alive: Callable[[str, int], bool], faults: TimerFaults
    ) -> None:
        self._state = state
        self._store = store
        self._is_alive = is_alive
        self._faults = faults

    def step(self, count: int) -> int:
        """Read up to `count` messages; return how many."""
        state = self._state
        count = min(count, len(state.dequeue_get_queue), state.stage_entries_max - len(state.dequeue_put_queue))
        due = [state.dequeue_get_queue[index] for index in range(self._fitting(count))]
        for unit, stored in zip(due, self._read(due), strict=True):
            if stored is None:
                state.dequeue_get_queue.popleft()
                state.stood_still.append(unit)
                continue
            try:
                with RECORD_STEP:
                    if isinstance(stored, RecordFaultError):
                        raise stored
                    delay = decode_delay(stored.origin)
                    is_left_out = self._leave_out(unit, stored, delay, unit.rolls)
                    if not is_left_out:
                        self._move(unit, stored, delay)
            except RecordFaultError as fault:
                self._faults.of_unit(unit, fault)
            state.dequeue_get_queue.popleft()
        return len(due)

    def _fitting(self, count: int) -> int:
        """Return how many of the next may be read: one more message always fits if no message waits to be put."""
        state = self._state
        size = state.put_bytes
        for index in range(count):
            size += state.dequeue_get_queue[index].length
            if size > PUT_BYTES_MAX and (index or state.put_bytes):
                return index
        return count

    def release_finished(self, units: Sequence[DueUnit]) -> None:
        """Release, on a slave, the units that are finished on the master and left no trace in the log.

        Args:
            units: awaited ones. Of those that roll, no further record will come.
        """
        awaited = self._state.awaited
        for unit, stored in zip(units, self._read(units), strict=True):
            if stored is None or isinstance(stored, RecordFaultError):
                continue
            try:
                with RECORD_STEP:
                    is_left_out = self._leave_out(unit, stored, decode_delay(stored.origin), False)
            except RecordFaultError:
                continue  # it stays awaited: the master records its end, or this replica as it leads
            if is_left_out:
                del awaited[unit.position]

    def _leave_out(self, unit: DueUnit, stored: StoredRecord, delay: Delay, rolls: bool) -> bool:
        """Return whether it is not to be put anywhere: it recalls, was recalled, or its topic is gone."""
        state = self._state
        root = unit.root_of(delay)
        if stored.kind == RecordKind.RECALL and not rolls:
            state.end_recall(root, unit)
        elif stored.kind == RecordKind.TIMER and root in state.recalled:
            state.drop_recalled(root, unit.slot_ms)
        elif stored.kind == RecordKind.TIMER and not self._is_alive(delay.topic, delay.topic_id):
            state.drop_homeless(unit, delay)
        else:
            return False
        return True

    def _move(self, unit: DueUnit, stored: StoredRecord, delay: Delay) -> None:
        """Queue a message for its topic, or for the timer queue again."""
        if unit.rolls:
            rolled = delay._replace(root=unit.root_of(delay), predecessor=unit.position)
            if unit.is_recall:
                record = recall_record(rolled)
            else:
                record = moved(stored, TIMER_TOPIC, TIMER_QUEUE, rolled.encode())
        else:
            record = moved(stored, delay.topic, delay.queue_id, fired_origin(unit.position))
            record.kind = RecordKind.MESSAGE
        # Only now: a failing message is not put, so its bytes would never be subtracted.
        self._state.dequeue_put_queue.append(Firing(unit, delay, record))
        self._state.put_bytes += unit.length

    def _read(self, due: Sequence[DueUnit]) -> Sequence[StoredRecord | RecordFaultError | None]:
        """Return the records of units; None for one that is damaged, which then stays until it is repaired (S7)."""
        order = sorted(range(len(due)), key=lambda index: due[index].position)
        entries = [Entry(due[index].position, due[index].length, 0) for index in order]
        try:
            with RECORD_STEP:
                read: Sequence[StoredRecord | RecordFaultError | None] = self._store.records.read_many(entries)
        except (CorruptDataError, RecordFaultError, OSError):
            read = [self._read_one(entry) for entry in entries]
        found: list[StoredRecord | RecordFaultError | None] = [None] * len(due)
        for index, stored in zip(order, read, strict=True):
            found[index] = stored
        return found

    def _read_one(self, entry: Entry) -> StoredRecord | RecordFaultError | None:
        log = self._store.log
        try:
            if not log.start_position <= entry.position < log.end_position:
                raise CorruptDataError(f"a unit of the timer log leads to {entry.position}, which is out of the log")
            with RECORD_STEP:
                return self._store.records.read(entry)
        except RecordFaultError as fault:
            return fault
        except (CorruptDataError, OSError) as error:
            self._state.damaged[entry.position] = str(error)
            return None


class TimerDequeuePutMessage:
    """Puts messages into their topics, and rolled ones into the timer queue again.

    Args:
        state: what the stages share.
        store: where they are put.
        is_alive: whether the topic of that name is still the one with that id.
        on_fired: called with each message that was fired: its topic, and by how many milliseconds it is late.
        faults: handles poison messages.
    """

    def __init__(
        self,
        state: TimerState,
        store: MessageStore,
        is_alive: Callable[[str, int], bool],
        on_fired: Callable[[str, int], None],
        faults: TimerFaults,
    ) -> None:
        self._state = state
        self._store = store
        self._is_alive = is_alive
        self._on_fired = on_fired
        self._faults = faults

    def step(self, now_ms: int, count: int) -> int:
        """Put up to `count` messages; return how many.

        Raises:
            StatusError: the disk is full; nothing was put, and nothing is lost.
        """
        state = self._state
        firings = [state.dequeue_put_queue[index] for index in range(min(count, len(state.dequeue_put_queue)))]
        if not firings:
            return 0
        try:
            self._put(firings, now_ms)
        except RecordFaultError:
            for firing in firings:
                try:
                    self._put([firing], now_ms)
                except RecordFaultError as fault:
                    self._faults.of_unit(firing.unit, fault)
                    state.dequeue_put_queue.popleft()
                    state.put_bytes -= firing.unit.length
        return len(firings)

    def _put(self, firings: Sequence[Firing], now_ms: int) -> None:
        """Put the next ones in the queue. Raises RecordFaultError: one is poison, none was put."""
        state = self._state
        with RECORD_STEP:
            # Again: while a full disk delayed them, a topic may have gone, or the clock been set back (T1).
            alive = [self._is_alive(firing.delay.topic, firing.delay.topic_id) for firing in firings]
            has_room = self._store.queues.has_room
            due = [
                unit.rolls or (delay.due_ms <= now_ms and has_room(delay.topic, delay.queue_id))
                for unit, delay, _ in firings
            ]
            put = [each for each, is_alive, is_due in zip(firings, alive, due, strict=True) if is_alive and is_due]
            if put:
                records = [each.record for each in put]
                state.append_for([each.unit for each in put], lambda: self._store.put(records))
        for (unit, delay, _), is_alive, is_due in zip(firings, alive, due, strict=True):
            state.dequeue_put_queue.popleft()
            state.put_bytes -= unit.length
            assert state.put_bytes >= 0, "more bytes were put than waited (M1)"
            if not is_alive:
                state.drop_homeless(unit, delay)
            elif not is_due:
                # A due message without a queue, as there are too many, waits alone and is tried again.
                later_ms = unit.due_ms if unit.due_ms > now_ms else now_ms + _TRY_AGAIN_MS
                heapq.heappush(state.due_heap, unit._replace(fire_ms=later_ms))
            elif not unit.rolls:
                self._on_fired(delay.topic, now_ms - delay.due_ms)


def moved(stored: StoredRecord, topic: str, queue_id: int, origin: bytes) -> Record:
    """Return a record of the same kind and contents, for another place."""
    return Record(
        RecordKind(stored.kind),
        topic,
        queue_id,
        stored.payload,
        stored.system_properties,
        stored.tag_hash,
        origin=origin,
    )
