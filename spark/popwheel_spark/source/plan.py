"""Plan of a batch or micro-batch: its offsets, and how they are split among tasks (pure)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from popwheel_spark.wire.offsets import START, Offsets, Queue

_RANGE_ROWS = 100
"""Cost of a range besides its rows, in rows."""


@dataclass(frozen=True, order=True)
class QueueRange:
    """Offsets of one queue from `start` up to, and without, `end`: the work of a task, or a part of it."""

    queue: Queue
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Largest number of messages: fewer pass a filter."""
        return self.end - self.start


def ranges(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[QueueRange]:
    """Return the ranges between two offsets; a queue that only the end has is read from its first message on."""
    both = (QueueRange(queue, start.get(queue, START), end[queue]) for queue in sorted(end))
    return [each for each in both if each.rows > 0]


def split(whole: Iterable[QueueRange], partitions_min: int, rows_max: int) -> list[QueueRange]:
    """Split ranges so that there are enough of them and none is too long.

    Args:
        whole: one for each queue.
        partitions_min: least number of ranges, if there are as many rows; shared out by rows.
        rows_max: rows of one at the most; 0: no limit.
    """
    whole = list(whole)
    total = sum(each.rows for each in whole)
    result: list[QueueRange] = []
    for each in whole:
        pieces = max(1, -(-each.rows * partitions_min // total)) if partitions_min > len(whole) else 1
        if rows_max:
            pieces = max(pieces, -(-each.rows // rows_max))
        pieces = min(pieces, each.rows)
        cuts = [each.start + each.rows * number // pieces for number in range(pieces + 1)]
        result += [QueueRange(each.queue, cuts[number], cuts[number + 1]) for number in range(pieces)]
    return result


def tasks(
    parts: Iterable[QueueRange], partitions_min: int, rows_target: int, rows_max: int = 0
) -> list[tuple[QueueRange, ...]]:
    """Join small ranges, so that a task reads many of them: a task by itself costs more than some thousand rows.

    Args:
        parts: as `split` makes them; no range is in two tasks.
        partitions_min: least number of tasks, if there are as many parts.
        rows_target: rows from which on a task gets no further range. Each range counts as `_RANGE_ROWS` at the least,
            for the calls that it takes.
        rows_max: rows of a task at the most, if it has several ranges; 0: no limit.
    """
    left = list(parts)
    result: list[tuple[QueueRange, ...]] = []
    joined: list[QueueRange] = []
    rows = weight = 0
    for place, each in enumerate(left):
        its_weight = max(each.rows, _RANGE_ROWS)
        fits = weight + its_weight <= rows_target and (not rows_max or rows + each.rows <= rows_max)
        if joined and not (fits and len(result) + len(left) - place >= partitions_min):
            result.append(tuple(joined))
            joined, rows, weight = [], 0, 0
        joined.append(each)
        rows += each.rows
        weight += its_weight
    return [*result, tuple(joined)] if joined else result


def admit(
    start: Mapping[Queue, int], end: Mapping[Queue, int], weights: Mapping[Queue, float], limit: float
) -> Offsets:
    """Return the end of a limited micro-batch: each queue gets its share of the backlog.

    Args:
        start: where it begins; queues that are not in it begin at `START`.
        end: how far it could go.
        weights: what one message of a queue counts: 1, or its bytes.
        limit: of the sum of what all messages count. As much as one message goes in any case, or nothing ever would.
    """
    backlog = ranges(start, end)
    total = sum(each.rows * weights[each.queue] for each in backlog)
    if total <= limit:
        return dict(end)
    result = {queue: min(start.get(queue, START), offset) for queue, offset in end.items()}
    left = limit
    for each in backlog:
        rows = int(limit * (each.rows / total))
        result[each.queue] = each.start + rows
        left -= rows * weights[each.queue]
    # The remainder of rounding goes to the queues with most backlog, one message each.
    for each in sorted(backlog, key=lambda each: -each.rows):
        if weights[each.queue] <= left and result[each.queue] < each.end:
            result[each.queue] += 1
            left -= weights[each.queue]
    if backlog and all(result[each.queue] == each.start for each in backlog):
        first = max(backlog, key=lambda each: each.rows)
        result[first.queue] = first.start + 1
    return result
