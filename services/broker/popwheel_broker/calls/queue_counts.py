"""Counts messages of queues for one group, or of all queues together, some queues at a time."""

from collections.abc import Iterator

from popwheel_broker.core.core import BrokerCore
from popwheel_common.contract import names
from popwheel_common.contract.names import Kind

_STEP = 500


class GroupWaiting:
    """Counts messages that wait for a group.

    Args:
        core: the broker's state.
        group: the group.
    """

    def __init__(self, core: BrokerCore, group: str) -> None:
        self._core = core
        self._group = group
        self.waiting = core.state.table.message_group_queues.blocked.share(group)
        self.retrying = 0

    def steps(self) -> Iterator[None]:
        """Count the queues that it reads, in steps."""
        buffer = self._core.state.merge_buffer
        for queue in self._core.group_queues.queues_of(self._group):
            yield
            if queue is None:
                continue
            available = buffer.of(self._group, queue).available_at_most
            if names.kind_of(queue.topic) is Kind.RETRY:
                self.retrying += available
            elif names.kind_of(queue.topic) is not Kind.DEAD_LETTER:
                self.waiting += available


class QueueTotals:
    """Counts the messages of all queues, a part with each sample.

    Args:
        core: the broker's state.
    """

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._counting: Iterator[None] | None = None
        self.stored: int | None = None
        """Messages of topics, by the last whole count; None before that."""
        self.dead_letters = 0

    def steps(self) -> Iterator[None]:
        """Continue the count; this yields for a part of it."""
        if self._counting is None:
            self._counting = self._count()
        for _ in self._counting:
            yield
        self._counting = None

    def _count(self) -> Iterator[None]:
        stored = dead_letters = 0
        for number, queue in enumerate(self._core.store.queues, 1):
            kind = names.kind_of(queue.topic)
            if kind in (Kind.USER, Kind.LITE):
                stored += queue.max_offset - queue.known_min_offset
            elif kind is Kind.DEAD_LETTER:
                group = queue.topic.removeprefix(names.DEAD_LETTER_PREFIX)
                dead_letters += self._core.state.merge_buffer.of(group, queue).available_at_most
            if number % _STEP == 0:
                yield
        self.stored, self.dead_letters = stored, dead_letters
