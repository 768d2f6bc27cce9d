"""The topics that each group reads at a broker, also where it has read nothing yet (pure, a fold over the log).

Offsets show only queues that something was read of. What waits in the others counts as well. A group that has
polled an empty topic and died is behind by all that comes into it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from popwheel_common.contract import names
from popwheel_common.shares import room

READERS_MAX: Final = 100_000
"""Pairs of a group and a topic, which groups share; of further ones only the queues count that something was read of.
"""


class Readers:
    """The pairs."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, None]] = {}
        """Topics by group."""
        self._groups: dict[str, dict[str, None]] = {}
        """The same by topic."""
        self._pairs = 0

    def __len__(self) -> int:
        """Count of the pairs."""
        return self._pairs

    @property
    def groups(self) -> Iterable[str]:
        """The groups that read something."""
        return self._topics.keys()

    def room(self, group: str, coming: int = 0, of_group: int = 0) -> int:
        """The number of further topics of a group that are kept, one after another.

        Args:
            group: the group.
            coming: number of pairs that are to be noted before.
            of_group: number of these that are the group's.
        """
        return room(READERS_MAX, self._pairs + coming, len(self._topics.get(group, ())) + of_group)

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group reads."""
        return list(self._topics.get(group, ()))

    def count_of_group(self, group: str) -> int:
        """Number of topics that a group reads."""
        return len(self._topics.get(group, ()))

    def count_of_topic(self, topic: str) -> int:
        """Number of groups that read a topic."""
        return len(self._groups.get(topic, ()))

    def knows(self, group: str, topic: str) -> bool:
        """Return whether a group is known to read a topic."""
        topics = self._topics.get(group)
        return topics is not None and topic in topics

    def restore(self, saved: Mapping[str, Iterable[str]]) -> None:
        """Begin with what a checkpoint says: topics by group."""
        self._topics, self._groups, self._pairs = {}, {}, 0
        self.note(saved)

    def note(self, reads: Mapping[str, Iterable[str]]) -> None:
        """Take in what a record says: topics by group."""
        for group, topics in reads.items():
            for topic in topics:
                known = self._topics.setdefault(group, {})
                if topic not in known:
                    known[topic] = None
                    self._groups.setdefault(topic, {})[group] = None
                    self._pairs += 1

    def forget_topic(self, topic: str) -> list[str]:
        """A topic is gone; the groups that read it."""
        readers = list(self._groups.pop(topic, ()))
        for group in readers:
            del self._topics[group][topic]
            self._pairs -= 1
            if not self._topics[group]:
                del self._topics[group]
        return readers

    def forget_group(self, group: str) -> list[str]:
        """A group is gone, and its dead letters with it; the groups that read these."""
        for topic in self._topics.pop(group, ()):
            self._pairs -= 1
            groups = self._groups[topic]
            del groups[group]
            if not groups:
                del self._groups[topic]
        return self.forget_topic(names.dead_letter_topic(group))
