"""Dead letters that an operator releases: each comes to its group again, and to no other."""

import pytest

from popwheel_broker.log.record import Record, RecordKind
from popwheel_common.contract import names
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.unit.broker.test_dead_letters import ATTEMPTS, lapse, world_with_a_dead_letter
from tests.unit.broker.world import World, attempts, handles

ALL = 1 << 40


def redrive(world: World, group: str = "g", limit: int = 10) -> tuple[int, int]:
    returned, kept, moved = world.core.dead_letters.redrive(group, limit, ALL, 1 << 20)
    world.flush()
    assert moved == 0
    return returned, kept


def letters(world: World, group: str = "g") -> int:
    """How many are listed."""
    queue = world.core.dead_letters.queue(group)
    return 0 if queue is None else queue.max_offset - world.core.dead_letters.first_offset(group, queue)


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("namespace", ["", "shop"])
def test_it_comes_as_if_for_the_first_time(namespace: str, crashes: bool) -> None:
    world = world_with_a_dead_letter("other", namespace=namespace)
    group, topic = ("shop%g", "shop%t") if namespace else ("g", "t")
    assert redrive(world, group) == (1, 0)
    if crashes:
        world.crash("power")
    assert (redrive(world, group), letters(world, group)) == ((0, 0), 0)
    (message,) = world.pop(group, topic)
    assert attempts([message]) == [1]
    assert (message.topic.resource_namespace, message.topic.name, message.body) == (namespace, "t", b"1")
    assert not message.system_properties.HasField("dead_letter_queue")
    assert message.system_properties.message_id == "1"
    assert world.ack(group, topic, *handles([message])) == [Code.OK]
    lapse(world)
    assert world.pop(group, topic) == []


def test_no_other_group_gets_it() -> None:
    world = world_with_a_dead_letter("other")
    assert world.ack("other", "t", *handles(world.pop("other", "t"))) == [Code.OK]
    redrive(world)
    assert world.pop("other", "t") == []


def test_it_dies_again_as_late_as_the_first_time() -> None:
    world = world_with_a_dead_letter()
    redrive(world)
    for attempt in range(ATTEMPTS):
        assert attempts(world.pop("g", "t")) == [attempt + 1]
        lapse(world)
    assert world.pop("g", "t") == []
    assert letters(world) == 1


@pytest.mark.parametrize("crashes", [False, True])
def test_one_whose_topic_is_gone_stays_a_dead_letter(crashes: bool) -> None:
    world = world_with_a_dead_letter()
    world.delete_topic("t")
    assert redrive(world) == (0, 1)
    if crashes:
        world.crash("process")
    assert letters(world) == 1
    world.add_topic("t", 1)
    assert redrive(world) == (1, 0)
    assert world.bodies(world.pop("g", "t")) == [b"1"]


def test_what_is_no_message_stays_a_dead_letter() -> None:
    world = world_with_a_dead_letter()
    world.core.store.put([Record(RecordKind.MESSAGE, names.dead_letter_topic("g"), 0, b"\xff", b"\xff")])
    world.flush()
    assert redrive(world) == (1, 1)
    assert letters(world) == 1


def test_only_those_that_were_there_are_redriven() -> None:
    world = world_with_a_dead_letter()
    assert world.core.dead_letters.redrive("g", 10, 0, 1 << 20) == (0, 0, 0)
    assert letters(world) == 1
    assert redrive(world, limit=1) == (1, 0)


def test_a_group_without_dead_letters_has_none_to_redrive() -> None:
    world = world_with_a_dead_letter("h")
    assert (redrive(world, "h"), letters(world, "h")) == ((0, 0), 0)
