"""Rows of topics and groups in a checkpoint."""

from collections.abc import Iterable, Iterator
from typing import Any

from popwheel_broker.topics.topic_registry import TopicRegistry

_GONE_WITHOUT = ("topics", "groups")
"""Kinds of rows that each topic or group has; one of another kind without a value only says that it is gone."""


class TopicRows:
    """Rows of all topics and groups, and of those that have changed.

    Args:
        names: the topics and groups that the log knows.
    """

    def __init__(self, names: TopicRegistry) -> None:
        self._names = names
        self._changed = names.watch()

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield all rows."""
        for row in self._of(list(self._names.topic_ids), list(self._names.group_ids)):
            if row[0] in _GONE_WITHOUT or (len(row[1]) > 1 and row[1][1] is not None):
                yield row

    def changed_rows(self) -> Iterator[tuple[Any, ...]]:
        """Return the rows that have changed since the last call."""
        changed = self._changed.take()
        return self._of(changed.topics, changed.groups)

    def _of(self, topics: Iterable[str], groups: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        names = self._names
        for topic in topics:
            yield ("topics", topic, names.topic_ids.get(topic), names.former_ids(topic))
            yield ("topic_settings", names.topic_settings.row(topic))
        for group in groups:
            yield ("groups", group, names.group_ids.get(group))
            yield ("former_groups", [group, *names.former_group_ids(group)])
            yield ("group_settings", names.group_settings.row(group))
            yield ("reads", [group, *names.readers.topics_of(group)])
