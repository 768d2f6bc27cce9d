"""The clients of one group that read lite topics of one topic, and the lite topics ready for them (pure).

A lite topic is ready for all of the group's clients alike, so it is recorded once, however many they are. The cost of a
message depends on the clients that poll, and not on the others.
"""

from collections import OrderedDict
from typing import NamedTuple


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
    """A client and its lite topics.

    Args:
        key: its name.
        group: the clients that it belongs to.
        seen_ms: when it was last seen.
        polls: whether a poll of it waits here.

    Attributes:
        said_ms: when it reported its lite topics to a proxy, by the wall clock there; 0 if unknown.
    """

    __slots__ = ("group", "key", "lite_topics", "polls", "said_ms", "seen_ms")

    def __init__(self, key: ClientKey, group: "LiteGroup", seen_ms: int, *, polls: bool) -> None:
        self.key = key
        self.group = group
        self.seen_ms = seen_ms
        self.polls = polls
        self.said_ms = 0
        self.lite_topics: set[str] = set()


class Readers:
    """Several clients that read the same lite topic."""

    __slots__ = ("clients", "polling")

    def __init__(self) -> None:
        self.clients: dict[LiteClient, None] = {}
        self.polling: OrderedDict[LiteClient, None] = OrderedDict()
        """Readers with a waiting poll; the next to be notified comes first."""

    def add(self, client: LiteClient) -> None:
        """Add a client."""
        self.clients[client] = None
        if client.polls:
            self.polling[client] = None

    def remove(self, client: LiteClient) -> None:
        """Remove a client."""
        del self.clients[client]
        self.polling.pop(client, None)

    def next(self) -> LiteClient:
        """Return the polling client in turn; there must be one."""
        client = next(iter(self.polling))
        self.polling.move_to_end(client)
        return client


class LiteGroup:
    """The clients of one group that read lite topics of one topic.

    Args:
        topic: the topic.
        name: of the group.
    """

    __slots__ = ("clients", "is_deleted", "name", "readers", "ready", "topic")

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.clients: dict[LiteClient, None] = {}
        self.readers: dict[str, LiteClient | Readers] = {}
        """The readers of each lite topic: mostly it is one client."""
        self.ready: dict[str, int] = {}
        """Lite topics that may have a message for the group, each with an ascending number: the longest-waiting
        first.
        """
        self.is_deleted = False
        """True if its topic or group was deleted: its clients are not known any more."""

    def add(self, client: LiteClient, lite_topic: str) -> None:
        """Add a client of a lite topic."""
        before = self.readers.get(lite_topic)
        if before is None:
            self.readers[lite_topic] = client
        elif isinstance(before, Readers):
            before.add(client)
        else:
            several = self.readers[lite_topic] = Readers()
            several.add(before)
            several.add(client)

    def remove(self, client: LiteClient, lite_topic: str) -> bool:
        """Remove a client of a lite topic; return whether none is left."""
        before = self.readers[lite_topic]
        if isinstance(before, Readers):
            before.remove(client)
            if before.clients:
                return False
        del self.readers[lite_topic]
        return True

    def count(self, lite_topic: str) -> int:
        """Return the number of clients that read a lite topic."""
        readers = self.readers.get(lite_topic)
        if readers is None:
            return 0
        return len(readers.clients) if isinstance(readers, Readers) else 1

    def readers_of(self, lite_topic: str) -> list[LiteClient]:
        """Return the clients that read a lite topic."""
        readers = self.readers.get(lite_topic)
        if readers is None:
            return []
        return list(readers.clients) if isinstance(readers, Readers) else [readers]

    def ready_for(self, client: LiteClient) -> list[str]:
        """Return the lite topics that may have a message for a client, the longest-waiting first."""
        ready = self.ready
        if not ready:
            return []
        if len(ready) < len(client.lite_topics):
            found = [each for each in ready if each in client.lite_topics]
        else:
            found = [each for each in client.lite_topics if each in ready]
        found.sort(key=ready.__getitem__)
        return found
