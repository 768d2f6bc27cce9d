"""Proxies with producers by topic, and the checks that wait for each of them (pure)."""

from collections import deque
from collections.abc import Callable, Iterable

TOPICS_MAX = 200_000
"""Limit of topics that proxies may report, all together; no check is sent for further ones."""
WAITING_MAX = 1_000
"""Limit of half messages that wait for one proxy; others wait for their next check."""


class Checker:
    """A proxy with producers.

    Args:
        wake: called when there is something to check.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.topics: set[str] = set()
        self.waiting: deque[int] = deque()
        """Positions of half messages."""

    def ask(self, position: int) -> bool:
        """Add a half message to check; return False if too many wait."""
        if len(self.waiting) >= WAITING_MAX:
            return False
        self.waiting.append(position)
        self._wake()
        return True


class Checkers:
    """Proxies that have producers."""

    def __init__(self) -> None:
        self._by_topic: dict[str, deque[Checker]] = {}
        self.topics = 0
        """Topics that proxies have reported, of `TOPICS_MAX`."""
        self.refused = 0
        """Number of topics refused as there were too many."""

    def change(self, checker: Checker, topics: Iterable[str], gone: Iterable[str]) -> None:
        """Add topics for which a proxy has producers, and remove those for which it has none any more."""
        for topic in gone:
            if topic in checker.topics:
                self._remove(checker, topic)
        for topic in topics:
            if topic in checker.topics:
                continue
            if self.topics >= TOPICS_MAX:
                self.refused += 1
                continue
            checker.topics.add(topic)
            self._by_topic.setdefault(topic, deque()).append(checker)
            self.topics += 1

    def remove(self, checker: Checker) -> None:
        """Remove a proxy that has gone."""
        for topic in list(checker.topics):
            self._remove(checker, topic)

    def _remove(self, checker: Checker, topic: str) -> None:
        checker.topics.discard(topic)
        of_topic = self._by_topic[topic]
        of_topic.remove(checker)
        if not of_topic:
            del self._by_topic[topic]
        self.topics -= 1

    def ask(self, topic: str, position: int) -> bool:
        """Send the check of a half message to one proxy, in turn; return False if there is none that can."""
        of_topic = self._by_topic.get(topic)
        if of_topic is None:
            return False
        for _ in range(len(of_topic)):
            checker = of_topic[0]
            of_topic.rotate(-1)
            if checker.ask(position):
                return True
        return False
