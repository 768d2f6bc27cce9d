"""The open deliveries of a broker: the result of its revive queues, read from their start.

Every delivery, ACK and renewal record that is appended is folded in here at once; recovery folds in the same records,
so both result in the same table (S6). It also has the due times of messages.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import TypeVar

from popwheel_broker.consume.delivery import REVIVE_QUEUES, Delivery, bit_indexes
from popwheel_broker.consume.delivery_orders import DeliveryIndex, DeliverySequence, LogStretches
from popwheel_broker.consume.holders import Holders
from popwheel_broker.consume.message_group_queues import MessageGroupQueues
from popwheel_common.contract import names
from popwheel_common.shares import Shares

_IDS_SKIPPED_AT_START = 1_000_000
_IDS_OF_AN_EPOCH = 10**11
_SCHEDULE_SLACK = 8192
_VOID_AT_ONCE = 8
_PASSED_OVER_MAX = 256
_NOT_SCHEDULED = -1
_LATEST_MAX = 10_000
"""Number of deliveries among which recent ones are searched."""
_FEW = 2_048
"""Number of deliveries of a group that are sorted at once."""
_BLOCKED_MAX = 400_000
_id_of = attrgetter("id")

_Key = TypeVar("_Key")


class ReviveTable:
    """Open deliveries, by revive queue and id.

    Args:
        blocked_max: see `MessageGroupQueues`.
    """

    def __init__(self, blocked_max: int = _BLOCKED_MAX) -> None:
        self._queues: list[dict[int, Delivery]] = [{} for _ in range(REVIVE_QUEUES)]
        self._stretches = LogStretches()
        self._sequence = DeliverySequence()
        self._due: list[tuple[int, int]] = []
        """A heap of due times and deliveries; an entry counts if its time is its delivery's `scheduled_ms`."""
        self._leaving: list[tuple[int, int]] = []
        """The same, while its valid entries are moved to `_due`, a few at a time."""
        self._due_max = _SCHEDULE_SLACK
        self._next_number = 1
        self._by_group = DeliveryIndex(lambda each: each.group)
        self._lasting_by_topic = DeliveryIndex(lambda each: each.topic)
        """Deliveries that do not lapse when their topic is deleted: messages were copied, or are blocked."""
        self.message_group_queues = MessageGroupQueues(blocked_max)
        """Message-group queues of ordered groups."""
        self.holders = Holders()
        """Holders of delivered messages."""
        self.latest_pop_ms = 0
        """Time when the latest delivery was made."""
        self.shares = Shares()
        """Number of delivered messages by group."""
        self.in_flight: dict[tuple[str, ...], int] = {}
        """The same by group and topic as clients name it: metrics can't scan a million deliveries."""
        self.in_flight_of_topic: dict[str, int] = {}
        """The same of each topic."""
        self._in_flight_of_queue: dict[tuple[str, str, int, int], int] = {}

    def __len__(self) -> int:
        """Return the number of open deliveries."""
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[Delivery]:
        for queue in self._queues:
            yield from queue.values()

    def in_queue(self, revive_queue: int) -> list[Delivery]:
        """Return the deliveries of one revive queue, the oldest first."""
        return list(self._queues[revive_queue].values())

    @property
    def open_messages(self) -> int:
        """Number of delivered messages."""
        return self.shares.total

    @property
    def next_number(self) -> int:
        """Least number that no id was made with yet."""
        return self._next_number

    def restart_ids(self, next_number: int, epoch: int) -> None:
        """Continue with ids that no earlier process has used, not even without a trace.

        Each epoch has a range of its own: a master whose log was dropped (by an unclean election, say) has left receipt
        handles with clients, and they must not be valid for deliveries of its successor.

        Args:
            next_number: as a checkpoint has it.
            epoch: in which the ids are made.
        """
        self._next_number = max(self._next_number, next_number, epoch * _IDS_OF_AN_EPOCH + 1) + _IDS_SKIPPED_AT_START

    def make_id(self, revive_queue: int | None = None) -> int:
        """Return an id for a new delivery, in a given revive queue or in the next one in turn."""
        number = self._next_number
        self._next_number += 1
        return number * REVIVE_QUEUES + (number % REVIVE_QUEUES if revive_queue is None else revive_queue)

    def has_made(self, delivery_id: int) -> bool:
        """Return whether this master or an earlier one may have made this id: a later one continues behind them."""
        return delivery_id // REVIVE_QUEUES < self._next_number

    def get(self, delivery_id: int) -> Delivery | None:
        """Return an open delivery."""
        return self._queues[delivery_id % REVIVE_QUEUES].get(delivery_id)

    def replacement(self, delivery_id: int, queue_offset: int, call: int) -> Delivery | None:
        """Return the open delivery by which a call replaced a message of another one; 0 is any call.

        Only the latest of its queue are searched.
        """
        latest = islice(reversed(self._queues[delivery_id % REVIVE_QUEUES].values()), _LATEST_MAX)
        for delivery in latest:
            origin = delivery.replaces
            if origin is not None and origin.delivery_id == delivery_id and queue_offset in delivery.offsets:
                return delivery if delivery.call == call or not (delivery.call and call) else None
        return None

    def open(self, delivery: Delivery) -> Delivery | None:
        """Fold in a delivery record; return the delivery that it closed, if it replaced that one's last open message.

        A record of an id that is open already is a copy, written to bring it forward in its queue.
        """
        queue = self._queues[delivery.revive_queue]
        earlier = queue.get(delivery.id)
        if earlier is not None:
            self._bring_forward(earlier, delivery)
            return None
        self._next_number = max(self._next_number, delivery.id // REVIVE_QUEUES + 1)
        self.latest_pop_ms = max(self.latest_pop_ms, delivery.pop_time_ms)
        if delivery.open_bits:
            queue[delivery.id] = delivery
            self._stretches.add(delivery)
            self._sequence.add(delivery)
            self._by_group.add(delivery)
            if delivery.copies or delivery.is_blocked:
                self._lasting_by_topic.add(delivery)
            if delivery.lines:
                self.message_group_queues.add(delivery)
            messages = delivery.open_bits.bit_count()
            self._count(delivery, messages)
            if not delivery.is_blocked:
                self.holders.opened(delivery, messages)
            self._schedule(delivery)
        if delivery.replaces is None:
            return None
        return self.close(delivery.replaces.delivery_id, 1 << delivery.replaces.index)

    def close(self, delivery_id: int, bits: int) -> Delivery | None:
        """Fold in that messages of a delivery are done; return the delivery if none of its messages is open any
        more.
        """
        queue = self._queues[delivery_id % REVIVE_QUEUES]
        delivery = queue.get(delivery_id)
        if delivery is None:
            return None
        closed = delivery.open_bits & bits
        messages = closed.bit_count()
        self._count(delivery, -messages)
        delivery.open_bits &= ~bits
        if delivery.lines:
            self.message_group_queues.remove(delivery, closed)
        if not delivery.is_blocked:
            self.holders.ended(delivery, messages, is_closed=not delivery.open_bits)
        if delivery.open_bits:
            return None
        del queue[delivery_id]
        self._stretches.remove(delivery)
        self._sequence.remove(delivery)
        self._by_group.remove(delivery)
        self._lasting_by_topic.remove(delivery)
        return delivery

    def renew(self, delivery_id: int, bits: int, due_ms: int) -> None:
        """Fold in that messages of a delivery are hidden until `due_ms`."""
        delivery = self.get(delivery_id)
        if delivery is None:
            return
        if delivery.open_bits & ~bits:
            delivery.renewed.update(dict.fromkeys(bit_indexes(bits), due_ms))
        else:
            delivery.due_ms = due_ms
            delivery.renewed.clear()
        self._schedule(delivery)

    def next_due_ms(self) -> int | None:
        """Return when the first message comes due, or somewhat earlier; None if none is open."""
        for _ in range(_VOID_AT_ONCE):
            heap = self._earliest()
            if not heap or self._counts(heap[0]):
                break
            heapq.heappop(heap)
        heap = self._earliest()
        return heap[0][0] if heap else None

    def take_due(self, now_ms: int, messages_max: int) -> list[tuple[Delivery, list[int]]]:
        """Return deliveries with the indexes of their due messages, the longest due first; none, too, where many
        entries of closed deliveries had to be passed over: `next_due_ms` says whether more is due.

        They stay open until `close`; `postpone` returns them if they could not be handled.
        """
        taken: list[tuple[Delivery, list[int]]] = []
        count = passed_over = 0
        while (heap := self._earliest()) and heap[0][0] <= now_ms and count < messages_max:
            due_ms, identity = heapq.heappop(heap)
            delivery = self.get(identity)
            if delivery is None or delivery.scheduled_ms != due_ms:
                passed_over += 1
                if passed_over >= _PASSED_OVER_MAX:
                    break
                continue
            delivery.scheduled_ms = _NOT_SCHEDULED
            indexes = [index for index in delivery.open_indexes() if delivery.due_of(index) <= now_ms]
            if indexes:
                taken.append((delivery, indexes))
                count += len(indexes)
            later = [due for index in delivery.open_indexes() if (due := delivery.due_of(index)) > now_ms]
            if later:
                self._put(delivery, min(later))
        return taken

    def postpone(self, delivery: Delivery, until_ms: int) -> None:
        """Check a delivery again at a later time, though it is due."""
        scheduled_ms = delivery.scheduled_ms
        self._put(delivery, until_ms if scheduled_ms == _NOT_SCHEDULED else min(until_ms, scheduled_ms))

    def oldest_offset(self, revive_queue: int, end_offset: int) -> int:
        """Return the committed offset of a revive queue: that of its oldest open delivery, its end if none is open."""
        oldest = next(iter(self._queues[revive_queue].values()), None)
        return end_offset if oldest is None else oldest.revive_offset

    def lagging(self, revive_queue: int, before_offset: int, limit: int) -> list[Delivery]:
        """Return open deliveries whose records stand before an offset of their revive queue, to be rewritten at its
        end.
        """
        found: list[Delivery] = []
        for delivery in self._queues[revive_queue].values():
            if delivery.revive_offset >= before_offset or len(found) >= limit:
                break
            found.append(delivery)
        return found

    def _bring_forward(self, delivery: Delivery, copy: Delivery) -> None:
        """Update an open delivery from a copy of its record, which may have places of copied messages. The object
        itself stays: callers may have a reference to it.
        """
        assert copy.revive_offset >= delivery.revive_offset, "the copy of a delivery stands before it"
        if copy.copies != delivery.copies or copy.first_position != delivery.first_position:
            self._stretches.remove(delivery)
            delivery.copies, delivery.first_position = copy.copies, copy.first_position
            self._stretches.add(delivery)
            self._lasting_by_topic.remove(delivery)
            if delivery.copies or delivery.is_blocked:
                self._lasting_by_topic.add(delivery)
        queue = self._queues[delivery.revive_queue]
        queue[delivery.id] = queue.pop(delivery.id)
        delivery.revive_offset = copy.revive_offset

    def first_position(self) -> int | None:
        """Return the least position of the commit log that an open delivery needs; None if none is open."""
        return self._stretches.first_position()

    def standing_before(self, position: int, revive_offsets: Sequence[int]) -> list[Delivery]:
        """Return the open deliveries that need something before a position of the log, or whose record is before an
        offset.

        Args:
            position: of the log.
            revive_offsets: of each revive queue.
        """
        found = list(self._stretches.before(position))
        for queue, offset in zip(self._queues, revive_offsets, strict=True):
            for delivery in queue.values():
                if delivery.revive_offset >= offset:
                    break
                if delivery.first_position >= position:
                    found.append(delivery)
        return found

    def _count(self, delivery: Delivery, messages: int) -> None:
        """Count messages that are delivered or blocked, or (negative) no longer."""
        queue = (delivery.group, delivery.topic, delivery.origin, delivery.queue_id)
        in_flight = self._in_flight_of_queue.get(queue, 0) + messages
        assert in_flight >= 0, "more messages came back than were delivered (P1)"
        if in_flight:
            self._in_flight_of_queue[queue] = in_flight
        else:
            self._in_flight_of_queue.pop(queue, None)
        if delivery.is_blocked:
            return  # delivered to no client
        self.shares.take(delivery.group, messages)
        topic = names.client_topic(delivery.topic) if delivery.lines else delivery.topic
        _add(self.in_flight, (delivery.group, topic), messages)
        _add(self.in_flight_of_topic, topic, messages)

    def in_flight_of(self, group: str, topic: str, origin: int, queue_id: int) -> int:
        """Return how many messages of a queue are in flight for a group: read, and not done with.

        Args:
            group: the group.
            topic: that clients ask for.
            origin: whether it is one of that topic's queues, or its retry topic's (`receipt.FROM_...`).
            queue_id: which.
        """
        return self._in_flight_of_queue.get((group, topic, origin, queue_id), 0)

    def of_group(self, group: str) -> list[Delivery]:
        """Return the open deliveries of a group."""
        return self._by_group.of(group)

    def count_of_group(self, group: str) -> int:
        """Return the number of a group's open deliveries."""
        return self._by_group.count(group)

    def begin_at(self, delivery_id: int, group: str) -> Iterator[Delivery]:
        """Yield the open deliveries from an id on, in the order of their ids, of a small group or else of all groups.

        The result is void when any of them changes. Whatever replaces a delivery has a higher id.

        Args:
            delivery_id: the first that is wanted.
            group: whose deliveries are wanted; empty for all. Those of others may be among them.
        """
        if group and self._by_group.count(group) <= _FEW:
            return iter(sorted((each for each in self.of_group(group) if each.id >= delivery_id), key=_id_of))
        return self._sequence.begin_at(delivery_id)

    def lasting_of(self, topic: str) -> list[Delivery]:
        """Return the open deliveries of a topic that outlive its deletion: messages were copied, or are blocked."""
        return self._lasting_by_topic.of(topic)

    def count_of_lasting(self, topic: str) -> int:
        """Return the number of such deliveries of a topic."""
        return self._lasting_by_topic.count(topic)

    def _schedule(self, delivery: Delivery) -> None:
        if delivery.is_blocked:
            return
        self._put(delivery, self._first_due(delivery))
        self._drop_void()

    def _put(self, delivery: Delivery, due_ms: int) -> None:
        delivery.scheduled_ms = due_ms
        heapq.heappush(self._due, (due_ms, delivery.id))

    def _earliest(self) -> list[tuple[int, int]]:
        """Return the heap whose first entry is the earlier one; an empty one if both are."""
        if self._leaving and (not self._due or self._leaving[0] < self._due[0]):
            return self._leaving
        return self._due

    def _counts(self, entry: tuple[int, int]) -> bool:
        delivery = self.get(entry[1])
        return delivery is not None and delivery.scheduled_ms == entry[0]

    def _drop_void(self) -> None:
        """Drop entries of deliveries that were closed before they were due, so that they do not pile up.

        A few are dropped at a time: all of a million would block everybody for a second.
        """
        if not self._leaving:
            if len(self._due) < self._due_max:
                return
            self._leaving, self._due = self._due, []
        for _ in range(min(_VOID_AT_ONCE, len(self._leaving))):
            entry = self._leaving.pop()  # the last one: the rest is a heap as before
            if self._counts(entry):
                heapq.heappush(self._due, entry)
        if not self._leaving:
            self._due_max = 2 * len(self._due) + _SCHEDULE_SLACK

    @staticmethod
    def _first_due(delivery: Delivery) -> int:
        if not delivery.renewed:
            return delivery.due_ms
        return min(delivery.due_of(index) for index in delivery.open_indexes())


def _add(counts: dict[_Key, int], key: _Key, messages: int) -> None:
    """Add to a count, or subtract; a count of 0 is not stored."""
    count = counts.get(key, 0) + messages
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
