"""The lite topics of a broker: arrivals in them, their readers, and their end.

A lite topic is a topic of the store that nobody created, with one queue. It begins with its first message.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from popwheel_broker.lite.lite_pops import LitePops
from popwheel_broker.lite.readers import ClientKey, LiteClient
from popwheel_broker.lite.subscriptions import LiteSubscriptions
from popwheel_broker.log.consume_queue import LiteQueue
from popwheel_broker.log.message_store import MessageStore
from popwheel_common.cold_reads import NotInMemory
from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import CorruptDataError

_CHECKS_AT_ONCE = 500
"""Number of lite topics that one step checks: a millisecond."""
_UNKNOWN_CHECKS = 20
"""Count of a lite topic that has to be read for it."""
_GROUPS_AT_ONCE = 500
"""The number of groups, reading lite topics of a topic, that a message is recorded for at once: half a millisecond."""


class LiteTopics:
    """State of lite topics in a core.

    Args:
        store: the messages.
        view: topics, and when their lite topics end.
        subscriptions: of clients.
        pops: delivers messages.
        end: drops lite topics by their stored names, and records it in the log.
        ends_max: returns how many may be dropped at once.
        notify_end: notifies a client that a lite topic has ended.
    """

    def __init__(
        self,
        store: MessageStore,
        view: ClusterView,
        subscriptions: LiteSubscriptions,
        pops: LitePops,
        end: Callable[[Sequence[str]], None],
        ends_max: Callable[[], int],
        notify_end: Callable[[ClientKey, str], None],
    ) -> None:
        self._store = store
        self._view = view
        self.subscriptions = subscriptions
        self.pops = pops
        self._end = end
        self._ends_max = ends_max
        self._notify_end = notify_end
        self._rest: Iterator[LiteQueue] = iter(())
        self._arrived: dict[str, None] = {}
        """Lite topics with a new message that many groups are yet to be notified of, by their stored names."""
        self._to_notify: deque[str] = deque()
        """Lite topics that have expired and of which clients are yet to be notified, by their stored names."""
        self._clients_to_notify: list[LiteClient] = []
        """The clients of the first of these that are left to notify."""
        self.expired = 0
        """Number of lite topics that have ended because no message came for too long."""
        self.emptied = 0
        """Number of lite topics that have ended because retention took their last message."""

    # Arrivals

    def arrived(self, queue: LiteQueue) -> None:
        """Record that a message has become readable in a lite topic."""
        topic = queue.topic
        queue.last_ms = self._store.latest_ms or 0
        parent = names.lite_parent(topic)
        groups = self.subscriptions.groups_of(parent)
        later = self.subscriptions.later
        if len(groups) <= _GROUPS_AT_ONCE or later is None:
            if groups:
                self._record_arrival(topic)
            return
        if not self._arrived:
            later(0, self._record_arrivals)
        self._arrived[topic] = None

    def _record_arrival(self, topic: str) -> int:
        """Record a message of a lite topic for all groups that may have it; return how many groups were checked."""
        subscriptions, lines = self.subscriptions, self.pops.message_group_queues
        groups, lite_topic = subscriptions.groups_of(names.lite_parent(topic)), names.lite_of(topic)
        for group in groups.values():
            if lite_topic in group.readers and not lines.has(group.name, topic):
                subscriptions.notify_one(group, lite_topic)
        return len(groups)

    def _record_arrivals(self) -> None:
        """Record some of the messages that many groups may have: for all groups of one lite topic at the least."""
        looks = 0
        while self._arrived and looks < _GROUPS_AT_ONCE:
            topic = next(iter(self._arrived))
            del self._arrived[topic]
            looks += self._record_arrival(topic)
        if self._arrived and self.subscriptions.later is not None:
            self.subscriptions.later(0, self._record_arrivals)

    def became_ready(self, group: str, topic: str) -> None:
        """Record that an earlier message has become ready, or that no message of the lite topic is in flight any
        more.
        """
        lite_topic, parent = names.lite_of(topic), names.lite_parent(topic)
        found = self.subscriptions.groups_of(parent).get(group)
        if found is not None and lite_topic in found.readers and self.pops.waits(group, parent, lite_topic):
            self.subscriptions.notify_one(found, lite_topic)

    def record_waiting(self, client: LiteClient, lite_topics: Sequence[str]) -> None:
        """Record waiting messages, as a client reads these lite topics from now on, or its group's offsets were set."""
        group, topic, _ = client.key
        for each in lite_topics:
            if self.pops.waits(group, topic, each):
                self.subscriptions.notify_one(client.group, each)

    # The end of lite topics

    @property
    def ended(self) -> int:
        """Number of lite topics that have ended, for any reason."""
        return self.expired + self.emptied

    def step(self, now_ms: int, checks_max: int = _CHECKS_AT_ONCE) -> bool:
        """Check some lite topics, and end expired and empty ones; return whether a round over all of them is complete.

        Args:
            now_ms: wall clock.
            checks_max: limit of checks; a lite topic that has to be read counts as several.

        Raises:
            StatusError: the disk is full; they are checked again in the next round.
            NotInMemory: unchecked ones are checked again.
        """
        if self._notify_some(checks_max):
            return False
        over: list[LiteQueue] = []
        expired: list[str] = []
        looks = 0
        is_through = True
        ends_max = self._ends_max()
        for queue in self._rest:
            try:
                looks += 1 if queue.last_ms else _UNKNOWN_CHECKS
                if self._is_idle(queue):
                    if queue.min_offset >= queue.max_offset:
                        over.append(queue)
                    elif self._has_expired(queue, now_ms):
                        looks += _UNKNOWN_CHECKS
                        over.append(queue)
                        expired.append(queue.topic)
            except CorruptDataError:
                continue  # it stands still, which the metrics show
            except NotInMemory:
                self._rest = chain((queue,), self._rest)
                if not over:
                    raise
                looks = checks_max
            if looks >= checks_max or len(over) >= ends_max:
                is_through = False
                break
        if over:
            self._end([queue.topic for queue in over])
            self.expired += len(expired)
            self.emptied += len(over) - len(expired)
            self._to_notify += expired
        if is_through:
            self._rest = self._all()
        return is_through and not self._to_notify

    def _all(self) -> Iterator[LiteQueue]:
        """Yield all lite topics; those of one topic as they are in its turn."""
        for parent in self._store.queues.lite_parents:
            yield from self._store.queues.lite_of(parent)

    def _is_idle(self, queue: LiteQueue) -> bool:
        """Return whether it still exists, and no message is being stored in it."""
        store = self._store
        return store.queue(queue.topic, 0) is queue and store.next_offset(queue.topic, 0) == queue.max_offset

    def _has_expired(self, queue: LiteQueue, now_ms: int) -> bool:
        topic = self._view.topics.get(names.lite_parent(queue.topic))
        if topic is None or not topic.lite_expiration_ms:
            return False
        before_ms = now_ms - topic.lite_expiration_ms
        if self.last_ms(queue) > before_ms:
            return False
        # A deletion must not depend on bytes that were never checked.
        offset = queue.max_offset - 1
        records = self._store.records.read_checked(queue, (offset,), queue.read(offset, 1))
        return records[0].store_time_ms <= before_ms

    def last_ms(self, queue: LiteQueue) -> int:
        """Return the wall-clock time of a lite topic's last message, as its header has it; 0 if it is unknown.

        Raises:
            CorruptDataError: its header, or its queue, is damaged.
        """
        if not queue.last_ms:
            entries = queue.read(queue.max_offset - 1, 1)
            queue.last_ms = (self._store.records.stored_at_ms(entries[0].position) or 0) if entries else 0
        return queue.last_ms

    def _notify_some(self, checks_max: int) -> bool:
        """Notify some clients that they read a lite topic no more. Return whether there are more of them."""
        looks = 0
        while self._to_notify and looks < checks_max:
            parent, lite_topic = names.lite_parent(self._to_notify[0]), names.lite_of(self._to_notify[0])
            if not self._clients_to_notify:
                groups = self.subscriptions.groups_of(parent)
                looks += 1 + len(groups)
                self._clients_to_notify = [each for group in groups.values() for each in group.readers_of(lite_topic)]
            while self._clients_to_notify and looks < checks_max:
                looks += 1
                client = self._clients_to_notify.pop()
                self.subscriptions.remove(client, (lite_topic,))
                self._notify_end(client.key, lite_topic)
            if not self._clients_to_notify:
                self._to_notify.popleft()
        return bool(self._to_notify)
