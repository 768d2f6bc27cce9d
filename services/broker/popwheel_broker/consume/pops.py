"""The pop: takes messages for a group, writes their delivery to the log, and returns them with receipt handles."""

import random
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from popwheel_broker.consume import delivered_message
from popwheel_broker.consume.delivery import MESSAGES_MAX, Delivery, delivery_record
from popwheel_broker.consume.delivery_events import DELIVERED, UNKNOWN_ATTEMPTS
from popwheel_broker.consume.delivery_messages import DeliveryMessages
from popwheel_broker.consume.group_filters import GroupFilters
from popwheel_broker.consume.merge_buffer import Popped, QueueProgress
from popwheel_broker.consume.message_group_queues import revive_queue_of
from popwheel_broker.consume.ordered_pops import OrderedPops
from popwheel_broker.consume.pop_context import PopContext
from popwheel_broker.consume.priority_pops import PriorityPops
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.consume.recent_polls import RecentPolls
from popwheel_broker.consume.scan import Found, SqlScan, scan_tags
from popwheel_broker.consume.sql_filter import SqlFilter
from popwheel_broker.consume.taken import Budget, Taken
from popwheel_broker.consume.wanted import Wanted, wanted_by
from popwheel_broker.log.consume_queue import ConsumeQueue, Entry
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.record import Record, StoredRecord
from popwheel_broker.options import PopOptions
from popwheel_common.clock import Clock
from popwheel_common.cold_reads import NotInMemory
from popwheel_common.contract import names, receipt
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.priority import levels_of
from popwheel_common.contract.receipt import HandleMaker
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.histogram import Histogram
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest

_RETRY_FIRST_ONE_IN = 5
_ROTATION_BITS = 32
_ANY_QUEUE = -1
QUEUEING_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 30_000, 300_000, 3_600_000)


class Standstill(NamedTuple):
    """Place where a queue cannot go on.

    Args:
        min_offset: the first offset stored when that was found; the damaged record may be deleted with it.
        why: the damage.
    """

    min_offset: int
    why: str


class Ending(Protocol):
    """Decision which messages end when they are to be delivered."""

    def concerns(self, topic: str) -> bool:
        """Return whether messages of a topic may end so."""

    def ended(self, delivery: Delivery, stored: Mapping[int, StoredRecord], now_ms: int) -> Mapping[int, StoredRecord]:
        """Return those messages of a delivery, by index, that end at a time of the wall clock."""

    def end(self, delivery: Delivery, ended: Mapping[int, StoredRecord]) -> None:
        """End them. Raises StatusError: the disk is full; what has not ended is unchanged."""


class Pops:
    """Serves pops.

    Args:
        context: store, state and names.
        options: limits.
        random_source: which queue comes first.
        wall_clock: by which messages are stored.
    """

    def __init__(
        self, context: PopContext, options: PopOptions, random_source: random.Random, wall_clock: Clock
    ) -> None:
        self._store = store = context.store
        self._state = state = context.state
        self._view = context.view
        self._topics = topics = context.topics
        self._options = options
        self._clock = clock = context.clock
        self._wall_clock = wall_clock
        self._random = random_source
        self._broker_name = context.broker_name
        self._quarantine = context.quarantine
        self.sql_scan = SqlScan(store.records, store.reads)
        self.group_filters = GroupFilters()
        self.recent_polls = RecentPolls()
        self._passed_over = 0
        self._messages = DeliveryMessages(store, topics)
        self.ordered = OrderedPops(store, state, topics, clock, self.take)
        """Pops of groups that consume in order."""
        self.priorities = PriorityPops(
            store, state.merge_buffer, options.priority_wait_ms, wall_clock, self.take, self.stands_still
        )
        """Pops of topics of type PRIORITY."""
        self.ending: Ending | None = None
        self.ended = 0
        """Number of messages that ended as they were to be delivered."""
        self.damaged: dict[ConsumeQueue, Standstill] = {}
        self.queueing = Histogram(QUEUEING_BOUNDS_MS)
        """Times that messages waited for their first delivery."""

    def rotation(self) -> int:
        """Return a random number for a call: all of its tries begin with the same queue. Else a queue that has to be
        read from the device would seldom be the first of the last try.
        """
        return self._random.getrandbits(_ROTATION_BITS)

    def pop(self, request: PopRequest, rotation: int) -> PopAnswer:
        """Deliver up to `max_messages` messages and hide them from the group; never waits.

        Args:
            request: the pop.
            rotation: decides which queue comes first.

        Raises:
            StatusError: too many messages are in flight already, the filter is invalid, there is no cluster state from
                the controller yet, the disk is full, there is no room for more progress, or nothing is left but queues
                that stand still; nothing was delivered.
        """
        self.recent_polls.record(request.group, request.topic, request.client_id, self._clock.now_ms())
        if self._view.is_paused(request.group, request.topic):
            return self.again(request)  # the poll waits until the group or topic is resumed
        if self._state.revoking and (request.group, request.topic) in self._state.revoking:
            return PopAnswer()  # polls are notified when that has ended
        room = self.room(request.group)
        wanted = wanted_by(request.filter)
        differ = self.group_filters.record(request.group, request.topic, request.filter, wanted, self._clock.now_ms())
        passed_over = self._passed_over
        options = self._options
        budget = Budget(
            min(request.max_messages, room, MESSAGES_MAX), options.scan_entries_max, options.response_bytes_max
        )
        known = self._view.topics.get(request.topic)
        levels = request.levels if known is None else levels_of(known)
        count = max(1, levels) if known is None else known.queues
        queue_id = _ANY_QUEUE if levels else request.queue_id
        retries, queues = self._sources(request.group, request.topic, queue_id, rotation, count)
        is_ordered = self._is_ordered(request.group, request.topic) or request.ordered
        taken: list[Taken] = []
        if is_ordered:
            answer = self.again(request)
            if answer.messages:
                answer.waiting = self._waiting(request.group, request.topic, retries, queues, wanted)
                return answer
            self.ordered.take_ready(request.group, request.topic, budget, taken)
        retries_first = rotation % _RETRY_FIRST_ONE_IN == 0
        priority_turn = None
        if levels:
            pair = (request.group, request.topic)
            priority_turn = self.priorities.take(
                pair, queues, retries, wanted, budget, taken, retries_first=retries_first
            )
        else:
            if retries_first:
                self._take_retries(retries, budget, taken)
            for progress in queues:
                if budget.is_spent:
                    break
                if is_ordered:
                    self.ordered.read_on(request, progress, wanted, budget, taken)
                else:
                    self.take(progress, receipt.FROM_TOPIC, wanted, budget, taken)
            if not retries_first:
                self._take_retries(retries, budget, taken)
        answer = PopAnswer()
        if taken:
            self.deliver(request, taken, answer, is_remembered=bool(levels) and is_ordered)
            if priority_turn is not None:
                self.priorities.record(priority_turn)
        else:
            self.check_standstill(retries, queues)
            if self._lacks_room(queues):
                raise self.progress_full(request.group)
        if differ:
            self.group_filters.passed_over += self._passed_over - passed_over
        if queue_id >= 0:
            retries, queues = self._sources(request.group, request.topic, _ANY_QUEUE, rotation, count)
        answer.waiting = self._waiting(request.group, request.topic, retries, queues, wanted)
        return answer

    def is_paused(self, group: str, topic: str) -> bool:
        """Return whether an operator has paused a group or a topic, so that nothing is delivered."""
        return self._view.is_paused(group, topic)

    def _take_retries(self, retries: Sequence[QueueProgress], budget: Budget, taken: list[Taken]) -> None:
        for progress in retries:
            if not budget.is_spent:
                self.take(progress, receipt.FROM_RETRY_TOPIC, None, budget, taken)

    def _is_ordered(self, group: str, topic: str) -> bool:
        """Return whether a group consumes in order; also for an unknown one while it has messages in order."""
        known = self._view.groups.get(group)
        return (known is not None and known.fifo) or self.ordered.message_group_queues.has(group, topic)

    def again(self, request: PopRequest) -> PopAnswer:
        """Return the messages that an earlier try of this receive got and still has, if any."""
        answer = PopAnswer()
        common = delivered_message.common_properties(self._broker_name, request.invisible_ms)
        for delivery, indexes, records in self.ordered.again(request):
            maker = self._maker(delivery)
            handles = [maker.handle(delivery.offsets[index]) for index in indexes]
            self._answer(delivery, indexes, records, common, handles, answer)
        return answer

    def room(self, group: str) -> int:
        """Return how many messages may be delivered to a group. Raises StatusError: TOO_MANY_REQUESTS, if none."""
        shares = self._state.table.shares
        room = shares.room(group, self._options.open_messages_max)
        if not room:
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"{shares.share(group)} messages are in flight to the group {group}, and "
                f"{shares.total} to all groups: that is its share of this broker's limit "
                "(broker.pop.open_messages_max); acknowledge some, or wait until they come due",
            )
        return room

    def check_standstill(self, retries: Sequence[QueueProgress], queues: Sequence[QueueProgress]) -> None:
        """Raise StatusError if nothing was found because a queue stands still (S7)."""
        for progress in (*queues, *retries):
            queue = progress.queue
            if progress.available and self.stands_still(queue):
                raise StatusError(
                    Code.INTERNAL_ERROR,
                    f"queue {queue.queue_id} of {queue.topic} stands still at a damaged record "
                    f"({self.damaged[queue].why}); an operator has to restore it",
                )

    def waiting(self, group: str, topic: str, wanted: Wanted) -> int:
        """Return the number of messages that wait for a group; 0 or 1 (some) if that depends on a filter.

        Nothing is read: messages that retention has taken since the queue was last read still count, until a pop reads
        it.
        """
        if (group, topic) in self._state.revoking or self._view.is_paused(group, topic):
            return 0
        known = self._view.topics.get(topic)
        retries, queues = self._sources(group, topic, _ANY_QUEUE, 0, 1 if known is None else known.queues)
        return self._waiting(group, topic, retries, queues, wanted)

    def _waiting(
        self,
        group: str,
        topic: str,
        retries: Sequence[QueueProgress],
        queues: Sequence[QueueProgress],
        wanted: Wanted,
    ) -> int:
        lines = self.ordered.message_group_queues
        ahead = sum(progress.available_at_most for progress in queues if not self.stands_still(progress.queue))
        if wanted is not None:
            ahead = min(ahead, 1)
        if (group, topic) in lines.paused and not lines.room(group, topic):
            ahead = 0
        ahead += lines.ready(group, topic)
        for progress in retries:
            ahead += progress.available_at_most
        return ahead

    def _sources(
        self, group: str, topic: str, queue_id: int, rotation: int, count: int
    ) -> tuple[Sequence[QueueProgress], Sequence[QueueProgress]]:
        """Return the queues of the group's retry topic: one, or one for each priority level; and the queue of the topic
        that was asked for, or all `count` of them, beginning with the one in turn.
        """
        progress_in = self._state.merge_buffer.of
        store = self._store
        retries = [progress_in(group, queue) for queue in store.queues.of_topic(names.retry_topic(group, topic))]
        if queue_id >= 0:
            numbers: Sequence[int] = (queue_id,)
        else:
            first = rotation // _RETRY_FIRST_ONE_IN % count
            numbers = (*range(first, count), *range(first))
        queues = [progress_in(group, queue) for number in numbers if (queue := store.queue(topic, number)) is not None]
        return retries, queues

    def take(
        self,
        progress: QueueProgress,
        origin: int,
        wanted: Wanted,
        budget: Budget,
        taken: list[Taken],
        start: int | None = None,
    ) -> None:
        """Read the next messages of one queue that the filter wants, from `start` on if some of it were taken."""
        queue = progress.queue
        if start is None:
            start = progress.next_offset
        if start >= queue.max_offset or self.stands_still(queue):
            return
        # A retry queue exists only because its group has read something: a failed message must be redelivered.
        if origin == receipt.FROM_TOPIC and not self._state.merge_buffer.has_room(progress):
            return
        try:
            records: list[StoredRecord] | None = None
            if wanted is None:
                entries: Sequence[Entry] = queue.read(start, min(budget.messages, budget.scan_entries))
                offsets: tuple[int, ...] | range = range(start, start + len(entries))
                next_offset = start + len(entries)
                budget.scan_entries -= len(entries)
            else:
                entries, offsets, next_offset, _, records = self._scan(queue, start, wanted, budget)
            if not entries:
                before = [each for each in taken if each.progress is progress] if taken else ()
                if before:
                    before[-1].next_offset = next_offset  # skipped messages stand behind those to be delivered
                else:
                    self._state.merge_buffer.passed(progress, next_offset)
                return
            fitting = _fitting(entries, budget.response_bytes)
            if fitting < len(entries):
                entries, offsets = entries[:fitting], offsets[:fitting]
                next_offset = offsets[-1] + 1
                records = None if records is None else records[:fitting]
            if records is None:
                with suppress(RecordFaultError), RECORD_STEP:
                    records = self._store.records.read_checked(queue, offsets, entries)
        except NotInMemory:
            if not taken:
                raise
            return  # messages found are delivered now; a pop that begins with this queue reads it
        except CorruptDataError as error:
            # Never delivered, never skipped (S7): the queue stands still until an operator has repaired it.
            self.damaged[queue] = Standstill(queue.min_offset, str(error))
            return
        assert len(entries) == len(offsets) <= budget.messages, "more messages are taken than were asked for"
        assert start <= offsets[0] <= offsets[-1] < next_offset, "messages are taken that were not read"
        budget.messages -= len(entries)
        budget.response_bytes -= sum(entry.length for entry in entries)
        first_position = entries[0].position
        taken.append(Taken(progress, origin, offsets, records, start, next_offset, first_position, entries))

    def forget(self, topics: Container[str]) -> None:
        """Forget deleted topics: none of their queues stands still any more."""
        for queue in [queue for queue in self.damaged if queue.topic in topics]:
            del self.damaged[queue]

    def _lacks_room(self, queues: Sequence[QueueProgress]) -> bool:
        """Return whether messages wait that are not delivered, as there is no room for more progress."""
        has_room = self._state.merge_buffer.has_room
        return any(each.available and not has_room(each) and not self.stands_still(each.queue) for each in queues)

    def progress_full(self, group: str) -> StatusError:
        """Return the refusal for lack of room for a group's progress."""
        buffer = self._state.merge_buffer
        return StatusError(
            Code.TOO_MANY_REQUESTS,
            f"this broker keeps the progress of {buffer.pairs} pairs of a group and a queue, {buffer.pairs_of(group)} "
            f"of them of the group {group}: that is its share of the limit (broker.pop.progress_max), the last tenth "
            "for groups that have read before; delete groups or topics",
        )

    def stands_still(self, queue: ConsumeQueue) -> bool:
        """Return whether a queue stands at a damaged record that was not deleted with an old segment since."""
        met = self.damaged.get(queue)
        if met is not None and met.min_offset != queue.known_min_offset:
            del self.damaged[queue]
            return False
        return met is not None

    def _scan(self, queue: ConsumeQueue, start: int, wanted: frozenset[int] | SqlFilter, budget: Budget) -> Found:
        """Scan for messages that a filter lets through, and take them from the budget."""
        if isinstance(wanted, SqlFilter):
            found = self.sql_scan.run(queue, start, wanted, budget.messages, budget.scan_entries)
        else:
            found = scan_tags(queue, start, wanted, budget.messages, budget.scan_entries)
        budget.scan_entries -= found.cost
        self._passed_over += found.next_offset - start - len(found.entries)
        return found

    def deliver(
        self, request: PopRequest, taken: list[Taken], answer: PopAnswer, *, is_remembered: bool = False
    ) -> None:
        """Write the deliveries of taken messages to the log, and put the messages into the answer.

        Args:
            request: the pop.
            taken: what was taken.
            answer: gets the messages.
            is_remembered: whether a retry of the receive gets all of it again, and not only messages of ordered groups.

        Raises:
            StatusError: there is no cluster state from the controller yet, or the disk is full; nothing was delivered.
        """
        self._view.receipt_key  # noqa: B018 - without it nothing may be delivered
        now_ms = self._clock.now_ms()
        deliveries = [self._delivery(request, each, now_ms) for each in taken]
        holder = self._state.table.holders.of(request.group, request.client_id)
        records: list[Record] = []
        for each, delivery in zip(taken, deliveries, strict=True):
            delivery.holder = holder
            popped = None if each.sources else Popped(delivery, each.progress)  # else it was read before
            records.append(delivery_record(self._topics.revive, delivery, popped))
        appended = self._store.put(records)
        common = delivered_message.common_properties(self._broker_name, request.invisible_ms)
        add_event, stored_ms = self._state.events.add, appended.store_time_ms
        for each, delivery, position in zip(taken, deliveries, appended.positions, strict=True):
            delivered = delivery.open_bits
            if each.records and each.origin == receipt.FROM_TOPIC and not any(each.attempts):
                self._count_queueing(each.records, appended.store_time_ms)
            maker = self._maker(delivery)
            given = [maker.handle(offset) for offset in each.offsets]
            delivered &= ~self._answer(delivery, range(len(given)), each.records, common, given, answer)
            if delivered:
                add_event(stored_ms, position, DELIVERED, delivery, delivered, _attempts_of(each))
        if request.attempt_id:
            self.ordered.receives.add(request, [each for each in deliveries if each.lines or is_remembered])
        assert len(answer.handles) == len(answer.messages), "not every message has its receipt handle"

    def _maker(self, delivery: Delivery) -> HandleMaker:
        return delivered_message.handle_maker(self._view.receipt_key, delivery, self._broker_name)

    def _count_queueing(self, records: Sequence[StoredRecord], now_ms: int) -> None:
        if records[0].store_time_ms == records[-1].store_time_ms:  # mostly: they were sent together
            self.queueing.observe(max(0, now_ms - records[0].store_time_ms), len(records))
        else:
            for each in records:
                self.queueing.observe(max(0, now_ms - each.store_time_ms))

    def _answer(
        self,
        delivery: Delivery,
        indexes: Sequence[int],
        records: Sequence[StoredRecord] | None,
        common: bytes,
        handles: Sequence[str],
        answer: PopAnswer,
    ) -> int:
        """Put messages of a delivery into an answer; return the bits of those that ended instead. `records` is None if
        one of them could not be read with the others.
        """
        ended = 0
        ending = self.ending
        if ending is not None and records is not None and ending.concerns(delivery.topic):
            ended = self._end(ending, delivery, dict(zip(indexes, records, strict=True)))
            living = [number for number, index in enumerate(indexes) if not ended >> index & 1]
            indexes, records, handles = (
                [indexes[number] for number in living],
                [records[number] for number in living],
                [handles[number] for number in living],
            )
        try:
            with RECORD_STEP:
                messages = None if records is None else delivered_message.popped_messages(records, common, handles)
        except RecordFaultError:
            messages = None
        if messages is None:
            return ended | self._answer_one_by_one(delivery, indexes, common, handles, answer)
        answer.handles += handles
        answer.messages += messages
        return ended

    def _end(self, ending: Ending, delivery: Delivery, stored: Mapping[int, StoredRecord]) -> int:
        """End the messages of a delivery that are not to be delivered; return their bits."""
        ended = ending.ended(delivery, stored, self._wall_clock.wall_ms())
        if ended:
            self.ended += len(ended)
            with suppress(StatusError):  # the disk is full: it is tried again when they come due
                ending.end(delivery, ended)
        return sum(1 << index for index in ended)

    def _answer_one_by_one(
        self,
        delivery: Delivery,
        indexes: Sequence[int],
        common: bytes,
        handles: Sequence[str],
        answer: PopAnswer,
    ) -> int:
        """Put the readable messages of a delivery into an answer, and the others into quarantine; return the bits of
        those that ended instead.
        """
        all_ended = 0
        ending = self.ending if self.ending is not None and self.ending.concerns(delivery.topic) else None
        for index, handle in zip(indexes, handles, strict=True):
            stored = None
            try:
                with RECORD_STEP:
                    stored = self._messages.message(delivery, index)
                    messages = [] if stored is None else delivered_message.popped_messages([stored], common, [handle])
            except RecordFaultError as fault:
                with suppress(StatusError):  # it is redelivered when it is due
                    self._quarantine.quarantine_delivery(delivery, index, stored, Step.ANSWER, fault, attempted=False)
                continue
            except (CorruptDataError, NotInMemory):
                # It is redelivered when it is due, and that waits for the device, or for repair.
                self._suspend(delivery, index)
                continue
            ended = 0 if stored is None or ending is None else self._end(ending, delivery, {index: stored})
            all_ended |= ended
            if messages and not ended:
                answer.handles.append(handle)
                answer.messages += messages
        return all_ended

    def _suspend(self, delivery: Delivery, index: int) -> None:
        """Record that a delivery is no attempt: no client got a message of a message-group queue (P5)."""
        if delivery.lines:
            identity = self._state.table.make_id(delivery.revive_queue)
            hidden_ms = delivery.due_of(index) - delivery.pop_time_ms
            new = delivery.changed(index, identity, delivery.pop_time_ms, hidden_ms, suspends=True)
            new.holder = None
            with suppress(StatusError):  # the disk is full: it counts
                self._store.put([delivery_record(self._topics.revive, new)])

    def _delivery(self, request: PopRequest, taken: Taken, now_ms: int) -> Delivery:
        group, topic = request.group, taken.progress.queue.topic if request.lite else request.topic
        revive_queue = revive_queue_of(group, topic, taken.progress.queue.queue_id) if taken.lines else None
        identity = self._state.table.make_id(revive_queue)
        return taken.delivery(identity, group, topic, now_ms, request.invisible_ms)


def _attempts_of(taken: Taken) -> int | tuple[int, ...]:
    """Return the failed attempts of taken messages; for a group that consumes in order their delivery has them."""
    if taken.origin == receipt.FROM_TOPIC:
        return 0
    return UNKNOWN_ATTEMPTS if taken.records is None else tuple(each.attempts for each in taken.records)


def _fitting(entries: Sequence[Entry], bytes_max: int) -> int:
    """Return how many entries fit, at least one: a message larger than the limit must still be deliverable."""
    total = 0
    for count, entry in enumerate(entries):
        total += entry.length
        if total > bytes_max and count > 0:
            return count
    return len(entries)
