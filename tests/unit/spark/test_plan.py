"""How offsets are split among tasks and among micro-batches."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from popwheel_spark.source.plan import QueueRange, admit, ranges, split, tasks
from popwheel_spark.wire.offsets import Offsets, Queue

queues = st.builds(Queue, st.just("t"), st.sampled_from(("b-0", "b-1")), st.integers(0, 5))
places = st.dictionaries(queues, st.integers(0, 10_000), max_size=12)


@given(places, places, st.integers(1, 40), st.integers(0, 3000))
def test_the_parts_are_the_whole(start: Offsets, end: Offsets, partitions_min: int, rows_max: int) -> None:
    whole = ranges(start, end)
    parts = split(whole, partitions_min, rows_max)
    for each in whole:
        mine = [part for part in parts if part.queue == each.queue]
        assert mine[0].start == each.start and mine[-1].end == each.end
        assert all(before.end == after.start for before, after in pairwise(mine))
    assert all(part.rows > 0 for part in parts)
    assert len(parts) >= min(partitions_min, sum(each.rows for each in whole))
    assert not rows_max or all(part.rows <= rows_max for part in parts)
    assert {part.queue for part in parts} == {each.queue for each in whole}


def test_long_queues_are_split_more_often() -> None:
    small, large = Queue("t", "b-0", 0), Queue("t", "b-0", 1)
    parts = split([QueueRange(small, 0, 10), QueueRange(large, 0, 90)], 4, 0)
    assert [part.queue for part in parts].count(large) == 4
    assert [part.queue for part in parts].count(small) == 1


def test_queues_are_not_split_while_there_are_enough() -> None:
    whole = [QueueRange(Queue("t", "b-0", number), 0, rows) for number, rows in enumerate((10, 10, 80))]
    assert split(whole, 3, 0) == whole


@given(places, st.integers(1, 40), st.integers(1, 20_000), st.integers(0, 3000))
def test_small_ranges_are_joined_and_none_is_in_two_tasks(
    end: Offsets, partitions_min: int, target: int, rows_max: int
) -> None:
    parts = split(ranges({}, end), partitions_min, rows_max)
    joined = tasks(parts, partitions_min, target, rows_max)
    assert [each for task in joined for each in task] == parts
    assert len(joined) >= min(partitions_min, len(parts))
    for task in joined:
        assert len(task) == 1 or sum(max(each.rows, 100) for each in task) <= target
        assert not rows_max or sum(each.rows for each in task) <= rows_max


def test_a_thousand_small_queues_are_ten_tasks() -> None:
    whole = [QueueRange(Queue("t", "b-0", number), 0, 10) for number in range(1_000)]
    assert [len(task) for task in tasks(whole, 1, 10_000)] == [100] * 10
    assert len(tasks(whole, 16, 10_000)) == 16
    assert len(tasks(whole, 1, 1)) == 1_000


def test_no_task_is_without_rows() -> None:
    queue = Queue("t", "b-0", 0)
    assert split([QueueRange(queue, 5, 7)], 9, 0) == [QueueRange(queue, 5, 6), QueueRange(queue, 6, 7)]


@given(places, places, st.integers(1, 5000), st.sampled_from((1.0, 3.5, 100.0)))
def test_a_micro_batch_keeps_to_its_limit_and_goes_on(start: Offsets, end: Offsets, limit: int, weight: float) -> None:
    ahead = {queue: max(offset, start.get(queue, 0)) for queue, offset in end.items()}
    reached = admit(start, ahead, dict.fromkeys(ahead, weight), limit)
    went = {queue: reached[queue] - start.get(queue, 0) for queue in ahead}
    backlog = {queue: ahead[queue] - start.get(queue, 0) for queue in ahead}
    assert all(0 <= went[queue] <= backlog[queue] for queue in ahead)
    assert sum(went.values()) * weight <= limit or sum(went.values()) == 1
    assert sum(went.values()) > 0 or not any(backlog.values())
    if sum(backlog.values()) * weight <= limit:
        assert reached == ahead


def test_each_queue_goes_on_by_its_share_of_the_backlog() -> None:
    small, large = Queue("t", "b-0", 0), Queue("t", "b-0", 1)
    reached = admit({small: 100}, {small: 200, large: 900}, {small: 1, large: 1}, 100)
    assert reached == {small: 110, large: 90}


def test_what_rounding_leaves_goes_to_those_for_whom_most_waits() -> None:
    few, some, most = (Queue("t", "b-0", number) for number in range(3))
    assert admit({}, {few: 1, some: 2, most: 3}, {few: 1, some: 1, most: 1}, 2) == {few: 0, some: 0, most: 2}


def test_a_queue_that_is_shorter_than_it_was_begins_anew() -> None:
    anew, other = Queue("t", "b-0", 0), Queue("t", "b-0", 1)
    assert admit({anew: 100, other: 0}, {anew: 50, other: 900}, {anew: 1, other: 1}, 10) == {anew: 50, other: 10}
