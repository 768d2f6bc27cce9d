"""The topics that each group reads at a broker, also where it has read no message yet (pure, a fold over the log).

Offsets exist only for queues that the group has read from. Messages in the other queues are lag as well: a group that
polled an empty topic and died is behind by all that arrives later.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from popwheel_common.contract import names
from popwheel_common.shares import room

READERS_MAX: Final = 100_000
"""Limit of pairs of a group and a topic, shared by the groups; beyond it only queues with an offset count as lag."""


class Readers:
    """Pairs of a group and a topic that it reads."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, None]] = {}
        """Topics by group."""
        self._groups: dict[str, dict[str, None]] = {}
        """The same by topic."""
        self._pairs = 0

    def __len__(self) -> int:
        """Return the number of pairs."""
        return self._pairs

    @property
    def groups(self) -> Iterable[str]:
        """Groups that read a topic."""
        return self._topics.keys()

    def room(self, group: str, coming: int = 0, of_group: int = 0) -> int:
        """Return how many further topics of a group fit.

        Args:
            group: the group.
            coming: number of pairs that are recorded before.
            of_group: number of these that are the group's.
        """
        return room(READERS_MAX, self._pairs + coming, len(self._topics.get(group, ())) + of_group)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group reads."""
        return list(self._topics.get(group, ()))

    def count_of_group(self, group: str) -> int:
        """Return the number of topics that a group reads."""
        return len(self._topics.get(group, ()))

    def count_of_topic(self, topic: str) -> int:
        """Return the number of groups that read a topic."""
        return len(self._groups.get(topic, ()))

    def knows(self, group: str, topic: str) -> bool:
        """Return whether a group reads a topic."""
        topics = self._topics.get(group)
        return topics is not None and topic in topics

    def restore(self, saved: Mapping[str, Iterable[str]]) -> None:
        """Start with the topics by group of a snapshot."""
        self._topics, self._groups, self._pairs = {}, {}, 0
        self.record(saved)

    def record(self, reads: Mapping[str, Iterable[str]]) -> None:
        """Add the topics by group of a record."""
        for group, topics in reads.items():
            for topic in topics:
                known = self._topics.setdefault(group, {})
                if topic not in known:
                    known[topic] = None
                    self._groups.setdefault(topic, {})[group] = None
                    self._pairs += 1

    def forget_topic(self, topic: str) -> list[str]:
        """Remove a deleted topic; return the groups that read it."""
        readers = list(self._groups.pop(topic, ()))
        for group in readers:
            del self._topics[group][topic]
            self._pairs -= 1
            if not self._topics[group]:
                del self._topics[group]
        return readers

    def forget_group(self, group: str) -> list[str]:
        """Remove a deleted group and its dead letter topic; return the groups that read that."""
        for topic in self._topics.pop(group, ()):
            self._pairs -= 1
            groups = self._groups[topic]
            del groups[group]
            if not groups:
                del self._groups[topic]
        return self.forget_topic(names.dead_letter_topic(group))
