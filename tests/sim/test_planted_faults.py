"""A checker that never fails is broken: each fault that is planted here must be caught within a few seeds."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from popwheel_broker.consume import priority_pops, redelivery
from popwheel_broker.consume.acks import Acks
from popwheel_broker.consume.merge_buffer import MergeBuffer
from popwheel_broker.consume.message_group_queues import MessageGroupQueues, _MessageGroupQueue
from popwheel_broker.consume.ordered_pops import OrderedPops
from popwheel_broker.consume.priority_pops import PriorityPops
from popwheel_broker.consume.scan import SqlScan
from popwheel_broker.consume.sql_filter import SqlFilter
from popwheel_broker.core.cluster_changes import ClusterChanges
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.core.offset_reset import OffsetReset, ResetPlan
from popwheel_broker.delay import recovery
from popwheel_broker.delay.dequeue_stages import TimerDequeueGet
from popwheel_broker.delay.fold import TimerFold
from popwheel_broker.delay.message_timer import MessageTimer, Step
from popwheel_broker.delay.recovery import DoneTimers
from popwheel_broker.delay.service import TimerService
from popwheel_broker.lite.lite_topics import LiteTopics
from popwheel_broker.log import record
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.log.timer_record import Delay
from popwheel_broker.time_to_live.time_to_live import TimeToLive
from popwheel_broker.transactions.coordinator import Coordinator
from popwheel_broker.transactions.half import Resolution, end_record
from popwheel_broker.transactions.table import TransactionTable
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.put import MessageRun
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest
from popwheel_common.shares import Shares
from popwheel_proxy.receive.renewal import RenewalBook
from tests.sim import guests, lite, passing_group, steering, transactions
from tests.sim.device import SimDisk
from tests.sim.filters import FILTERING
from tests.sim.planted import Plant, assert_caught
from tests.sim.run import run_seed
from tests.sim.swarm import HOARDING, LIVES, ORDERED, PRIORITIES, TRIES

SEEDS_MAX = 40


def syncs_lie(patch: pytest.MonkeyPatch) -> None:
    """The disk says that it has synced and has not."""

    async def lie(self: SimDisk, path: Path, inode: Any, life: int) -> None:
        self.check_life(life)

    patch.setattr(SimDisk, "sync_inode", lie)


def sends_are_confirmed_without_sync(patch: pytest.MonkeyPatch) -> None:
    """The flusher lets senders go at once, in every mode."""

    async def durable(self: Flusher, position: int | None = None) -> None:
        self._store.commit(self._store.log.end_position if position is None else position)

    patch.setattr(Flusher, "durable", durable)


def acks_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """Acknowledgements are in memory only."""
    put = MessageStore.put

    def put_without_acks(self: MessageStore, records: Sequence[Record]) -> Any:
        appended = put(self, [replace(each, kind=RecordKind.COPY) if _is_ack(each) else each for each in records])
        for each in filter(_is_ack, records):
            self.folds.appended(each, 0, 0, self.epoch, 0, 0)
        return appended

    patch.setattr(MessageStore, "put", put_without_acks)


def _is_ack(each: Record) -> bool:
    return each.kind == RecordKind.ACK


class _TornError(Exception):
    """Recovery has found a torn record."""


def torn_tails_stay(patch: pytest.MonkeyPatch) -> None:
    """Recovery ends at a torn record but does not cut it off, and new records come after it."""
    scan = CommitLog.scan

    def scan_without_cut(
        self: CommitLog, position: int, synced_position: int, *more: Any
    ) -> Iterator[record.StoredRecord]:
        try:
            yield from scan(self, position, synced_position, *more)
        except _TornError:
            self._dirty = list(self._files)

    def cut(self: CommitLog, position: int) -> None:
        raise _TornError

    patch.setattr(CommitLog, "scan", scan_without_cut)
    patch.setattr(CommitLog, "cut", cut)


def redeliveries_do_not_end_the_first_delivery(patch: pytest.MonkeyPatch) -> None:
    """What comes again does not say what it takes the place of, and no ACK is written for that."""
    redelivered = redelivery.redelivered

    def without_origin(*arguments: Any, **more: Any) -> Record:
        again = redelivered(*arguments, **more)
        again.origin = b""
        return again

    patch.setattr("popwheel_broker.consume.acks.redelivered", without_origin)
    put = MessageStore.put

    def put_without_acks_of_redeliveries(self: MessageStore, records: Sequence[Record]) -> Any:
        if any(each.kind == RecordKind.MESSAGE for each in records):
            records = [each for each in records if each.kind != RecordKind.ACK]
        return put(self, records)

    patch.setattr(MessageStore, "put", put_without_acks_of_redeliveries)


def old_handles_stay_good(patch: pytest.MonkeyPatch) -> None:
    """A changed invisible duration leaves the old handle good."""
    change = Acks.change_invisible

    def keep_old(self: Acks, group: str, topic: str, handle: str, invisible_ms: int | None, **more: Any) -> str:
        old, index = self._find(group, topic, handle)
        new = change(self, group, topic, handle, invisible_ms, **more)
        if self._state.table.get(old.id) is None:
            old.open_bits = 0
            old.open_bits |= 1 << index
            self._state.table.open(old)
        else:
            old.open_bits |= 1 << index
        return new

    patch.setattr(Acks, "change_invisible", keep_old)


def arrivals_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """Polls are not told of messages."""
    patch.setattr("popwheel_broker.core.notification.Subscriber.notify", lambda self, interest_id, messages: None)


def pops_skip_a_message(patch: pytest.MonkeyPatch) -> None:
    """Now and then a pop passes over a message."""
    popped = MergeBuffer.popped
    calls = itertools.count()

    def pop_and_skip(self: MergeBuffer, progress: Any, delivery: Any) -> None:
        popped(self, progress, delivery)
        if next(calls) % 5 == 4 and progress.available:
            progress.popped += 1
            self._store_progress(progress)

    patch.setattr(MergeBuffer, "popped", pop_and_skip)


def what_has_fired_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Recovery does not look for timers that have fired."""
    patch.setattr(DoneTimers, "record", lambda self, found: None)
    patch.setattr(TimerFold, "_done", lambda self, timer, found, topic, due_until_ms: None)


def slots_are_skipped(patch: pytest.MonkeyPatch) -> None:
    """Now and then the timer passes over a slot."""
    begin = TimerDequeueGet.open
    calls = itertools.count()

    def open_most(self: TimerDequeueGet, slot_ms: int) -> None:
        if next(calls) % 7 != 6:
            begin(self, slot_ms)

    patch.setattr(TimerDequeueGet, "open", open_most)


def recalls_are_forgotten_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Recovery takes up messages and not what recalls them."""
    for of in (recovery._Units, recovery._Waiting):
        take = of.take

        def take_messages(*arguments: Any, take: Callable[..., object] = take) -> list[Delay]:
            take(*arguments)
            return []

        patch.setattr(of, "take", take_messages)
    apply = TimerFold.apply

    def apply_messages(self: TimerFold, found: StoredRecord) -> None:
        if found.kind != RecordKind.RECALL or self._state.should_running_dequeue:
            apply(self, found)

    patch.setattr(TimerFold, "apply", apply_messages)


def timers_fire_a_second_early(patch: pytest.MonkeyPatch) -> None:
    """Messages come before they are due."""
    step = MessageTimer.step

    def early(self: MessageTimer, fired_at_once: int = 64) -> Step:
        clock = self._clock
        ahead = Mock(wraps=clock)
        ahead.wall_ms = lambda: clock.wall_ms() + 1000
        self._clock = ahead
        try:
            return step(self, fired_at_once)
        finally:
            self._clock = clock

    patch.setattr(MessageTimer, "step", early)


def the_timer_is_saved_before_what_fired(patch: pytest.MonkeyPatch) -> None:
    """The timer's checkpoint says that slots are done, and what fired of them is on the device only if others wait."""

    async def no_sync() -> None:
        """What fired is left to somebody else."""

    begin = TimerService.__init__

    def without_sync(self: TimerService, *arguments: Any) -> None:
        begin(self, *arguments)
        self._sync = no_sync
        self._commit_later = lambda: None

    patch.setattr(TimerService, "__init__", without_sync)


def one_group_may_take_all(patch: pytest.MonkeyPatch) -> None:
    """Groups share a limit by who comes first."""
    patch.setattr(Shares, "room", lambda self, holder, limit: max(0, limit - self.total))


def filters_keep_back_what_passes(patch: pytest.MonkeyPatch) -> None:
    """Now and then a message that passes an SQL92 filter is passed over."""
    passes = SqlFilter.passes
    calls = itertools.count()
    patch.setattr(SqlFilter, "passes", lambda self, stored, looks: passes(self, stored, looks) and next(calls) % 7 != 6)


def filters_let_all_through(patch: pytest.MonkeyPatch) -> None:
    """Now and then an SQL92 filter lets a message through that it should keep back."""
    passes = SqlFilter.passes
    calls = itertools.count()
    patch.setattr(SqlFilter, "passes", lambda self, stored, looks: passes(self, stored, looks) or next(calls) % 7 == 6)


def filtered_arrivals_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """Polls with SQL92 filters are not told of messages that pass."""
    patch.setattr(SqlScan, "passing", lambda self, records, wanted: 0)


def half_messages_leak(patch: pytest.MonkeyPatch) -> None:
    """A half message goes into its topic at once."""
    accept = Coordinator.accept

    def accept_as_messages(self: Coordinator, run: MessageRun, *more: Any) -> list[Record]:
        records = accept(self, run, *more)
        for each in records:
            each.kind, each.topic, each.queue_id = RecordKind.MESSAGE, run.topic, run.queue_id
        return records

    patch.setattr(Coordinator, "accept", accept_as_messages)


def commits_lose_their_message(patch: pytest.MonkeyPatch) -> None:
    """A commit ends the transaction, and puts nothing into the topic."""
    end = Coordinator.end

    def end_without_message(self: Coordinator, position: int, *more: Any) -> Record | None:
        record = end(self, position, *more)
        if record is not None and record.kind == RecordKind.MESSAGE:
            return end_record(position, Resolution.COMMITTED)
        return record

    patch.setattr(Coordinator, "end", end_without_message)


def rollbacks_commit(patch: pytest.MonkeyPatch) -> None:
    """Whatever a sender says, its message is delivered."""
    end = Coordinator.end

    def end_with_message(self: Coordinator, position: int, epoch: int, _: Resolution) -> Record | None:
        return end(self, position, epoch, Resolution.COMMITTED)

    patch.setattr(Coordinator, "end", end_with_message)


def commits_do_not_say_what_they_end(patch: pytest.MonkeyPatch) -> None:
    """The message of a commit does not name its half message, so who folds the log does not know of the commit."""
    end = Coordinator.end

    def end_without_origin(self: Coordinator, *arguments: Any) -> Record | None:
        record = end(self, *arguments)
        if record is not None:
            record.origin = b""
        return record

    patch.setattr(Coordinator, "end", end_without_origin)


def open_halves_are_forgotten_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint says nothing of half messages."""
    patch.setattr(TransactionTable, "restore", lambda self, rows: None)


def the_order_is_swapped(patch: pytest.MonkeyPatch) -> None:
    """Of what waits in a line the last message comes first."""
    patch.setattr(_MessageGroupQueue, "head", lambda self: self.members[max(self.members)])


def lines_hold_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """A message that is read is delivered, whatever is delivered of its line."""
    find = OrderedPops._find_lines

    def find_all(self: OrderedPops, request: Any, taken: Any) -> list[int]:
        find(self, request, taken)
        return list(range(len(taken.offsets)))

    patch.setattr(OrderedPops, "_find_lines", find_all)


def what_is_open_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Some of what a pop has read and may not deliver is passed over."""
    hold = OrderedPops._block

    def hold_and_forget(self: OrderedPops, request: Any, taken: Any) -> Any:
        held = hold(self, request, taken)
        last = 1 << len(held.offsets) - 1
        self._state._close(held.id, last)  # it may not be delivered, or fewer were held
        return held

    patch.setattr(OrderedPops, "_block", hold_and_forget)


def resets_leave_what_is_delivered(patch: pytest.MonkeyPatch) -> None:
    """A reset does not take back what consumers hold."""
    begin = OffsetReset.begin

    def begin_only(self: OffsetReset, plan: ResetPlan) -> None:
        plan.deliveries.clear()
        begin(self, plan)

    patch.setattr(OffsetReset, "begin", begin_only)


def resets_are_not_written_down(patch: pytest.MonkeyPatch) -> None:
    """A reset is forgotten at a restart."""
    begin = OffsetReset.begin

    def unwritten(self: OffsetReset, plan: ResetPlan) -> None:
        put, self._store.put = self._store.put, lambda records: None  # type: ignore[method-assign, assignment, return-value]
        try:
            begin(self, plan)
        finally:
            self._store.put = put  # type: ignore[method-assign]

    patch.setattr(OffsetReset, "begin", unwritten)


def redriven_dead_letters_stay_listed(patch: pytest.MonkeyPatch) -> None:
    """What is released is released again by the next redrive."""
    patch.setattr("popwheel_broker.core.dead_letters.redriven_origin", lambda offset: b"")


def the_lowest_come_first(patch: pytest.MonkeyPatch) -> None:
    """Levels are gone through from the lowest up."""
    patch.setattr(priority_pops, "_level_of", lambda source: -source.level)


def nothing_is_overdue(patch: pytest.MonkeyPatch) -> None:
    """However long a message of a low level waits, the highest ones come first."""
    patch.setattr(PriorityPops, "_overdue", lambda self, waiting: [])


def it_is_always_the_turn_of_what_is_overdue(patch: pytest.MonkeyPatch) -> None:
    """Messages that have waited for too long leave nothing of small pops to the others."""
    record = PriorityPops.record
    patch.setattr(PriorityPops, "record", lambda self, turn: record(self, turn._replace(next=priority_pops._OVERDUE)))


def retries_lose_their_level(patch: pytest.MonkeyPatch) -> None:
    """What comes again comes last of all."""
    patch.setattr(redelivery, "_level_of", lambda delivery, stored: 0)


def lite_topics_deliver_more_than_one_message(patch: pytest.MonkeyPatch) -> None:
    """A lite topic of which a message is delivered is read on."""
    patch.setattr(MessageGroupQueues, "has", lambda self, group, topic: False)


def acknowledged_lite_topics_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """When a message of a lite topic is done with, nobody notes that the next one can be had."""
    patch.setattr(BrokerCore, "_became_free", lambda self, group, topic: None)


def lite_topics_end_at_once(patch: pytest.MonkeyPatch) -> None:
    """A lite topic ends as soon as it is looked at."""
    patch.setattr(LiteTopics, "_has_expired", lambda self, queue, now_ms: True)


def nothing_expires(patch: pytest.MonkeyPatch) -> None:
    """Messages past their time to live are delivered."""
    patch.setattr(TimeToLive, "concerns", lambda self, topic: False)


def times_to_live_begin_anew_with_each_retry(patch: pytest.MonkeyPatch) -> None:
    """The time at which a message was first stored is forgotten when it is redelivered."""
    patch.setattr(redelivery, "with_first_stored", lambda stored: stored.system_properties)


def expired_messages_are_dropped_whatever_their_topic_says(patch: pytest.MonkeyPatch) -> None:
    """Expired messages become no dead letters."""
    end = Acks.end

    def dropped(self: Acks, *what: Any, to_dead_letters: bool) -> None:
        end(self, *what, to_dead_letters=False)

    patch.setattr(Acks, "end", dropped)


def clients_are_there_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A proxy renews for clients that have said goodbye, or have fallen silent."""
    patch.setattr(RenewalBook, "take", lambda *_: [])


def deleted_groups_keep_what_they_were_given(patch: pytest.MonkeyPatch) -> None:
    """A broker is not notified that a group was deleted."""
    patch.setattr(ClusterChanges, "forget_group", lambda *_: None)


def pauses_stop_nobody(patch: pytest.MonkeyPatch) -> None:
    """A broker delivers to a group that is paused."""
    patch.setattr(ClusterView, "is_paused", lambda *_: False)


def half_messages_outlive_their_topic(patch: pytest.MonkeyPatch) -> None:
    """A half message of a topic is committed into the one that was made in its place."""
    patch.setattr(TransactionTable, "_forget", lambda *_: None)


def second_tries_hide_nothing(patch: pytest.MonkeyPatch) -> None:
    """Messages of a receive that is tried again are hidden no more then."""
    again = OrderedPops.again

    def again_for_a_moment(self: OrderedPops, request: PopRequest) -> Any:
        short = PopRequest()
        short.CopyFrom(request)
        short.invisible_ms = 1
        return again(self, short)

    patch.setattr(OrderedPops, "again", again_for_a_moment)


SETTINGS: dict[Plant, dict[str, Any]] = {
    # Where nobody waits for the log's sync, it comes long after the timer's.
    the_timer_is_saved_before_what_fired: {
        "flush": "sync",
        "flush_interval_ms": 5000,
        "checkpoint_interval_ms": 600_000,
    }
}
"""What is not drawn with a planted fault."""

CAUGHT_BY: dict[Plant, int] = {
    deleted_groups_keep_what_they_were_given: 38,
    sends_are_confirmed_without_sync: 26,
    the_timer_is_saved_before_what_fired: 30,
    resets_are_not_written_down: 54,
    half_messages_outlive_their_topic: 25,
    one_group_may_take_all: 19,
    what_has_fired_is_forgotten: 2,
    rollbacks_commit: 2,
    clients_are_there_for_ever: 2,
    filtered_arrivals_wake_nobody: 8,
    slots_are_skipped: 2,
}
"""For those that few seeds catch, or not soon: one that does. It is tried first, and the first seeds after it."""


@pytest.mark.parametrize(
    ("plant", "numbers", "only"),
    [
        (syncs_lie, {"S1", "S3", "S7", "P3"}, ("power",)),
        (sends_are_confirmed_without_sync, {"S1"}, ("power",)),
        (acks_are_not_recorded, {"P3", "S6"}, ("kill", "kill in a step")),
        (torn_tails_stay, {"S1", "S7", "L2"}, ("power",)),
        (redeliveries_do_not_end_the_first_delivery, {"P2", "P3", "P5", "S6"}, ("kill", "kill in a step")),
        (old_handles_stay_good, {"P7", "P3"}, ()),
        (pops_skip_a_message, {"P1"}, ()),
        (arrivals_wake_nobody, {"L1"}, ()),
        (half_messages_leak, {"X2"}, (transactions.NAME,)),
        (commits_lose_their_message, {"X2"}, (transactions.NAME,)),
        (rollbacks_commit, {"X2"}, (transactions.NAME,)),
        (commits_do_not_say_what_they_end, {"X2"}, (transactions.NAME,)),
        (open_halves_are_forgotten_at_a_restart, {"X2"}, (transactions.NAME, "kill")),
        (one_group_may_take_all, {"L1"}, (HOARDING,)),
        (filters_keep_back_what_passes, {"P1"}, (FILTERING,)),
        (filters_let_all_through, {"S2"}, (FILTERING,)),
        (filtered_arrivals_wake_nobody, {"L1"}, (FILTERING,)),
        (the_order_is_swapped, {"P6"}, (ORDERED,)),
        (lines_hold_nothing_back, {"P6"}, (ORDERED,)),
        (what_is_open_is_forgotten, {"P1", "P6", "S6"}, (ORDERED,)),
        (the_lowest_come_first, {"P8"}, (PRIORITIES,)),
        (nothing_is_overdue, {"P8"}, (PRIORITIES,)),
        (it_is_always_the_turn_of_what_is_overdue, {"P8"}, (PRIORITIES,)),
        (retries_lose_their_level, {"P8"}, (PRIORITIES,)),
        (nothing_expires, {"P9"}, (LIVES,)),
        (times_to_live_begin_anew_with_each_retry, {"P9"}, (LIVES,)),
        (expired_messages_are_dropped_whatever_their_topic_says, {"P1"}, (LIVES,)),
        (clients_are_there_for_ever, {"L2"}, (guests.NAME,)),
        (deleted_groups_keep_what_they_were_given, {"P7"}, (passing_group.NAME,)),
        (pauses_stop_nobody, {"P4"}, (passing_group.NAME,)),
        (half_messages_outlive_their_topic, {"P4"}, ()),
        (second_tries_hide_nothing, {"P2"}, (ORDERED, TRIES)),
        (lite_topics_deliver_more_than_one_message, {"P6"}, (lite.NAME,)),
        (acknowledged_lite_topics_wake_nobody, {"L2"}, (lite.NAME,)),
        (lite_topics_end_at_once, {"S1"}, (lite.NAME,)),
        (what_has_fired_is_forgotten, {"T2"}, ("kill", "kill in a step")),
        (slots_are_skipped, {"T3", "L2"}, ()),
        (recalls_are_forgotten_at_a_restart, {"T4"}, ("kill", "kill in a step")),
        (timers_fire_a_second_early, {"T1"}, ()),
        (resets_leave_what_is_delivered, {"P1", "P2", "P7"}, (steering.NAME,)),
        (resets_are_not_written_down, {"P1", "P2", "P3", "P7"}, (steering.NAME, "kill")),
        (redriven_dead_letters_stay_listed, {"P1"}, (steering.NAME, "kill")),
        (the_timer_is_saved_before_what_fired, {"T2", "T3"}, ("power",)),
    ],
)
def test_a_planted_fault_is_caught(plant: Plant, numbers: set[str], only: tuple[str, ...]) -> None:
    seeds = dict.fromkeys((CAUGHT_BY.get(plant, 0), *range(SEEDS_MAX)))
    assert_caught(plant, numbers, run_seed, seeds, only, SETTINGS.get(plant))
