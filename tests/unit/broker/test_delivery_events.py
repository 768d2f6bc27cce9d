"""What happened to a message: the latest deliveries in a ring, and what the log says by itself."""

from popwheel_broker.calls.event_answer import EventAnswer
from popwheel_broker.consume import delivery_events
from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.delivery_events import ACKED, DELIVERED, DeliveryEvents
from popwheel_broker.consume.message_release import MessagePlace
from popwheel_broker.core.message_search import MessageSearch, SearchPlace, Wanted
from popwheel_common.contract import names, receipt
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.test_holders import end, pop_as
from tests.unit.broker.test_ordered_pops import ordered_world, put
from tests.unit.broker.world import INVISIBLE_MS, World, handles

EVER_MS = 1 << 62
RETRY = names.retry_topic("g", "t")


def happened(world: World, message_id: str, group: str = "") -> list[pb.MessageEvent]:
    """All events of a message, in the order in which the admin API shows them."""
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    answer = pb.MessageEventsResponse()
    said = EventAnswer(world.core.state.events, answer, group)
    place: SearchPlace | None = SearchPlace()
    while place is not None:
        looked = search.step(Wanted("t", message_id, group, 0, EVER_MS), place)
        said.add_stored(looked.found)
        place = looked.next
    begin: int | None = 0
    while begin is not None:
        begin = said.add_deliveries(begin)
    made_of_it = (pb.MESSAGE_REVIVED, pb.MESSAGE_DEAD)
    return sorted(answer.events, key=lambda each: (each.time_ms, each.position, each.kind in made_of_it))


def kinds(events: list[pb.MessageEvent]) -> list[str]:
    return [pb.MessageEventKind.Name(each.kind).removeprefix("MESSAGE_").lower() for each in events]


def test_the_life_of_a_message() -> None:
    world = world_of(max_attempts=3)
    world.put("t", b"a")
    world.put("t", b"b")
    stored_ms = world.clock.wall_ms()
    world.clock.advance(5)
    pop_as(world, "one", 1)
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    world.clock.advance(5)
    (again,) = [each for each in pop_as(world, "two") if each.body == b"a"]
    (handle,) = handles([again])
    world.clock.advance(5)
    handle = world.core.acks.change_invisible("g", "t", handle, 700)
    world.clock.advance(5)
    world.ack("g", "t", handle)
    found = happened(world, b"a".hex())
    assert kinds(found) == ["stored", "delivered", "expired", "revived", "delivered", "nacked", "acked"]
    assert [each.client_id for each in found] == ["", "one", "one", "", "two", "two", "two"]
    assert [each.group for each in found] == ["", *["g"] * 6]
    assert [each.attempt for each in found] == [0, 1, 1, 2, 2, 2, 2]
    assert [each.topic for each in found] == ["t"] * 3 + [RETRY] * 4
    popped_ms = stored_ms + 5
    second_ms = popped_ms + INVISIBLE_MS + 5
    assert [each.time_ms for each in found] == [
        *(stored_ms, popped_ms, popped_ms + INVISIBLE_MS, popped_ms + INVISIBLE_MS),
        *(second_ms, second_ms + 5, second_ms + 10),
    ]
    assert [each.until_ms for each in found] == [
        *(0, popped_ms + INVISIBLE_MS, 0, 0),
        *(second_ms + INVISIBLE_MS, second_ms + 5 + 700, 0),
    ]
    assert happened(world, b"a".hex(), "h") == [found[0]], "another group has nothing of it"


def test_a_dead_letter_that_is_redriven() -> None:
    world = world_of(max_attempts=1)
    world.put("t", b"a")
    pop_as(world, "one")
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    world.clock.advance(1)
    world.core.dead_letters.redrive("g", 1, 1, 1 << 20)
    world.flush()
    found = happened(world, b"a".hex())
    assert kinds(found) == ["stored", "delivered", "expired", "dead", "redriven"]
    assert [each.attempt for each in found] == [0, 1, 1, 0, 1]


def test_deliveries_that_end_early() -> None:
    world = ordered_world()
    put(world, "a1")
    (one,) = pop_as(world, "c")
    world.core.acks.release("g", "t", handles([one]), attempted=False)
    world.flush()
    pop_as(world, "d")
    (delivered,) = world.core.state.table
    world.core.acks.redeliver([(delivered, 0)], attempted=True)
    world.flush()
    found = happened(world, b"a1".hex())
    assert kinds(found) == ["stored", "delivered", "released", "delivered", "expired"]
    assert [each.client_id for each in found] == ["", "c", "c", "d", "d"]
    assert [each.attempt for each in found] == [0, 1, 1, 1, 1]


def test_one_that_an_operator_has_released() -> None:
    world = world_of()
    world.put("t", b"a")
    pop_as(world, "c")
    end(world, MessagePlace("g", "t", 0, 0))
    assert kinds(happened(world, b"a".hex())) == ["stored", "delivered", "released", "revived"]


def delivery(offset: int) -> Delivery:
    return Delivery(
        id=8 * offset,
        group="g",
        topic="t",
        origin=receipt.FROM_TOPIC,
        queue_id=0,
        start_offset=offset,
        next_offset=offset + 2,
        pop_time_ms=0,
        invisible_ms=10,
        due_ms=10,
        first_position=0,
        offsets=range(offset, offset + 2),
    )


def test_the_oldest_events_are_dropped() -> None:
    events = DeliveryEvents(5)
    events.began_ms = 7
    assert (events.known_since_ms, events.dropped, len(events)) == (7, 0, 0)
    for number in range(8):
        events.add(100 + number, number, ACKED if number % 2 else DELIVERED, delivery(number), 0b11, 0)
    assert (events.known_since_ms, events.dropped, len(events)) == (103, 3, 5)
    queues = {("t", receipt.FROM_TOPIC, 0)}
    found, rest = events.step(queues, {4}, "", 0)
    assert ([each.position for each in found], rest) == ([3, 4], None)
    assert events.step(queues, {4}, "other", 0) == ([], None)
    assert events.step({("t", receipt.FROM_RETRY_TOPIC, 0)}, {4}, "", 0) == ([], None)


def test_they_are_gone_through_in_steps_while_others_come() -> None:
    count = 2 * delivery_events._ENTRIES_AT_ONCE + 10
    events = DeliveryEvents(count)
    asked = delivery(0)
    for number in range(count):
        events.add(number, number, DELIVERED, asked, 0b01, 0)
    queues = {("t", receipt.FROM_TOPIC, 0)}
    found: list[int] = []
    begin: int | None = 0
    while begin is not None:
        part, begin = events.step(queues, {0, 1}, "g", begin)
        found += [each.position for each in part]
        events.add(0, count + len(found), DELIVERED, delivery(9), 0b01, 0)
    assert found == list(range(count)), "each once, but for those that were dropped meanwhile"


def test_they_are_counted() -> None:
    world = world_of(events_max=16)
    for number in range(20):
        world.put("t", b"%d" % number)
        pop_as(world, "c")
    text = metrics(world)
    assert "popwheel_pop_events 16.0" in text
    assert "popwheel_pop_events_dropped_total 4.0" in text
