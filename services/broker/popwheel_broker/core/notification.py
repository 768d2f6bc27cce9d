"""Interests of proxies in arriving messages: one per (topic, group, filter), however many polls wait at a proxy.

Of proxies that wait for the same, as many are notified as messages come, the others only if that did not help. Were all
notified of each message, all would pop and all but one find nothing. So members are notified in turn. One without a
waiting poll forwards its notification to the next; in one period, notifications are forwarded as often as a single one
needs to go round, however many there are (docs/decisions/0038-hand-on.md). A member that hangs or dies forwards
nothing; so a period later, if messages older than that period still wait, all are notified. Each message is thus either
taken, or known to all members after two such periods at the latest while no others come; while others do, each of them
has a member pop, which finds the older one.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from popwheel_broker.consume.scan import ENTRY_COST, SqlScan
from popwheel_broker.consume.sql_filter import SqlFilter
from popwheel_broker.consume.wanted import Wanted, filter_bytes
from popwheel_broker.core.arrivals import Arrivals, Arrived, Later
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.record import StoredRecord
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.shares import Shares

SubscriberSetKey = tuple[str, str, Wanted]
"""Topic, group and filter."""


@dataclass(slots=True, eq=False)
class Interest:
    """An interest of a proxy.

    Args:
        id: the proxy's number for it.
        subscriber: the proxy.
        topic: that it waits for.
        group: of the polls.
        wanted: the filter, None for all (messages of the retry topic are always wanted).
        client_id: the client that waits for messages in its lite topics of `topic`; empty for others.
    """

    id: int
    subscriber: "Subscriber"
    topic: str
    group: str
    wanted: Wanted
    client_id: str = ""

    @property
    def key(self) -> SubscriberSetKey:
        """Key that it shares with interests of other proxies in the same."""
        return (self.source, self.group, self.wanted)

    @property
    def source(self) -> str:
        """Source of its messages: a topic, or what one client reads of it."""
        return client_source(self.topic, self.client_id) if self.client_id else self.topic


@dataclass(slots=True, eq=False)
class Subscriber:
    """Stream of a proxy.

    Args:
        wake: called when there are notifications, once until they are taken.
    """

    wake: Callable[[], None]
    interests: dict[int, Interest] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)
    _refused: dict[int, bool] = field(default_factory=dict)
    lite_ends: deque[tuple[ClientKey, str]] = field(default_factory=lambda: deque(maxlen=LITE_ENDS_MAX))
    """Clients, and lite topics that have ended for them: to be notified."""

    def notify(self, interest_id: int, messages: int) -> None:
        """Add messages that wait for an interest; with 0, report that it is registered."""
        first = not (self._waiting or self._refused)
        self._waiting[interest_id] = self._waiting.get(interest_id, 0) + messages
        if first:
            self.wake()

    def refuse(self, interest_id: int, *, is_unknown_client: bool = False) -> None:
        """Report that an interest was not registered; maybe because the broker has no subscriptions of its client."""
        first = not (self._waiting or self._refused)
        self._refused[interest_id] = is_unknown_client
        if first:
            self.wake()

    def notify_end(self, client: ClientKey, lite_topic: str) -> None:
        """Report that a lite topic has ended that a client has read."""
        self.lite_ends.append((client, lite_topic))
        self.wake()

    def take(self) -> tuple[list[tuple[int, int]], list[tuple[int, bool]]]:
        """Return ids of interests with the number of messages that wait, and of those refused, since the last call; of
        these whether the broker has no subscriptions of the client.
        """
        interests = self.interests
        waiting = [(interest_id, count) for interest_id, count in self._waiting.items() if interest_id in interests]
        refused = [each for each in self._refused.items() if each[0] not in interests]
        self._waiting.clear()
        self._refused.clear()
        return waiting, refused


LITE_ENDS_MAX = 10_000
"""Limit of ends of lite topics that wait for a notification to a proxy.

It is not notified of further ones, and nothing is lost.
"""
_CANCELLED_AT_ONCE, _LITE_TOPICS_OF_ONE = 256, 16
"""The number of interests of a proxy that has gone that are ended at once: a millisecond or two.

Each counts as one more for every `_LITE_TOPICS_OF_ONE` lite topics that its client reads.
"""
WHILE_S = 0.02
"""Time that notified proxies have to take the messages."""
_MESSAGES_AT_ONCE, _TAGS_OF_ONE = 64, 32
"""Messages that are compared together; tags that are compared in about the time of a lookup of an entry."""
_ASKING_COST_MAX = 1_000_000
"""A limit in lookups of entries, about two seconds of work.

When filters have cost as much for messages that have arrived together, the remaining polls are notified. Else they
would wait for a notification for long.
"""
_AT_ONCE_MAX = 1_000
"""Tags that are compared at once when messages arrive, messages times filters. More are compared in later turns."""


class SubscriberSet:
    """The interests of several proxies in the same topic, group and filter.

    Args:
        topic: that they wait for.
        group: of the polls.
        wanted: the filter, None for all.
        later: timer of the period; None: all are notified of everything at once.
        waiting: returns how many messages wait for an interest.

    Attributes:
        members: the next to be notified first.
        forwards_left: how often members may still forward in this period: as often as one notification needs to go
        round.
    """

    __slots__ = ("_fresh", "_is_open", "_later", "_waiting", "forwards_left", "members", "pair", "topic", "wanted")

    def __init__(
        self,
        topic: str,
        group: str,
        wanted: Wanted,
        later: Later | None,
        waiting: "Callable[[Interest], int]",
    ) -> None:
        self.topic = topic
        self.pair = (group, topic)
        self.wanted = wanted
        self.members: list[Interest] = []
        self._later = later
        self._waiting = waiting
        self._is_open = False
        self._fresh = 0
        self.forwards_left = 0

    def notify(self, messages: int) -> None:
        """Notify as many members of messages as have come, in turn, and check later whether they were taken."""
        count = len(self.members)
        if self._later is None or count == 1:
            for interest in self.members:
                interest.subscriber.notify(interest.id, messages)
            return
        notified = min(count, messages)
        share, more = divmod(messages, notified)
        for index in range(notified):
            self._notify_next(share + (index < more))
        self._fresh += messages
        self._open()

    def forward(self) -> None:
        """Notify the next member, as one has no poll for its messages, unless the forwards of this period are used
        up.
        """
        if self.forwards_left and self._waiting(self.members[0]):
            self.forwards_left -= 1
            self._notify_next(1)

    def _notify_next(self, messages: int) -> None:
        interest = self.members.pop(0)
        self.members.append(interest)
        interest.subscriber.notify(interest.id, messages)

    def _open(self) -> None:
        if not self._is_open and self._later is not None:
            self._is_open = True
            self.forwards_left = len(self.members) - 1
            self._later(WHILE_S, self._end_period)

    def _end_period(self) -> None:
        """End the period."""
        self._is_open = False
        self.forwards_left = 0
        fresh, self._fresh = self._fresh, 0
        waiting = self._waiting(self.members[0]) if self.members else 0
        if waiting > fresh:
            for interest in self.members:
                interest.subscriber.notify(interest.id, waiting)
        elif waiting:
            self._open()


class Interests:
    """Interests of all proxies, found by the topic that a message arrives in.

    Args:
        limit: of interests; groups share it.
        filter_bytes_max: limit of the bytes of filters; groups share it, too. Equal ones of a group and topic are
            stored once.

    Attributes:
        refused: number of refused interests.
        sql_scan: scans arrived messages for interests with SQL92 filters; without it these are notified of all.
    """

    def __init__(self, limit: int, filter_bytes_max: int) -> None:
        self._limit = limit
        self._filter_bytes_max = filter_bytes_max
        self._counts = Shares()
        self._bytes = Shares()
        self.refused = 0
        self.sql_scan: SqlScan | None = None
        self.subscribers: dict[Subscriber, None] = {}
        """Proxies that have a stream, those without an interest as well."""
        self._sets: dict[SubscriberSetKey, SubscriberSet] = {}
        self._by_topic: dict[str, dict[SubscriberSet, None]] = {}
        self.on_client: Callable[[ClientKey, bool], int] = _nobody
        """Called for a client that begins or ends to wait for messages in lite topics. It returns how many of these it
        has checked.
        """
        self._later: Later | None = None
        self._waiting: Callable[[Interest], int] = _none
        self.arrivals: Arrivals | None = None
        """Messages that filters are still to be asked about."""
        self.paused: Container[tuple[str, str]] = ()
        """Groups and topics that are notified of no arrivals, as no more is read for them now."""
        self.is_paused: Callable[[str, str], bool] = _never
        """Function that returns whether an operator has paused a group or a topic."""

    def __len__(self) -> int:
        return self._counts.total

    @property
    def filter_bytes(self) -> int:
        """Memory that the filters take, in bytes."""
        return self._bytes.total

    def start_rotation(self, later: Later, waiting: Callable[[Interest], int]) -> None:
        """Let proxies that wait for the same take turns from now on; before this all are notified of all.

        Args:
            later: calls back after a number of seconds.
            waiting: returns how many messages wait for an interest.
        """
        self._later, self._waiting = later, waiting
        self.arrivals = Arrivals(self._ask, later)

    def add(self, interest: Interest) -> None:
        """Register an interest; one of the same id of the same proxy is replaced.

        Raises:
            StatusError: TOO_MANY_REQUESTS, there are too many.
        """
        group, size = interest.group, filter_bytes(interest.wanted)
        subscribers = self._sets.get(interest.key)
        if interest.id not in interest.subscriber.interests and not self._counts.room(group, self._limit):
            raise self._refusal(self._counts, group, "interests", "notify_interests_max")
        if subscribers is None and size > self._bytes.room(group, self._filter_bytes_max):
            raise self._refusal(self._bytes, group, "bytes of filters", "notify_filter_bytes_max")
        self.cancel(interest.subscriber, interest.id)
        interest.subscriber.interests[interest.id] = interest
        subscribers = self._sets.get(interest.key)
        if subscribers is None:
            self._bytes.take(group, size)
            subscribers = SubscriberSet(interest.source, group, interest.wanted, self._later, self._waiting)
            self._sets[interest.key] = subscribers
            for topic in _topics(interest):
                self._by_topic.setdefault(topic, {})[subscribers] = None
            if interest.client_id:
                self.on_client(ClientKey(group, interest.topic, interest.client_id), True)
        interest.wanted = subscribers.wanted
        subscribers.members.append(interest)
        self._counts.take(group)

    def _refusal(self, shares: Shares, group: str, what: str, limit: str) -> StatusError:
        self.refused += 1
        return StatusError(
            Code.TOO_MANY_REQUESTS,
            f"{shares.total} {what} are registered, {shares.share(group)} of them for the group {group}: that is its "
            f"share of the limit (broker.pop.{limit}); use fewer",
        )

    def cancel(self, subscriber: Subscriber, interest_id: int) -> int:
        """End an interest, if there is one of that id; return how many lite topics had to be checked."""
        interest = subscriber.interests.pop(interest_id, None)
        if interest is None:
            return 0
        self._counts.give(interest.group)
        subscribers = self._sets[interest.key]
        subscribers.members.remove(interest)
        if subscribers.members:
            return 0
        del self._sets[interest.key]
        self._bytes.give(interest.group, filter_bytes(subscribers.wanted))
        for topic in _topics(interest):
            sets = self._by_topic[topic]
            del sets[subscribers]
            if not sets:
                del self._by_topic[topic]
        if not interest.client_id:
            return 0
        return self.on_client(ClientKey(interest.group, interest.topic, interest.client_id), False)

    def cancel_all(self, subscriber: Subscriber) -> None:
        """End all interests of a proxy that has gone; of many some at a time."""
        self.subscribers.pop(subscriber, None)
        left = _CANCELLED_AT_ONCE
        for interest_id in list(islice(subscriber.interests, None if self._later is None else _CANCELLED_AT_ONCE)):
            left -= 1 + self.cancel(subscriber, interest_id) // _LITE_TOPICS_OF_ONE
            if left <= 0 and self._later is not None:
                break
        if subscriber.interests and self._later is not None:
            self._later(0, partial(self.cancel_all, subscriber))

    def of_topic(self, topic: str) -> list[Interest]:
        """Return the interests in messages of a topic, or of a retry topic."""
        return [interest for subscribers in self._by_topic.get(topic, ()) for interest in subscribers.members]

    def of_groups(self, groups: Container[str]) -> list[Interest]:
        """Return the interests of some groups; scans all there are."""
        return [
            interest
            for (_, group, _), subscribers in self._sets.items()
            if group in groups
            for interest in subscribers.members
        ]

    def of_resumed(self, topics: Container[str], groups: Container[str]) -> list[Interest]:
        """Return the interests in some topics, lite topics among them, and of some groups; scans all there are."""
        return [
            interest
            for subscribers in self._sets.values()
            for interest in subscribers.members
            if interest.topic in topics or interest.group in groups
        ]

    def is_shared(self, interest: Interest) -> bool:
        """Return whether other proxies wait for the same, and may be notified instead."""
        subscriber_set = self._sets[interest.key]
        return len(subscriber_set.members) > 1 and subscriber_set.forwards_left > 0

    def forward(self, subscriber: Subscriber, interest_id: int) -> None:
        """Forward a notification of a proxy that has no waiting poll to another one."""
        interest = subscriber.interests.get(interest_id)
        if interest is not None:
            self._sets[interest.key].forward()

    def arrived(self, queue: ConsumeQueue, tag_hashes: Sequence[int]) -> None:
        """Notify interests of messages that have become readable, at once or in the next turns."""
        sets = self._by_topic.get(queue.topic)
        if sets is None:
            return
        count = len(tag_hashes)
        if self.arrivals is None:
            for _ in self._ask(Arrived(queue, queue.max_offset - count, count, list(tag_hashes))):
                pass
        elif len(sets) * count > _AT_ONCE_MAX:
            self.arrivals.add(queue, queue.max_offset - count, tag_hashes)
        else:
            asked = False
            for each in sets:
                if _is_asked(each, queue):
                    asked = True
                else:
                    self._notify(each, queue, tag_hashes)
            if asked:
                self.arrivals.add(queue, queue.max_offset - count, tag_hashes, filters_only=True)

    def forget(self, topics: Iterable[str]) -> None:
        """Drop arrived messages of topics that are gone, by their stored names."""
        if self.arrivals is not None:
            self.arrivals.forget(topics)

    def _ask(self, arrived: Arrived) -> Iterator[int]:
        """Notify interests whose filters let arrived messages pass; yield the cost of each step.

        Interests that come or go meanwhile are left out: a new one is notified of all waiting messages.
        """
        queue, at, end = arrived.queue, arrived.start, arrived.start + len(arrived.tag_hashes)
        spent = 0
        while at < end:
            sets = self._to_be_asked(arrived)
            tag_hashes = arrived.tag_hashes[at - arrived.start :][:_MESSAGES_AT_ONCE]
            records = None
            if self.sql_scan is not None and any(_is_asked(each, queue) for each in sets):
                records = self.sql_scan.arrived(queue, at, len(tag_hashes))
                if records is not None:
                    tag_hashes = tag_hashes[: len(records)]
            at += len(tag_hashes)
            yield len(tag_hashes) * ENTRY_COST
            passing: dict[SqlFilter, int] = {}
            for each in sets:
                wanted = each.wanted
                is_open = records is not None and spent <= _ASKING_COST_MAX and _is_asked(each, queue)
                if records is None or not is_open or not isinstance(wanted, SqlFilter):
                    self._notify(each, queue, tag_hashes)
                    yield 1 + len(tag_hashes) // _TAGS_OF_ONE
                    continue
                if wanted not in passing:
                    passing[wanted] = 0
                    for stored in records:
                        count, cost = self._passing(stored, wanted)
                        passing[wanted] += count
                        spent += cost
                        yield cost
                if passing[wanted]:
                    self._notify(each, queue, tag_hashes[: passing[wanted]])
                    yield 1
        if not arrived.tag_hashes:
            for each in self._to_be_asked(arrived):
                if each.members and not self._is_paused(each):
                    each.notify(arrived.count)
                yield 1

    def _to_be_asked(self, arrived: Arrived) -> list[SubscriberSet]:
        """Return the sets that wait now and were not notified as the messages arrived."""
        sets = self._by_topic.get(arrived.queue.topic, ())
        return [each for each in sets if not arrived.filters_only or _is_asked(each, arrived.queue)]

    def _passing(self, stored: StoredRecord, wanted: SqlFilter) -> tuple[int, int]:
        """Return 1 for a message that passes, else 0; and the cost of the check."""
        scan = self.sql_scan
        if scan is None:
            return 1, 1
        before = scan.arrivals.cost
        return scan.passing([stored], wanted), 1 + scan.arrivals.cost - before

    def _notify(self, subscribers: SubscriberSet, queue: ConsumeQueue, tag_hashes: Sequence[int]) -> None:
        """Notify a set of messages that have its tags; of all, if its filter is not of tags."""
        wanted = subscribers.wanted
        if not subscribers.members or self._is_paused(subscribers):
            return
        if not isinstance(wanted, frozenset) or queue.topic != subscribers.topic:
            subscribers.notify(len(tag_hashes))
        elif messages := sum(tag_hash in wanted for tag_hash in tag_hashes):
            subscribers.notify(messages)

    def _is_paused(self, subscribers: SubscriberSet) -> bool:
        return (bool(self.paused) and subscribers.pair in self.paused) or self.is_paused(*subscribers.pair)

    def notify_client(self, key: ClientKey) -> None:
        """Notify a client that waits here that a lite topic which it reads may have something for it."""
        subscribers = self._sets.get((client_source(key.topic, key.client_id), key.group, None))
        if subscribers is not None and not self.is_paused(key.group, key.topic):
            subscribers.notify(1)

    def notify_end(self, key: ClientKey, lite_topic: str) -> None:
        """Notify all proxies that a lite topic has ended which a client has read: one of them has the client."""
        for subscriber in self.subscribers:
            subscriber.notify_end(key, lite_topic)

    def has_client(self, key: ClientKey) -> bool:
        """Return whether a client waits here for messages of lite topics."""
        return (client_source(key.topic, key.client_id), key.group, None) in self._sets

    def became_ready(self, group: str, topic: str) -> None:
        """Notify the polls of a group that a message which arrived long ago has become ready."""
        if self.is_paused(group, topic):
            return
        for subscribers in self._by_topic.get(names.retry_topic(group, topic), ()):  # of this group alone
            subscribers.notify(1)


def _is_asked(subscribers: SubscriberSet, queue: ConsumeQueue) -> bool:
    """Return whether an SQL92 filter is asked about arrivals in a queue; a redelivered message passes every filter."""
    return isinstance(subscribers.wanted, SqlFilter) and queue.topic == subscribers.topic


def _topics(interest: Interest) -> tuple[str, ...]:
    if interest.client_id:
        return (interest.source,)
    return interest.topic, names.retry_topic(interest.group, interest.topic)


def client_source(topic: str, client_id: str) -> str:
    """Return the source of all that a client reads of a topic's lite topics.

    It is used in the place of a topic, and is none.
    """
    return f"{topic}/{client_id}"


def _none(interest: Interest) -> int:
    return 0


def _never(group: str, topic: str) -> bool:
    return False


def _nobody(key: ClientKey, is_waiting: bool) -> int:
    """Do nothing for a client."""
    return 0


def notify_again(interests: Iterable[Interest], waiting: Callable[[Interest], int]) -> None:
    """Notify interests of all waiting messages, also of those that they were notified of on arrival.

    Args:
        interests: to notify.
        waiting: returns how many messages wait for one.
    """
    for interest in interests:
        count = waiting(interest)
        if count:
            interest.subscriber.notify(interest.id, count)
