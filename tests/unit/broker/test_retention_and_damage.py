"""Damage where old segments go: nothing that is held is forgotten, no queue stands still for longer than it must."""

import pytest

from services.broker.options import BrokerOptions, LogOptions
from services.common.errors import CorruptDataError
from tests.unit.broker.world import FOLDER, World

MESSAGES = 12


@pytest.fixture
def world() -> World:
    """Each message in a segment of its own, all of their entries in files."""
    made = World(0, BrokerOptions(log=LogOptions(segment_bytes=4096, queue_entries_in_memory=0)))
    made.add_topic("t")
    made.add_group("g")
    for number in range(MESSAGES):
        made.put("t", bytes([number]) * 1000)
    made.save()
    return made


def flip(world: World, number: int) -> None:
    """A bit of the first record of a segment."""
    start, _ = world.core.store.log.segments()[number]
    world.disk.flip_bit(FOLDER / "commitlog" / f"{start:020}.log", 8 * 100)


def test_an_entry_that_rotted_to_a_lower_position_hides_nothing_that_is_held(world: World) -> None:
    """The search for the first record held looks at it first, and went on behind it."""
    store = world.core.store
    queue = store.queues["t", 0]
    before = [entry.position for entry in queue.read(0, MESSAGES)]
    store.log.remove_before(second := store.log.segments()[1][0])
    rotten = MESSAGES // 2
    bit = before[rotten].bit_length() - 1
    world.disk.flip_bit(
        FOLDER / "consumequeue" / "t" / "0" / f"{0:020}.queue", 8 * (20 * rotten + 7 - bit // 8) + bit % 8
    )
    assert queue.read(rotten, 1)[0].position < second < before[rotten]
    with pytest.raises(CorruptDataError):
        store.forget_what_is_gone()
    assert before[queue.min_offset] <= second


def test_a_queue_goes_on_when_the_first_record_it_holds_was_mended(world: World) -> None:
    flip(world, 1)
    with pytest.raises(CorruptDataError):
        world.core.store.delete_before(world.core.store.log.segments()[1][0])
    assert world.pop("g", "t") == []
    flip(world, 0)
    world.core.damage_mended()
    assert len(world.pop("g", "t")) > 0
    assert not world.core.popping.damaged


def test_a_queue_goes_on_when_what_was_damaged_has_gone_with_the_next_segment(world: World) -> None:
    flip(world, 1)
    third = world.core.store.log.segments()[2][0]
    with pytest.raises(CorruptDataError):
        world.core.store.delete_before(third)
    assert world.pop("g", "t") == []
    world.flush()
    assert world.core.store.delete_before(third) == 1
    assert len(world.pop("g", "t")) > 0
    assert not world.core.popping.damaged
