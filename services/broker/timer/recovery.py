"""Brings the timer back to where it was, from its own files and the commit log's tail (the articles' `recover`).

The wheel is made anew from the units of the timer log, in bulk. What fired, or was rolled, since the slots that are
not done were begun stands in the commit log behind the checkpoint's scan position. If the timer's files are missing
or damaged, all of it is made again from the timer queue (S6).
"""

from collections.abc import Iterable

import numpy as np
import structlog
from numpy.typing import NDArray

from services.broker.store.consume_queue import Entry
from services.broker.store.message_store import MessageStore
from services.broker.store.record import RecordKind, StoredRecord
from services.broker.timer.delay import NONE, TIMER_QUEUE, TIMER_TOPIC, decode_delay, fired_timer
from services.broker.timer.timer_checkpoint import TimerCheckpoint
from services.broker.timer.timer_state import TimerState, slot_of
from services.broker.timer.unit import UnitFlag
from services.common.errors import CorruptDataError

_log = structlog.get_logger()


class TimerLogDamagedError(CorruptDataError):
    """The timer log does not reach as far as it was known to be on the device; all is to be made anew."""


class DoneTimers:
    """Collects what fired and what was rolled from records of the commit log, as they are read in a recovery.

    Args:
        scan_position: records before it say nothing that is needed.
    """

    def __init__(self, scan_position: int) -> None:
        self.scan_position = scan_position
        self.positions: set[int] = set()

    def note(self, found: StoredRecord) -> None:
        """Look at one record."""
        if found.position < self.scan_position:
            return
        if found.kind == RecordKind.MESSAGE:
            timer = fired_timer(found)
        elif found.kind in (RecordKind.TIMER, RecordKind.RECALL):
            timer = decode_delay(found.origin).predecessor
        else:
            return
        if timer != NONE:
            self.positions.add(timer)


def recover(
    state: TimerState, store: MessageStore, checkpoint: TimerCheckpoint | None, done: DoneTimers, now_ms: int
) -> None:
    """Bring the stages' state to where the commit log ends; nothing is written.

    Args:
        state: fresh, with the timer log as its files are.
        store: recovered.
        checkpoint: what was saved last; None if there is none, then the whole commit log was read into `done`.
        done: what the log from its scan position on says.
        now_ms: wall clock.

    Raises:
        TimerLogDamagedError: the timer log is damaged before its end.
        CorruptDataError: the commit log holds a record that cannot be read.
    """
    queue = store.queue(TIMER_TOPIC, TIMER_QUEUE)
    min_offset, max_offset = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
    state.done = done.positions
    state.done_scan_position = done.scan_position
    done_array = np.fromiter(done.positions, np.int64, len(done.positions))
    done_array.sort()
    read_from_ms = 0 if checkpoint is None else checkpoint.last_read_time_ms
    flushed_position = 0 if checkpoint is None else checkpoint.last_timer_log_flush_position
    last = _take_units(state, store, read_from_ms, done_array, flushed_position)
    next_offset = 0 if checkpoint is None else checkpoint.last_timer_queue_offset
    if last is not None:
        next_offset = max(next_offset, store.read(Entry(*last, 0)).queue_offset + 1)
    state.curr_queue_offset = state.commit_queue_offset = max(min_offset, min(next_offset, max_offset))
    state.counted_from_offset = state.dequeue_from_offset = max_offset
    first_ms = state.wheel.next_occupied(read_from_ms, 1 << 62)
    if checkpoint is None:
        read_from_ms = slot_of(now_ms) if first_ms is None else min(first_ms, slot_of(now_ms))
    state.curr_read_time_ms = state.commit_read_time_ms = read_from_ms
    state.fired_until_ms = max(state.fired_until_ms, read_from_ms - 1)
    _log.info(
        "timer recovered",
        pending=state.pending.total,
        recalled=len(state.recalled),
        queue_offset=state.curr_queue_offset,
        behind_entries=max_offset - state.curr_queue_offset,
        read_time_ms=read_from_ms,
    )


def _take_units(
    state: TimerState, store: MessageStore, read_from_ms: int, done: NDArray[np.int64], flushed_position: int
) -> tuple[int, int] | None:
    """Chain all units of slots that are not done into the wheel, count them; position and length of the last one."""
    log_end = store.log.end_position
    last: tuple[int, int] | None = None
    recalls: list[tuple[int, int]] = []
    cut_at: int | None = None
    for positions, units in state.log.scan():
        records = units["position"]
        # A power loss may have taken the end of the commit log, and with it what the last units lead to.
        sound = int(np.searchsorted(records, log_end))
        if sound < len(records):
            cut_at = int(positions[sound])
            positions, units, records = positions[:sound], units[:sound], records[:sound]
        if len(records):
            last = int(records[-1]), int(units["length"][-1])
        slots, flags = units["slot_ms"], units["flags"]
        kept = (slots >= read_from_ms) & (records >= store.log.start_position)
        state.wheel.rebuild(slots[kept], positions[kept])
        is_done = np.isin(records, done, assume_unique=True)
        _note_done(state, slots[kept & is_done], units["due_ms"][is_done & (flags & UnitFlag.ROLL == 0)])
        timers = kept & ~is_done & (flags & UnitFlag.TIMER != 0)
        _count(state, store, units[timers])
        of_recalls = units[kept & ~is_done & (flags & UnitFlag.DELETE != 0)]
        recalls += zip(of_recalls["position"].tolist(), of_recalls["length"].tolist(), strict=True)
        if cut_at is not None:
            break
    if state.log.valid_end < flushed_position and cut_at is None:
        raise TimerLogDamagedError(
            f"the timer log ends at {state.log.valid_end}, though it was known to be good up to {flushed_position}"
        )
    state.log.cut(state.log.valid_end if cut_at is None else cut_at)
    for position, length in recalls:
        delay = decode_delay(store.read(Entry(position, length, 0)).origin)
        state.recall(delay.root, delay.topic, delay.due_ms)
    return last


def _note_done(state: TimerState, slots: NDArray[np.int64], dues: NDArray[np.int64]) -> None:
    """Take in which slots have units that are done, and when those that fired were due."""
    if len(slots):
        state.done_until_ms = max(state.done_until_ms, int(slots.max()))
    if len(dues):
        state.fired_until_ms = max(state.fired_until_ms, int(dues.max()))


def _count(state: TimerState, store: MessageStore, units: NDArray[np.void]) -> None:
    """Count units by topic; the name of each is read from one of its records."""
    hashes, firsts = np.unique(units["topic_hash"], return_index=True)
    for topic_hash, first in zip(hashes, firsts, strict=True):
        entry = Entry(int(units["position"][first]), int(units["length"][first]), 0)
        dues = units["due_ms"][units["topic_hash"] == topic_hash]
        state.pending.add_many(decode_delay(store.read(entry).origin).topic, len(dues), dues)


def scan(store: MessageStore, done: DoneTimers, begin: int, end: int) -> None:
    """Read what lies before the part of the commit log that the broker's own recovery reads.

    Raises:
        CorruptDataError: a record is damaged.
    """
    records: Iterable[StoredRecord] = store.log.records(max(begin, store.log.start_position), end)
    for found in records:
        done.note(found)
