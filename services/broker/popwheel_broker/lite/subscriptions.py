"""The lite topics that each client reads, and those that may have a message for its group now (pure).

Soft state: it comes from proxies, who know it from their clients, and is not in the log. A lite topic with a message
for a group is recorded as ready, and a client that reads it and polls is notified. So a pop reads ready lite topics
alone, and an idle lite topic costs nothing. The record may be stale, since another client has taken the message: then
the pop finds none, and removes it.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping

from popwheel_broker.lite.readers import ClientKey, LiteClient, LiteGroup, Readers
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.shares import Shares

WHILE_S = 0.02
"""The time that the client notified first has to take a message.

Then others are notified: twice as many each time.
"""

_NOTIFIED_AT_ONCE = 1_000
"""The number of clients that are notified at once of messages that nobody has taken: some milliseconds."""
_PAIRS_AT_ONCE = 1_000
"""The number of pairs of a client and a lite topic that are dropped at once, and those of one client more."""


class LiteSubscriptions:
    """Clients that read lite topics.

    Args:
        limit: of pairs of a client and a lite topic; groups share it. A client counts as one, too.
        notify: notifies a client with a waiting poll here that it may have a message.
        waits: whether a client has such a poll; `polls` is called when that changes.
        later: calls back after that many seconds; None: all polling clients are notified at once.
    """

    def __init__(
        self,
        limit: int,
        notify: Callable[[ClientKey], object],
        waits: Callable[[ClientKey], bool],
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._limit = limit
        self._notify = notify
        self._waits = waits
        self.later = later
        self._clients: OrderedDict[ClientKey, LiteClient] = OrderedDict()
        """Clients, the longest unseen first."""
        self._groups: dict[str, dict[str, LiteGroup]] = {}
        """Groups by topic and group."""
        self._leaving: deque[LiteGroup] = deque()
        """Groups whose topic or which were deleted themselves, with clients that still count."""
        self._notified: OrderedDict[tuple[LiteGroup, str], int] = OrderedDict()
        """Lite topics of which some clients of several were notified within the last period, and how many."""
        self._is_scheduled = False
        self._counts = Shares()
        self._number = 0
        self.ready = 0
        """The number of lite topics that may have a message for a group, counted for each."""

    def __len__(self) -> int:
        """Return the number of pairs and clients."""
        return self._counts.total

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self._clients)

    def get(self, key: ClientKey) -> LiteClient | None:
        """Return a client; None if it is unknown."""
        client = self._clients.get(key)
        return None if client is None or client.group.is_deleted else client

    def count_ready(self, key: ClientKey) -> int:
        """Return the number of lite topics that may have a message for a client; 0 if it is unknown."""
        client = self.get(key)
        return 0 if client is None else len(client.group.ready_for(client))

    def groups_of(self, topic: str) -> Mapping[str, LiteGroup]:
        """Return the groups whose clients read lite topics of a topic, by name."""
        return self._groups.get(topic, _NO_GROUPS)

    def lite_topics_of(self, group: str, topic: str) -> Iterable[str]:
        """Return the lite topics of a topic that clients of a group read."""
        clients = self.groups_of(topic).get(group)
        return () if clients is None else clients.readers

    # Subscriptions

    def seen(self, key: ClientKey, now_ms: int) -> LiteClient | None:
        """Record that a client was seen, and return it; None if it is unknown."""
        client = self.get(key)
        if client is not None:
            client.seen_ms = now_ms
            self._clients.move_to_end(key)
        return client

    def polls(self, key: ClientKey, is_waiting: bool) -> int:
        """Record whether a poll of a client waits here; return how many lite topics had to be checked."""
        client = self.get(key)
        if client is None or client.polls == is_waiting:
            return 0
        client.polls = is_waiting
        of = client.group.readers
        for lite_topic in client.lite_topics:
            readers = of[lite_topic]
            if not isinstance(readers, Readers):
                continue
            if is_waiting:
                readers.polling[client] = None
            elif readers.polling.pop(client, 0) is None:
                self._has_left(client.group, lite_topic)
        return len(client.lite_topics)

    def add(self, client: LiteClient, lite_topics: Iterable[str]) -> list[str]:
        """Add lite topics to a client; return the new ones among them.

        Raises:
            StatusError: LITE_SUBSCRIPTION_QUOTA_EXCEEDED; nothing has changed.
        """
        new = list(dict.fromkeys(each for each in lite_topics if each not in client.lite_topics))
        self._take(client.key.group, len(new))
        for each in new:
            client.group.add(client, each)
        client.lite_topics.update(new)
        return new

    def begin(self, key: ClientKey, lite_topics: Iterable[str], now_ms: int) -> tuple[LiteClient, list[str]]:
        """Set a client's lite topics; return it, and the new ones among them.

        Raises:
            StatusError: LITE_SUBSCRIPTION_QUOTA_EXCEEDED; nothing has changed.
        """
        wanted = dict.fromkeys(lite_topics)
        client = self.seen(key, now_ms)
        if client is None:
            self.end(key)  # a client of a deleted topic or group of the same name
            self._take(key.group, 1 + len(wanted))
            self._counts.give(key.group, len(wanted))
            groups = self._groups.setdefault(key.topic, {})
            group = groups.get(key.group)
            if group is None:
                group = groups[key.group] = LiteGroup(key.topic, key.group)
            client = self._clients[key] = LiteClient(key, group, now_ms, polls=self._waits(key))
            group.clients[client] = None
        gone = [each for each in client.lite_topics if each not in wanted]
        new = self.add(client, wanted)
        self.remove(client, gone)
        return client, new

    def remove(self, client: LiteClient, lite_topics: Iterable[str]) -> None:
        """Remove lite topics from a client."""
        group = client.group
        for each in lite_topics:
            if each not in client.lite_topics:
                continue
            client.lite_topics.discard(each)
            self._counts.give(client.key.group)
            if group.remove(client, each):
                self.taken(group, each)
            elif client.polls:
                self._has_left(group, each)

    def end(self, key: ClientKey) -> None:
        """Remove a client with all its lite topics."""
        client = self._clients.pop(key, None)
        if client is None:
            return
        self.remove(client, list(client.lite_topics))
        self._counts.give(key.group)
        group = client.group
        group.clients.pop(client, None)
        if not group.clients and not group.is_deleted:
            groups = self._groups[group.topic]
            del groups[group.name]
            if not groups:
                del self._groups[group.topic]

    def forget(self, topic: str = "", group: str = "") -> None:
        """Forget the clients of a deleted topic or group. Many still count for a while, until `end_idle` has removed
        them.
        """
        gone = list(self._groups.pop(topic, _NO_GROUPS).values())
        for name in [name for name, groups in self._groups.items() if group in groups]:
            groups = self._groups[name]
            gone.append(groups.pop(group))
            if not groups:
                del self._groups[name]
        for each in gone:
            each.is_deleted = True
        self._leaving += gone
        self._remove_deleted(_PAIRS_AT_ONCE)

    def end_idle(self, before_ms: int, now_ms: int) -> bool:
        """Forget clients without a waiting poll that were not seen since a time, some at a time.

        Args:
            before_ms: that time.
            now_ms: time for clients with a waiting poll, which count as seen.

        Returns:
            Whether there may be more.
        """
        left = self._remove_deleted(_PAIRS_AT_ONCE)
        while left > 0 and self._clients:
            key, client = next(iter(self._clients.items()))
            if client.seen_ms >= before_ms:
                return False
            left -= 1 + len(client.lite_topics)
            if client.polls:
                self.seen(key, now_ms)
            else:
                self.end(key)
        return left <= 0

    def _remove_deleted(self, pairs: int) -> int:
        """Remove some clients whose topic or group was deleted; return how many pairs more could be removed at once."""
        while self._leaving and pairs > 0:
            clients = self._leaving[0].clients
            if clients:
                client, _ = clients.popitem()
                pairs -= 1 + len(client.lite_topics)
                self.end(client.key)
            else:
                self._leaving.popleft()
        return pairs

    def _take(self, group: str, count: int) -> None:
        if count and self._counts.room(group, self._limit) < count:
            raise StatusError(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"{self._counts.total} lite subscriptions are stored here, {self._counts.share(group)} of them for the "
                f"group {group}, and {count} more do not fit into its share of the limit "
                "(broker.lite.subscriptions_max); subscribe to fewer",
            )
        self._counts.take(group, count)

    # Arrivals

    def notify_one(self, group: LiteGroup, lite_topic: str) -> None:
        """Notify one polling client of a lite topic, in turn, that it may have a message for its group.

        If the message is still there a period later, others are notified.
        """
        readers = group.readers.get(lite_topic)
        if readers is None:
            return
        self.again(group, lite_topic)
        if not isinstance(readers, Readers):
            if readers.polls:
                self._notify(readers.key)
        elif self.later is None or len(readers.polling) == 1:
            for client in readers.polling:
                self._notify(client.key)
        elif readers.polling:
            self._notify(readers.next().key)
            self._notified.setdefault((group, lite_topic), 1)
            self._schedule()

    def again(self, group: LiteGroup, lite_topic: str) -> None:
        """Record that a lite topic may have a message for a group, after all others that do; notifies nobody."""
        self._number += 1
        self.ready += lite_topic not in group.ready
        group.ready[lite_topic] = self._number

    def put_back(self, group: LiteGroup, taken: Mapping[str, int]) -> None:
        """Restore lite topics as they were before `taken`, but for those that nobody reads any more."""
        for lite_topic, number in taken.items():
            if lite_topic in group.readers:
                self.ready += lite_topic not in group.ready
                group.ready[lite_topic] = number

    def taken(self, group: LiteGroup, lite_topic: str) -> int:
        """Record that a lite topic has no message for a group for now: a client has taken one, or found none. Return
        its number.
        """
        number = group.ready.pop(lite_topic, 0)
        self.ready -= number > 0
        if self._notified:
            self._notified.pop((group, lite_topic), None)
        return number

    def _has_left(self, group: LiteGroup, lite_topic: str) -> None:
        """Record that a polling client polls no more.

        It may be the notified one, so another is notified when the period is over. If it was not, one is notified
        twice.
        """
        if self._notified and (notified := self._notified.get((group, lite_topic))):
            self._notified[group, lite_topic] = notified - 1

    def _schedule(self) -> None:
        if not self._is_scheduled and self.later is not None:
            self._is_scheduled = True
            self.later(WHILE_S, self._end_period)

    def _end_period(self) -> None:
        """End the period: notify others of messages that were not taken."""
        self._is_scheduled = False
        left = _NOTIFIED_AT_ONCE
        for _ in range(len(self._notified)):
            if left <= 0:
                break
            (group, lite_topic), notified = self._notified.popitem(last=False)
            left -= 1
            readers = group.readers.get(lite_topic)
            if lite_topic not in group.ready or not isinstance(readers, Readers):
                continue
            more = min(max(1, notified), len(readers.polling) - notified, left)
            for _ in range(more):
                self._notify(readers.next().key)
            left -= max(0, more)
            if notified + more < len(readers.polling):
                self._notified[group, lite_topic] = notified + max(0, more)
        if self._notified:
            self._schedule()


_NO_GROUPS: dict[str, LiteGroup] = {}
