"""All queues of a broker: found by topic, dropped with it, and what of them is to be saved."""

import random
from pathlib import Path

import pytest

from popwheel_broker.log.consume_queue import ConsumeQueue, packed_entry
from popwheel_broker.log.queue_index import QueueIndex
from popwheel_broker.log.queues import Queues, reserve_of
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.memory_disk import MemoryDisk


def queues_of(limit: int = 100) -> Queues:
    index = QueueIndex(MemoryDisk(random.Random(0)), Path("/q"), 2, 0)
    return Queues(limit, lambda topic, queue_id: ConsumeQueue(index, topic, queue_id))


def grow(queues: Queues, topic: str, queue_id: int, count: int, position: int = 0) -> ConsumeQueue:
    queue = queues.ensure(topic, queue_id)
    queue.extend(packed_entry(position, 1, 2) * count)
    queues.changed(queue)
    return queue


def drop(queues: Queues, topic: str) -> None:
    queues.drop(topic, lambda queue: queue.max_offset)


def test_a_dropped_topic_releases_its_queues_and_its_offsets_are_not_used_again() -> None:
    queues = queues_of(limit=3)
    for queue_id, count in ((0, 5), (1, 9)):
        grow(queues, "a", queue_id, count)
    grow(queues, "b", 0, 1)
    with pytest.raises(StatusError, match=r"broker\.log\.queues_max"):
        queues.ensure("b", 1)
    drop(queues, "a")
    assert (len(queues), queues.get("a", 0), queues.offsets_from) == (1, None, 9)
    made = queues.ensure("a", 0)
    assert (made.min_offset, made.max_offset) == (9, 9)
    assert queues["b", 0].min_offset == 0


def test_the_broker_has_a_reserve_of_queues_for_what_it_needs_itself() -> None:
    queues = queues_of(limit=1)
    queues.ensure("a", 0)
    with pytest.raises(StatusError, match=r"broker\.log\.queues_max"):
        queues.ensure("b", 0)
    for number in range(reserve_of(1)):
        queues.ensure(names.retry_topic("g", f"t{number}"), 0)
    with pytest.raises(StatusError, match=r"broker\.log\.queues_max"):
        queues.ensure(names.dead_letter_topic("g"), 0)
    assert queues.has_room("a", 0)
    drop(queues, "a")
    assert not queues.has_room("b", 0)
    queues.ensure(names.dead_letter_topic("g"), 0)


@pytest.mark.parametrize("queue_id", [-1, 65_536, 2**31 - 1])
def test_a_number_that_no_record_can_say_is_refused(queue_id: int) -> None:
    queues = queues_of()
    with pytest.raises(StatusError, match="numbers go from 0 to 65535") as caught:
        queues.ensure("a", queue_id)
    assert (caught.value.code, len(queues)) == (Code.BAD_REQUEST, 0)
    assert queues.ensure("a", 65_535).queue_id == 65_535


def test_retry_topics_are_found_by_topic_and_by_group() -> None:
    queues = queues_of()
    retries = [names.retry_topic(group, topic) for group, topic in (("g", "t"), ("g", "u"), ("h", "t"), ("gg", "tt"))]
    for topic in (*retries, names.dead_letter_topic("g"), "t"):
        queues.ensure(topic, 0)
    assert queues.retry_topics("t") == sorted([retries[0], retries[2]])
    assert queues.retry_topics_of_group("g") == sorted(retries[:2])
    assert list(queues.system_topics) == [names.dead_letter_topic("g")]
    for topic in (*retries, names.dead_letter_topic("g")):
        drop(queues, topic)
    assert queues.retry_topics("t") == queues.retry_topics_of_group("g") == list(queues.system_topics) == []
    assert [queue.topic for queue in queues] == ["t"]


def test_only_what_has_changed_is_to_be_saved() -> None:
    queues = queues_of()

    def taken(position: int = 1) -> tuple[list[str], list[tuple[str, int, int, int]], int]:
        changes = queues.take_changes(position)
        grow(queues, "b", 3, 1, position)  # comes in before the rows are made
        queues.take_changes(0)
        return changes.gone, list(changes.rows()), changes.offsets_from

    first = grow(queues, "a", 0, 2)
    grow(queues, "b", 3, 1)
    assert taken(1) == ([], [("a", 0, 0, 2), ("b", 3, 0, 1)], 0)
    assert taken(2) == ([], [], 0)
    grow(queues, "b", 3, 1, 3)
    drop(queues, "a")
    queues.changed(first)  # confirmed only now
    assert taken(4) == (["a"], [("b", 3, 0, 4)], 2)
    grow(queues, "a", 0, 1, 5)
    assert taken(6) == ([], [("a", 0, 2, 3)], 2)
