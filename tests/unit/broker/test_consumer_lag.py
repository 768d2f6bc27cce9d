"""What waits for groups is counted some at a time, and comes out the same."""

from services.broker.progress.consumer_lag import _AT_ONCE, ConsumerLag
from services.broker.progress.merge_buffer import MergeBuffer
from services.common.series import OTHER, SERIES_MAX
from tests.unit.broker.test_merge_buffer import queue_of


def test_few_pairs_are_counted_at_once() -> None:
    buffer = MergeBuffer(1, 1, 100)
    lag = ConsumerLag(buffer)
    queue = queue_of(10)
    buffer.skipped(buffer.of("g", queue), 4)
    assert lag.ready() == {("g", "t"): 6}
    assert not lag.step()
    buffer.forget_group("g")
    assert lag.ready() == {}


def test_many_pairs_are_counted_some_at_a_time_and_in_as_many_series_as_allowed() -> None:
    buffer = MergeBuffer(1, 1, 1_000_000)
    lag = ConsumerLag(buffer)
    queues = [queue_of(3, "large"), queue_of(3, "large"), *[queue_of(2, f"t{number}") for number in range(2000)]]
    for group in range(12):
        for queue in queues:
            buffer.restore(f"g{group}", queue, 1, 1)
    assert buffer.pairs > _AT_ONCE
    assert not lag.step(), "it begins"
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
