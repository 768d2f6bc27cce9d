"""The lines of ordered groups: which message of each message group a consumer group may have next (P6).

A line is what a consumer group has read of one message group in one queue, and has not acknowledged. Its head is the
message with the lowest offset. The head is given out, or ready: then a pop may take it. All others are held. So a
message that is given out holds back its own line and no other. An acknowledgement makes the next message of its line
ready at once, and nobody has to look for it.

The lines follow from the open CKs, so they are the same wherever the log is folded (S6). A message without a message
group is a line of its own: nothing waits for it.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from zlib import crc32

from services.broker.progress.check_point import REVIVE_QUEUES, CheckPoint, bit_indexes
from services.common.shares import Shares

Member = tuple[CheckPoint, int]
"""A message of a CK: that, and the message's index there."""

_Pair = tuple[str, str]
"""Consumer group and topic."""

_Key = tuple[int, int]
"""Queue, and hash of the message group; of a message without one its offset, as a negative number."""

_RESUME_ONE_IN = 32


class _Line:
    """One line; it is not empty."""

    __slots__ = ("members", "order")

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        """By offset."""
        self.order: list[int] = []
        """A heap of offsets; those that are no members any more are passed over."""

    def head(self) -> Member:
        """The message that comes first."""
        while (member := self.members.get(self.order[0])) is None:
            heappop(self.order)
        return member


class Lines:
    """All lines of a broker.

    Args:
        held_max: so many messages may be held; past it no more are read until some were given out.
    """

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._lines: dict[_Pair, dict[_Key, _Line]] = {}
        self._ready: dict[_Pair, dict[_Key, None]] = {}
        self.held = Shares()
        """Of each group: how many messages were read and are not given out."""
        self.held_of: dict[_Pair, int] = {}
        """The same by group and topic."""
        self.paused: dict[_Pair, None] = {}
        """Groups and topics of which no more is read, as too many messages are held."""
        self.on_ready: Callable[[str, str], None] = _nobody
        """Told of group and topic when a message has become ready that was not, or more may be read again."""

    def __len__(self) -> int:
        """How many lines there are."""
        return sum(map(len, self._lines.values()))

    def has(self, group: str, topic: str) -> bool:
        """Whether a group has read something of a topic in order and not acknowledged it."""
        return (group, topic) in self._lines

    def is_free(self, group: str, topic: str, queue_id: int, line: int) -> bool:
        """Whether nothing of a line is given out or held, so that a message which is read may be given out."""
        lines = self._lines.get((group, topic))
        return not line or lines is None or (queue_id, line) not in lines

    def ready(self, group: str, topic: str) -> int:
        """How many messages a pop may take of those that were read."""
        return len(self._ready.get((group, topic), ()))

    def heads(self, group: str, topic: str, count: int) -> list[Member]:
        """The first messages that are ready, those that have been for the longest time first."""
        keys = self._ready.get((group, topic), {})
        return [self._lines[group, topic][key].head() for key in islice(keys, count)]

    def room(self, group: str, topic: str) -> int:
        """How many messages more may be read for a group, each of which may have to be held.

        Once there was no room, reading goes on only when a part of the limit is free again: else each message that is
        given out would have one read, and a poll woken for it.
        """
        room = self.held.room(group, self._held_max)
        if room and (group, topic) in self.paused and not self._resumes(group):
            return 0
        return room

    def pause(self, group: str, topic: str) -> None:
        """More waits to be read than there is room for: `on_ready` tells when there is."""
        self.paused[group, topic] = None

    # What changes them

    def add(self, check_point: CheckPoint) -> None:
        """A CK was opened; of a message that stands in its line already this CK takes over."""
        pair = (check_point.group, check_point.topic)
        lines = self._lines.setdefault(pair, {})
        for index in check_point.open_indexes():
            key, offset = _key(check_point, index), check_point.offsets[index]
            line = lines.get(key)
            if line is None:
                line = lines[key] = _Line()
            before = line.members.get(offset)
            if before is None:
                heappush(line.order, offset)
            elif before[0].is_held:
                self._count(pair, -1)
            line.members[offset] = (check_point, index)
            if check_point.is_held:
                self._count(pair, 1)
            if self._look(pair, key, line) and check_point.sources:
                self.on_ready(*pair)

    def remove(self, check_point: CheckPoint, bits: int) -> None:
        """Messages of a CK are done with, or another CK has taken them over."""
        pair = (check_point.group, check_point.topic)
        lines = self._lines.get(pair, {})
        for index in bit_indexes(bits):
            key, offset = _key(check_point, index), check_point.offsets[index]
            line = lines.get(key)
            if line is None or (member := line.members.get(offset)) is None or member[0] is not check_point:
                continue
            del line.members[offset]
            if check_point.is_held:
                self._count(pair, -1)
            if line.members:
                if self._look(pair, key, line):
                    self.on_ready(*pair)
            else:
                del lines[key]
                self._not_ready(pair, key)
        if not lines:
            self._lines.pop(pair, None)

    def _look(self, pair: _Pair, key: _Key, line: _Line) -> bool:
        """Note whether a line's head is ready; whether it has become so."""
        if not line.head()[0].is_held:
            self._not_ready(pair, key)
            return False
        ready = self._ready.setdefault(pair, {})
        if key in ready:
            return False
        ready[key] = None
        return True

    def _not_ready(self, pair: _Pair, key: _Key) -> None:
        ready = self._ready.get(pair)
        if ready is not None:
            ready.pop(key, None)
            if not ready:
                del self._ready[pair]

    def _count(self, pair: _Pair, messages: int) -> None:
        self.held.take(pair[0], messages)
        held = self.held_of.get(pair, 0) + messages
        if held:
            self.held_of[pair] = held
        else:
            self.held_of.pop(pair, None)
        if messages < 0 and self.paused:
            for paused in [each for each in self.paused if self._resumes(each[0])]:
                del self.paused[paused]
                self.on_ready(*paused)

    def _resumes(self, group: str) -> bool:
        room = self.held.room(group, self._held_max)
        return room > self._held_max // _RESUME_ONE_IN or (room > 0 and not self.held.held(group))

    def members(self) -> Iterator[tuple[_Pair, _Key, int, int]]:
        """Group and topic, line, offset and CK of every message, for those who compare."""
        for pair, lines in self._lines.items():
            for key, line in lines.items():
                for offset, (check_point, _) in line.members.items():
                    yield pair, key, offset, check_point.id


def revive_queue_of(group: str, topic: str, queue_id: int) -> int:
    """The one revive queue of all CKs of an ordered group in a queue. A CK that takes messages over from others must
    stand behind them wherever they are read, and recovery reads each revive queue by itself.
    """
    return (crc32(f"{group} {topic}".encode()) + queue_id) % REVIVE_QUEUES


def _key(check_point: CheckPoint, index: int) -> _Key:
    return check_point.queue_id, check_point.lines[index] or -1 - check_point.offsets[index]


def _nobody(group: str, topic: str) -> None:
    pass
