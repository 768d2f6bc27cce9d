"""Damage where old segments go: nothing that is held is forgotten, no queue stands still for longer than it must."""

import pytest

from popwheel_broker.options import BrokerOptions, LogOptions
from popwheel_common.errors import StatusError
from tests.unit.broker.index_bytes import rot_entry
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


def test_an_entry_that_rotted_to_a_lower_position_hides_nothing_that_is_stored(world: World) -> None:
    """The search for the first record held looks at it first, and went on behind it."""
    store = world.core.store
    queue = store.queues["t", 0]
    before = queue.read(0, MESSAGES)
    second = store.log.segments()[1][0]
    rotten = before[MESSAGES // 2]
    rot_entry(world.disk, rotten, 64 - rotten.position.bit_length())
    assert store.delete_before(second) == 1
    assert before[queue.min_offset].position <= second
    with pytest.raises(StatusError, match="stands still at a damaged record"):
        world.pop("g", "t")


def test_a_queue_goes_on_when_the_first_record_it_holds_was_mended(world: World) -> None:
    flip(world, 1)
    assert world.core.store.delete_before(world.core.store.log.segments()[1][0]) == 1
    with pytest.raises(StatusError, match="stands still at a damaged record"):
        world.pop("g", "t")
    flip(world, 0)
    world.core.damage_mended()
    assert len(world.pop("g", "t")) > 0
    assert not world.core.pops.damaged


def test_a_queue_goes_on_when_what_was_damaged_has_gone_with_the_next_segment(world: World) -> None:
    flip(world, 1)
    third = world.core.store.log.segments()[2][0]
    assert world.core.store.delete_before(third) == 1
    with pytest.raises(StatusError, match="stands still at a damaged record"):
        world.pop("g", "t")
    world.flush()
    assert world.core.store.delete_before(third) == 1
    assert len(world.pop("g", "t")) > 0
    assert not world.core.pops.damaged
