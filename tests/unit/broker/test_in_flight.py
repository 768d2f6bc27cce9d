"""Which messages are delivered, listed some at a time while deliveries go on."""

import random
from collections import Counter

import pytest

from popwheel_broker.consume import in_flight
from popwheel_broker.consume.delivery import REVIVE_QUEUES, Delivery
from popwheel_broker.consume.in_flight import InFlight, InFlightMessage, InFlightPlace
from popwheel_broker.consume.revive_table import ReviveTable
from popwheel_broker.options import BrokerOptions, LogOptions, PopOptions, RetentionOptions
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from tests.harness.memory_disk import CrashKind
from tests.unit.broker.core_world import world_of
from tests.unit.broker.world import INVISIBLE_MS, World, handles

RETRY = names.retry_topic("g", "t")


def of(world: World) -> InFlight:
    core = world.core
    return InFlight(core.state.table, core.acks.messages, core.store)


def listed(world: World, topic: str = "t", group: str = "", messages_max: int = 1000) -> list[InFlightMessage]:
    """All that is listed, step by step."""
    found: list[InFlightMessage] = []
    rest: InFlightPlace | None = InFlightPlace()
    while rest is not None:
        messages, rest = of(world).step(topic, group, rest, messages_max)
        found += messages
    return found


def facts(found: list[InFlightMessage]) -> list[tuple[str, str, int, str, int]]:
    return [
        (each.delivery.group, each.topic, each.queue_offset, bytes.fromhex(each.message_id).decode(), each.attempt)
        for each in found
    ]


def world_of_two() -> World:
    """Three messages, of which group g was given all and group h two."""
    world = world_of(max_attempts=5)
    world.add_group("h")
    for body in (b"a", b"b", b"c"):
        world.put("t", body)
    return world


def test_each_message_says_who_has_it_until_when() -> None:
    world = world_of_two()
    popped_ms = world.core.pop_clock.now_ms()
    world.pop("g", "t")
    world.clock.advance(1000)
    world.pop("h", "t", 2)
    assert facts(listed(world)) == [
        ("g", "t", 0, "a", 1),
        ("g", "t", 1, "b", 1),
        ("g", "t", 2, "c", 1),
        ("h", "t", 0, "a", 1),
        ("h", "t", 1, "b", 1),
    ]
    assert facts(listed(world, group="h")) == facts(listed(world))[3:]
    assert {each.delivery.pop_time_ms for each in listed(world, group="g")} == {popped_ms}
    assert {each.due_ms for each in listed(world, group="g")} == {popped_ms + INVISIBLE_MS}


def test_what_is_done_with_is_not_listed() -> None:
    world = world_of_two()
    world.ack("g", "t", handles(world.pop("g", "t"))[1])
    assert [each.queue_offset for each in listed(world)] == [0, 2]
    world.delete_topic("t")
    assert listed(world) == []


def test_nothing_of_other_topics_and_groups() -> None:
    world = world_of_two()
    world.add_topic("u")
    world.put("u", b"u")
    world.pop("g", "u")
    assert listed(world) == listed(world, group="g") == listed(world, topic="u", group="h") == []


def test_a_retry_keeps_its_message_id_and_counts_its_attempts() -> None:
    world = world_of_two()
    world.pop("g", "t", 2)
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert listed(world) == []
    again = world.pop("g", "t")
    assert facts(listed(world)) == [("g", "t", 2, "c", 1), ("g", RETRY, 0, "a", 2), ("g", RETRY, 1, "b", 2)]
    third = handles(again)[-1]
    world.core.acks.change_invisible("g", "t", third, 2 * INVISIBLE_MS)
    assert sorted(facts(listed(world)))[:2] == [("g", RETRY, 0, "a", 2), ("g", RETRY, 1, "b", 2)]
    world.clock.advance(2 * INVISIBLE_MS)
    world.revive()
    world.flush()
    world.pop("g", "t")
    assert {(each[3], each[4]) for each in facts(listed(world))} == {("a", 3), ("b", 3), ("c", 2)}


@pytest.mark.parametrize("kind", ["process", "power"])
def test_a_restart_lists_the_same(kind: CrashKind) -> None:
    world = world_of_two()
    world.ack("g", "t", handles(world.pop("g", "t"))[0])
    world.pop("h", "t", 2)
    world.flush()
    before = facts(listed(world))
    world.crash(kind)
    assert facts(listed(world)) == before
    world.save()
    world.crash(kind)
    assert facts(listed(world)) == before


def test_what_was_moved_out_of_an_old_segment_has_its_place_and_id_still() -> None:
    world = World(
        0, BrokerOptions(log=LogOptions(segment_bytes=4096), retention=RetentionOptions(hours=1), pop=PopOptions())
    )
    world.add_topic("t")
    world.add_group("g")
    for _ in range(8):
        world.put("t", b"x" * 1000)
    world.pop("g", "t", 1, invisible_ms=10 * 3_600_000)
    world.clock.advance(2 * 3_600_000)
    world.put("t", b"new" * 1000)
    world.save()
    assert world.retain()
    assert world.relocate() == 0
    (found,) = listed(world)
    assert (found.topic, found.queue_offset, found.attempt, len(found.message_id)) == ("t", 0, 1, 2000)


def test_one_that_can_not_be_read_is_listed_without_its_id() -> None:
    world = world_of_two()
    world.pop("g", "t")
    position = world.core.store.records.position_of(world.core.store.queues["t", 0], 1)
    assert position is not None
    log = next(path for path in world.disk.files() if path.suffix == ".log")
    file = world.disk.open(log)
    file.write(position + 70, [b"rot"])
    found = listed(world)
    assert [(each.queue_offset, each.attempt) for each in found] == [(0, 1), (1, 0), (2, 1)]
    assert [each.message_id for each in found] == [b"a".hex(), "", b"c".hex()]


def test_a_step_is_bounded_in_messages_deliveries_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of_two()
    for _ in range(3):
        world.pop("g", "t", 1)
        world.pop("h", "t", 1)
    step = of(world).step
    everything = listed(world)
    end = world.core.state.table.next_number * REVIVE_QUEUES
    found, rest = step("t", "", InFlightPlace(), 2)
    assert (found, rest) == (everything[:2], InFlightPlace(everything[2].delivery.id, 0, end))
    monkeypatch.setattr(in_flight, "_DELIVERIES_AT_ONCE", 4)
    found, rest = step("t", "h", InFlightPlace(), 100)
    assert rest is None, "its own deliveries are few, others are not looked at"
    found, rest = step("t", "", InFlightPlace(), 100)
    assert (found, rest) == (everything[:4], InFlightPlace(everything[4].delivery.id, 0, end))
    monkeypatch.setattr(in_flight, "_BYTES_AT_ONCE", 1)
    found, rest = step("t", "", InFlightPlace(), 100)
    assert (found, rest) == (everything[:1], InFlightPlace(everything[1].delivery.id, 0, end))
    assert listed(world) == everything


def test_very_many_of_others_are_passed_in_steps() -> None:
    table = ReviveTable()
    count = 20_000
    for number in range(1, count + 1):
        table.open(delivery(number * 8 + number % 8, "h" if number % 5000 else "g"))
    world = world_of()
    lister = InFlight(table, world.core.acks.messages, world.core.store)
    rest: InFlightPlace | None = InFlightPlace()
    steps = 0
    while rest is not None:
        before = rest
        found, rest = lister.step("other", "", rest, 100)
        assert found == []
        assert rest is None or rest > before
        steps += 1
    assert steps == -(-count // in_flight._DELIVERIES_AT_ONCE)
    assert lister.step("t", "nobody", InFlightPlace(), 100) == ([], None)


def delivery(identity: int, group: str = "g") -> Delivery:
    return Delivery(identity, group, "t", 0, 0, 0, 1, 0, 100, 100, identity, range(1))


@pytest.mark.parametrize("seed", range(5))
def test_the_sequence_is_that_of_the_ids_whatever_came_and_went(seed: int) -> None:
    dice = random.Random(seed)
    table = ReviveTable()
    opened: dict[int, Delivery] = {}
    for _ in range(2000):
        if opened and dice.random() < 0.4:
            identity = dice.choice(list(opened))
            table.close(identity, 1)
            del opened[identity]
        else:
            identity = dice.randrange(1, 1 << 22)
            opened[identity] = delivery(identity, dice.choice("gh"))
            table.open(opened[identity])
    begin = dice.randrange(1 << 22)
    assert [each.id for each in table.begin_at(begin, "")] == sorted(each for each in opened if each >= begin)
    of_g = sorted(each for each in opened if each >= begin and opened[each].group == "g")
    assert [each.id for each in table.begin_at(begin, "g")] == of_g
    expected = Counter(each.group for each in opened.values())
    assert {group: table.in_flight_of(group, "t", 0, 0) for group in "gh"} == dict(expected)
    for identity in opened:
        table.close(identity, 1)
    assert table._in_flight_of_queue == {}
    assert table._sequence._stretches == {}


@pytest.mark.parametrize("seed", range(10))
def test_what_is_delivered_all_the_while_is_never_left_out(seed: int) -> None:
    """Others are popped, acknowledged and hidden anew while somebody goes from step to step."""
    world = world_of(seed, max_attempts=99, queues=2)
    world.add_group("h")
    dice = world.random
    for number in range(60):
        world.put("t", b"%d" % number, queue_id=number % 2)
    given: dict[bytes, str] = {}
    """The handles of group g, by bodies."""
    for _ in range(20):
        for message in world.pop("g", "t", dice.randrange(1, 4), invisible_ms=10 * INVISIBLE_MS):
            given[message.body] = message.system_properties.receipt_handle
        world.pop("h", "t", 1)
    new = 0
    stay = set(dice.sample(sorted(given), len(given) // 2))
    found: set[bytes] = set()
    rest: InFlightPlace | None = InFlightPlace()
    while rest is not None:
        messages, rest = of(world).step("t", "g" if seed % 2 else "", rest, dice.randrange(1, 5))
        found |= {bytes.fromhex(each.message_id) for each in messages if each.delivery.group == "g"}
        for body in dice.sample(sorted(given), min(3, len(given))):
            act = dice.randrange(3)
            if act == 0:
                given[body] = world.core.acks.change_invisible("g", "t", given[body], 10 * INVISIBLE_MS)
            elif act == 1 and body not in stay:
                world.ack("g", "t", given.pop(body))
            else:
                new += 1
                world.put("t", b"new%d" % new, queue_id=new % 2)
                world.pop("g", "t", 2)
    assert stay <= found
    assert new
    assert not any(body.startswith(b"new") for body in found), "given out after it had begun, or it might never end"


@pytest.mark.parametrize(
    "text", ["x", "1", "1.2", "1.2.", "-1.0.0", "1.2.3.4", "1.123456.1", "1" * 21 + ".0.0", "１.0.0"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(StatusError, match="invalid page token"):
        InFlightPlace.of(text)


def test_places_as_texts() -> None:
    assert InFlightPlace.of(str(InFlightPlace(123, 4, 5))) == InFlightPlace(123, 4, 5)
    assert InFlightPlace.of("") == InFlightPlace(0, 0, 0)
