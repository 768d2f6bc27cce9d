"""Decides about transactions: accepts half messages, within a limit; ends them; chooses those to check."""

from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, StoredRecord, hash_tag
from popwheel_broker.options import TransactionOptions
from popwheel_broker.transactions.check_schedule import CheckSchedule
from popwheel_broker.transactions.half import (
    HALF_QUEUE,
    HALF_TOPIC,
    HalfTarget,
    Resolution,
    check_record,
    committed_record,
    end_record,
)
from popwheel_broker.transactions.table import OpenHalf, TransactionTable
from popwheel_common.clock import Clock
from popwheel_common.cold_reads import NotInMemory
from popwheel_common.contract.put import MessageRun
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, SystemProperties
from popwheel_common.shares import room

_log = structlog.get_logger()


class Coordinator:
    """The transactions of one broker.

    Args:
        store: where records are.
        options: limits.
        clock: the time.
        topic_id: returns the id of a topic; 0 if it is unknown.
    """

    def __init__(
        self, store: MessageStore, options: TransactionOptions, clock: Clock, topic_id: Callable[[str], int]
    ) -> None:
        self.store = store
        self._options = options
        self._clock = clock
        self._topic_id = topic_id
        self.table = TransactionTable()
        self.schedule = CheckSchedule(self.table, options)
        self.resolved: Counter[Resolution] = Counter()
        """Number of transactions that this broker has ended, by resolution."""
        self.checks = 0
        """Number of checks of producers."""

    def begin_to_lead(self) -> None:
        """Begin to write the log."""
        self.schedule.begin(self._clock.wall_ms(), self._clock.steady_ms())

    def accept(self, run: MessageRun, taken: Counter[str]) -> list[Record]:
        """Return the records of a run of half messages, to be appended; then `schedule_checks` is to be called.

        Args:
            run: the half messages.
            taken: by topic, how many half messages were accepted that are not appended yet; those of the run are added.

        Raises:
            StatusError: TOO_MANY_REQUESTS: too many transactions are open.
        """
        open_of_topic, count = self.table.shares.share(run.topic) + taken[run.topic], len(run.payloads)
        total = self.table.shares.total + taken.total()
        if room(self._options.open_max, total, open_of_topic) < count:
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"{total} transactions are open, {open_of_topic} of the topic {run.topic}: that is its share of "
                f"{self._options.open_max} (broker.transaction.open_max); commit or roll back some, or send later",
            )
        taken[run.topic] += count
        topic_id = self._topic_id(run.topic)
        return [
            Record(
                RecordKind.HALF,
                HALF_TOPIC,
                HALF_QUEUE,
                payload,
                properties,
                hash_tag(tag),
                origin=HalfTarget(run.topic, run.queue_id, topic_id, first_check_ms).encode(),
            )
            for payload, properties, tag, first_check_ms in zip(
                run.payloads, run.system_properties, run.tags, run.times_ms, strict=True
            )
        ]

    def schedule_checks(self, positions: Iterable[int]) -> None:
        """Schedule checks of half messages that were appended at these positions."""
        self.schedule.add(filter(None, map(self.table.get, positions)), self._clock.steady_ms())

    def end(self, position: int, epoch: int, resolution: Resolution) -> Record | None:
        """Return the record that commits a half message, or rolls it back, to be appended. None if it has ended that
        way before.

        Args:
            position, epoch: name the half message.
            resolution: of its transaction.

        Raises:
            StatusError: INVALID_TRANSACTION_ID: it is unknown (any more), or was rolled back as nobody ended it.
                PRECONDITION_FAILED: it has ended the other way.
            CorruptDataError: its record is damaged.
            NotInMemory: its record is to be read first.
        """
        half = self.table.get(position)
        if half is None or half.epoch != epoch:
            self._check_ended(position, epoch, resolution)
            return None
        if resolution == Resolution.COMMITTED:
            return committed_record(half.target, self.read(position))
        return end_record(position, resolution)

    def read(self, position: int) -> StoredRecord:
        """Return the record of a half message.

        Raises:
            CorruptDataError: it is damaged.
            NotInMemory: it is to be read first.
        """
        try:
            return self.store.records.record_at(position)
        except CorruptDataError:
            self.store.log.record_damage(position)
            raise

    def _check_ended(self, position: int, epoch: int, resolution: Resolution) -> None:
        """Raise unless a half message that is not open has ended in this way."""
        ended = self.table.ended(position)
        if ended is None or ended.epoch != epoch:
            raise StatusError(
                Code.INVALID_TRANSACTION_ID,
                "no such transaction is open, and no outcome is known: it ended long ago, or its topic was deleted",
            )
        if ended.resolution == Resolution.EXPIRED:
            raise StatusError(
                Code.INVALID_TRANSACTION_ID,
                "the transaction was rolled back: no producer answered the broker's checks "
                "(broker.transaction.checks_max); send the message again",
            )
        if ended.resolution != resolution:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                "the transaction was "
                + ("committed" if ended.resolution == Resolution.COMMITTED else "rolled back")
                + " before, and that is final",
            )

    def ask(self, count: int) -> tuple[bool, list[OpenHalf]]:
        """Check up to `count` half messages that are due.

        A check is recorded first, so that it counts wherever the log continues. A half message that was checked as
        often as the limit allows is rolled back.

        Returns:
            Whether any was due, and the half messages to check now.

        Raises:
            StatusError: the disk is full, or another replica leads: they are tried again after a while.
            NotInMemory: something is to be read first.
        """
        now_ms = self._clock.steady_ms()
        due = self.schedule.take_due(now_ms, count)
        if not due:
            return False, []
        expired = [half for half in due if self.schedule.is_last(half)]
        try:
            message_ids = [self._message_id(half) for half in expired]
        except NotInMemory:
            self.schedule.put_back(due, now_ms)
            raise
        asked = [half for half in due if not self.schedule.is_last(half)]
        records = [check_record(half.position, half.checks + 1) for half in asked]
        try:
            appended = self.store.put([*records, *(end_record(each.position, Resolution.EXPIRED) for each in expired)])
        except StatusError:
            self.schedule.add(due, now_ms)
            raise
        self.checks += len(asked)
        asked = list(filter(None, (self.table.get(half.position) for half in asked)))
        self.schedule.add(asked, now_ms)
        for half, message_id in zip(expired, message_ids, strict=True):
            self.resolved[Resolution.EXPIRED] += 1
            _log.warning(
                "a half message is rolled back, as no producer answered the broker's checks",
                topic=half.target.topic,
                message_id=message_id,
                position=half.position,
                checks=half.checks,
                age_s=(appended.store_time_ms - half.stored_ms) // 1000,
            )
        return True, asked

    def _message_id(self, half: OpenHalf) -> str:
        """Return the message id for the log; empty if it cannot be read."""
        try:
            with RECORD_STEP:
                return SystemProperties.FromString(self.read(half.position).system_properties).message_id
        except (CorruptDataError, RecordFaultError):
            return ""
