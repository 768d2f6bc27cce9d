"""Pops of groups that consume in order: the first message of each message-group queue, while no client has it (P6).

Messages that such a pop reads and may not deliver are blocked: a delivery records them, which no client has. So the log
has each message that was read, and a blocked message is not read again until it is delivered.
"""

from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from popwheel_broker.consume.delivery import Delivery, Origin, close_record, delivery_record, renewal_record
from popwheel_broker.consume.delivery_messages import DeliveryMessages
from popwheel_broker.consume.merge_buffer import Popped, QueueProgress
from popwheel_broker.consume.message_group_queues import Member, MessageGroupQueues, revive_queue_of
from popwheel_broker.consume.pop_clock import PopClock
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.consume.receives import Receives
from popwheel_broker.consume.taken import Budget, Taken
from popwheel_broker.consume.wanted import Wanted
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import StoredRecord, hash_tag
from popwheel_broker.topics.system_topics import SystemTopics
from popwheel_common.contract import receipt
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest

_READ_MAX = 256
"""Limit of messages that one pop reads of queues: some milliseconds, if all of them are blocked."""

Take = Callable[[QueueProgress, int, Wanted, Budget, list[Taken]], None]
"""Reads the next messages of one queue, in any order."""


class OrderedPops:
    """Takes messages for ordered groups.

    Args:
        store: the messages.
        state: messages in flight, and progress.
        topics: where delivery records go.
        clock: for pop and due times.
        take: reads a queue.
    """

    def __init__(self, store: MessageStore, state: PopState, topics: SystemTopics, clock: PopClock, take: Take) -> None:
        self._store = store
        self._state = state
        self._topics = topics
        self._clock = clock
        self._take = take
        self._messages = DeliveryMessages(store, topics)
        self.receives = Receives()
        """The receives that have delivered messages."""

    @property
    def message_group_queues(self) -> MessageGroupQueues:
        """Message-group queues with unacknowledged messages."""
        return self._state.table.message_group_queues

    def take_ready(self, group: str, topic: str, budget: Budget, taken: list[Taken]) -> None:
        """Take blocked messages that are the first of their message-group queues now.

        Raises:
            StatusError: the disk is full.
        """
        by_queue: dict[int, list[Member]] = {}
        for member in self.message_group_queues.heads(group, topic, budget.messages):
            by_queue.setdefault(member[0].queue_id, []).append(member)
        gone: dict[Delivery, int] = {}
        for queue_id, members in by_queue.items():
            queue = self._store.queue(topic, queue_id)
            begin = 0 if queue is None else queue.min_offset
            for delivery, index in members:
                is_copied = index in delivery.copies
                if not is_copied and (queue is None or delivery.offsets[index] < begin):
                    gone[delivery] = gone.get(delivery, 0) | 1 << index
            there = [(each, index) for each, index in members if not gone.get(each, 0) >> index & 1]
            if there and queue is not None and not budget.is_spent:
                there.sort(key=_offset_of)
                self._take_over(group, queue, there, budget, taken)
        self._drop(gone)

    def _take_over(
        self,
        group: str,
        queue: ConsumeQueue,
        members: list[Member],
        budget: Budget,
        taken: list[Taken],
    ) -> None:
        records = self._read(members)
        if records is not None:
            fitting = _fitting(records, budget.response_bytes)
            records, members = records[:fitting], members[:fitting]
            budget.response_bytes -= sum(each.length for each in records)
        budget.messages -= len(members)
        offsets = tuple(map(_offset_of, members))
        taken.append(
            Taken(
                self._state.merge_buffer.of(group, queue),
                receipt.FROM_TOPIC,
                offsets,
                records,
                offsets[0],
                offsets[-1] + 1,
                min(delivery.first_position for delivery, _ in members),
                lines=tuple(delivery.lines[index] for delivery, index in members),
                attempts=tuple(delivery.attempts[index] for delivery, index in members),
                sources=tuple(Origin(delivery.id, index) for delivery, index in members),
                copies={
                    number: delivery.copies[index]
                    for number, (delivery, index) in enumerate(members)
                    if index in delivery.copies
                },
            )
        )

    def _read(self, members: Sequence[Member]) -> list[StoredRecord] | None:
        """Return the messages; None if one of them is poison or damaged: then each is read by itself."""
        try:
            with RECORD_STEP:
                found = self._messages.read(members)
        except (RecordFaultError, CorruptDataError):
            return None
        records = [each for each in found if each is not None]
        return records if len(records) == len(members) else None

    def read_on(
        self,
        request: PopRequest,
        progress: QueueProgress,
        wanted: Wanted,
        budget: Budget,
        taken: list[Taken],
    ) -> None:
        """Read a queue until some of its messages can be delivered; block those whose message group is in flight.

        Raises:
            StatusError: the disk is full.
        """
        group, topic = request.group, request.topic
        budget.scan_entries = min(budget.scan_entries, _READ_MAX)
        while not budget.is_spent:
            room = self.message_group_queues.room(group, topic)
            if not room:
                if progress.available_at_most:
                    self.message_group_queues.pause(group, topic)
                return
            before, asked = len(taken), budget.messages
            budget.messages = min(asked, room)
            self._take(progress, receipt.FROM_TOPIC, wanted, budget, taken)
            budget.messages = asked
            if len(taken) == before:
                return
            each = taken.pop()
            free = self._find_lines(request, each)
            budget.messages -= len(free)
            if len(free) == len(each.offsets):
                taken.append(each)
                return
            # All that was read is blocked first, so that there is no moment at which the log has a part of it only.
            blocked = self._block(request, each)
            if free:
                taken.append(_part(each, blocked, free))
                return

    def _find_lines(self, request: PopRequest, taken: Taken) -> list[int]:
        """Find the message-group queues of messages; return the indexes of those that may be delivered."""
        taken.lines = tuple(self._lines_of(taken))
        taken.attempts = (0,) * len(taken.lines)
        lines = self.message_group_queues.of_queue(request.group, request.topic, taken.progress.queue.queue_id)
        met: set[int] = set()
        free: list[int] = []
        for index, key in enumerate(taken.lines):
            if not key:
                free.append(index)
            elif key not in met:
                met.add(key)
                if key not in lines:
                    free.append(index)
        return free

    def _lines_of(self, taken: Taken) -> list[int]:
        if taken.records is not None:
            return [line_of(each) for each in taken.records]
        lines: list[int] = []
        for offset, entry in zip(taken.offsets, taken.entries, strict=True):
            try:
                with RECORD_STEP:
                    lines.append(
                        line_of(self._store.records.read_checked(taken.progress.queue, (offset,), (entry,))[0])
                    )
            except RecordFaultError:
                lines.append(0)  # it goes to the quarantine as soon as it is delivered
        return lines

    def _block(self, request: PopRequest, taken: Taken) -> Delivery:
        """Record that messages were read and that no client has them."""
        group, topic, queue_id = request.group, request.topic, taken.progress.queue.queue_id
        identity = self._state.table.make_id(revive_queue_of(group, topic, queue_id))
        blocked = taken.delivery(identity, group, topic, self._clock.now_ms(), 0, is_blocked=True)
        self._store.put([delivery_record(self._topics.revive, blocked, Popped(blocked, taken.progress))])
        return blocked

    def _drop(self, gone: dict[Delivery, int]) -> None:
        """Close blocked messages that retention has taken: their message-group queues go on (P4)."""
        if gone:
            revive = self._topics.revive
            self._store.put([close_record(revive, each.id, bits) for each, bits in gone.items()])

    def drop_before(self, group: str, queue: ConsumeQueue, offset: int) -> None:
        """Drop the blocked messages of a group before an offset that was set: they are not delivered any more.

        Raises:
            StatusError: the disk is full.
        """
        gone: dict[Delivery, int] = {}
        for delivery in self._state.table.lasting_of(queue.topic):
            if delivery.is_blocked and (delivery.group, delivery.queue_id) == (group, queue.queue_id):
                bits = sum(1 << index for index in delivery.open_indexes() if delivery.offsets[index] < offset)
                if bits:
                    gone[delivery] = bits
        self._drop(gone)

    # Retries of a receive

    def again(self, request: PopRequest) -> list[tuple[Delivery, list[int], list[StoredRecord]]]:
        """Return the messages that this very try of a receive got before and still has.

        They are hidden for the whole time once more.

        Raises:
            StatusError: the disk is full.
        """
        found: list[tuple[Delivery, list[int], list[StoredRecord]]] = []
        now_ms = self._clock.now_ms()
        for identity in self.receives.given_before(request):
            delivery = self._state.table.get(identity)
            if delivery is None:
                continue
            indexes = [
                index
                for index in delivery.open_indexes()
                if delivery.due_of(index) > now_ms and self._messages.place(delivery, index) is not None
            ]
            records = self._read([(delivery, index) for index in indexes])
            if indexes and records is not None:
                found.append((delivery, indexes, records))
        if found:
            due_ms = now_ms + request.invisible_ms
            renewed = [(each, sum(1 << index for index in indexes)) for each, indexes, _ in found]
            self._store.put([renewal_record(self._topics.revive, each.id, bits, due_ms) for each, bits in renewed])
            self.receives.share(request, [each for each, _, _ in found])
        return found


def line_of(stored: StoredRecord) -> int:
    """Return the line of a message: the hash of its message group, 0 if it has none."""
    try:
        return hash_tag(SystemProperties.FromString(stored.system_properties).message_group)
    except DecodeError:
        return 0


def _part(taken: Taken, blocked: Delivery, indexes: Sequence[int]) -> Taken:
    """Return those of the messages that were just read and blocked that can be delivered."""
    offsets = tuple(taken.offsets[index] for index in indexes)
    return Taken(
        taken.progress,
        taken.origin,
        offsets,
        None if taken.records is None else [taken.records[index] for index in indexes],
        offsets[0],
        offsets[-1] + 1,
        taken.first_position,
        lines=tuple(taken.lines[index] for index in indexes),
        attempts=(0,) * len(indexes),
        sources=tuple(Origin(blocked.id, index) for index in indexes),
    )


def _offset_of(member: Member) -> int:
    delivery, index = member
    return delivery.offsets[index]


def _fitting(records: Sequence[StoredRecord], bytes_max: int) -> int:
    """Return how many messages fit, at least one."""
    total = 0
    for count, each in enumerate(records):
        total += each.length
        if total > bytes_max and count > 0:
            return count
    return len(records)
