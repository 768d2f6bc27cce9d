"""Lag of each group in each topic, for metrics: too many pairs are not counted all at once."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice

from popwheel_broker.consume.group_queues import GroupQueues
from popwheel_broker.consume.merge_buffer import MergeBuffer
from popwheel_common.contract import names
from popwheel_common.series import OTHER, SERIES_MAX, Labels, bounded

_AT_ONCE = 5000
_FEW = 500
_NONE: Mapping[tuple[str, str], int] = {}


class ConsumerLag:
    """Counts the messages that wait for delivery, in all queues of the topics that groups read.

    Args:
        buffer: how far groups are.
        group_queues: which queues they read.
        blocked: number of blocked messages by group and topic: they wait for others of their message group.
    """

    def __init__(
        self, buffer: MergeBuffer, group_queues: GroupQueues, blocked: Mapping[tuple[str, str], int] = _NONE
    ) -> None:
        self._buffer = buffer
        self._group_queues = group_queues
        self._blocked = blocked
        self._counting: Iterator[None] | None = None
        self._counted: Mapping[Labels, int] = {}
        self._are_many = False
        self._size = 0
        self.is_known = False
        """True once all was counted."""
        self.of_groups: Mapping[str, int] = {}
        """The lag that `ready` has returned last, by group: all that it has counted together is in it."""
        self.of_topics: Mapping[str, int] = {}
        """The same by topic."""

    def ready(self) -> Mapping[Labels, int]:
        """Messages by group and topic as clients name it: now if there are few queues, else as they were when `step`
        was through last.
        """
        if not self._are_many:
            self._are_many = sum(1 for _ in islice(self._count(), _AT_ONCE)) == _AT_ONCE
        return self._counted

    def few(self) -> Iterator[None]:
        """Count again few queues, in steps of half a millisecond; else `of_groups` is as `step` left it."""
        if not self._are_many:
            for number, _ in enumerate(self._count(), 1):
                if number == _AT_ONCE:
                    self._are_many = True
                    return
                if number % _FEW == 0:
                    yield
            self.is_known = True

    def step(self) -> bool:
        """Count on for a few milliseconds if there are many, to be called often; whether it is to go on soon."""
        if not self._are_many:
            return False
        if self._counting is None:
            self._counting, self._size = self._count(), 0
        size = sum(1 for _ in islice(self._counting, _AT_ONCE))
        self._size += size
        if size == _AT_ONCE:
            return True
        self._counting, self.is_known = None, True
        self._are_many = self._size >= _AT_ONCE
        return False

    def _count(self) -> Iterator[None]:
        found: dict[Labels, int] = {}
        of_groups: dict[str, int] = defaultdict(int)
        of_topics: dict[str, int] = defaultdict(int)
        for group in self._group_queues.groups:
            of_topic: dict[str, int] = defaultdict(int)
            yield
            for queue in self._group_queues.queues_of(group):
                yield
                if queue is None:
                    continue
                waiting = self._buffer.of(group, queue).available_at_most
                if queue.is_lite:
                    of_topic[names.lite_parent(queue.topic)] += waiting + self._blocked.get((group, queue.topic), 0)
                else:
                    of_topic[queue.topic] += waiting
            for topic, count in of_topic.items():
                found[group, topic] = ready = count + self._blocked.get((group, topic), 0)
                of_groups[group] += ready
                of_topics[topic] += ready
                if len(found) > 2 * SERIES_MAX:
                    others = found.pop((OTHER, OTHER), 0)
                    found = dict(bounded(found))
                    found[OTHER, OTHER] += others
                yield
        self._counted, self.of_groups, self.of_topics = found, of_groups, of_topics
