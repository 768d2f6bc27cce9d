"""The queues that each group reads: all that exist of its topics, whether or not it ever looked into them."""

from collections.abc import Callable, Iterable, Iterator

from popwheel_broker.consume.merge_buffer import MergeBuffer
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.queues import Queues
from popwheel_broker.topics.readers import Readers
from popwheel_common.contract import names

LiteTopicsRead = Callable[[str, str], Iterable[str]]
"""Lite topics that clients of a group read now, by group and topic."""


def _none(group: str, topic: str) -> Iterable[str]:
    return ()


class GroupQueues:
    """Goes over the queues of groups.

    Args:
        buffer: what groups have read.
        queues: those that there are.
        readers: which topics groups read.
        lite_topics: which lite topics their clients read.
    """

    def __init__(
        self, buffer: MergeBuffer, queues: Queues, readers: Readers, lite_topics: LiteTopicsRead = _none
    ) -> None:
        self._buffer = buffer
        self._queues = queues
        self._readers = readers
        self._lite_topics = lite_topics

    @property
    def groups(self) -> list[str]:
        """Return the groups that read anything."""
        return list({**dict.fromkeys(self._buffer.groups), **dict.fromkeys(self._readers.groups)})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group is known to read, also where nothing was put into them yet."""
        return self._readers.topics_of(group)

    def queues_of(self, group: str) -> Iterator[ConsumeQueue | None]:
        """Yield each queue of the topics that a group reads, and of its retry topics, once. A group that is new in one
        begins at the first message stored. May take many steps, while queues come and go. None is a mere step: a topic
        that a group reads may have no queue, and the caller that counts its steps counts that.
        """
        topics = dict.fromkeys(self._readers.topics_of(group))
        for queue in self._buffer.of_group(group):
            if not queue.is_lite:
                topics[queue.topic] = None
            yield queue
        queues = self._queues
        topics.update(dict.fromkeys(queues.retry_topics_of_group(group)))
        for topic in topics:
            yield None
            for queue in queues.of_topic(topic):
                yield queue if self._buffer.offsets(group, queue) is None else None
            for lite_topic in list(self._lite_topics(group, topic)):
                lite_queue = queues.get(names.lite_topic(topic, lite_topic), 0)
                is_left = lite_queue is not None and self._buffer.offsets(group, lite_queue) is None
                yield lite_queue if is_left else None
