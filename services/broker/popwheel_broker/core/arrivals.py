"""Arrived messages that the filters of polls are still to be asked about, a limited part at a time.

Polls with many or costly filters may wait for one topic, and senders decide how often messages arrive there. So these
filters are not asked in the turn of the loop in which a message arrives, but in later ones, topics by turns.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from popwheel_broker.log.consume_queue import ConsumeQueue

TURN_COST_MAX = 512
"""Limit of lookups of entries that one turn may cost: about a millisecond."""
MESSAGES_MAX = 1024
"""Limit of waiting messages of a topic; all of its polls are notified of more, whatever their filters are."""

Later = Callable[[float, Callable[[], None]], object]
"""Calls back after a number of seconds."""


@dataclass(slots=True)
class Arrived:
    """Messages that have arrived in one queue.

    Args:
        queue: the queue.
        start: offset of the first.
        count: of the messages.
        tag_hashes: of each; empty if they are too many to compare, so that all polls are notified.
        filters_only: polls without an SQL92 filter were notified already.
    """

    queue: ConsumeQueue
    start: int
    count: int
    tag_hashes: list[int]
    filters_only: bool = False


Asking = Callable[[Arrived], Iterator[int]]
"""Asks all filters, and notifies those that messages pass; yields what each step has cost."""


@dataclass(slots=True)
class _Topic:
    waiting: deque[Arrived] = field(default_factory=deque)
    messages: int = 0
    asking: Iterator[int] | None = None


class Arrivals:
    """Asks filters about arrived messages, in later turns of the loop.

    Args:
        ask: asks them.
        later: calls back.
    """

    def __init__(self, ask: Asking, later: Later) -> None:
        self._ask = ask
        self._later = later
        self._topics: dict[str, _Topic] = {}
        """Topics in the order of their turns."""
        self._is_due = False
        self.unasked = 0
        """Messages of which all polls were notified, as too many waited."""

    @property
    def messages(self) -> int:
        """Messages that filters are still to be asked about."""
        return sum(each.messages for each in self._topics.values())

    def add(self, queue: ConsumeQueue, start: int, tag_hashes: Sequence[int], *, filters_only: bool = False) -> None:
        """Add messages to wait; if too many of the topic wait already, notify all of its polls."""
        topic = self._topics.setdefault(queue.topic, _Topic())
        count = len(tag_hashes)
        last = topic.waiting[-1] if topic.waiting else None
        if topic.messages + count > MESSAGES_MAX:
            self.unasked += count
            if last is not None and not last.tag_hashes:
                last.count += count
                last.filters_only &= filters_only
            else:
                topic.waiting.append(Arrived(queue, start, count, [], filters_only))
        else:
            if last is not None and last.queue is queue and last.tag_hashes and last.start + last.count == start:
                last.tag_hashes.extend(tag_hashes)
                last.count += count
                last.filters_only &= filters_only
            else:
                topic.waiting.append(Arrived(queue, start, count, list(tag_hashes), filters_only))
            topic.messages += count
        self._schedule()

    def forget(self, topics: Iterable[str]) -> None:
        """Forget deleted topics, and the messages that wait there."""
        for each in topics:
            self._topics.pop(each, None)

    def _schedule(self) -> None:
        if self._topics and not self._is_due:
            self._is_due = True
            self._later(0.0, self._continue)

    def _continue(self) -> None:
        self._is_due = False
        left = TURN_COST_MAX
        try:
            while self._topics and left > 0:
                left -= self._step()
        finally:
            self._schedule()

    def _step(self) -> int:
        """Take one step for the topic in turn; return its cost."""
        name = next(iter(self._topics))
        topic = self._topics.pop(name)
        if topic.asking is None:
            arrived = topic.waiting.popleft()
            topic.messages -= len(arrived.tag_hashes)
            topic.asking = self._ask(arrived)
        asking, topic.asking = topic.asking, None  # one that fails is not asked again
        try:
            cost = next(asking, None)
            if cost is not None:
                topic.asking = asking
        finally:
            if topic.asking is not None or topic.waiting:
                self._topics[name] = topic
        return max(1, cost or 0)  # so a turn ends, whatever an asking returns
