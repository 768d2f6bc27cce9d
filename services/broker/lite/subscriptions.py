"""Which client reads which lite topics, and of which of them it may have a message now (pure).

Soft state: it comes from proxies, who know it from their clients, and is not in the log. A lite topic that has
something for a group is noted at each client of the group that reads it. So a pop looks at these alone, and an idle
lite topic costs nothing. What is noted may be out of date, since another client has taken it: then the pop finds
nothing there, and forgets the note.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.shares import Shares

WHILE_S = 0.02
"""How long the client that was told first has for taking a message, before the others are told."""


class ClientKey(NamedTuple):
    """Names a client that reads lite topics.

    Args:
        group: its group.
        topic: the topic that the lite topics are of.
        client_id: its id.
    """

    group: str
    topic: str
    client_id: str


class LiteClient:
    """A client and what it reads.

    Args:
        key: its name.
        seen_ms: when it was heard of last.
    """

    __slots__ = ("key", "lite_topics", "ready", "seen_ms")

    def __init__(self, key: ClientKey, seen_ms: int) -> None:
        self.key = key
        self.seen_ms = seen_ms
        self.lite_topics: set[str] = set()
        self.ready: dict[str, None] = {}
        """Of these: which may have something for it, those that have for the longest time first."""


_Readers = dict[str, tuple[LiteClient, ...]]
"""Of one group: who reads a lite topic; the next to be told first."""


class LiteSubscriptions:
    """All clients that read lite topics.

    Args:
        limit: how many pairs of a client and a lite topic there may be; groups share it. A client counts as one, too.
        tell: tells a client that it may have a message; whether there is a poll to be told.
        later: calls back after so many seconds; None: all readers are told at once.
    """

    def __init__(
        self,
        limit: int,
        tell: Callable[[ClientKey], bool],
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._limit = limit
        self._tell = tell
        self.later = later
        self._clients: dict[ClientKey, LiteClient] = {}
        self._readers: dict[str, dict[str, _Readers]] = {}
        """By topic and group."""
        self._told: dict[tuple[str, str, str], LiteClient] = {}
        """Group, topic and lite topic of which one client of several was told within the last while."""
        self._counts = Shares()

    def __len__(self) -> int:
        """How many pairs there are, and clients."""
        return self._counts.total

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self._clients)

    @property
    def ready(self) -> int:
        """How many notes there are of lite topics that may have something for a client."""
        return sum(len(client.ready) for client in self._clients.values())

    def get(self, key: ClientKey) -> LiteClient | None:
        """A client; None if it is not known."""
        return self._clients.get(key)

    def groups_of(self, topic: str) -> Iterable[str]:
        """The groups of which clients read lite topics of a topic."""
        return self._readers.get(topic, ())

    def readers(self, group: str, topic: str, lite_topic: str) -> tuple[LiteClient, ...]:
        """The clients of a group that read a lite topic."""
        return self._readers.get(topic, _NO_GROUPS).get(group, _NO_READERS).get(lite_topic, ())

    # What clients say

    def seen(self, key: ClientKey, now_ms: int) -> LiteClient | None:
        """A client was heard of; None if it is not known."""
        client = self._clients.get(key)
        if client is not None:
            client.seen_ms = now_ms
        return client

    def add(self, client: LiteClient, lite_topics: Iterable[str]) -> list[str]:
        """A client reads these, too; those of them that it has not read before.

        Raises:
            StatusError: LITE_SUBSCRIPTION_QUOTA_EXCEEDED; nothing has changed.
        """
        new = list(dict.fromkeys(each for each in lite_topics if each not in client.lite_topics))
        self._take(client.key.group, len(new))
        readers = self._readers.setdefault(client.key.topic, {}).setdefault(client.key.group, {})
        for each in new:
            readers[each] = (*readers.get(each, ()), client)
        client.lite_topics.update(new)
        return new

    def begin(self, key: ClientKey, lite_topics: Iterable[str], now_ms: int) -> tuple[LiteClient, list[str]]:
        """A client reads these and no others; it, and those of them that it has not read before.

        Raises:
            StatusError: LITE_SUBSCRIPTION_QUOTA_EXCEEDED; nothing has changed.
        """
        wanted = dict.fromkeys(lite_topics)
        client = self._clients.get(key)
        if client is None:
            self._take(key.group, 1 + len(wanted))
            self._counts.give(key.group, len(wanted))
            client = self._clients[key] = LiteClient(key, now_ms)
        client.seen_ms = now_ms
        gone = sorted(each for each in client.lite_topics if each not in wanted)
        new = self.add(client, wanted)
        self.remove(client, gone)
        return client, new

    def remove(self, client: LiteClient, lite_topics: Iterable[str]) -> None:
        """A client reads these no more."""
        key = client.key
        groups = self._readers.get(key.topic, _NO_GROUPS)
        readers = groups.get(key.group, _NO_READERS)
        for each in lite_topics:
            if each not in client.lite_topics:
                continue
            client.lite_topics.discard(each)
            client.ready.pop(each, None)
            self._counts.give(key.group)
            left = tuple(other for other in readers[each] if other is not client)
            if left:
                readers[each] = left
            else:
                del readers[each]
        if not readers and key.group in groups:
            del groups[key.group]
            if not groups:
                del self._readers[key.topic]

    def end(self, key: ClientKey) -> None:
        """A client reads nothing any more, and is gone."""
        client = self._clients.pop(key, None)
        if client is not None:
            self.remove(client, sorted(client.lite_topics))
            self._counts.give(key.group)

    def forget(self, topic: str = "", group: str = "") -> None:
        """A topic, or a group, was deleted."""
        for key in [key for key in self._clients if topic == key.topic or group == key.group]:
            self.end(key)

    def end_idle(self, before_ms: int, waits: Callable[[ClientKey], bool]) -> int:
        """Forget clients that were not heard of since a time; how many.

        Args:
            before_ms: that time.
            waits: whether a poll of a client waits here.
        """
        idle = [key for key, client in self._clients.items() if client.seen_ms < before_ms and not waits(key)]
        for key in idle:
            self.end(key)
        return len(idle)

    def _take(self, group: str, count: int) -> None:
        if count and self._counts.room(group, self._limit) < count:
            raise StatusError(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"{self._counts.total} lite subscriptions are kept here, {self._counts.held(group)} of them for the "
                f"group {group}, and {count} more do not fit into its share of the limit "
                "(broker.lite.subscriptions_max); subscribe to fewer",
            )
        self._counts.take(group, count)

    # What comes

    def note(self, group: str, topic: str, lite_topic: str) -> None:
        """A lite topic may have something for a group: tell one of those who read it, who take turns.

        If it has taken nothing a while later, the others are told.
        """
        readers = self._readers.get(topic, _NO_GROUPS).get(group, _NO_READERS)
        clients = readers.get(lite_topic)
        if clients is None:
            return
        for client in clients:
            client.ready[lite_topic] = None
        if len(clients) == 1 or self.later is None:
            for client in clients:
                self._tell(client.key)
            return
        for number, client in enumerate(clients, 1):
            if self._tell(client.key):
                readers[lite_topic] = (*clients[number:], *clients[:number])
                if not self._told:
                    self.later(WHILE_S, self._look)
                self._told[group, topic, lite_topic] = client
                return

    def taken(self, client: LiteClient, lite_topic: str) -> None:
        """There is nothing more in a lite topic for a client for now: it has taken a message, or found none."""
        client.ready.pop(lite_topic, None)
        if self._told:
            self._told.pop((client.key.group, client.key.topic, lite_topic), None)

    def _look(self) -> None:
        """The while is over: tell the others of what was not taken."""
        told, self._told = self._told, {}
        for (group, topic, lite_topic), first in told.items():
            for client in self.readers(group, topic, lite_topic):
                if client is not first and lite_topic in client.ready:
                    self._tell(client.key)

    def members(self) -> Iterator[LiteClient]:
        """All clients, for those who look at them."""
        return iter(self._clients.values())


_NO_READERS: _Readers = {}
_NO_GROUPS: dict[str, _Readers] = {}
