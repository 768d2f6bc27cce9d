"""The merge buffer: how far each group has come, and what holds the committed offset up."""

import random
import tracemalloc
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.merge_buffer import MergeBuffer, QueueProgress
from popwheel_broker.log.consume_queue import ConsumeQueue, packed_entry
from popwheel_broker.log.queue_index import QueueIndex
from tests.harness.memory_disk import MemoryDisk


def queue_of(count: int = 1000, topic: str = "t") -> ConsumeQueue:
    queue = ConsumeQueue(QueueIndex(MemoryDisk(random.Random(0)), Path("/q"), 2, 0), topic, 0)
    for number in range(count):
        queue.extend(packed_entry(number, 1, 0))
    return queue


def pop(buffer: MergeBuffer, progress: QueueProgress, identity: int, count: int = 2, now_ms: int = 0) -> Delivery:
    start = progress.next_offset
    offsets = range(start, start + count)
    made = Delivery(identity, "g", "t", 0, 0, start, start + count, now_ms, 1, 1, 0, offsets)
    buffer.popped(progress, made)
    return made


def close(buffer: MergeBuffer, delivery: Delivery) -> None:
    delivery.open_bits = 0
    buffer.done(delivery)


def test_the_oldest_open_one_holds_the_offset_up() -> None:
    buffer = MergeBuffer(10_000, 100, 1000)
    progress = buffer.of("g", queue_of())
    one, two, three = (pop(buffer, progress, identity) for identity in range(3))
    close(buffer, two)
    assert (progress.committed, progress.next_offset, len(buffer)) == (0, 6, 3)
    close(buffer, one)
    assert (progress.committed, len(buffer)) == (4, 1)
    close(buffer, three)
    assert (progress.committed, progress.available, len(buffer)) == (6, 994, 0)


def test_after_its_stay_it_is_let_go() -> None:
    buffer = MergeBuffer(10_000, 100, 1000)
    progress = buffer.of("g", queue_of())
    pop(buffer, progress, 1, now_ms=0)
    pop(buffer, progress, 2, now_ms=5000)
    buffer.evict(9999)
    assert progress.committed == 0
    buffer.evict(10_000)
    assert (progress.committed, len(buffer)) == (2, 1)
    buffer.evict(15_000)
    assert (progress.committed, len(buffer)) == (4, 0)


def test_the_limit_lets_the_first_go() -> None:
    buffer = MergeBuffer(10_000, 3, 1000)
    progress = buffer.of("g", queue_of())
    deliveries = [pop(buffer, progress, identity) for identity in range(5)]
    assert (len(buffer), progress.committed) == (3, 4)
    close(buffer, deliveries[0])
    assert (len(buffer), progress.committed) == (3, 4)


def test_a_scan_that_found_nothing_moves_on() -> None:
    buffer = MergeBuffer(10_000, 100, 1000)
    progress = buffer.of("g", queue_of())
    buffer.skipped(progress, 50)
    assert (progress.committed, progress.next_offset) == (50, 50)
    held = pop(buffer, progress, 1)
    buffer.skipped(progress, 80)
    assert (progress.committed, progress.next_offset) == (50, 80)
    close(buffer, held)
    assert progress.committed == 80


def test_a_group_begins_where_the_queue_does() -> None:
    queue = queue_of(100)
    queue._files.log_start = 40
    buffer = MergeBuffer(10_000, 100, 1000)
    progress = buffer.of("g", queue)
    assert (progress.next_offset, progress.available) == (40, 60)
    queue._files.log_start = 70
    assert (progress.next_offset, progress.available) == (70, 30)
    assert buffer.get("g", queue) is None
    assert (buffer.pairs, list(buffer)) == (0, [])


def test_what_is_forgotten_holds_nothing_up() -> None:
    buffer = MergeBuffer(10_000, 100, 1000)
    one, other = queue_of(topic="t"), queue_of(topic="u")
    for group in ("g", "h"):
        for queue in (one, other):
            pop(buffer, buffer.of(group, queue), hash((group, queue.topic)))
    buffer.forget_group("g")
    assert (len(buffer), {progress.group for progress in buffer}) == (2, {"h"})
    buffer.forget_queues([one])
    assert [(progress.group, progress.queue.topic) for progress in buffer] == [("h", "u")]
    buffer.evict(1 << 40)
    assert len(buffer) == 0


def test_groups_that_have_not_read_a_queue_cost_little_when_it_is_forgotten() -> None:
    asked = 0

    class Asked(ConsumeQueue):
        def __hash__(self) -> int:
            nonlocal asked
            asked += 1
            return super().__hash__()

    gone = [Asked(QueueIndex(MemoryDisk(random.Random(0)), Path("/q"), 2, 0), "t", number) for number in range(8)]
    kept = queue_of(topic="u")
    buffer = MergeBuffer(10_000, 100, 10_000)
    for number in range(1000):
        buffer.skipped(buffer.of(f"g{number}", kept), 5)
    for queue in gone:
        buffer.skipped(buffer.of("g7", queue), 5)
    asked = 0
    buffer.forget_queues(gone)
    assert (buffer.pairs, {progress.queue.topic for progress in buffer}, asked < 100) == (1000, {"u"}, True)


@given(data=st.data(), limit=st.integers(1, 6), stay_ms=st.integers(0, 50))
def test_the_committed_offset_only_moves_on(data: st.DataObject, limit: int, stay_ms: int) -> None:
    """C4, and it never passes what was popped."""
    buffer = MergeBuffer(stay_ms, limit, 1000)
    progress = buffer.of("g", queue_of())
    made: list[Delivery] = []
    now_ms = committed = 0
    for step in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["pop", "close", "skip", "time"]))
        if action == "pop":
            made.append(pop(buffer, progress, step, data.draw(st.integers(1, 4)), now_ms))
        elif action == "close" and made:
            close(buffer, data.draw(st.sampled_from(made)))
        elif action == "skip":
            buffer.skipped(progress, progress.next_offset + data.draw(st.integers(0, 5)))
        else:
            now_ms += data.draw(st.integers(0, 30))
            buffer.evict(now_ms)
        assert committed <= progress.committed <= progress.next_offset
        assert len(buffer) <= limit
        holding = [each for each in made if each.open_bits and each.start_offset >= progress.committed]
        assert all(each.pop_time_ms + stay_ms > now_ms for each in holding) or action != "time"
        committed = progress.committed
    for each in made:
        close(buffer, each)
    assert (progress.committed, len(buffer)) == (progress.next_offset, 0)


def test_a_pair_that_holds_nothing_open_costs_little_and_one_that_never_read_nothing() -> None:
    queues = [queue_of(1, f"t{number}") for number in range(2000)]
    groups = [f"g{number}" for number in range(10)]
    buffer = MergeBuffer(10_000, 100, 100_000)
    tracemalloc.start()
    try:
        for group in groups:
            for queue in queues:
                assert buffer.of(group, queue).available == 1
        assert (buffer.pairs, tracemalloc.get_traced_memory()[0] < 10_000) == (0, True)
        for number, group in enumerate(groups):
            for queue in queues:
                progress = buffer.of(group, queue)
                buffer.popped(progress, made := Delivery(number, group, "t", 0, 0, 0, 5000, 0, 1, 1, 0, range(1)))
                close(buffer, made)
        assert buffer.pairs == 20_000
        assert tracemalloc.get_traced_memory()[0] / buffer.pairs < 200
    finally:
        tracemalloc.stop()


def test_the_last_tenth_is_for_groups_that_have_read() -> None:
    queues = [queue_of(topic=f"t{number}") for number in range(21)]
    buffer = MergeBuffer(10_000, 100, 20)
    for number in range(18):
        progress = buffer.of(f"g{number}", queues[0])
        assert buffer.has_room(progress)
        buffer.skipped(progress, 5)
    assert not buffer.has_room(buffer.of("new", queues[0]))
    assert buffer.has_room(buffer.of("g1", queues[1]))
    buffer.skipped(buffer.of("g1", queues[1]), 5)
    assert not buffer.has_room(buffer.of("g1", queues[2])), "it has more than is free"
    buffer.skipped(buffer.of("g2", queues[1]), 5)
    assert not buffer.has_room(buffer.of("g3", queues[1]))
    assert buffer.has_room(buffer.of("g1", queues[0])), "what has read goes on"
    for number in range(3):
        buffer.forget_group(f"g{number}")
    assert (buffer.pairs, buffer.has_room(buffer.of("new", queues[0]))) == (15, True)
    buffer.forget_queues(queues)
    assert (buffer.pairs, list(buffer.groups)) == (0, [])


def test_no_group_takes_all_progress_there_may_be() -> None:
    queues = [queue_of(topic=f"t{number}") for number in range(200)]
    buffer = MergeBuffer(10_000, 100, 100)

    def take(group: str) -> int:
        for queue in queues:
            progress = buffer.of(group, queue)
            if not buffer.has_room(progress):
                break
            buffer.skipped(progress, 5)
        return buffer.pairs_of(group)

    assert [take(group) for group in ("hoarder", "second", "third")] == [50, 25, 13]
    assert buffer.has_room(buffer.of("fourth", queues[0])) is True


def test_what_changes_is_reported_once_with_its_last_value() -> None:
    buffer = MergeBuffer(10_000, 100, 1000)
    one, other = queue_of(topic="t"), queue_of(topic="u")
    buffer.restore("g", one, 3, 4)
    watched = buffer.watch()
    buffer.skipped(buffer.of("g", one), 5)
    held = pop(buffer, buffer.of("g", one), 1)
    buffer.commit("h", other, 2)
    taken = watched.take()
    assert (taken.gone_groups, taken.offsets) == (set(), {"g": {one: 7}, "h": {other: (2, 0)}})
    close(buffer, held)
    assert watched.take().offsets == {}, "what is saved of it does not change"
    buffer.forget_group("g")
    buffer.skipped(buffer.of("g", other), 5)
    buffer.forget_queues([other])
    taken = watched.take()
    assert (taken.gone_groups, taken.offsets) == ({"g"}, {"g": {other: None}, "h": {other: None}})
