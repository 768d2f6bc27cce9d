"""Number of pending timers: exactly, by topic and by the second they are due in."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from popwheel_broker.delay.unit import hash_topic

UNREADABLE = "(unreadable)"
"""Topic for counting messages whose records cannot be read."""
_MARGIN_S = 24 * 3600
_ONE = np.int32(1)
"""The number 1 of the column's own type: with another `np.add.at` takes forty times as long."""
_INT32_END = 1 << 31


class PendingTimers:
    """Counts that are updated with every timer that comes and goes, so that they need no revision.

    Seconds are in a ring as long as the longest delay and a day. Those that the ring has left behind, because a timer
    came that is due later than it reaches, are counted together as overdue.

    Args:
        delay_ms_max: how far ahead a timer may be due.
    """

    def __init__(self, delay_ms_max: int) -> None:
        self._size = -(-delay_ms_max // 1000) + _MARGIN_S
        self._counts = np.zeros(self._size, dtype=np.int32)
        # The same memory, for single seconds: thrice as fast as through numpy.
        self._count = self._counts.data
        self._begin = 0
        """The first second of the ring."""
        self._overdue = 0
        self._topics: dict[str, int] = {}
        self.total = 0
        self.is_exact = True
        """True if each timer that goes was counted as it came; not if one was unreadable."""

    def add(self, topic: str, due_ms: int) -> None:
        """Count a timer that has come."""
        second = due_ms // 1000
        if second >= self._begin + self._size or not self.total:
            self._reach(second)
        if second >= self._begin:
            self._count[second % self._size] += 1
        else:
            self._overdue += 1
        self._topics[topic] = self._topics.get(topic, 0) + 1
        self.total += 1

    def add_many(self, topic: str, count: int, due_ms: npt.NDArray[np.int64]) -> None:
        """Count many timers of one topic that have come.

        Args:
            topic: of the timers.
            count: their number.
            due_ms: when each is due.

        Raises:
            ValueError: those are not as many.
        """
        if count != len(due_ms):
            raise ValueError(f"{count} timers of {topic}, but {len(due_ms)} due times")
        if not count:
            return
        seconds = due_ms // 1000
        latest = int(seconds.max())
        if latest >= self._begin + self._size or not self.total:
            self._reach(latest)
        in_ring = seconds[seconds >= self._begin]
        np.add.at(self._counts, in_ring % self._size, _ONE)
        self._overdue += count - len(in_ring)
        self._topics[topic] = self._topics.get(topic, 0) + count
        self.total += count

    def may_hold(self, topic: str, due_ms: int) -> bool:
        """Return whether a timer of a topic that is due then may be pending; False if the topic or second has none."""
        return not self.is_exact or bool(self._in_second(due_ms) and self._topics.get(self._counted_as(topic)))

    def remove(self, topic: str, due_ms: int) -> None:
        """Subtract a timer that has gone.

        Raises:
            ValueError: there was no such timer, though the counts are exact.
        """
        second, in_second = due_ms // 1000, self._in_second(due_ms)
        topic = self._counted_as(topic)
        in_topic = self._topics.get(topic, 0)
        if not in_second or not in_topic:
            if not self.is_exact:
                return
            raise ValueError(f"no timer of {topic} is due at {due_ms}")
        if second >= self._begin:
            self._count[second % self._size] = in_second - 1
        else:
            self._overdue -= 1
        if in_topic > 1:
            self._topics[topic] = in_topic - 1
        else:
            del self._topics[topic]
        self.total -= 1
        assert self.total >= 0, "more timers are gone than came"

    def _in_second(self, due_ms: int) -> int:
        """Return how many are due in that second, or overdue if the ring has left it behind."""
        return self.at(due_ms) if due_ms // 1000 >= self._begin else self._overdue

    def _counted_as(self, topic: str) -> str:
        """Return the name under which a topic's timers are counted. A topic without any is counted under another's
        name: after a recovery, two topics whose names have the same hash are counted as one.
        """
        if topic in self._topics:
            return topic
        return next((name for name in self._topics if hash_topic(name) == hash_topic(topic)), UNREADABLE)

    def of_topic(self, topic: str) -> int:
        """Return the number of a topic's timers."""
        return self._topics.get(topic, 0)

    def by_topic(self) -> dict[str, int]:
        """Return the number of timers of each topic that has any."""
        return dict(self._topics)

    def at(self, due_ms: int) -> int:
        """Return how many are due in the second of a time; 0 for those counted together as overdue."""
        second = due_ms // 1000
        if self._begin <= second < self._begin + self._size:
            count: int = self._count[second % self._size]
            return count
        return 0

    def histogram(self, now_ms: int, bounds_ms: Sequence[int]) -> list[int]:
        """Return how many are due within each of some times from now, without those of earlier ones.

        The last number is of those due later. Each second is read once: the longest delay takes a millisecond.

        Args:
            now_ms: the wall clock.
            bounds_ms: the times, in their order.
        """
        end, begin, counts, overdue = self._begin + self._size, self._begin, list[int](), self._overdue
        for bound_ms in bounds_ms:
            until = max(begin, min((now_ms + bound_ms) // 1000 + 1, end))
            counts.append(overdue + self._sum(begin, until))
            begin, overdue = until, 0
        return [*counts, self.total - sum(counts)]

    def _sum(self, begin: int, end: int) -> int:
        """Return the sum of the seconds from `begin` to before `end`, which the ring has."""
        if end <= begin:
            return 0
        # In the column's own type it takes a tenth of the time: half a millisecond for the longest delay.
        of = np.int32 if self.total < _INT32_END else np.int64
        first, last = begin % self._size, (end - 1) % self._size + 1
        if first < last:
            return int(self._counts[first:last].sum(dtype=of))
        return int(self._counts[first:].sum(dtype=of) + self._counts[:last].sum(dtype=of))

    def _reach(self, second: int) -> None:
        """Let the ring end with this second."""
        begin = second - self._size + 1
        if not self.total:
            self._begin = begin
            return
        end = min(begin, self._begin + self._size)
        self._overdue += self._sum(self._begin, end)
        first, last = self._begin % self._size, (end - 1) % self._size + 1
        if first < last:
            self._counts[first:last] = 0
        else:
            self._counts[first:] = 0
            self._counts[:last] = 0
        self._begin = begin
