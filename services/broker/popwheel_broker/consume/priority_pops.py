"""Pops of topics of type PRIORITY: the highest level first, but no message waits below the others for ever (P8).

A queue of such a topic is a priority level, and so is a queue of its retry topics. A pop goes through the levels from
the highest down, and ends where a message is left that did not fit: nothing lower comes before it. But a message of a
lower level that has waited for too long is overdue. Overdue messages come first and take up to half of each pop,
beginning with the level whose first message has waited longest. Pops of one message take turns.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from popwheel_broker.consume.merge_buffer import MergeBuffer, QueueProgress
from popwheel_broker.consume.taken import Budget, Taken
from popwheel_broker.consume.wanted import Wanted
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.message_store import MessageStore
from popwheel_common.clock import Clock
from popwheel_common.cold_reads import NotInMemory, Range
from popwheel_common.contract import receipt
from popwheel_common.errors import CorruptDataError

HEADS_MAX = 10_000
"""Limit of pairs of a group and a priority level with a tracked head-of-line wait."""
ROTATIONS_MAX = 10_000
"""Limit of pairs of a group and a topic with a tracked turn."""

_NOBODY, _HIGHEST, _OVERDUE = 0, -1, 1


class Take(Protocol):
    """Reads the next messages of one queue that a filter wants, in any order."""

    def __call__(
        self,
        progress: QueueProgress,
        origin: int,
        wanted: Wanted,
        budget: Budget,
        taken: list[Taken],
        start: int | None = None,
    ) -> None:
        """Read from `start` on, or from the group's offset."""


class Source(NamedTuple):
    """A level of a topic, or of its retries.

    Args:
        progress: of the group.
        origin: `receipt.FROM_TOPIC` or `receipt.FROM_RETRY_TOPIC`.
        wanted: its filter.
    """

    progress: QueueProgress
    origin: int
    wanted: Wanted

    @property
    def level(self) -> int:
        """Priority level; higher levels come earlier."""
        return self.progress.queue.queue_id


class PriorityRotation(NamedTuple):
    """Decision of a pop about overdue messages, to be recorded once it has delivered what it took.

    Args:
        pair: group and topic.
        next: the level whose turn is next.
        overdue: number of overdue messages taken.
    """

    pair: tuple[str, str]
    next: int
    overdue: int


class PriorityPops:
    """Takes messages of priority levels.

    Args:
        store: the messages.
        buffer: progress of groups.
        wait_ms: a message of a lower level that has waited for longer is overdue.
        clock: the wall clock, by which messages are stored.
        take: reads a queue.
        stands_still: whether a queue stands at a damaged record.

    Attributes:
        overdue: number of messages that came before those of higher levels.
    """

    def __init__(
        self,
        store: MessageStore,
        buffer: MergeBuffer,
        wait_ms: int,
        clock: Clock,
        take: Take,
        stands_still: Callable[[ConsumeQueue], bool],
    ) -> None:
        self._store = store
        self._buffer = buffer
        self._wait_ms = wait_ms
        self._clock = clock
        self._take = take
        self._stands_still = stands_still
        self._heads: OrderedDict[tuple[str, ConsumeQueue], tuple[int, int]] = OrderedDict()
        self._rotations: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.overdue = 0

    @property
    def heads(self) -> int:
        """Number of priority levels with a tracked head-of-line wait, of `HEADS_MAX`."""
        return len(self._heads)

    @property
    def rotations(self) -> int:
        """Number of groups and topics with a tracked turn, of `ROTATIONS_MAX`."""
        return len(self._rotations)

    def take(
        self,
        pair: tuple[str, str],
        levels: Sequence[QueueProgress],
        retries: Sequence[QueueProgress],
        wanted: Wanted,
        budget: Budget,
        taken: list[Taken],
        *,
        retries_first: bool,
    ) -> PriorityRotation | None:
        """Take messages from the highest level down, overdue ones first.

        Args:
            pair: group and topic.
            levels: the queues of the topic.
            retries: those of the group's retry topic.
            wanted: the filter.
            budget: what may be taken.
            taken: taken messages, added to.
            retries_first: whether in each level retries come before first deliveries.

        Returns:
            The turn to record once that was delivered; None if there is none.
        """
        first = [Source(each, receipt.FROM_TOPIC, wanted) for each in levels]
        again = [Source(each, receipt.FROM_RETRY_TOPIC, None) for each in retries]
        sources = (*again, *first) if retries_first else (*first, *again)
        waiting = [each for each in sources if self._has_more(each, None)]
        waiting.sort(key=_level_of, reverse=True)
        turn = None
        if waiting and waiting[-1].level < waiting[0].level:
            overdue = self._overdue(waiting)
            if overdue:
                turn = self._take_overdue(pair, overdue, budget, taken)
        before = len(taken)
        for source in waiting:
            if budget.is_spent:
                break
            self._take(source.progress, source.origin, source.wanted, budget, taken, _read_to(source, taken))
            if self._has_more(source, _read_to(source, taken)):
                break
        if turn is not None and turn.overdue and len(taken) == before:
            return turn._replace(next=_HIGHEST)
        return turn

    def record(self, turn: PriorityRotation) -> None:
        """Record the turn: what was taken is delivered."""
        self.overdue += turn.overdue
        if turn.next == _NOBODY:
            self._rotations.pop(turn.pair, None)
            return
        self._rotations[turn.pair] = turn.next
        self._rotations.move_to_end(turn.pair)
        if len(self._rotations) > ROTATIONS_MAX:
            self._rotations.popitem(last=False)

    def _has_more(self, source: Source, read_to: int | None) -> bool:
        """Return whether there are messages behind an offset, or behind the group's, that a pop may have."""
        progress, queue = source.progress, source.progress.queue
        at = progress.next_offset if read_to is None else max(read_to, progress.next_offset)
        if at >= queue.max_offset or self._stands_still(queue):
            return False
        return source.origin == receipt.FROM_RETRY_TOPIC or self._buffer.has_room(progress)

    def _overdue(self, waiting: Sequence[Source]) -> list[Source]:
        """Return the sources below the highest level whose first messages are overdue, the oldest of them first."""
        latest_ms = self._clock.wall_ms() - self._wait_ms
        found: list[tuple[int, Source]] = []
        cold: list[Range] = []
        for source in waiting:
            if source.level == waiting[0].level:
                continue
            try:
                stored_ms = self._stored_ms(source.progress)
            except NotInMemory as missing:
                cold += missing.ranges
                continue
            except CorruptDataError:
                continue  # a pop of the queue finds out
            if stored_ms is not None and stored_ms < latest_ms:
                found.append((stored_ms, source))
        if cold:
            raise NotInMemory(cold)  # for all levels at once; nothing was taken yet
        return [source for _, source in sorted(found, key=_time_of)]

    def _stored_ms(self, progress: QueueProgress) -> int | None:
        """Return when the first message of a level was stored; read once, and known until the group is past it."""
        key, offset = (progress.group, progress.queue), progress.next_offset
        known = self._heads.get(key)
        if known is not None and known[0] == offset:
            return known[1]
        entries = progress.queue.read(offset, 1)
        stored_ms = self._store.records.stored_at_ms(entries[0].position) if entries else None
        if stored_ms is not None:
            self._heads[key] = (offset, stored_ms)
            self._heads.move_to_end(key)
            if len(self._heads) > HEADS_MAX:
                self._heads.popitem(last=False)
        return stored_ms

    def _take_overdue(
        self,
        pair: tuple[str, str],
        overdue: Sequence[Source],
        budget: Budget,
        taken: list[Taken],
    ) -> PriorityRotation:
        """Take overdue messages, up to half of what may be taken."""
        now = self._rotations.get(pair, _NOBODY)
        share = 0 if now == _HIGHEST else (budget.messages + now) // 2
        part = Budget(share, budget.scan_entries // 2, max(1, budget.response_bytes // 2))
        before = (part.scan_entries, part.response_bytes)
        count = 0
        for source in overdue:
            if part.is_spent:
                break
            at = len(taken)
            self._take(source.progress, source.origin, source.wanted, part, taken, None)
            if len(taken) > at:
                self._retain_overdue(taken, part)
            if len(taken) > at:
                count += len(taken[-1].offsets)
        budget.messages -= count
        budget.scan_entries -= before[0] - part.scan_entries
        budget.response_bytes -= before[1] - part.response_bytes
        # A level that was skipped, as the pop was too small for both, is the next.
        return PriorityRotation(pair, _NOBODY if count else _OVERDUE, count)

    def _retain_overdue(self, taken: list[Taken], budget: Budget) -> None:
        """Keep the overdue ones of the messages taken last, and drop the rest.

        Those behind them are not overdue, as queues are in order of time.
        """
        last = taken[-1]
        latest_ms = self._clock.wall_ms() - self._wait_ms
        count = 1
        if last.records is not None:
            late = (number for number, each in enumerate(last.records) if each.store_time_ms >= latest_ms)
            count = next(late, len(last.records))
        if count == len(last.offsets):
            return
        budget.messages += len(last.offsets) - count
        budget.response_bytes += sum(entry.length for entry in last.entries[count:])
        if count:
            last.shorten(count)
        else:  # the filter let nothing through that is overdue
            self._buffer.passed(last.progress, last.offsets[0])
            taken.pop()


def _read_to(source: Source, taken: Sequence[Taken]) -> int | None:
    """Return the offset up to which this very pop has read a queue; None if it has taken nothing of it."""
    return next((each.next_offset for each in reversed(taken) if each.progress is source.progress), None)


def _level_of(source: Source) -> int:
    return source.level


def _time_of(found: tuple[int, Source]) -> int:
    return found[0]
