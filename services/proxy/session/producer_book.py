"""Which clients can be asked how transactions of a topic ended: producers that have a Telemetry stream here (pure)."""

from collections.abc import Callable, Iterable, Iterator

from services.common.shares import Shares

PAIRS_MAX = 200_000
"""Pairs of a producer and a topic that are known at the most; producers past it are not asked."""


class ProducerBook:
    """Producers by topic."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, None]] = {}
        """Topic -> clients; the one that is asked next comes first."""
        self._pairs = Shares()
        """By client."""
        self._clients: dict[str, set[str]] = {}
        self._on_change: Callable[[list[str], list[str]], None] | None = None

    def __len__(self) -> int:
        """Topics that have a producer here."""
        return len(self._topics)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    @property
    def pairs(self) -> int:
        """Pairs of a producer and a topic, of `PAIRS_MAX`."""
        return self._pairs.total

    def subscribe(self, on_change: Callable[[list[str], list[str]], None]) -> None:
        """Tell of topics that have their first producer, and of those whose last one has gone."""
        self._on_change = on_change

    def add(self, client_id: str, topics: Iterable[str]) -> bool:
        """A client sends to topics; False if not all could be noted."""
        held = self._clients.setdefault(client_id, set())
        new: list[str] = []
        fits = True
        for topic in topics:
            if topic in held:
                continue
            if not self._pairs.room(client_id, PAIRS_MAX):
                fits = False
                break
            held.add(topic)
            self._pairs.take(client_id)
            if topic not in self._topics:
                new.append(topic)
            self._topics.setdefault(topic, {})[client_id] = None
        if not held:
            del self._clients[client_id]
        if new and self._on_change is not None:
            self._on_change(new, [])
        return fits

    def remove(self, client_id: str) -> None:
        """A client has gone."""
        gone: list[str] = []
        for topic in self._clients.pop(client_id, ()):
            self._pairs.give(client_id)
            of_topic = self._topics[topic]
            del of_topic[client_id]
            if not of_topic:
                del self._topics[topic]
                gone.append(topic)
        if gone and self._on_change is not None:
            self._on_change([], sorted(gone))

    def next_of(self, topic: str) -> str | None:
        """The client that is to be asked about a topic, each in turn; None if there is none."""
        of_topic = self._topics.get(topic)
        if not of_topic:
            return None
        client_id = next(iter(of_topic))
        del of_topic[client_id]
        of_topic[client_id] = None
        return client_id
