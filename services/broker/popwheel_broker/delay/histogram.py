"""Counts the delayed messages of one topic by due time: a walk through the wheel, some units at a time.

All topics together are counted by second, and need no walk. For one topic the units have to be read.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.delay.timer_state import SLOT_MS
from popwheel_broker.delay.unit import UnitFlag, hash_topic
from popwheel_broker.log.timer_record import NONE

UNITS_MAX: Final = 50_000
"""Limit of units that are read for one answer, of all topics: about half a second of work, in steps."""
_CHAIN_READ: Final = 64
_FAR_MS: Final = 1 << 45


class TopicHistogram:
    """A walk through the wheel.

    Args:
        timer: the timer.
        topic: of the messages to count.
        now_ms: the wall clock.
        bounds_ms: times from now, in their order.
    """

    def __init__(self, timer: MessageTimer, topic: str, now_ms: int, bounds_ms: Sequence[int]) -> None:
        self._state = timer.state
        self._topic = topic
        self._now_ms = now_ms
        self._bounds_ms = bounds_ms
        self._units = 0
        self.counts = [0] * (len(bounds_ms) + 1)

    @property
    def is_known(self) -> bool:
        """True if the units have their topics, and are few enough to be counted."""
        topics, of_hash = self._state.pending.by_topic(), hash_topic(self._topic)
        others = any(hash_topic(each) == of_hash for each in topics if each != self._topic)
        return not others and self._state.pending.total <= UNITS_MAX

    def steps(self) -> Iterator[None]:
        """Read all units; each step takes less than a millisecond.

        Raises:
            CorruptDataError: the timer log is damaged.
        """
        state, of_hash = self._state, hash_topic(self._topic)
        for slot_ms in self._slots():
            slot = state.wheel.slot(slot_ms)
            position = NONE if slot is None else slot.last
            while position != NONE:
                units, position = state.log.read_chain(position, _CHAIN_READ)
                for _, unit in units:
                    if unit.topic_hash == of_hash and unit.flags & UnitFlag.TIMER and unit.due_ms > self._now_ms:
                        self.counts[self._bucket(unit.due_ms)] += 1
                yield
            yield
        for recall in list(state.recalled.values()):
            if recall.topic == self._topic and not recall.is_dropped and recall.due_ms > self._now_ms:
                bucket = self._bucket(recall.due_ms)
                self.counts[bucket] = max(0, self.counts[bucket] - 1)

    def _bucket(self, due_ms: int) -> int:
        return bisect_left(self._bounds_ms, due_ms - self._now_ms)

    def _slots(self) -> Iterator[int]:
        state = self._state
        yield from list(state.opened_slots)
        slot_ms = state.wheel.next_occupied(state.curr_read_time_ms + SLOT_MS, self._now_ms + _FAR_MS)
        while slot_ms is not None:
            yield slot_ms
            slot_ms = state.wheel.next_occupied(slot_ms + SLOT_MS, self._now_ms + _FAR_MS)
