"""Proxies with producers by topic, and the checks that wait for each of them (pure)."""

from collections import deque
from collections.abc import Callable, Iterable

TOPICS_MAX = 200_000
"""Limit of topics that proxies may report, all together; of further ones no check is sent."""
WAITING_MAX = 1_000
"""Limit of half messages that wait for one proxy; others have their turn at their next time."""


class Checker:
    """One proxy.

    Args:
        wake: told when something is to be asked.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.topics: set[str] = set()
        self.waiting: deque[int] = deque()
        """Positions of half messages."""

    def ask(self, position: int) -> bool:
        """Have it ask about a half message; False if too many wait."""
        if len(self.waiting) >= WAITING_MAX:
            return False
        self.waiting.append(position)
        self._wake()
        return True


class Checkers:
    """All proxies that have producers."""

    def __init__(self) -> None:
        self._by_topic: dict[str, deque[Checker]] = {}
        self.topics = 0
        """Topics that proxies have told of, of `TOPICS_MAX`."""
        self.refused = 0
        """Number of topics refused as one too many."""

    def change(self, checker: Checker, topics: Iterable[str], gone: Iterable[str]) -> None:
        """A proxy has producers for some topics, and none any more for others."""
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
        """A proxy has gone."""
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
        """Have one proxy ask about a half message, each in turn; False if there is none that can."""
        of_topic = self._by_topic.get(topic)
        if of_topic is None:
            return False
        for _ in range(len(of_topic)):
            checker = of_topic[0]
            of_topic.rotate(-1)
            if checker.ask(position):
                return True
        return False
