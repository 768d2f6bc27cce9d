"""Telemetry streams of producers by topic, for transaction checks (pure)."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from popwheel_common.shares import Shares

PAIRS_MAX = 200_000
"""Limit of (producer, topic) pairs; producers beyond it get no checks."""


class Producer(NamedTuple):
    """A Telemetry stream of a client that sends.

    Args:
        client_id: its client; all streams of a client id share one quota.
        stream: its number.
    """

    client_id: str
    stream: int


class ProducerBook:
    """Producers by topic."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[Producer, None]] = {}
        """Topic -> producers; the next one to be checked comes first."""
        self._pairs = Shares()
        """Pairs by client."""
        self._producers: dict[Producer, set[str]] = {}
        self._on_change: Callable[[list[str], list[str]], None] | None = None

    def __len__(self) -> int:
        """Return the number of topics that have a producer here."""
        return len(self._topics)

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    @property
    def pairs(self) -> int:
        """Pairs of a producer and a topic, of `PAIRS_MAX`."""
        return self._pairs.total

    def subscribe(self, on_change: Callable[[list[str], list[str]], None]) -> None:
        """Notify `on_change` of topics that have their first producer, and of those whose last one has gone."""
        self._on_change = on_change

    def add(self, producer: Producer, topics: Iterable[str]) -> bool:
        """Add topics that a producer sends to; False if not all fit."""
        known = self._producers.setdefault(producer, set())
        new: list[str] = []
        fits = True
        for topic in topics:
            if topic in known:
                continue
            if not self._pairs.room(producer.client_id, PAIRS_MAX):
                fits = False
                break
            known.add(topic)
            self._pairs.take(producer.client_id)
            if topic not in self._topics:
                new.append(topic)
            self._topics.setdefault(topic, {})[producer] = None
        if not known:
            del self._producers[producer]
        if new and self._on_change is not None:
            self._on_change(new, [])
        return fits

    def remove(self, producer: Producer, topics: Iterable[str] | None = None) -> None:
        """Remove topics that a producer sends to no more; all if it has gone."""
        known = self._producers.get(producer, set())
        ended = known.copy() if topics is None else known.intersection(topics)
        gone: list[str] = []
        for topic in ended:
            known.discard(topic)
            self._pairs.give(producer.client_id)
            of_topic = self._topics[topic]
            del of_topic[producer]
            if not of_topic:
                del self._topics[topic]
                gone.append(topic)
        if not known:
            self._producers.pop(producer, None)
        if gone and self._on_change is not None:
            self._on_change([], sorted(gone))

    def next_of(self, topic: str) -> Producer | None:
        """Return the producer that is to be asked about a topic, in turn; None if there is none."""
        of_topic = self._topics.get(topic)
        if not of_topic:
            return None
        producer = next(iter(of_topic))
        del of_topic[producer]
        of_topic[producer] = None
        return producer
