"""Consume queues of a broker, by topic: how many there may be, which have changed, and where new ones begin."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from popwheel_broker.log.consume_queue import ConsumeQueue, LiteQueue
from popwheel_broker.log.sorted_names import SortedNames
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.shares import room

_RESERVE_SHARE = 16
_RESERVE_MIN = 4096

QueueName = tuple[str, int]

QUEUE_ID_MAX = 65_535
"""Largest queue id that a record of the commit log can have."""


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """Changes since the last ones were taken; to be applied in the order of the fields.

    Args:
        gone: topics whose queues are no more; they may have been made again since.
        queues: those that are new or have grown.
        position: of the commit log; what came into them later is none of this.
        offsets_from: see `Queues.offsets_from`.
    """

    gone: list[str]
    queues: Mapping[ConsumeQueue, None]
    position: int
    offsets_from: int

    def rows(self) -> Iterator[tuple[str, int, int, int]]:
        """Topic, number, first offset ever and next offset of each queue; made one by one, as they may be many."""
        for queue in self.queues:
            yield queue.topic, queue.queue_id, queue.begin_offset, queue.next_offset_before(self.position)


def reserve_of(limit: int) -> int:
    """Return how many of the broker's own queues there may be beyond the limit."""
    return limit // _RESERVE_SHARE + _RESERVE_MIN


class Queues:
    """The queues.

    Args:
        limit: how many there may be but for those of lite topics, and some of the broker's own beyond.
        make: makes an empty one.
        lite_limit: how many lite topics there may be; the topics that they are of share it. Each has one queue.
    """

    def __init__(self, limit: int, make: Callable[[str, int], ConsumeQueue], lite_limit: int = 0) -> None:
        self._limit = limit
        self._lite_limit = lite_limit
        self._make = make
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._lite: dict[str, dict[str, LiteQueue]] = {}
        """Queues of lite topics: by their topic and their stored name, as a dict for each would be large."""
        self._lite_names: dict[str, SortedNames] = {}
        """The same names in their order."""
        self.lite_topics = 0
        """Number of them."""
        self._retries_of_topic: dict[str, dict[str, None]] = {}
        self._retries_of_group: dict[str, dict[str, None]] = {}
        self._count = 0
        self._changed: dict[ConsumeQueue, None] = {}
        self._recent: dict[ConsumeQueue, None] = {}
        self._deleted: dict[str, None] = {}
        self.system_topics: dict[str, None] = {}
        """Queues of the system's topics that have queues: dead letters, deliveries, timers; not the retry topics."""
        self.offsets_from = 0
        """First offset of queues that are made from now on: no dropped queue has a larger one.

        So an offset names one message for good (S3), though nothing is kept of the dropped ones. A fold over the log,
        as they are.
        """

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for topic in list(self._by_topic):  # queues may come and go meanwhile
            yield from self.of_topic(topic)
        for parent in list(self._lite):
            yield from self.lite_of(parent)

    def __getitem__(self, name: QueueName) -> ConsumeQueue:
        queue = self.get(*name)
        if queue is None:
            raise KeyError(name)
        return queue

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of that name; None if there is none."""
        queues = self._by_topic.get(topic)
        if queues is not None:
            return queues.get(queue_id)
        lite = self._lite.get(names.lite_parent(topic)) if self._lite else None
        return lite.get(topic) if lite is not None and not queue_id else None

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Queues of a topic; of one of lite topics none, as each of these is a topic."""
        queues = self._by_topic.get(topic)
        if queues is not None:
            return list(queues.values())
        queue = self.get(topic, 0)
        return [] if queue is None else [queue]

    def lite_of(self, topic: str) -> list[LiteQueue]:
        """Queues of the lite topics of a topic, in the order in which they came about."""
        return list(self._lite.get(topic, {}).values())

    def lite_names(self, topic: str, after: str, count: int) -> list[str]:
        """Return some of the names under which the lite topics of a topic are stored, in their order.

        Args:
            topic: the topic.
            after: they come after this one.
            count: how many.
        """
        found = self._lite_names.get(topic)
        return [] if found is None else found.behind(after, count)

    def lite_count(self, topic: str) -> int:
        """Return the number of a topic's lite topics."""
        return len(self._lite.get(topic, ()))

    @property
    def lite_parents(self) -> list[str]:
        """Topics that have lite topics."""
        return list(self._lite)

    def retry_topics(self, topic: str, count_max: int | None = None) -> list[str]:
        """Return the retry topics, of all groups, that have queues and are of a topic, or some of them; sorted."""
        return sorted(islice(self._retries_of_topic.get(topic, ()), count_max))

    def retry_topics_of_group(self, group: str, count_max: int | None = None) -> list[str]:
        """Return the retry topics, of all topics, that have queues and are of a group, or some of them; sorted."""
        return sorted(islice(self._retries_of_group.get(group, ()), count_max))

    def ensure(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue of that name, made empty if there is none.

        Raises:
            StatusError: the limit of queues is reached, or no record can hold the name or the number.
        """
        queue = self.get(topic, queue_id)
        if queue is None:
            if not names.is_storable(topic):
                raise StatusError(Code.ILLEGAL_TOPIC, f"{names.shown(topic)} is longer than the name of a topic can be")
            if not 0 <= queue_id <= QUEUE_ID_MAX:
                raise StatusError(
                    Code.BAD_REQUEST, f"a topic cannot have a queue {queue_id}; numbers go from 0 to {QUEUE_ID_MAX}"
                )
            if names.kind_of(topic) is names.Kind.LITE:
                self._check_lite(topic, queue_id)
            elif not self.has_room(topic, queue_id):
                raise StatusError(
                    Code.TOO_MANY_REQUESTS,
                    f"this broker holds {self._count - self.lite_topics} queues, its limit (broker.log.queues_max); "
                    "delete topics",
                )
            queue = self.take_up(topic, queue_id)
        return queue

    def _check_lite(self, topic: str, queue_id: int) -> None:
        if queue_id:
            raise StatusError(Code.BAD_REQUEST, f"a lite topic has no queue {queue_id}; its only one is 0")
        parent = names.lite_parent(topic)
        count = self.lite_count(parent)
        if not room(self._lite_limit, self.lite_topics, count):
            raise StatusError(
                Code.LITE_TOPIC_QUOTA_EXCEEDED,
                f"this broker has {self.lite_topics} lite topics, {count} of them of {parent}: that is its share of "
                "the limit (broker.lite.topics_max); let old ones expire (--lite-expiration of their topic), or delete "
                "topics",
            )

    def take_up(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue of a name in the log or a checkpoint; it is made if need be, whatever the limit is now."""
        queue = self.get(topic, queue_id)
        if queue is None:
            queue = self._add(topic, queue_id)
            queue.begin_at(self.offsets_from)
            self._changed[queue] = None
        return queue

    def has_room(self, topic: str, queue_id: int) -> bool:
        """Return whether `ensure` gives the queue of that name.

        Sends may not take what the broker needs for itself: to redeliver, to fire, to hide what is delivered.
        """
        limit = self._limit if names.kind_of(topic) is names.Kind.USER else self._limit + reserve_of(self._limit)
        return self._count - self.lite_topics < limit or self.get(topic, queue_id) is not None

    @property
    def room(self) -> int:
        """Number of queues that the topics of clients may still get."""
        return max(0, self._limit - (self._count - self.lite_topics))

    def drop(self, topic: str, next_offset: Callable[[ConsumeQueue], int]) -> list[ConsumeQueue]:
        """A topic was deleted, or a lite topic has ended: nothing is kept of its queues, which are returned. With a
        topic go its lite topics.

        Args:
            topic: the topic.
            next_offset: where a queue would have gone on.
        """
        dropped = self._drop_lite(topic)
        queues = self._by_topic.pop(topic, None)
        if queues is not None:
            self._deleted[topic] = None
            dropped += queues.values()
        self._count -= len(dropped)
        for queue in dropped:
            self.offsets_from = max(self.offsets_from, next_offset(queue))
            self._changed.pop(queue, None)
        if queues is None:
            return dropped
        self.system_topics.pop(topic, None)
        for index, key in self._retry_indexes(topic):
            of_key = index[key]
            del of_key[topic]
            if not of_key:
                del index[key]
        return dropped

    def _drop_lite(self, topic: str) -> list[ConsumeQueue]:
        """Queues of the lite topics of a topic, or that of one lite topic, which are no more."""
        if not self._lite:
            return []
        parent = names.lite_parent(topic)
        lite = self._lite.get(parent)
        if lite is None:
            return []
        dropped: list[ConsumeQueue] = []
        if parent == topic:
            dropped += lite.values()
        elif topic in lite:
            dropped.append(lite.pop(topic))
            self._lite_names[parent].remove(topic)
        if parent == topic or not lite:
            del self._lite[parent], self._lite_names[parent]
        self.lite_topics -= len(dropped)
        self._deleted.update(dict.fromkeys(queue.topic for queue in dropped))
        return dropped

    def changed(self, queue: ConsumeQueue) -> None:
        """Record that a queue has grown."""
        self._recent[queue] = None
        if self.get(queue.topic, queue.queue_id) is queue:  # else its topic was deleted before this was committed
            self._changed[queue] = None

    def restore(self, topic: str, queue_id: int, begin_offset: int, max_offset: int) -> None:
        """Take up a queue as a checkpoint has it, whatever the limit is now."""
        queue = self.get(topic, queue_id)
        if queue is None:
            queue = self._add(topic, queue_id)
        queue.restore(begin_offset, max_offset)

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._make(topic, queue_id)
        if isinstance(queue, LiteQueue):
            parent = names.lite_parent(topic)
            self._lite.setdefault(parent, {})[topic] = queue
            self._lite_names.setdefault(parent, SortedNames()).add(topic)
            self._count += 1
            self.lite_topics += 1
            return queue
        queues = self._by_topic.get(topic)
        if queues is None:
            queues = self._by_topic[topic] = {}
            self._index(topic)
        queues[queue_id] = queue
        self._count += 1
        return queue

    def take_recent(self) -> dict[ConsumeQueue, None]:
        """Queues that have grown since the last call."""
        recent, self._recent = self._recent, {}
        return recent

    @staticmethod
    def bounds(queue: ConsumeQueue) -> tuple[int, int]:
        """Return the saved state of a queue: its first offset ever and its next one."""
        return queue.begin_offset, queue.max_offset

    def take_changes(self, position: int) -> QueueChanges:
        """Return the changes since the last call.

        Args:
            position: of the commit log, up to which the queues have all.
        """
        changed, self._changed = self._changed, {}
        gone, self._deleted = self._deleted, {}
        return QueueChanges(list(gone), changed, position, self.offsets_from)

    def _index(self, topic: str) -> None:
        indexes = self._retry_indexes(topic)
        for index, key in indexes:
            index.setdefault(key, {})[topic] = None
        if not indexes and names.kind_of(topic) is not names.Kind.USER:
            self.system_topics[topic] = None

    def _retry_indexes(self, topic: str) -> tuple[tuple[dict[str, dict[str, None]], str], ...]:
        if not topic.startswith(names.RETRY_PREFIX):
            return ()
        return (
            (self._retries_of_topic, names.topic_of_retry_topic(topic)),
            (self._retries_of_group, names.group_of_retry_topic(topic)),
        )
