"""The timer of one broker: accepts delayed messages, fires them at their millisecond, accepts recalls.

It is TimerMessageStore of the articles, without its threads: `service` waits and syncs, the stages decide.

A timer begins as that of a slave, and a master's is one that has finished following:

        begin_recovery(position)    once the store's queues have the records of the commit log before that position
        apply(record), passed(..)   each record from there on, in order, as it is folded in; only memory changes
        step()                      in between, as `service` does: enqueues recorded messages, fires none
        progress(...)               the master's latest progress (checkpoint sync)
        finish()                    all of the log and the cluster changes are applied: `step` fires from now on
        apply(record)               each record as this broker appends it (a fold, as the state of pops)
        cut_off(position)           before the commit log is cut there
        close()                     before another timer is made over the same files

A slave's timer tracks counts, recalls and firings as it follows, so `finish` rebuilds nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from popwheel_broker.consume.quarantine import Quarantine
from popwheel_broker.delay import recovery, timer_checkpoint
from popwheel_broker.delay.dequeue_stages import TimerDequeueGet, TimerDequeueGetMessage, TimerDequeuePutMessage, moved
from popwheel_broker.delay.enqueue_stages import TimerEnqueueGet, TimerEnqueuePut
from popwheel_broker.delay.fold import TimerFold
from popwheel_broker.delay.intake import TimerIntake
from popwheel_broker.delay.pending import PendingTimers
from popwheel_broker.delay.timer_checkpoint import TimerCheckpoint
from popwheel_broker.delay.timer_faults import TimerFaults
from popwheel_broker.delay.timer_log import TimerLog
from popwheel_broker.delay.timer_state import TimerLogDamagedError, TimerState
from popwheel_broker.delay.wheel import TimerWheel
from popwheel_broker.log.fault import RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.log.timer_record import FIRED_BYTES, TIMER_QUEUE, TIMER_TOPIC, decode_delay, fired_origin
from popwheel_broker.options import BrokerOptions
from popwheel_broker.topics.topic_registry import TopicRegistry
from popwheel_common.clock import Clock
from popwheel_common.disk import Disk
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.popwheel.v1.broker_pb2 import TimerProgress

_DONE_KINDS = frozenset((RecordKind.MESSAGE, RecordKind.QUARANTINE))
_KINDS = frozenset((RecordKind.TIMER, RecordKind.RECALL, *_DONE_KINDS))
_ENQUEUED_AT_ONCE = 128
_READ_AT_ONCE = 256
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Step:
    """Step of one round through the stages, as counted.

    Args:
        busy: there is more to do at once.
        appended: a record was put into the commit log.
        refusal: why a record could not be put; it is to be tried again.
    """

    busy: bool
    appended: bool
    refusal: str | None = None


class MessageTimer:
    """Delayed messages.

    Args:
        store: where all messages are.
        disk: where the timer's own files are.
        folder: their folder.
        options: limits and sizes.
        clock: the time.
        topics: the known topics.
        on_fired: called with each message that has fired: its topic, and by how many milliseconds it was late.
        quarantine: takes poison messages.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        folder: Path,
        options: BrokerOptions,
        clock: Clock,
        topics: TopicRegistry,
        on_fired: Callable[[str, int], None],
        quarantine: Quarantine,
    ) -> None:
        self.store = store
        self._disk = disk
        self.folder = folder
        self.options = options.timer
        self._roll_window_ms = options.roll_window_ms
        self._clock = clock
        self._topics = topics
        self._on_fired = on_fired
        self._quarantine = quarantine
        self.has_begun = False
        """True once the saved state is loaded; before that there is nothing to do, and nothing to save."""
        self._master_queue_offset = 0
        self.saved: TimerCheckpoint | None = None
        """The checkpoint on the device; set by the caller that saves it."""
        self._begin()

    def _begin(self) -> None:
        """Reset the state, with the timer log as its files are."""
        options = self.options
        self._disk.make_folder(self.folder)
        self.state = state = TimerState(
            TimerWheel(options.slots),
            TimerLog(self._disk, self.folder / "timerlog", options.log_file_bytes),
            PendingTimers(options.delay_ms_max),
            options.stage_entries_max,
            lambda: self.store.log.end_position,
        )
        self._faults = faults = TimerFaults(state, self.store, self._quarantine, self._clock)
        is_alive, table = self._topics.is_topic, self._quarantine.table
        self._enqueue_get = TimerEnqueueGet(state, self.store, faults)
        self._enqueue_put = TimerEnqueuePut(state, self._roll_window_ms, faults)
        self._dequeue_get = TimerDequeueGet(state)
        self._get_message = TimerDequeueGetMessage(state, self.store, is_alive, faults)
        self._put_message = TimerDequeuePutMessage(state, self.store, is_alive, self._on_fired, faults)
        self.intake = TimerIntake(state, self.store, options, self._clock, self._topics, table)
        self._following = TimerFold(state, self._dequeue_get, self._get_message, lambda: self.enqueue_lag, table)

    # Recovery, and following

    def begin_recovery(self, position: int) -> None:
        """Load the saved state, and bring it to a position of the commit log, or to where it was saved if that is
        later.

        Args:
            position: where a record begins, or where the log ends; the store's queues are loaded up to there.

        Raises:
            CorruptDataError: the commit log is damaged before that position.
            UnknownFormatError: the files are of a newer release.
        """
        checkpoint = timer_checkpoint.load(self._disk, self.path_of_checkpoint())
        now_ms = self._clock.wall_ms()
        position = max(position, self.store.log.start_position)
        try:
            recovery.recover(self.state, self.store, checkpoint, position, now_ms)
        except TimerLogDamagedError as error:
            _log.error("the timer log is damaged, it is rebuilt from the commit log", why=str(error))
            self.state.log.close()
            self._begin()
            known_end = 0 if checkpoint is None else checkpoint.last_timer_log_flush_position
            recovery.recover(self.state, self.store, None, position, now_ms, known_end)
        self._dequeue_get.open(self.state.curr_read_time_ms)
        self.has_begun = True

    @property
    def kinds(self) -> frozenset[RecordKind]:
        """Kinds of records that may change it (`log.fold.Fold`)."""
        return _KINDS

    def concerns(self, kind: int, origin: bytes) -> bool:
        """Return whether a record is of the timer queue, or may say that a timer is done."""
        return kind not in _DONE_KINDS or len(origin) == FIRED_BYTES

    def apply(self, found: StoredRecord) -> None:
        """Apply one record of the commit log, live or replayed."""
        self._following.apply(found)

    def passed(self, found: StoredRecord) -> None:
        """Pass over a record that was read from the log, before `finish`."""
        self._following.passed(found)

    def not_folded(self) -> None:
        """Handle a record that could not be folded in, and may have been one of a timer: the stages read it again."""
        self.state.pending.is_exact = False

    def progress(self, high_watermark: int, progress: TimerProgress) -> None:
        """Release, on a slave, what the master had done when the log was committed up to a position."""
        self._master_queue_offset = max(self._master_queue_offset, progress.master_timer_queue_offset)
        self._following.progress(high_watermark, progress.last_read_time_ms)

    def finish(self) -> None:
        """End following: all of the commit log is folded in, and this broker continues it. Due messages fire from now
        on.
        """
        self._following.finish()

    async def cut_off(self, position: int) -> bool:
        """Make all saved state independent of the commit log from a position on, before it is cut there; durably.

        No saved state is affected if all of it had been committed.

        Args:
            position: where the log will end.

        Returns:
            Whether this timer itself knows more, so that another is to be made in its place.

        Raises:
            OSError: the device refused.
        """
        path = self.path_of_checkpoint()
        checkpoint = timer_checkpoint.load(self._disk, path)
        counts_on_less = checkpoint is not None and 0 < checkpoint.log_position <= position
        if not counts_on_less and self._disk.exists(path):
            self._disk.remove(path)
        if not counts_on_less:
            await self._disk.sync_folder(self.folder)  # also for files that an earlier process has removed
        return self.state.log_end > position

    def close(self) -> None:
        """Close the files; nothing is written."""
        self.state.log.close()

    # The round

    def step(self, fired_at_once: int = 64) -> Step:
        """Go through all stages once, for a millisecond at the most.

        Args:
            fired_at_once: limit of messages that may fire.

        Raises:
            TimerLogDamagedError: the timer log is damaged; only a recovery helps.
        """
        if not self.has_begun:
            return Step(busy=False, appended=False)
        self.state.forget_unmet()
        leads = self.state.should_running_dequeue
        refusals: list[str] = []
        done = 0
        try:
            done = self._enqueue_get.step(_ENQUEUED_AT_ONCE)
        except (CorruptDataError, RecordFaultError, StatusError, OSError) as error:
            refusals.append(f"the timer queue cannot be read: {error}")  # messages read before fire all the same
        now_ms = self._clock.wall_ms() if leads else self._following.now_ms
        # Before the enqueue stages, so that they find the slot of now.
        if leads:
            done += self._dequeue_get.step(now_ms, fired_at_once)
            done += self._get_message.step(fired_at_once)
        else:
            done += self._following.step(_READ_AT_ONCE)
        try:
            done += self._enqueue_put.step(now_ms, _ENQUEUED_AT_ONCE)
        except (CorruptDataError, RecordFaultError, StatusError, OSError) as error:
            refusals.append(f"the timer log cannot be written: {error}")
        put = 0
        refused = False
        try:
            put = self._put_message.step(now_ms, fired_at_once)
        except StatusError as refusal:
            refusals.append(refusal.message)
            refused = True
        return Step(bool(done or put) and not refused, bool(put), "; ".join(refusals) or None)

    def next_time_ms(self) -> int | None:
        """Return the wall-clock time of the next step, if nothing arrives before; None if nothing is pending."""
        return self._dequeue_get.next_time_ms() if self.state.should_running_dequeue else None

    @property
    def enqueue_lag(self) -> int:
        """Number of records of the timer queue that are not in the wheel yet."""
        queue = self.store.queue(TIMER_TOPIC, TIMER_QUEUE)
        return 0 if queue is None else queue.max_offset - self.state.commit_queue_offset

    def overdue_entries(self) -> int:
        """Return the number of messages and recalls that are due and not handled."""
        state = self.state
        now_ms = self._clock.wall_ms()
        overdue = sum(unit.fire_ms <= now_ms for unit in state.due_heap)
        return overdue + len(state.stood_still) + len(state.dequeue_get_queue) + len(state.dequeue_put_queue)

    def dequeue_behind_ms(self) -> int:
        """Return how late the oldest message is that is due and has not fired."""
        state = self.state
        now_ms = self._clock.wall_ms()
        oldest = [state.due_heap[0].fire_ms] if state.due_heap else []
        oldest += [queue[0].fire_ms for queue in (state.dequeue_get_queue,) if queue]
        oldest += [queue[0].unit.fire_ms for queue in (state.dequeue_put_queue,) if queue]
        return max(0, now_ms - min(oldest, default=now_ms))

    def released(self, position: int, stored: StoredRecord, now_ms: int) -> Record | None:
        """Return the record that releases a message from quarantine; None if its topic is gone.

        Args:
            position: of its record.
            stored: that record.
            now_ms: wall clock.
        """
        delay = decode_delay(stored.origin)
        if not self._topics.is_topic(delay.topic, delay.topic_id):
            return None
        if delay.due_ms <= now_ms:
            record = moved(stored, delay.topic, delay.queue_id, fired_origin(position))
            record.kind = RecordKind.MESSAGE
            return record
        root = delay.root_at(position)
        return moved(stored, TIMER_TOPIC, TIMER_QUEUE, delay._replace(root=root, predecessor=position).encode())

    # Saved state

    def recalls_wait(self) -> bool:
        """Return whether progress is better not saved now; see `TimerFaults.recalls_wait`."""
        return self._faults.recalls_wait()

    def append_anew(self) -> bool:
        """Append recalls that are due to be appended again, right before each `snapshot`; see
        `TimerFaults.append_anew`.
        """
        return self._faults.append_anew()

    def snapshot(self) -> TimerCheckpoint:
        """Return the timer's progress, to be saved when timer log and commit log are on the device as they are now."""
        state, previous = self.state, self.saved
        moved = previous is None or (previous.last_read_time_ms, previous.master_timer_queue_offset) != (
            state.commit_read_time_ms,
            self._master_offset(),
        )
        return TimerCheckpoint(
            last_read_time_ms=state.commit_read_time_ms,
            last_timer_log_flush_position=state.log.end_position,
            last_timer_queue_offset=state.commit_queue_offset,
            master_timer_queue_offset=self._master_offset(),
            state_version=self.store.epoch,
            timestamp_ms=self._clock.wall_ms() if previous is None or moved else previous.timestamp_ms,
            counter=(0 if previous is None else previous.counter) + (1 if moved else 0),
            scan_position=state.scan_position,
            first_unit_position=state.wheel.oldest_position(),
            log_position=state.log_end,
            fired_until_ms=state.fired_until_ms,
        )

    def _master_offset(self) -> int:
        state = self.state
        return state.commit_queue_offset if state.should_running_dequeue else self._master_queue_offset

    def needed_from(self) -> int | None:
        """Return the least commit log position that a pending message, or the next recovery, needs; None for none."""
        saved = self.saved
        queue = self.store.queue(TIMER_TOPIC, TIMER_QUEUE)
        if queue is None:
            return None
        if saved is None:  # whether there is a file, and what it needs, is known long before
            return self.store.records.position_of(queue, queue.min_offset)
        positions = [saved.scan_position]
        unread = self.store.records.position_of(queue, max(queue.min_offset, saved.last_timer_queue_offset))
        positions += [] if unread is None else [unread]
        # Units stand in the timer log in the order of their records. The oldest that the checkpoint knows, not the
        # oldest of now: a power loss may take what has fired since.
        units, _ = self.state.log.read_chain(saved.first_unit_position, 1)
        positions += [unit.position for _, unit in units]
        return min(positions)

    def clean(self) -> int:
        """Delete the oldest file of the timer log if a checkpoint says that all its units are done; return 1 if so."""
        return 0 if self.saved is None else self.state.log.delete_done(self.saved.last_read_time_ms)

    def distrust(self) -> None:
        """Make the next recovery rebuild everything from the commit log."""
        self._disk.remove(self.path_of_checkpoint())

    def path_of_checkpoint(self) -> Path:
        """Return the path of the checkpoint."""
        return self.folder / timer_checkpoint.NAME
