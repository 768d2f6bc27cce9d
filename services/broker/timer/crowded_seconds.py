"""Shares a second out among the topics that have messages due in it, once many are."""

from collections import Counter, OrderedDict

from services.common.shares import room

_SECONDS_MAX = 1000


class CrowdedSeconds:
    """What topics hold of the latter half of a second's limit: the first half is anybody's.

    Only that half is counted by topic, or there would be a count for each second of a year. A second that was not
    touched for longest is forgotten past a thousand, as all are by a start: then its topics are as new ones.

    Args:
        limit: how many messages may be due within one second.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free_for_all = limit // 2
        self._held: OrderedDict[int, Counter[str]] = OrderedDict()

    def has_room(self, topic: str, second: int, due: int, taken: int) -> bool:
        """Whether one more message of a topic may be due in a second.

        Args:
            topic: the topic.
            second: since 1970.
            due: how many are due in it, with those that `taken` counts.
            taken: how many of them the topic is about to take.
        """
        crowd = due - self._free_for_all
        if crowd < 0:
            return True
        held = self._held.get(second)
        of_topic = min(taken, crowd) if held is None else held[topic] + min(taken, crowd)
        return room(self._limit - self._free_for_all, crowd, of_topic) > 0

    def take(self, topic: str, second: int, due: int) -> None:
        """A message of a topic has come, in a second in which so many were due."""
        if due < self._free_for_all:
            return
        self._held.setdefault(second, Counter())[topic] += 1
        self._held.move_to_end(second)
        if len(self._held) > _SECONDS_MAX:
            self._held.popitem(last=False)

    def give(self, topic: str, second: int) -> None:
        """It could not be stored."""
        held = self._held.get(second)
        if held is not None and held[topic]:
            held[topic] -= 1
