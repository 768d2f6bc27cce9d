"""Who has each message that is delivered: kept for each pop in memory, counted step by step, and never in the log."""

import pytest

from popwheel_broker.consume import holders as holders_module
from popwheel_broker.consume.holders import Holders
from popwheel_broker.consume.in_flight import InFlightMessage, InFlightPlace
from popwheel_broker.consume.message_release import EndedDelivery, MessagePlace, MessageRelease
from popwheel_broker.core.core import BrokerCore
from popwheel_common.contract import names
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.test_in_flight import of
from tests.unit.broker.test_ordered_pops import ordered_world, put
from tests.unit.broker.world import INVISIBLE_MS, World, handles

RETRY = names.retry_topic("g", "t")


def pop_as(world: World, client_id: str, count: int = 32, group: str = "g", attempt_id: str = "") -> list[Message]:
    answer = world.answer(group, "t", count, client_id=client_id, attempt_id=attempt_id)
    world.flush()
    return [Message.FromString(each) for each in answer.messages]


def held(world: World) -> dict[tuple[str, str], int]:
    """Messages by group and client; and see that the counts are those of the deliveries."""
    world.deliveries()
    holders = world.core.state.table.holders
    groups = world.core.state.table.shares.by_holder
    return {(group, each.client_id): each.in_flight for group in groups for each in holders.of_group(group)}


def listed(world: World, client_id: str = "", group: str = "", topic: str = "") -> list[InFlightMessage]:
    found: list[InFlightMessage] = []
    rest: InFlightPlace | None = InFlightPlace()
    while rest is not None:
        messages, rest = of(world).step(topic, group, rest, 3, client_id)
        found += messages
    return found


def end(world: World, place: MessagePlace, *, is_dry_run: bool = False) -> EndedDelivery | None:
    found, _ = MessageRelease(world.core.state, world.core.acks).step(place, 0)
    if found is None:
        return None
    ended = MessageRelease(world.core.state, world.core.acks).end(*found, is_dry_run=is_dry_run)
    world.flush()
    return ended


def world_with(messages: int, **options: int) -> World:
    world = world_of(**options)
    world.add_group("h")
    for number in range(messages):
        world.put("t", b"%d" % number)
    return world


def test_each_client_is_counted_by_what_it_holds() -> None:
    world = world_with(6)
    first, second = pop_as(world, "a", 2), pop_as(world, "b", 3)
    pop_as(world, "a", 6, "h")
    assert held(world) == {("g", "a"): 2, ("g", "b"): 3, ("h", "a"): 6}
    assert world.core.state.table.holders.clients_by_group() == {"g": 2, "h": 1}
    world.ack("g", "t", *handles(first))
    world.ack("g", "t", handles(second)[0])
    assert held(world) == {("g", "b"): 2, ("h", "a"): 6}, "who holds nothing is not kept"
    assert [each.client_id for each in listed(world, group="g")] == ["b"] * 2
    assert [(each.delivery.group, each.queue_offset) for each in listed(world, "a")] == [
        ("h", offset) for offset in range(6)
    ]
    assert listed(world, "a", "g") == [] == listed(world, "nobody")


def test_a_message_whose_time_is_changed_stays_its_holders() -> None:
    world = world_with(2)
    (one, two) = handles(pop_as(world, "a"))
    world.clock.advance(10)
    world.core.acks.change_invisible("g", "t", one, INVISIBLE_MS)
    world.core.acks.renew([pb.RenewEntry(group="g", topic="t", receipt_handle=two)], INVISIBLE_MS)
    world.flush()
    assert held(world) == {("g", "a"): 2}
    (holder,) = world.core.state.table.holders.of_group("g")
    assert holder.oldest_popped_ms() == world.core.pop_clock.now_ms() - 10
    world.ack("g", "t", two)
    assert holder.oldest_popped_ms() == world.core.pop_clock.now_ms()


def test_what_comes_again_is_whoever_gets_it() -> None:
    world = world_with(1)
    pop_as(world, "a")
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert held(world) == {}
    pop_as(world, "b")
    assert held(world) == {("g", "b"): 1}
    world.delete_group("g")
    world.core.cluster_changes.apply((), ("g",))
    assert held(world) == {}


def test_what_waits_in_a_line_is_nobodys() -> None:
    world = ordered_world()
    put(world, "a1", "a2", "b1")
    pop_as(world, "one")
    assert held(world) == {("g", "one"): 2}
    assert len(list(world.core.state.table.message_group_queues.members())) == 3
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert held(world) == {}, "they wait in their lines"
    first = pop_as(world, "two", attempt_id="try")
    assert pop_as(world, "two", attempt_id="try") == first, "the same try gets the same messages"
    assert held(world) == {("g", "two"): 2}


@pytest.mark.parametrize("is_saved", [False, True])
def test_after_a_restart_nobody_knows_it(is_saved: bool) -> None:
    world = world_with(3)
    pop_as(world, "a", 2)
    pop_as(world, "b", 1)
    before = world.deliveries()
    if is_saved:
        world.save()
    began_ms, popped_ms = world.core.state.table.holders.known_since_ms, world.core.pop_clock.now_ms()
    world.clock.advance(1000)
    world.crash("process")
    assert world.deliveries() == before, "the log says the same of all else (S6)"
    assert held(world) == {("g", ""): 3}
    assert [each.client_id for each in listed(world)] == [""] * 3
    assert len(world.core.state.table.holders) == 0
    assert world.core.state.table.holders.known_since_ms > began_ms
    (unknown,) = world.core.state.table.holders.of_group("g")
    assert unknown.oldest_popped_ms() == popped_ms
    world.put("t", b"later")
    pop_as(world, "a")
    assert held(world) == {("g", ""): 3, ("g", "a"): 1}


def test_clients_share_a_limit() -> None:
    holders = Holders(3)
    world = world_with(0)
    world.core.state.table.holders = holders
    for number in range(6):
        world.put("t", b"%d" % number)
        pop_as(world, f"c{number}", 1)
    assert sorted(held(world)) == [("g", ""), ("g", "c0"), ("g", "c1")], "a group has half of it, rounded up"
    assert holders.unnamed == 4
    assert "popwheel_pop_holders_unnamed_total 4.0" in metrics(world)
    assert 'popwheel_consumer_inflight_clients{consumer_group="g"} 2.0' in metrics(world)


def test_who_holds_nothing_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders_module, "_IDLE_MAX", 2)
    world = world_with(5)
    for number in range(5):
        world.ack("g", "t", *handles(pop_as(world, f"c{number}", 1)))
    holders = world.core.state.table.holders
    assert (len(holders), holders._known, held(world)) == (0, 2, {})
    assert list(holders._groups["g"].clients) == ["c3", "c4"]


def test_a_pop_that_names_nobody() -> None:
    world = world_with(1)
    pop_as(world, "")
    assert held(world) == {("g", ""): 1}
    assert world.core.state.table.holders.of("g", "") is None
    assert holders_module.HOLDERS_MAX == 50_000


def test_a_delivery_that_is_ended_by_hand_is_revived_at_once() -> None:
    world = world_with(2)
    (one, _) = handles(pop_as(world, "a"))
    place = MessagePlace("g", "t", 0, 0)
    before = world.deliveries()
    assert end(world, place, is_dry_run=True) == EndedDelivery("30", 1, False, "a")
    assert world.deliveries() == before
    assert end(world, place) == EndedDelivery("30", 1, False, "a")
    assert end(world, place) is None, "it is not held any more"
    assert world.ack("g", "t", one) != [20000], "its receipt handle is void"
    (again,) = pop_as(world, "b")
    assert again.system_properties.delivery_attempt == 2
    after = world.deliveries()
    world.crash("process")
    assert world.deliveries() == after, "rebuilt, the table is the same (S6)"
    assert end(world, MessagePlace("g", RETRY, 0, 0)) == EndedDelivery("30", 2, False, "")


def test_the_last_attempt_that_is_ended_by_hand_is_a_dead_letter() -> None:
    world = world_with(1, max_attempts=1)
    pop_as(world, "a")
    assert end(world, MessagePlace("g", "t", 0, 0)) == EndedDelivery("30", 1, True, "a")
    assert len(world.held(names.dead_letter_topic("g"))) == 1
    assert held(world) == {}


def test_a_line_goes_on_with_the_message_that_is_released() -> None:
    world = ordered_world()
    put(world, "a1", "a2")
    (one,) = pop_as(world, "c")
    assert end(world, MessagePlace("g", "t", 0, 0)) == EndedDelivery(b"a1".hex(), 1, False, "c")
    assert world.ack("g", "t", *handles([one])) != [20000]
    (again,) = pop_as(world, "d")
    assert (again.body, again.system_properties.delivery_attempt) == (b"a1", 2), "in order, and it counts"
    after = world.deliveries()
    world.crash("process")
    assert world.deliveries() == after


def test_no_other_message_is_found() -> None:
    world = world_with(1)
    pop_as(world, "a")
    for place in (("h", "t", 0, 0), ("g", RETRY, 0, 0), ("g", "t", 1, 0), ("g", "t", 0, 1)):
        assert end(world, MessagePlace(*place)) is None
    core: BrokerCore = world.core
    queue = core.store.queue("t", 0)
    assert queue is not None
    plan = core.offset_reset.plan("g", "t", {queue: 0}, None)
    core.offset_reset.begin(plan)
    assert end(world, MessagePlace("g", "t", 0, 0)) is None, "a reset is taking it back"
    core.offset_reset.end(plan)
