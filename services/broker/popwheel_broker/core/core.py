"""A broker's core: store and pop state, changed only here, and the records that are neither messages nor deliveries.

All of it is a fold over the log (S6): `begin` with a checkpoint, `fold` record by record, and `finish` where the log
ends. A slave is a core that has begun and not finished yet.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from popwheel_broker.consume import progress_record
from popwheel_broker.consume.acks import Acks
from popwheel_broker.consume.consumer_lag import ConsumerLag
from popwheel_broker.consume.delivery import (
    ORIGIN_BYTES,
    REVIVE_QUEUES,
    OffsetCommit,
    Origin,
    ack_record,
    decode_ack,
)
from popwheel_broker.consume.group_queues import GroupQueues
from popwheel_broker.consume.merge_buffer import ProgressChanges, pair_of
from popwheel_broker.consume.oldest_messages import OldestMessages
from popwheel_broker.consume.pop_clock import PopClock
from popwheel_broker.consume.pop_context import PopContext
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.consume.pops import Pops
from popwheel_broker.consume.quarantine import Quarantine
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.consume.relocation import Relocation
from popwheel_broker.core.checkpoint import Checkpoint, CheckpointChanges, Row
from popwheel_broker.core.cluster_changes import ClusterChanges
from popwheel_broker.core.dead_letters import DeadLetters
from popwheel_broker.core.expiry import Expiry
from popwheel_broker.core.notification import Interest, Interests, notify_again
from popwheel_broker.core.offset_reset import OffsetReset
from popwheel_broker.core.retrial import Retrial
from popwheel_broker.core.wings import wings_of
from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.lite.lite_offsets import LiteOffsets
from popwheel_broker.lite.lite_pops import LitePops
from popwheel_broker.lite.lite_topics import LiteTopics
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.lite.subscriptions import LiteSubscriptions
from popwheel_broker.log.commit_log import CommitLog
from popwheel_broker.log.consume_queue import ConsumeQueue, LiteQueue
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.queues import QueueChanges
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.options import BrokerOptions
from popwheel_broker.topics.system_topics import SystemTopics
from popwheel_broker.topics.topic_registry import SavedNames, TopicRegistry
from popwheel_broker.transactions.coordinator import Coordinator
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.disk import Disk, DiskUsage
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate

_REWRITES_AT_ONCE = 1000
_PASSED_AT_ONCE = 1000


class CoreListener(Protocol):
    """Notifications that a leader wants at once."""

    def arrived(self, queue: ConsumeQueue) -> None:
        """React to messages that have become readable in a queue."""

    def due_changed(self) -> None:
        """React to a message that may come due earlier than before."""


class BrokerCore:
    """Makes all decisions of a broker; `app` and `server` wait, sync and communicate for it.

    Args:
        options: settings.
        disk: where its files are.
        folder: its own folder there.
        clock: the time.
        random_source: decides which queue a pop begins with.
        view: topics, groups and keys of the controller.
        on_fired: called with each delayed message that fires: its topic, and by how many milliseconds it is late.
        log: the commit log; opened from its files if not given.
    """

    def __init__(
        self,
        options: BrokerOptions,
        disk: Disk,
        folder: Path,
        clock: Clock,
        random_source: random.Random,
        view: ClusterView,
        on_fired: Callable[[str, int], None],
        log: CommitLog | None = None,
    ) -> None:
        self._options = options
        self._disk = disk
        self._folder = folder
        self._clock = clock
        self.view = view
        self._subscriber: CoreListener | None = None
        self.topic_registry = TopicRegistry(view)
        """The topics and groups that the log knows."""
        self._begun_with = Checkpoint()
        self.is_loaded = False
        """True if all state of the checkpoint that it began with is loaded.

        Until then it cannot be saved, and it is unknown which records of the log it needs.
        """
        self._timer_is_finished = False
        self._closed: dict[int, int] = {}
        self._found_up_to = 0
        self.is_finished = False
        self.interests = Interests(options.pop.notify_interests_max, options.pop.notify_filter_bytes_max)
        self.state = PopState(
            options.pop.stay_ms,
            options.pop.buffer_deliveries_max,
            options.pop.progress_max,
            options.pop.held_messages_max,
            lambda topic, queue_id: self.store.queue(topic, queue_id),
            options.pop.events_max,
        )
        lines = self.state.table.message_group_queues
        lines.on_ready, lines.on_free = self._became_ready, self._became_free
        self.interests.paused = lines.paused
        self.interests.is_paused = view.is_paused
        # No group has any progress in queues that are no more.
        forget_queues = self.state.merge_buffer.forget_queues
        self.store = MessageStore(
            disk, folder, options.log, clock, self._arrived, log, forget_queues, options.lite.topics_max
        )
        self.store.log.fills_ahead = options.flush == "sync"
        self.pop_clock = PopClock(clock)
        self._topics = SystemTopics(view, self.store)
        self.quarantine = Quarantine(
            self.store, self.state, self._topics, options.quarantine_max, lambda: self.is_finished
        )
        context = PopContext(
            store=self.store,
            state=self.state,
            view=view,
            topics=self._topics,
            clock=self.pop_clock,
            broker_name=options.name,
            quarantine=self.quarantine,
        )
        self.pops = Pops(context, options.pop, random_source, clock)
        self.interests.sql_scan = self.pops.sql_scan
        subscriptions = LiteSubscriptions(
            options.lite.subscriptions_max, self.interests.notify_client, self.interests.has_client
        )
        self.interests.on_client = subscriptions.polls
        self.group_queues = GroupQueues(
            self.state.merge_buffer, self.store.queues, self.topic_registry.readers, subscriptions.lite_topics_of
        )
        self.lag = ConsumerLag(self.state.merge_buffer, self.group_queues, lines.blocked_of)
        self.oldest = OldestMessages(self.store, self.state, self.group_queues)
        self.acks = Acks(context, self._due_changed, self.topic_registry.knows_group, self.pops.ordered.receives)
        self.offset_reset = OffsetReset(self.store, self.state, self._topics, self.pops, self.interests)
        self.dead_letters = DeadLetters(self.store, self.state, view, self.pops)
        self.relocation = Relocation(self.store, self.state.table, self.acks, self.quarantine)
        self.timer = MessageTimer(
            self.store, disk, folder / "timer", options, clock, self.topic_registry, on_fired, self.quarantine
        )
        self.transactions = Coordinator(
            self.store, options.transaction, clock, lambda topic: self.topic_registry.topic_ids.get(topic, 0)
        )
        self.cluster_changes = ClusterChanges(
            self.store, self.state, self.topic_registry, view, self._topics, self.pops, self.interests, subscriptions
        )
        self.lite = LiteTopics(
            self.store,
            view,
            subscriptions,
            LitePops(self.store, self.state, self.pops, subscriptions, options.pop.response_bytes_max),
            self.cluster_changes.end_lite_topics,
            self.cluster_changes.lite_ends_max,
            self.interests.notify_end,
        )
        self.lite_offsets = LiteOffsets(self.store, self.state, lambda: self.revive_topic, self.pops, self.lite.pops)
        self._changed_progress = self.state.merge_buffer.watch()
        self.wings = wings_of(
            store=self.store,
            state=self.state,
            names=self.topic_registry,
            quarantine=self.quarantine,
            timer=self.timer,
            transactions=self.transactions,
            lite=self.lite,
            view=view,
            acks=self.acks,
            clock=clock,
        )
        """The features, over which the core iterates."""
        for wing in self.wings:
            if wing.fold is not None:
                self.store.folds.add(wing.fold)
            if wing.ending is not None:
                self.pops.ending = wing.ending
        self.store.folds.on_fault = self._fold_failed
        self.expiry = Expiry(
            context,
            self.relocation,
            needs=[wing.needs for wing in self.wings if wing.needs is not None],
            options=options.retention,
            wall_clock=clock,
            usage=self.disk_usage,
        )
        self.retrial = Retrial(self.store, self.quarantine, view, self.topic_registry.knows_group, self.timer, clock)

    def disk_usage(self) -> DiskUsage:
        """Return the usage of the disk."""
        return self._disk.usage(self._folder)

    def begin(self, checkpoint: Checkpoint) -> int:
        """Load a checkpoint; return the position from which records are to be folded, which may be before it.

        Raises:
            UnknownFormatError: the files are of a newer release.
            QueueDamagedError: a queue, or a record that one leads to, is damaged.
        """
        self.topic_registry.restore(checkpoint.names)
        self._begun_with = checkpoint
        self._found_up_to = self.store.log.end_position
        self.is_loaded = self._timer_is_finished = self.is_finished = False
        self._closed = {}
        begin = self.store.begin(checkpoint.store)
        if begin >= checkpoint.store.position:
            self._load()  # at once, so that a slave that receives nothing new is as ready as others
        return begin

    def _is_news(self, found: StoredRecord) -> bool:
        """Return whether a record has come since this core began, or may be of a later master than its checkpoint."""
        return found.position >= self._found_up_to or found.epoch > self._begun_with.store.epoch

    @property
    def folded_position(self) -> int:
        """Position of the next record to be folded."""
        return self.store.high_watermark

    def fold(self, found: StoredRecord) -> None:
        """Fold in the next record of the log.

        Raises:
        CorruptDataError: it does not begin where the one before it ended.
        """
        if found.position < self._begun_with.store.position:
            self.store.take_up(found)  # its queue's file was missing; the rest is in the checkpoint
            if self.folded_position >= self._begun_with.store.position:
                self._load()
            return
        if not self.is_loaded:
            self._load()
        try:
            with RECORD_STEP:
                self.store.take_up(found)
                self._record_closed(found, self._closed)
                self.store.folds.replay(found)
                self.timer.passed(found)
                self.pop_clock.record(self.state.table.latest_pop_ms, is_news=self._is_news(found))
        except RecordFaultError as fault:
            # This happens wherever the log is folded, so replicas and restarts agree on the consequences (S6).
            self.store.pass_over(found)
            self._fold_failed(found, fault)

    def _fold_failed(self, found: StoredRecord, fault: RecordFaultError) -> None:
        self.timer.not_folded()
        self.quarantine.fold_failed(found, fault)

    def not_checked(self, position: int, fault: RecordFaultError) -> None:
        """Count a record from a master that could not be checked as it came; the fold reads it again."""
        self.quarantine.count(Step.FOLD, position, fault)

    def _load(self) -> None:
        try:
            self._take_up_checkpoint()
        except CorruptDataError as error:
            raise QueueDamagedError(str(error)) from error
        self._begun_with = self._begun_with.head
        self.is_loaded = True

    def _take_up_checkpoint(self) -> None:
        """Restore the pop state of the checkpoint: all messages that it covers are in the queues."""
        checkpoint = self._begun_with
        store = self.store
        self.state.restore(checkpoint.pop, store.queues.take_up)
        self.quarantine.table.restore(checkpoint.quarantine)
        self.transactions.table.restore(checkpoint.halves)
        for topic in sorted(name for name in store.queues.system_topics if name.startswith(names.REVIVE_PREFIX)):
            known = (checkpoint.store.queues or {}).get(topic, {})
            for number, begin in enumerate(checkpoint.pop.revive_offsets):
                # Up to the end in the checkpoint: a search for its position would trust entries that may be damaged.
                self._replay_revive_queue(topic, number, begin, known.get(number, (0, 0))[1])
        self.pop_clock.resume(checkpoint.pop.time)
        self.pop_clock.record(self.state.table.latest_pop_ms, is_news=False)
        self.timer.begin_recovery(checkpoint.store.position)

    def finish(self) -> None:
        """End the fold where the log ends: all may be read, and put into, from now on.

        Raises:
            CorruptDataError: the log is damaged.
            StatusError: the disk is full; it may be tried again.
        """
        if not self.is_loaded:
            self._load()
        self.store.finish()
        state = self.state
        state.table.restart_ids(self._begun_with.pop.next_number, self.store.epoch)
        if not self._timer_is_finished:
            self.timer.finish()
            self._timer_is_finished = True
        self._acknowledge(self._closed)
        self._closed = {}
        self.topic_registry.begin_to_lead()
        self.transactions.begin_to_lead()
        state.begin_to_lead(self._clock.wall_ms())
        self.is_finished = True

    def _record_closed(self, found: StoredRecord, closed: dict[int, int]) -> None:
        """Collect bits of open deliveries that a record closes outside their revive queue, and whose ACK is yet to
        come.
        """
        table = self.state.table
        if found.kind in (RecordKind.MESSAGE, RecordKind.QUARANTINE) and len(found.origin) == ORIGIN_BYTES:
            origin = Origin.decode(found.origin)
            if table.get(origin.delivery_id) is not None:
                closed[origin.delivery_id] = closed.get(origin.delivery_id, 0) | 1 << origin.index
        elif found.kind == RecordKind.FORGET_GROUP:
            group = found.payload.decode()
            closed.update((each.id, closed.get(each.id, 0) | each.open_bits) for each in table.of_group(group))
        elif found.kind == RecordKind.FORGET_TOPIC:
            for each in self.state.table.lasting_of(found.payload.decode()):
                closed[each.id] = closed.get(each.id, 0) | each.open_bits
        elif found.kind == RecordKind.ACK:
            identity, bits = decode_ack(found.payload)
            left = closed.pop(identity, 0) & ~bits
            if left:
                closed[identity] = left

    def _acknowledge(self, closed: dict[int, int]) -> None:
        """Write the ACK records that a crash cut off: a later recovery may read only the delivery's revive queue.
        Whether a client had asked for them is unknown.
        """
        if closed:
            self.store.put([ack_record(self.revive_topic, identity, bits) for identity, bits in closed.items()])

    def _replay_revive_queue(self, topic: str, number: int, begin: int, end: int) -> None:
        queue = self.store.queue(topic, number)
        if queue is None:
            return
        for start in range(max(begin, queue.min_offset), end, 1024):
            entries = queue.read(start, min(1024, end - start))
            for record in self.store.records.read_checked(queue, range(start, start + len(entries)), entries):
                try:
                    with RECORD_STEP:
                        self.state.apply_before_snapshot(record)
                except RecordFaultError as fault:
                    self.quarantine.fold_failed(record, fault)

    def rows(self) -> Iterator[Row]:
        """Yield all rows of a checkpoint but its head, each as it is when it is reached."""
        for queue in self.store.queues:
            yield ("queues", queue.topic, queue.queue_id, *self.store.queues.bounds(queue))
        buffer = self.state.merge_buffer
        for group in list(buffer.groups):
            for queue in buffer.of_group(group):
                offsets = buffer.offsets(group, queue)
                if offsets is not None:
                    yield ("offsets", group, queue.topic, queue.queue_id, *pair_of(offsets))
        for wing in self.wings:
            yield from wing.rows()

    def take_changes(self) -> tuple[QueueChanges, ProgressChanges, list[Row]]:
        """Return the rows that have changed since the last call, or since the checkpoint that it began with."""
        others = [row for wing in self.wings for row in wing.changed_rows()]
        return self.store.take_queue_changes(), self._changed_progress.take(), others

    def checkpoint(self) -> CheckpointChanges:
        """Return what to save, once the log is synced and the store's index is written."""
        store = self.store.checkpoint()
        topic = self.revive_topic
        ends = tuple(self.store.next_offset(topic, number) for number in range(REVIVE_QUEUES))
        self.quarantine.table.retain(self.store.log.start_position)
        # Until the log has a time, this replica's own clock must not be saved as one.
        has_time = self.state.table.latest_pop_ms > 0
        pop = self.state.snapshot(ends, self.pop_clock.saved() if has_time else self._begun_with.pop.time)
        known = SavedNames(
            applied_version=self.topic_registry.applied_version, former_states=self.topic_registry.former_states
        )
        head = Checkpoint(store, pop, known, self.quarantine.table.saved(store.position))
        return CheckpointChanges(head, *self.take_changes())

    def synced(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint with the position that the log is synced up to now."""
        return replace(checkpoint, store=replace(checkpoint.store, synced_position=self.store.log.synced_position))

    def inherit(self, before: "BrokerCore") -> None:
        """Take the place of a core that was closed: apply the cluster changes that it had received and not applied."""
        self.topic_registry.inherit(before.topic_registry)

    def cluster_changed(self, update: ClusterUpdate) -> None:
        """Receive a change of the controller's state (`TopicRegistry.view_changed`); `ClusterChanges.apply` follows."""
        self.topic_registry.view_changed(update)

    def damage_mended(self) -> None:
        """Retry queues or delayed messages that stood still at records which are mended now, and notify their polls."""
        topics = {queue.topic for queue in self.pops.damaged if not queue.is_lite}
        lite_topics = [queue for queue in self.pops.damaged if isinstance(queue, LiteQueue)]
        interests = [each for topic in topics for each in self.interests.of_topic(topic)]
        for each in interests:
            self.waiting(each)  # reads all that is read below: where it is not in memory, nothing has changed yet
        self.timer.state.damage_mended()
        self.pops.damaged.clear()
        notify_again(interests, self.waiting)
        for queue in lite_topics:
            self.lite.arrived(queue)

    def commit_offset(self, commit: OffsetCommit) -> None:
        """Set a group's committed offset, as a client asked.

        Raises:
            StatusError: the disk is full, or there is no room for more progress; nothing has changed.
        """
        queue = self.store.ensure_queue((commit.topic, commit.queue_id))
        buffer = self.state.merge_buffer
        if not buffer.has_room(buffer.of(commit.group, queue)):
            raise self.pops.progress_full(commit.group)
        self.store.put([Record(RecordKind.OFFSET, self.revive_topic, 0, commit.encode())])
        self.pops.ordered.drop_before(commit.group, queue, commit.offset)
        # Set back from where another commit had put it, it makes messages visible that arrived long ago.
        polled = (each for each in self.interests.of_topic(commit.topic) if each.group == commit.group)
        notify_again(polled, self.waiting)

    def waiting(self, interest: Interest) -> int:
        """Return how many messages wait for an interest, as `Pops.waiting` does; of lite topics, how many have any."""
        if interest.client_id:
            if self.pops.is_paused(interest.group, interest.topic):
                return 0
            return self.lite.subscriptions.count_ready(ClientKey(interest.group, interest.topic, interest.client_id))
        return self.pops.waiting(interest.group, interest.topic, interest.wanted)

    def rewrite_lagging(self) -> None:
        """Rewrite the open deliveries that recovery would have to read from far back. Raises StatusError: disk full."""
        topic = self.revive_topic
        for number in range(REVIVE_QUEUES):
            before = self.store.next_offset(topic, number) - self._options.pop.rewrite_after_records
            self.acks.rewrite(self.state.table.lagging(number, before, _REWRITES_AT_ONCE))

    def record_progress(self) -> Iterator[None]:
        """Record where groups are that have passed messages without a delivery, some of them for each step.

        Raises:
            StatusError: the disk is full; those left are recorded later.
        """
        buffer = self.state.merge_buffer
        for _ in range(0, buffer.unrecorded, _PASSED_AT_ONCE):
            passed = buffer.passed_offsets(_PASSED_AT_ONCE)
            if passed:
                self.store.put([Record(RecordKind.PROGRESS, self.revive_topic, 0, progress_record.encode(passed))])
            yield

    def _arrived(self, queue: ConsumeQueue, tag_hashes: Sequence[int]) -> None:
        if isinstance(queue, LiteQueue):
            self.lite.arrived(queue)
        else:
            self.interests.arrived(queue, tag_hashes)
        if self._subscriber is not None:
            self._subscriber.arrived(queue)

    def _became_ready(self, group: str, topic: str) -> None:
        if names.lite_of(topic):
            self.lite.became_ready(group, topic)
        else:
            self.interests.became_ready(group, topic)

    def _became_free(self, group: str, topic: str) -> None:
        if names.lite_of(topic):
            self.lite.became_ready(group, topic)

    def _due_changed(self) -> None:
        if self._subscriber is not None:
            self._subscriber.due_changed()

    def subscribe(self, subscriber: CoreListener) -> None:
        """Notify a leader of changes; the one before is notified no more."""
        self._subscriber = subscriber

    def unsubscribe(self) -> None:
        """Notify nobody any more."""
        self._subscriber = None

    def close(self) -> None:
        """Close the files of the folded state; the log itself stays open."""
        self.timer.close()

    @property
    def revive_topic(self) -> str:
        """Topic of this cluster's delivery and ACK records."""
        return self._topics.revive


class QueueDamagedError(CorruptDataError):
    """Error: queues cannot read what the checkpoint covers.

    Entries have no checksum: they may be damaged while the records that they lead to are not. Then making them again
    from the log helps.
    """
