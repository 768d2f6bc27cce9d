"""Message-group queues: which message of each message group an ordered consumer group may have next (P6).

A message-group queue (a line) has the messages of one message group in one queue that a consumer group has read and not
acknowledged. Its head is the message with the lowest offset. The head is delivered, or ready: then a pop may take it.
All others are blocked. So a message in flight blocks its own message group and no other. An acknowledgement makes the
next message of its line ready at once, without a scan.

The lines follow from the open deliveries, so they are the same wherever the log is folded (S6). A message without a
message group is a line of its own: nothing waits for it.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice
from zlib import crc32

from popwheel_broker.consume.delivery import REVIVE_QUEUES, Delivery, bit_indexes
from popwheel_common.shares import Shares

Member = tuple[Delivery, int]
"""A message of a delivery: the delivery, and the message's index there."""

_Pair = tuple[str, str]
"""Consumer group and topic."""

_RESUME_ONE_IN = 32


class _MessageGroupQueue:
    """A message-group queue; it is not empty.

    Args:
        key: hash of the message group; for a message without one its offset, as a negative number.
    """

    __slots__ = ("key", "members", "order")

    def __init__(self, key: int) -> None:
        self.key = key
        self.members: dict[int, Member] = {}
        """Messages by offset."""
        self.order: list[int] = []
        """A heap of offsets; those that are not in `members` any more are passed over."""

    def head(self) -> Member:
        """Return the first message."""
        while (member := self.members.get(self.order[0])) is None:
            heappop(self.order)
        return member


class MessageGroupQueues:
    """Message-group queues of a broker.

    Args:
        blocked_max: limit of blocked messages; past it no more are read until some were delivered.
    """

    def __init__(self, blocked_max: int) -> None:
        self._blocked_max = blocked_max
        self._lines: dict[_Pair, dict[int, dict[int, _MessageGroupQueue]]] = {}
        """Message-group queues by group and topic, queue, and key."""
        self._ready: dict[_Pair, dict[_MessageGroupQueue, None]] = {}
        self.blocked = Shares()
        """Number of blocked messages by group: read and not delivered."""
        self.blocked_of: dict[_Pair, int] = {}
        """The same by group and topic."""
        self.paused: dict[_Pair, None] = {}
        """Groups and topics of which no more is read, as too many messages are blocked."""
        self.on_ready: Callable[[str, str], None] = _nobody
        """Called with group and topic when a message has become ready, or more may be read again."""
        self.on_free: Callable[[str, str], None] = _nobody
        """Called with group and topic when no message is in a message-group queue any more."""

    def __len__(self) -> int:
        """Return the number of message-group queues."""
        return sum(len(lines) for queues in self._lines.values() for lines in queues.values())

    def has(self, group: str, topic: str) -> bool:
        """Return whether a group has read messages of a topic in order and not acknowledged them."""
        return (group, topic) in self._lines

    def of_queue(self, group: str, topic: str, queue_id: int) -> Mapping[int, _MessageGroupQueue]:
        """Return the message-group queues of a queue, by hash of the message group.

        A message without one is free: when it is read it may be delivered.
        """
        return self._lines.get((group, topic), _NO_QUEUES).get(queue_id, _NO_LINES)

    def behind(self, delivery: Delivery, index: int) -> int:
        """Return the number of read messages behind one in its message-group queue."""
        key = delivery.lines[index] or -1 - delivery.offsets[index] if delivery.lines else 0
        line = self.of_queue(delivery.group, delivery.topic, delivery.queue_id).get(key)
        return 0 if line is None else len(line.members) - 1

    def ready(self, group: str, topic: str) -> int:
        """Return the number of read messages that a pop may take."""
        return len(self._ready.get((group, topic), ()))

    def heads(self, group: str, topic: str, count: int) -> list[Member]:
        """Return the first messages that are ready, the longest-ready ones first."""
        return [line.head() for line in islice(self._ready.get((group, topic), ()), count)]

    def room(self, group: str, topic: str) -> int:
        """Return how many messages more may be read for a group, each of which may be blocked.

        Once there was no room, reading resumes only when a part of the limit is free again: else each delivered message
        would have one read, and a poll woken for it.
        """
        room = self.blocked.room(group, self._blocked_max)
        if room and (group, topic) in self.paused and not self._resumes(group):
            return 0
        return room

    def pause(self, group: str, topic: str) -> None:
        """Record that there are more messages to read than there is room for: `on_ready` is called when there is."""
        self.paused[group, topic] = None

    # What changes them

    def add(self, delivery: Delivery) -> None:
        """Add an opened delivery; it takes over those of its messages that are in their lines already."""
        pair = (delivery.group, delivery.topic)
        queues = self._lines.setdefault(pair, {})
        lines = queues.setdefault(delivery.queue_id, {})
        is_blocked, hashes, offsets = delivery.is_blocked, delivery.lines, delivery.offsets
        blocked = 0
        for index in delivery.open_indexes():
            offset = offsets[index]
            key = hashes[index] or -1 - offset
            line = lines.get(key)
            if line is None:
                line = lines[key] = _MessageGroupQueue(key)
                line.order.append(offset)
                line.members[offset] = (delivery, index)
                if is_blocked:
                    blocked += 1
                    self._ready.setdefault(pair, {})[line] = None
                    if delivery.sources:
                        self.on_ready(*pair)
                continue
            before = line.members.get(offset)
            if before is None:
                heappush(line.order, offset)
            elif before[0].is_blocked:
                blocked -= 1
            line.members[offset] = (delivery, index)
            blocked += is_blocked
            if self._update_readiness(pair, line) and delivery.sources:
                self.on_ready(*pair)
        self._count(pair, blocked)

    def remove(self, delivery: Delivery, bits: int) -> None:
        """Remove messages of a delivery that are done, or that another delivery has taken over."""
        pair = (delivery.group, delivery.topic)
        queues = self._lines.get(pair, _NO_QUEUES)
        lines = queues.get(delivery.queue_id)
        if lines is None:
            return
        hashes, offsets = delivery.lines, delivery.offsets
        blocked = 0
        for index in bit_indexes(bits):
            offset = offsets[index]
            line = lines.get(hashes[index] or -1 - offset)
            if line is None or (member := line.members.get(offset)) is None or member[0] is not delivery:
                continue
            del line.members[offset]
            blocked += delivery.is_blocked
            if line.members:
                if self._update_readiness(pair, line):
                    self.on_ready(*pair)
            else:
                del lines[line.key]
                if delivery.is_blocked:
                    self._not_ready(pair, line)
        if not lines:
            del queues[delivery.queue_id]
            if not queues:
                del self._lines[pair]
        self._count(pair, -blocked)
        if not queues:
            self.on_free(*pair)

    def _update_readiness(self, pair: _Pair, line: _MessageGroupQueue) -> bool:
        """Record whether a line's head is ready; return whether it has become so."""
        if not line.head()[0].is_blocked:
            self._not_ready(pair, line)
            return False
        ready = self._ready.setdefault(pair, {})
        if line in ready:
            return False
        ready[line] = None
        return True

    def _not_ready(self, pair: _Pair, line: _MessageGroupQueue) -> None:
        ready = self._ready.get(pair)
        if ready is not None and line in ready:
            del ready[line]
            if not ready:
                del self._ready[pair]

    def _count(self, pair: _Pair, messages: int) -> None:
        if not messages:
            return
        self.blocked.take(pair[0], messages)
        blocked = self.blocked_of.get(pair, 0) + messages
        if blocked:
            self.blocked_of[pair] = blocked
        else:
            self.blocked_of.pop(pair, None)
        if messages < 0 and self.paused:
            for paused in [each for each in self.paused if self._resumes(each[0])]:
                del self.paused[paused]
                self.on_ready(*paused)

    def _resumes(self, group: str) -> bool:
        room = self.blocked.room(group, self._blocked_max)
        return room > self._blocked_max // _RESUME_ONE_IN or (room > 0 and not self.blocked.share(group))

    def members(self) -> Iterator[tuple[_Pair, tuple[int, int], int, int]]:
        """Yield group and topic, queue and line, offset and delivery id of every message, for comparisons in tests."""
        for pair, queues in self._lines.items():
            for queue_id, lines in queues.items():
                for key, line in lines.items():
                    for offset, (delivery, _) in line.members.items():
                        yield pair, (queue_id, key), offset, delivery.id


def revive_queue_of(group: str, topic: str, queue_id: int) -> int:
    """Return the one revive queue of all deliveries of an ordered group in a queue. A delivery that takes messages over
    from others must stand behind them wherever they are read, and recovery reads each revive queue by itself.
    """
    return (crc32(f"{group} {topic}".encode()) + queue_id) % REVIVE_QUEUES


_NO_LINES: dict[int, _MessageGroupQueue] = {}
_NO_QUEUES: dict[int, dict[int, _MessageGroupQueue]] = {}


def _nobody(group: str, topic: str) -> None:
    pass
