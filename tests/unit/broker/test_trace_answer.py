"""What is notified of a message at each place: what the broker knows, and not more."""

import pytest

from popwheel_broker.calls.trace_answer import Traces
from popwheel_broker.consume import ack_memory
from popwheel_broker.core import message_search
from popwheel_broker.core.message_search import MessageSearch, SearchPlace, Wanted
from popwheel_common.contract import names
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from tests.harness.poison import MARK
from tests.unit.broker.core_world import world_of
from tests.unit.broker.test_dead_letters import lapse, world_with_a_dead_letter
from tests.unit.broker.test_quarantine import quarantined_one
from tests.unit.broker.world import World, handles, tag_filter

EVER_MS = 1 << 62
RETRY = names.retry_topic("g", "t")


def traced(world: World, message_id: str, topic: str = "t") -> list[pb.TracedMessage]:
    """All places, as the server tells them."""
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    answer = pb.MessageTraceResponse()
    place: SearchPlace | None = SearchPlace()
    while place is not None:
        looked = search.step(Wanted(topic, message_id, "", 0, EVER_MS), place)
        place = looked.next
        if looked.found:
            traces = Traces(world.core, search, answer, topic, "", world.clock.wall_ms())
            traces.add(looked.found)
            begin: int | None = 0 if traces.is_open else None
            while begin is not None:
                begin = traces.deliveries(begin, 0)
            traces.ended()
    return list(answer.messages)


def holding(world: World, message_id: str, topic: str = "t") -> pb.GroupHolding:
    """What group `g` has of it in a topic."""
    (found,) = [
        each
        for place in traced(world, message_id)
        if place.topic == topic
        for each in place.groups
        if each.group == "g"
    ]
    return found


def test_an_acknowledgement_is_known_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_memory, "DELIVERIES_MAX", 2)
    world = world_of()
    for number in range(4):
        world.put("t", b"%d" % number)
        world.ack("g", "t", *handles(world.pop("g", "t")))
    found = [holding(world, (b"%d" % number).hex()).holding for number in range(4)]
    assert found == [pb.DONE, pb.DONE, pb.ENDED, pb.ENDED]


def test_an_acknowledged_retry_is_known_as_such() -> None:
    world = world_of()
    world.put("t", b"1")
    world.pop("g", "t")
    lapse(world)
    world.ack("g", "t", *handles(world.pop("g", "t")))
    assert holding(world, b"1".hex()).holding == pb.DONE, "it has gone on to a retry"
    assert holding(world, b"1".hex(), RETRY).holding == pb.ENDED


def test_what_its_consumer_puts_off() -> None:
    world = world_of()
    world.put("t", b"1")
    (handle,) = handles(world.pop("g", "t"))
    assert not holding(world, b"1".hex()).put_off
    world.core.acks.change_invisible("g", "t", handle, 60_000)
    found = holding(world, b"1".hex())
    assert (found.holding, found.put_off) == (pb.DELIVERED, True)
    assert found.due_ms - found.popped_ms == 60_000


def test_what_a_filter_keeps_back() -> None:
    world = world_of()
    world.put("t", b"1", tag="red")
    world.put("t", b"2", tag="blue")
    world.pop("g", "t", expression="blue")
    assert holding(world, b"1".hex()).kept_back_by == "blue"
    assert holding(world, b"2".hex()).kept_back_by == ""
    assert tag_filter("blue").expression == "blue"


def test_what_is_quarantined_is_not_called_done() -> None:
    world = world_of()
    entry = quarantined_one(world)
    found = holding(world, MARK.hex())
    assert (found.holding, found.quarantine_id) == (pb.POISONED, entry.id)


def test_places_are_in_the_order_of_the_log() -> None:
    world = world_with_a_dead_letter()
    found = traced(world, "1")
    assert [each.topic for each in found] == ["t", RETRY, RETRY, "%DLQ%g"]
    assert [each.attempts for each in found] == [0, 1, 2, 0]
    positions = [each.position for each in found]
    assert positions == sorted(positions)
    assert not any(each.redriven for each in found)
    world.core.dead_letters.redrive("g", 10, 1 << 62, 1 << 20)
    world.flush()
    assert [each.redriven for each in traced(world, "1")] == [False, False, False, True, False]


def test_what_goes_on_while_it_is_looked_for_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a message that has just failed would look acknowledged. Retry topics come before others by their names."""
    monkeypatch.setattr(message_search, "_MESSAGES_AT_ONCE", 4)
    world = world_of()
    world.put("t", b"1")
    world.pop("g", "t")
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    wanted = Wanted("t", b"1".hex(), "", 0, EVER_MS)
    looked = search.step(wanted, SearchPlace())
    while not looked.found:
        assert looked.next is not None
        looked = search.step(wanted, looked.next)
    assert [each.topic for each in looked.found] == ["t"]
    lapse(world)
    found = []
    while looked.next is not None:
        looked = search.step(wanted, SearchPlace.of(str(looked.next)))
        found += [each.topic for each in looked.found]
    assert found == [RETRY]
