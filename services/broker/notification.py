"""Interests of proxies in arriving messages: one per (topic, group, filter), however many polls wait at a proxy."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from services.broker.store.consume_queue import ConsumeQueue
from services.common import names
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code


@dataclass(slots=True, eq=False)
class Interest:
    """One interest of one proxy.

    Args:
        id: the proxy's number for it.
        subscriber: the proxy.
        topic: what it waits for.
        group: for whom.
        wanted: tag hashes, None for all (messages of the retry topic are always wanted).
    """

    id: int
    subscriber: "Subscriber"
    topic: str
    group: str
    wanted: frozenset[int] | None


@dataclass(slots=True, eq=False)
class Subscriber:
    """One proxy's stream.

    Args:
        wake: called when there is something to tell, once until it is taken.
    """

    wake: Callable[[], None]
    interests: dict[int, Interest] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)
    _refused: dict[int, None] = field(default_factory=dict)

    def tell(self, interest_id: int, messages: int) -> None:
        """Note that messages wait for an interest; with 0, that it is registered."""
        first = not (self._waiting or self._refused)
        self._waiting[interest_id] = self._waiting.get(interest_id, 0) + messages
        if first:
            self.wake()

    def refuse(self, interest_id: int) -> None:
        """Note that an interest was not registered."""
        first = not (self._waiting or self._refused)
        self._refused[interest_id] = None
        if first:
            self.wake()

    def take(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Ids of interests with the number of messages that wait, and of those refused, since the last call."""
        interests = self.interests
        waiting = [(interest_id, count) for interest_id, count in self._waiting.items() if interest_id in interests]
        refused = [interest_id for interest_id in self._refused if interest_id not in interests]
        self._waiting.clear()
        self._refused.clear()
        return waiting, refused


class Interests:
    """All interests, found by the topic that a message arrives in.

    Args:
        limit: how many there may be.

    Attributes:
        refused: how often one was refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.refused = 0
        self._by_topic: dict[str, list[Interest]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, interest: Interest) -> None:
        """Register an interest; one of the same id of the same proxy is replaced.

        Raises:
            StatusError: TOO_MANY_REQUESTS, there are too many.
        """
        if self._count >= self._limit and interest.id not in interest.subscriber.interests:
            self.refused += 1
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"{self._count} interests are registered, the limit (broker.pop.notify_interests_max); use fewer",
            )
        self.cancel(interest.subscriber, interest.id)
        interest.subscriber.interests[interest.id] = interest
        for topic in _topics(interest):
            self._by_topic.setdefault(topic, []).append(interest)
        self._count += 1

    def cancel(self, subscriber: Subscriber, interest_id: int) -> None:
        """End an interest, if there is one of that id."""
        interest = subscriber.interests.pop(interest_id, None)
        if interest is None:
            return
        for topic in _topics(interest):
            interests = self._by_topic[topic]
            interests.remove(interest)
            if not interests:
                del self._by_topic[topic]
        self._count -= 1

    def cancel_all(self, subscriber: Subscriber) -> None:
        """End all interests of a proxy that has gone."""
        for interest_id in list(subscriber.interests):
            self.cancel(subscriber, interest_id)

    def of_topic(self, topic: str) -> list[Interest]:
        """Those in messages of a topic, or of a retry topic."""
        return list(self._by_topic.get(topic, ()))

    def of_groups(self, groups: Container[str]) -> list[Interest]:
        """Those of some groups; looks at all there are."""
        return [
            interest
            for topic, interests in self._by_topic.items()
            for interest in interests
            if interest.group in groups and interest.topic == topic
        ]

    def arrived(self, queue: ConsumeQueue, tag_hashes: Sequence[int]) -> None:
        """Tell those who wait for them that messages have become readable."""
        for interest in self._by_topic.get(queue.topic, ()):
            wanted = interest.wanted
            if wanted is None or queue.topic != interest.topic:
                interest.subscriber.tell(interest.id, len(tag_hashes))
            elif messages := sum(tag_hash in wanted for tag_hash in tag_hashes):
                interest.subscriber.tell(interest.id, messages)


def _topics(interest: Interest) -> tuple[str, str]:
    return interest.topic, names.retry_topic(interest.group, interest.topic)
