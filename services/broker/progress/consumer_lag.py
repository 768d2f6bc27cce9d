"""How many messages wait for each group in each topic, for metrics: too many pairs are not counted all at once."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice

from services.broker.progress.merge_buffer import MergeBuffer
from services.common.contract import names
from services.common.series import OTHER, SERIES_MAX, Labels, bounded

_AT_ONCE = 5000
_NONE: Mapping[tuple[str, str], int] = {}


class ConsumerLag:
    """Counts what waits to be given out.

    Args:
        buffer: how far groups are.
        held: by group and topic: messages behind that which wait for others of their message group.
    """

    def __init__(self, buffer: MergeBuffer, held: Mapping[tuple[str, str], int] = _NONE) -> None:
        self._buffer = buffer
        self._held = held
        self._counting: Iterator[None] = iter(())
        self._counted: Mapping[Labels, int] = {}

    def ready(self) -> Mapping[Labels, int]:
        """Messages by group and topic as clients name it: now if there are few pairs, else as they were when `step` was
        through last.
        """
        if self._buffer.pairs <= _AT_ONCE:
            for _ in self._count():
                pass
        return self._counted

    def step(self) -> bool:
        """Count on for a few milliseconds if there are many, to be called often; whether it is to go on soon."""
        if self._buffer.pairs <= _AT_ONCE:
            return False
        if sum(1 for _ in islice(self._counting, _AT_ONCE)) == _AT_ONCE:
            return True
        self._counting = self._count()
        return False

    def _count(self) -> Iterator[None]:
        found: dict[Labels, int] = {}
        for group in list(self._buffer.groups):
            of_topic: dict[str, int] = defaultdict(int)
            for queue in self._buffer.of_group(group):
                progress = self._buffer.get(group, queue)
                if progress is not None and queue.is_lite:
                    of_topic[names.lite_parent(queue.topic)] += progress.available_at_most
                    of_topic[names.lite_parent(queue.topic)] += self._held.get((group, queue.topic), 0)
                elif progress is not None:
                    of_topic[queue.topic] += progress.available_at_most
                yield
            for topic, count in of_topic.items():
                found[group, topic] = count + self._held.get((group, topic), 0)
                if len(found) > 2 * SERIES_MAX:
                    others = found.pop((OTHER, OTHER), 0)
                    found = dict(bounded(found))
                    found[OTHER, OTHER] += others
                yield
        self._counted = found
