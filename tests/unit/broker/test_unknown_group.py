"""A controller that has lost its state, or knows an old one: it must not cost messages."""

from tests.unit.broker.core_world import world_of


def test_messages_of_a_group_that_the_controller_does_not_know_come_again() -> None:
    world = world_of()
    world.put("t", b"1")
    assert world.bodies(world.pop("g", "t")) == [b"1"]
    group = world.view.groups.pop("g")
    world.clock.advance(60_000)
    assert world.revive() == 1
    world.flush()
    world.view.groups["g"] = group
    found = world.pop("g", "t")
    assert world.bodies(found) == [b"1"]
