"""Recovers the timer from its own files and the commit log's tail (the articles' `recover`).

The wheel is rebuilt from the units of the timer log, in bulk. Units behind the saved position are cut off and made
again from the timer queue: it is unknown which of them a power loss, or a failed sync, has left. The commit log has,
behind the checkpoint's scan position, all that fired or rolled of slots that are not done. If the timer's files are
missing or damaged, all of it is rebuilt from the timer queue (S6).

The timer may have been saved after the broker's own checkpoint. So it is recovered up to where the commit log ended
when it was saved, or to where the broker's checkpoint has it, whichever is later; from there on the fold takes the
records.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from popwheel_broker.delay.pending import UNREADABLE
from popwheel_broker.delay.timer_checkpoint import TimerCheckpoint
from popwheel_broker.delay.timer_state import Done, Recall, TimerLogDamagedError, TimerState, slot_of
from popwheel_broker.delay.unit import UNIT_BYTES, UnitFlag, hash_topic
from popwheel_broker.log.consume_queue import ConsumeQueue, Entry
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import NONE, TIMER_QUEUE, TIMER_TOPIC, Delay, decode_delay, fired_timer
from popwheel_common.errors import CorruptDataError

_log = structlog.get_logger()

_READ_AT_ONCE = 1024


class DoneTimers:
    """Collects fired and rolled timers from records of the commit log, as they are read in a recovery.

    Args:
        scan_position: records before it are not needed.
    """

    def __init__(self, scan_position: int) -> None:
        self.scan_position = scan_position
        self.positions: set[int] = set()
        self.fired_until_ms = 0
        """Due time of the last of them that fired: all were due until then."""

    def record(self, found: StoredRecord) -> None:
        """Collect from one record."""
        if found.position < self.scan_position:
            return
        try:
            with RECORD_STEP:
                timer = done_timer(found)
        except RecordFaultError:
            return
        if timer != NONE:
            self.positions.add(timer)
            if found.kind == RecordKind.MESSAGE:
                self.fired_until_ms = max(self.fired_until_ms, found.store_time_ms)


def done_timer(found: StoredRecord) -> int:
    """Return the position of the timer that a record says has fired or rolled; `NONE` if there is none."""
    if found.kind in (RecordKind.MESSAGE, RecordKind.QUARANTINE):
        return fired_timer(found)
    if found.kind in (RecordKind.TIMER, RecordKind.RECALL):
        return decode_delay(found.origin).predecessor
    return NONE


def delay_of(found: StoredRecord) -> Delay | None:
    """Return the delay of a record of the timer queue;

    None if it is unreadable: the stages handle it when they read it.
    """
    try:
        with RECORD_STEP:
            return decode_delay(found.origin)
    except RecordFaultError:
        return None


def recover(
    state: TimerState,
    store: MessageStore,
    checkpoint: TimerCheckpoint | None,
    position: int,
    now_ms: int,
    known_end: int = 0,
) -> None:
    """Bring the stages' state to where it was saved, or to a position of the commit log; nothing is written.

    Args:
        state: fresh, with the timer log as its files are. Its `recorded_position` is set to the recovered end of the
            log.
        store: its queues have the records of the commit log before `position`, and maybe more.
        checkpoint: the last one; None if there is none, then the whole commit log is read.
        position: where a record of the commit log begins, or where it ends.
        now_ms: wall clock.
        known_end: without a checkpoint: the timer log's end by the checkpoint that is not used.

    Raises:
        TimerLogDamagedError: the timer log is damaged before the position that was saved, or was saved for another
            commit log.
        CorruptDataError: the commit log holds a record that cannot be read.
    """
    queue = store.queue(TIMER_TOPIC, TIMER_QUEUE)
    done = DoneTimers(0 if checkpoint is None else checkpoint.scan_position)
    scan(store, done, done.scan_position, position)
    if checkpoint is None:
        # Behind all that was there: while a checkpoint on the device counts on those positions, nothing new may
        # have them.
        former_end = max(known_end, state.log.end_position)
        state.log.reset(former_end + UNIT_BYTES if former_end else 0)
        saved = TimerCheckpoint(last_timer_log_flush_position=state.log.end_position)
        newer = _Newer(position, [])
        state.curr_read_time_ms = slot_of(now_ms)
    else:
        saved, newer = checkpoint, _newer(store, done, checkpoint, position)
        if state.log.is_empty and saved.first_unit_position == NONE:
            state.log.reset(saved.last_timer_log_flush_position)  # it was rebuilt, and nothing has come since
        state.curr_read_time_ms = checkpoint.last_read_time_ms
    state.recorded_position = newer.end
    state.commit_read_time_ms = state.curr_read_time_ms
    state.fired_until_ms = max(done.fired_until_ms, saved.fired_until_ms, state.curr_read_time_ms - 1)
    units = _Units(state, store, saved, done.positions)
    recalls = units.take()
    state.log.cut(saved.last_timer_log_flush_position)
    min_offset = 0 if queue is None else queue.min_offset
    first_offset = max(min_offset, saved.last_timer_queue_offset)
    state.curr_queue_offset = state.commit_queue_offset = first_offset
    waiting = _Waiting(state, done.positions)
    if queue is not None:
        recalls += waiting.take(_records(store, queue, first_offset, position))
    recalls += waiting.take(found for found in newer.records if found.queue_offset >= first_offset)
    # Only these will be read: other firings are of slots that are done.
    state.done.update((timer, Done(done.scan_position)) for timer in sorted(units.met | waiting.met))
    for recall in recalls:
        state.remember(recall.root, Recall(recall.due_ms, recall.topic, is_dropped=True))
    for timer in (*waiting.recalled(), *units.recalled(recalls)):
        state.recalled[timer.root].is_dropped = False
        state.pending.remove(timer.topic, timer.due_ms)
    _log.info(
        "timer recovered",
        pending=state.pending.total,
        recalled=len(state.recalled),
        queue_offset=state.curr_queue_offset,
        read_time_ms=state.curr_read_time_ms,
        position=newer.end,
    )


class _Newer(NamedTuple):
    """Saved state of the timer that is newer than the broker's own checkpoint, of the commit log behind that.

    Args:
        end: up to where.
        records: of the timer queue, there.
    """

    end: int
    records: list[StoredRecord]


def _newer(store: MessageStore, done: DoneTimers, checkpoint: TimerCheckpoint, position: int) -> _Newer:
    """Read it, and collect finished timers.

    Raises:
        TimerLogDamagedError: the commit log does not reach as far as it did when the timer was saved.
    """
    # An earlier release did not save its end. Its checkpoint was a master's alone, so all of it counts.
    end = checkpoint.log_position or store.log.end_position
    records: list[StoredRecord] = []
    reached = position
    try:
        for found in store.log.records(position, end):
            done.record(found)
            if found.topic == TIMER_TOPIC:
                records.append(found)
            reached = found.position + found.length
    except CorruptDataError as error:
        # A torn tail, or damage: recovery of the queues finds it, and handles it.
        _log.info("the timer uses the commit log as far as it can be read", position=reached, why=str(error))
    queue = store.queue(TIMER_TOPIC, TIMER_QUEUE)
    max_offset = 0 if queue is None else queue.max_offset
    if records:
        max_offset = max(max_offset, records[-1].queue_offset + 1)
    if reached < checkpoint.log_position or max_offset < checkpoint.last_timer_queue_offset:
        raise TimerLogDamagedError(
            f"the timer was saved when the commit log reached to {checkpoint.log_position} and the timer queue to "
            f"{checkpoint.last_timer_queue_offset}, but there is less of them"
        )
    return _Newer(reached, records)


class _Units:
    """The units of the timer log that the checkpoint counts on.

    Args:
        state: the state to recover.
        store: for the records that they lead to.
        checkpoint: their valid end, and the slots that are done.
        done: timers that have fired or rolled.
    """

    def __init__(self, state: TimerState, store: MessageStore, checkpoint: TimerCheckpoint, done: set[int]) -> None:
        self._state = state
        self._store = store
        self._read_from_ms = checkpoint.last_read_time_ms
        self._end = checkpoint.last_timer_log_flush_position
        self._first_needed = checkpoint.first_unit_position
        self._done = np.fromiter(done, np.int64, len(done))
        self._done.sort()
        self.met: set[int] = set()
        """Timers of `done` that have units."""

    def take(self) -> list[Delay]:
        """Chain all units of slots that are not done into the wheel, and count them; return the delays of the recalls.

        Raises:
            TimerLogDamagedError: they end before their known end, or lead to nowhere.
        """
        state, log = self._state, self._state.log
        recalls: list[Delay] = []
        for positions, units, is_done in self._rows():
            if len(units) and int(units["position"].max()) >= self._store.log.end_position:
                raise TimerLogDamagedError("a unit of the timer log leads to behind the commit log's end")
            if len(units) and int(units["slot_ms"].max()) >= self._read_from_ms + state.wheel.span_ms:
                raise TimerLogDamagedError("the timer log was written for a larger wheel")
            state.wheel.rebuild(units["slot_ms"], positions)
            self.met.update(units["position"][is_done].tolist())
            late = units["slot_ms"][units["slot_ms"] > units["due_ms"]]
            if len(late):
                state.late_slot_ms = max(state.late_slot_ms, int(late.max()))
            self._count(units[~is_done & (units["flags"] & UnitFlag.TIMER != 0)])
            of_recalls = units[~is_done & (units["flags"] & UnitFlag.DELETE != 0)]
            recalls += [delay for unit in of_recalls if (delay := self._delay(unit)) is not None]
        if 0 <= self._first_needed < log.start_position:
            raise TimerLogDamagedError(
                f"the timer log begins at {log.start_position}, {self._first_needed} is needed: a file is missing"
            )
        if not log.start_position <= self._end <= log.valid_end:
            raise TimerLogDamagedError(
                f"the timer log is good from {log.start_position} to {log.valid_end}, though it was known to be good "
                f"up to {self._end}"
            )
        return recalls

    def recalled(self, recalls: list[Delay]) -> Iterator["_Pending"]:
        """Yield the messages among the units that some of these recall."""
        if not recalls:
            return
        dues = np.array(sorted({recall.due_ms for recall in recalls}), np.int64)
        hashes = np.array(sorted({hash_topic(recall.topic) for recall in recalls}), np.int64)
        for _, units, is_done in self._rows():
            # A unit does not have its root: the records of possible ones are read.
            wanted = ~is_done & (units["flags"] & UnitFlag.TIMER != 0)
            wanted &= np.isin(units["due_ms"], dues) & np.isin(units["topic_hash"], hashes)
            for unit in units[wanted]:
                delay = self._delay(unit)
                if delay is None:
                    continue
                root = delay.root_at(int(unit["position"]))
                if root in self._state.recalled:
                    yield _Pending(root, delay.topic, delay.due_ms)

    def _rows(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.void], NDArray[np.bool_]]]:
        """Yield positions and units, and which of them are done."""
        for positions, units in self._state.log.scan():
            kept = (positions < self._end) & (units["slot_ms"] >= self._read_from_ms)
            kept &= units["position"] >= self._store.log.start_position
            positions, units = positions[kept], units[kept]
            yield positions, units, np.isin(units["position"], self._done, assume_unique=True)

    def _count(self, units: NDArray[np.void]) -> None:
        """Count units by topic; the name of each is read from one of its records that is not damaged."""
        for topic_hash in np.unique(units["topic_hash"]):
            of_topic = units[units["topic_hash"] == topic_hash]
            self._state.pending.add_many(self._topic(of_topic), len(of_topic), of_topic["due_ms"])

    def _topic(self, units: NDArray[np.void]) -> str:
        for unit in units:
            try:
                delay = self._delay(unit)
            except CorruptDataError:
                continue
            if delay is not None:
                return delay.topic
        return UNREADABLE

    def _delay(self, unit: np.void) -> Delay | None:
        """Return the delay of a unit's record; None if it is poison."""
        try:
            with RECORD_STEP:
                return delay_of(self._store.records.read(Entry(int(unit["position"]), int(unit["length"]), 0)))
        except RecordFaultError:
            return None


class _Pending(NamedTuple):
    """A message that is pending.

    Args:
        root: of the message, its name.
        topic: of the message.
        due_ms: its due time.
    """

    root: int
    topic: str
    due_ms: int


class _Waiting:
    """Timers in the timer queue that have no unit yet.

    Args:
        state: the state to recover.
        done: timers that have fired or rolled.
    """

    def __init__(self, state: TimerState, done: set[int]) -> None:
        self._state = state
        self._done = done
        self.met: set[int] = set()
        """Timers of `done` that are in the timer queue."""
        self._timers: list[_Pending] = []

    def take(self, records: Iterable[StoredRecord]) -> list[Delay]:
        """Count its records; return the delays of the recalls in it.

        Raises:
            CorruptDataError: the commit log is damaged.
        """
        recalls: list[Delay] = []
        for found in records:
            if found.position in self._done:
                self.met.add(found.position)
                continue
            delay = delay_of(found)
            if delay is None:
                self._state.pending.is_exact = False
                continue
            if found.kind == RecordKind.RECALL:
                recalls.append(delay)
                continue
            self._state.pending.add(delay.topic, delay.due_ms)
            root = delay.root_at(found.position)
            self._timers.append(_Pending(root, delay.topic, delay.due_ms))
        return recalls

    def recalled(self) -> Iterator["_Pending"]:
        """Yield the recalled ones."""
        return (timer for timer in self._timers if timer.root in self._state.recalled)


def _records(store: MessageStore, queue: ConsumeQueue, first_offset: int, position: int) -> Iterator[StoredRecord]:
    """Yield the records of the timer queue from an offset on that stand before a position of the commit log.

    Raises:
        CorruptDataError: one of them, or the queue, is damaged; a queue can be rebuilt from the commit log.
    """
    offset = first_offset
    while offset < queue.max_offset:
        entries = queue.read(offset, _READ_AT_ONCE)
        for found in store.records.read_checked(queue, range(offset, offset + len(entries)), entries):
            if found.position >= position:
                return
            yield found
            offset += 1


def scan(store: MessageStore, done: DoneTimers, begin: int, end: int) -> None:
    """Collect from a part of the commit log.

    Raises:
        CorruptDataError: a record is damaged.
    """
    for found in store.log.records(max(begin, store.log.start_position), end):
        done.record(found)
