"""The open check points of a broker: what its revive queues say when they are read from their start.

Every CK, ACK and renewal record that is appended is folded in here at once; recovery folds in the same records, so
both give the same table (S6). It also knows which messages are due.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import TypeVar

from popwheel_broker.consume.check_point import REVIVE_QUEUES, CheckPoint, bit_indexes
from popwheel_broker.consume.check_point_orders import CheckPointIndex, CheckPointSequence, LogStretches
from popwheel_broker.consume.holders import Holders
from popwheel_broker.consume.lines import Lines
from popwheel_common.contract import names
from popwheel_common.shares import Shares

_IDS_SKIPPED_AT_START = 1_000_000
_IDS_OF_AN_EPOCH = 10**11
_SCHEDULE_SLACK = 8192
_VOID_AT_ONCE = 8
_PASSED_OVER_MAX = 256
_NOT_SCHEDULED = -1
_LATEST_MAX = 10_000
"""Number of CKs among which recent ones are searched."""
_FEW = 2_048
"""Number of CKs of a group that are sorted at once."""
_HELD_MAX = 400_000
_id_of = attrgetter("id")

_Key = TypeVar("_Key")


class ReviveTable:
    """All open CKs, by revive queue and id.

    Args:
        held_max: see `Lines`.
    """

    def __init__(self, held_max: int = _HELD_MAX) -> None:
        self._queues: list[dict[int, CheckPoint]] = [{} for _ in range(REVIVE_QUEUES)]
        self._stretches = LogStretches()
        self._sequence = CheckPointSequence()
        self._due: list[tuple[int, int]] = []
        """A heap of due times and CKs; those entries count that say when their CK is `scheduled_ms`."""
        self._leaving: list[tuple[int, int]] = []
        """The same, while what counts of it is brought over to `_due`, a little at a time."""
        self._due_max = _SCHEDULE_SLACK
        self._next_number = 1
        self._by_group = CheckPointIndex(lambda each: each.group)
        self._lasting_by_topic = CheckPointIndex(lambda each: each.topic)
        """Those that do not lapse by themselves when their topic is deleted: messages were copied, or are held."""
        self.lines = Lines(held_max)
        """Message-group queues of ordered groups."""
        self.holders = Holders()
        """Holders of delivered messages."""
        self.latest_pop_ms = 0
        """Time when the latest CK was made."""
        self.shares = Shares()
        """Number of delivered messages by group."""
        self.in_flight: dict[tuple[str, ...], int] = {}
        """The same of each group and topic as clients name it: metrics can't go through a million CKs."""
        self.in_flight_of_topic: dict[str, int] = {}
        """The same of each topic."""
        self._in_flight_of_queue: dict[tuple[str, str, int, int], int] = {}

    def __len__(self) -> int:
        """Return the number of open CKs."""
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[CheckPoint]:
        for queue in self._queues:
            yield from queue.values()

    def in_queue(self, revive_queue: int) -> list[CheckPoint]:
        """Those of one revive queue, the oldest first."""
        return list(self._queues[revive_queue].values())

    @property
    def open_messages(self) -> int:
        """Number of delivered messages."""
        return self.shares.total

    @property
    def next_number(self) -> int:
        """The least number that no id was made with yet."""
        return self._next_number

    def restart_ids(self, next_number: int, epoch: int) -> None:
        """Go on with ids that were given out by no earlier process, not even without a trace.

        Each epoch has a range of its own: a master whose log was given up (by an unclean election, say) has left
        receipt handles with clients, and they must not be good for what its successor gives out.

        Args:
            next_number: as a checkpoint tells it.
            epoch: in which the ids are made.
        """
        self._next_number = max(self._next_number, next_number, epoch * _IDS_OF_AN_EPOCH + 1) + _IDS_SKIPPED_AT_START

    def make_id(self, revive_queue: int | None = None) -> int:
        """An id for a new CK, in a given revive queue or in the next one in turn."""
        number = self._next_number
        self._next_number += 1
        return number * REVIVE_QUEUES + (number % REVIVE_QUEUES if revive_queue is None else revive_queue)

    def has_made(self, check_point_id: int) -> bool:
        """Return whether this master or one before it may have made this id: a later one goes on behind them."""
        return check_point_id // REVIVE_QUEUES < self._next_number

    def get(self, check_point_id: int) -> CheckPoint | None:
        """An open CK."""
        return self._queues[check_point_id % REVIVE_QUEUES].get(check_point_id)

    def replacement(self, check_point_id: int, queue_offset: int, call: int) -> CheckPoint | None:
        """The open CK by which a call put something in the place of a message of another one; 0 is any call.

        It is looked for among the latest of its queue.
        """
        latest = islice(reversed(self._queues[check_point_id % REVIVE_QUEUES].values()), _LATEST_MAX)
        for check_point in latest:
            origin = check_point.replaces
            if origin is not None and origin.check_point_id == check_point_id and queue_offset in check_point.offsets:
                return check_point if check_point.call == call or not (check_point.call and call) else None
        return None

    def open(self, check_point: CheckPoint) -> CheckPoint | None:
        """Fold in a CK record; the CK that it closed, if it took the place of that one's last open message.

        A record of an id that is open already is a copy, written to bring it forward in its queue.
        """
        queue = self._queues[check_point.revive_queue]
        earlier = queue.get(check_point.id)
        if earlier is not None:
            self._bring_forward(earlier, check_point)
            return None
        self._next_number = max(self._next_number, check_point.id // REVIVE_QUEUES + 1)
        self.latest_pop_ms = max(self.latest_pop_ms, check_point.pop_time_ms)
        if check_point.open_bits:
            queue[check_point.id] = check_point
            self._stretches.add(check_point)
            self._sequence.add(check_point)
            self._by_group.add(check_point)
            if check_point.copies or check_point.is_held:
                self._lasting_by_topic.add(check_point)
            if check_point.lines:
                self.lines.add(check_point)
            messages = check_point.open_bits.bit_count()
            self._count(check_point, messages)
            if not check_point.is_held:
                self.holders.opened(check_point, messages)
            self._schedule(check_point)
        if check_point.replaces is None:
            return None
        return self.close(check_point.replaces.check_point_id, 1 << check_point.replaces.index)

    def close(self, check_point_id: int, bits: int) -> CheckPoint | None:
        """Fold in that messages of a CK are done with; the CK, if none of its messages is open any more."""
        queue = self._queues[check_point_id % REVIVE_QUEUES]
        check_point = queue.get(check_point_id)
        if check_point is None:
            return None
        closed = check_point.open_bits & bits
        messages = closed.bit_count()
        self._count(check_point, -messages)
        check_point.open_bits &= ~bits
        if check_point.lines:
            self.lines.remove(check_point, closed)
        if not check_point.is_held:
            self.holders.ended(check_point, messages, is_closed=not check_point.open_bits)
        if check_point.open_bits:
            return None
        del queue[check_point_id]
        self._stretches.remove(check_point)
        self._sequence.remove(check_point)
        self._by_group.remove(check_point)
        self._lasting_by_topic.remove(check_point)
        return check_point

    def renew(self, check_point_id: int, bits: int, due_ms: int) -> None:
        """Fold in that messages of a CK are hidden until `due_ms`."""
        check_point = self.get(check_point_id)
        if check_point is None:
            return
        if check_point.open_bits & ~bits:
            check_point.renewed.update(dict.fromkeys(bit_indexes(bits), due_ms))
        else:
            check_point.due_ms = due_ms
            check_point.renewed.clear()
        self._schedule(check_point)

    def next_due_ms(self) -> int | None:
        """Return when the first message comes due, or somewhat earlier; None if none is open."""
        for _ in range(_VOID_AT_ONCE):
            heap = self._earliest()
            if not heap or self._counts(heap[0]):
                break
            heapq.heappop(heap)
        heap = self._earliest()
        return heap[0][0] if heap else None

    def take_due(self, now_ms: int, messages_max: int) -> list[tuple[CheckPoint, list[int]]]:
        """CKs with the indexes of their messages that are due, the longest due first; none, too, where many entries had
        to be passed over whose CKs are closed: `next_due_ms` tells whether more is due.

        They stay open until `close` says otherwise; `postpone` brings them back if they could not be dealt with.
        """
        taken: list[tuple[CheckPoint, list[int]]] = []
        count = passed_over = 0
        while (heap := self._earliest()) and heap[0][0] <= now_ms and count < messages_max:
            due_ms, identity = heapq.heappop(heap)
            check_point = self.get(identity)
            if check_point is None or check_point.scheduled_ms != due_ms:
                passed_over += 1
                if passed_over >= _PASSED_OVER_MAX:
                    break
                continue
            check_point.scheduled_ms = _NOT_SCHEDULED
            indexes = [index for index in check_point.open_indexes() if check_point.due_of(index) <= now_ms]
            if indexes:
                taken.append((check_point, indexes))
                count += len(indexes)
            later = [due for index in check_point.open_indexes() if (due := check_point.due_of(index)) > now_ms]
            if later:
                self._put(check_point, min(later))
        return taken

    def postpone(self, check_point: CheckPoint, until_ms: int) -> None:
        """Look at a CK again at a later time, though it is due."""
        scheduled_ms = check_point.scheduled_ms
        self._put(check_point, until_ms if scheduled_ms == _NOT_SCHEDULED else min(until_ms, scheduled_ms))

    def oldest_offset(self, revive_queue: int, end_offset: int) -> int:
        """The offset committed for a revive queue: that of its oldest open CK, its end if none is open."""
        oldest = next(iter(self._queues[revive_queue].values()), None)
        return end_offset if oldest is None else oldest.revive_offset

    def lagging(self, revive_queue: int, before_offset: int, limit: int) -> list[CheckPoint]:
        """Open CKs whose records stand before an offset of their revive queue, to be written again at its end."""
        found: list[CheckPoint] = []
        for check_point in self._queues[revive_queue].values():
            if check_point.revive_offset >= before_offset or len(found) >= limit:
                break
            found.append(check_point)
        return found

    def _bring_forward(self, check_point: CheckPoint, copy: CheckPoint) -> None:
        """A copy of an open CK was appended, which may say where copies of its messages stand. The CK itself stays:
        others may have it in their hands.
        """
        assert copy.revive_offset >= check_point.revive_offset, "the copy of a CK stands before it"
        if copy.copies != check_point.copies or copy.first_position != check_point.first_position:
            self._stretches.remove(check_point)
            check_point.copies, check_point.first_position = copy.copies, copy.first_position
            self._stretches.add(check_point)
            self._lasting_by_topic.remove(check_point)
            if check_point.copies or check_point.is_held:
                self._lasting_by_topic.add(check_point)
        queue = self._queues[check_point.revive_queue]
        queue[check_point.id] = queue.pop(check_point.id)
        check_point.revive_offset = copy.revive_offset

    def first_position(self) -> int | None:
        """The least position of the commit log that an open CK needs; None if none is open."""
        return self._stretches.first_position()

    def standing_before(self, position: int, revive_offsets: Sequence[int]) -> list[CheckPoint]:
        """The open CKs that need something before a position of the log, or whose record stands before an offset.

        Args:
            position: of the log.
            revive_offsets: of each revive queue.
        """
        found = list(self._stretches.before(position))
        for queue, offset in zip(self._queues, revive_offsets, strict=True):
            for check_point in queue.values():
                if check_point.revive_offset >= offset:
                    break
                if check_point.first_position >= position:
                    found.append(check_point)
        return found

    def _count(self, check_point: CheckPoint, messages: int) -> None:
        """Count messages that are delivered or blocked, or (negative) no longer."""
        queue = (check_point.group, check_point.topic, check_point.origin, check_point.queue_id)
        in_flight = self._in_flight_of_queue.get(queue, 0) + messages
        assert in_flight >= 0, "more messages came back than were given out (P1)"
        if in_flight:
            self._in_flight_of_queue[queue] = in_flight
        else:
            self._in_flight_of_queue.pop(queue, None)
        if check_point.is_held:
            return  # given out to nobody
        self.shares.take(check_point.group, messages)
        topic = names.client_topic(check_point.topic) if check_point.lines else check_point.topic
        _add(self.in_flight, (check_point.group, topic), messages)
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

    def of_group(self, group: str) -> list[CheckPoint]:
        """The open CKs of a group."""
        return self._by_group.of(group)

    def count_of_group(self, group: str) -> int:
        """Return the number of a group's open CKs."""
        return self._by_group.count(group)

    def begin_at(self, check_point_id: int, group: str) -> Iterator[CheckPoint]:
        """The open CKs from an id on, in the order of their ids, of a group with few of them or else of all groups.

        To be gone through before any of them changes. Whatever takes the place of a CK has a higher id.

        Args:
            check_point_id: the first that is wanted.
            group: whose CKs are wanted; empty for all. Those of others may be among them.
        """
        if group and self._by_group.count(group) <= _FEW:
            return iter(sorted((each for each in self.of_group(group) if each.id >= check_point_id), key=_id_of))
        return self._sequence.begin_at(check_point_id)

    def lasting_of(self, topic: str) -> list[CheckPoint]:
        """The open CKs of a topic that do not lapse when it is deleted: messages were copied, or are held."""
        return self._lasting_by_topic.of(topic)

    def count_of_lasting(self, topic: str) -> int:
        """The number of such CKs that a topic has."""
        return self._lasting_by_topic.count(topic)

    def _schedule(self, check_point: CheckPoint) -> None:
        if check_point.is_held:
            return
        self._put(check_point, self._first_due(check_point))
        self._drop_void()

    def _put(self, check_point: CheckPoint, due_ms: int) -> None:
        check_point.scheduled_ms = due_ms
        heapq.heappush(self._due, (due_ms, check_point.id))

    def _earliest(self) -> list[tuple[int, int]]:
        """The heap whose first entry is the earlier one; an empty one if both are."""
        if self._leaving and (not self._due or self._leaving[0] < self._due[0]):
            return self._leaving
        return self._due

    def _counts(self, entry: tuple[int, int]) -> bool:
        check_point = self.get(entry[1])
        return check_point is not None and check_point.scheduled_ms == entry[0]

    def _drop_void(self) -> None:
        """A CK that was closed before it was due leaves its entry behind; they must not pile up.

        A few are dropped at a time: all of a million would hold everybody up for a second.
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
    def _first_due(check_point: CheckPoint) -> int:
        if not check_point.renewed:
            return check_point.due_ms
        return min(check_point.due_of(index) for index in check_point.open_indexes())


def _add(counts: dict[_Key, int], key: _Key, messages: int) -> None:
    """Count more, or fewer; a count of none is not kept."""
    count = counts.get(key, 0) + messages
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
