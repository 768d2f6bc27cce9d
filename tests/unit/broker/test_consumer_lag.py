"""What waits for groups is counted some at a time, and comes out the same."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume.consumer_lag import _AT_ONCE, ConsumerLag
from popwheel_broker.consume.group_queues import GroupQueues
from popwheel_broker.consume.merge_buffer import MergeBuffer
from popwheel_broker.log.consume_queue import ConsumeQueue, packed_entry
from popwheel_broker.log.queues import Queues
from popwheel_broker.topics.readers import Readers
from popwheel_common.series import OTHER, SERIES_MAX
from tests.unit.broker.test_merge_buffer import queue_of


def group_queues_of(buffer: MergeBuffer) -> GroupQueues:
    """Return queues without readers of topics: it has only what was read."""
    return GroupQueues(buffer, Queues(0, lambda topic, number: queue_of(0, topic)), Readers())


def filled(queue: ConsumeQueue, count: int) -> ConsumeQueue:
    for number in range(count):
        queue.extend(packed_entry(number, 1, 0))
    return queue


def test_few_pairs_are_counted_at_once() -> None:
    buffer = MergeBuffer(1, 1, 100)
    lag = ConsumerLag(buffer, group_queues_of(buffer))
    queue = queue_of(10)
    buffer.skipped(buffer.of("g", queue), 4)
    assert lag.ready() == {("g", "t"): 6}
    assert not lag.step()
    buffer.forget_group("g")
    assert lag.ready() == {}


def test_many_pairs_are_counted_some_at_a_time_and_in_as_many_series_as_allowed() -> None:
    buffer = MergeBuffer(1, 1, 1_000_000)
    lag = ConsumerLag(buffer, group_queues_of(buffer))
    queues = [queue_of(3, "large"), queue_of(3, "large"), *[queue_of(2, f"t{number}") for number in range(2000)]]
    for group in range(12):
        for queue in queues:
            buffer.restore(f"g{group}", queue, 1, 1)
    assert buffer.pairs > _AT_ONCE
    assert lag.ready() == {}, "there are many"
    steps = 1
    while lag.step():
        steps += 1
        assert lag.ready() == {}
    assert steps >= buffer.pairs // _AT_ONCE
    ready = lag.ready()
    assert all(ready[f"g{group}", "large"] == 4 for group in range(12))
    assert sum(ready.values()) == 12 * (4 + 2000)
    assert len(ready) <= 2 * SERIES_MAX + 1
    assert ready[OTHER, OTHER] > 0


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
    st.sets(st.integers(0, 7)),
    st.booleans(),
)
def test_what_a_group_never_looked_into_counts_from_the_first_message_stored(
    queues: list[tuple[int, int]], read: set[int], is_noted: bool
) -> None:
    """By whatever it is known to read the topic: a poll that found nothing, or an offset in one of the queues."""
    buffer, readers = MergeBuffer(1, 1, 100), Readers()
    all_queues = Queues(100, lambda topic, number: queue_of(0, topic))
    made = [filled(all_queues.ensure("t", number), count) for number, (count, _) in enumerate(queues)]
    expected = 0
    is_read = is_noted
    for number, (count, offset) in enumerate(queues):
        if number in read:
            buffer.restore("g", made[number], min(count, offset), min(count, offset))
            expected += count - min(count, offset)
            is_read = True
        else:
            expected += count
    if is_noted:
        readers.record({"g": ["t"]})
    lag = ConsumerLag(buffer, GroupQueues(buffer, all_queues, readers))
    assert lag.ready() == ({("g", "t"): expected} if is_read else {})
    readers.forget_group("g")
    buffer.forget_group("g")
    assert lag.ready() == {}


def lag_in_steps(buffer: MergeBuffer, group_queues: GroupQueues) -> int:
    """Return the number of steps of a count: queues where nothing waits are counted some at a time as well."""
    lag = ConsumerLag(buffer, group_queues)
    assert lag.ready() == {}
    steps = 1
    while lag.step():
        steps += 1
    return steps


def test_many_readers_of_a_topic_without_a_queue_are_counted_some_at_a_time() -> None:
    buffer, readers = MergeBuffer(1, 1, 100), Readers()
    readers.record({f"g{number}": ["empty"] for number in range(3 * _AT_ONCE)})
    group_queues = GroupQueues(buffer, Queues(100, lambda topic, number: queue_of(0, topic)), readers)
    assert lag_in_steps(buffer, group_queues) > 3


def test_many_idle_lite_topics_of_a_group_are_counted_some_at_a_time() -> None:
    buffer, readers = MergeBuffer(1, 1, 100), Readers()
    readers.record({"g": ["parent"]})
    idle = [f"l{number}" for number in range(3 * _AT_ONCE)]
    queues = Queues(100, lambda topic, number: queue_of(0, topic))
    assert lag_in_steps(buffer, GroupQueues(buffer, queues, readers, lambda group, topic: idle)) > 3


def test_queues_that_a_group_has_read_are_steps_where_its_topics_are_gone_over() -> None:
    buffer, readers = MergeBuffer(1, 1, 100_000), Readers()
    queues = Queues(100_000, lambda topic, number: queue_of(0, topic))
    for number in range(100):
        buffer.restore("g", filled(queues.ensure("t", number), 1), 1, 1)
    found = list(GroupQueues(buffer, queues, readers).queues_of("g"))
    assert len(found) >= 200
    assert len({each for each in found if each is not None}) == sum(each is not None for each in found) == 100


def test_a_wide_topic_of_few_readers_is_counted_some_at_a_time() -> None:
    buffer, readers = MergeBuffer(1, 1, 100), Readers()
    queues = Queues(100_000, lambda topic, number: queue_of(0, topic))
    for number in range(_AT_ONCE + 10):
        filled(queues.ensure("t", number), 1)
    readers.record({"g": ["t"]})
    lag = ConsumerLag(buffer, GroupQueues(buffer, queues, readers))
    assert lag.ready() == {}, "as before: nothing is counted at once"
    assert lag.step()
    assert not lag.step()
    assert lag.ready() == {("g", "t"): _AT_ONCE + 10}
