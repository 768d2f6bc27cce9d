"""A message is found by its id wherever it is, and what each group has of it there is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.core import message_search
from popwheel_broker.core.message_search import MessageSearch, SearchPlace, Wanted
from popwheel_broker.log.record import StoredRecord
from popwheel_common.contract import names
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from tests.unit.broker.core_world import world_of
from tests.unit.broker.test_dead_letters import lapse, world_with_a_dead_letter
from tests.unit.broker.world import FOLDER, World, handles

EVER_MS = 1 << 62


def found(
    world: World, message_id: str, group: str = "", since_ms: int = 0, until_ms: int = EVER_MS
) -> list[StoredRecord]:
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    wanted = Wanted("t", message_id, group, since_ms, until_ms)
    place: SearchPlace | None = SearchPlace()
    records: list[StoredRecord] = []
    for _ in range(1000):
        if place is None:
            return records
        some, place, _, _ = search.step(wanted, SearchPlace.of(str(place)) if place.topic else place)
        records += some
    raise AssertionError("the search has no end")


def held(world: World, stored: StoredRecord, group: str = "") -> dict[str, str]:
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    said = {name: "waits" if waits else "done" for name, waits in search.readers(stored, group).items()}
    begin: int | None = 0
    while begin is not None:
        holdings, begin = search.holdings([stored], group, begin)
        for place, name, delivery, index in holdings:
            assert place == (stored.topic, stored.queue_id, delivery.offsets[index])
            said[name] = "waits" if delivery.is_blocked else "given out"
    return said


def test_it_is_found_among_many_of_several_queues() -> None:
    world = world_of(queues=3)
    for number in range(900):
        world.put("t", b"%d" % number, queue_id=number % 3)
    (stored,) = found(world, b"701".hex())
    assert (stored.topic, stored.queue_id, stored.queue_offset) == ("t", 2, 233)
    assert found(world, "nobody") == []


def test_only_what_was_stored_meanwhile_is_looked_at() -> None:
    world = world_of()
    world.put("t", b"early")
    world.clock.advance(1000)
    between_ms = world.clock.wall_ms()
    world.clock.advance(1000)
    world.put("t", b"late")
    assert found(world, b"early".hex(), since_ms=between_ms) == []
    assert len(found(world, b"late".hex(), since_ms=between_ms)) == 1
    world.clock.advance(1000)
    world.put("t", b"later")
    assert found(world, b"later".hex(), until_ms=between_ms) == []


def test_the_groups_that_have_it_are_reported() -> None:
    world = world_of()
    for group in ("h", "i", "unread"):
        world.add_group(group, 3)
    world.put("t", b"0")
    world.put("t", b"1")
    world.ack("g", "t", *handles(world.pop("g", "t")))
    world.pop("h", "t")
    world.pop("i", "t", 1)
    (stored,) = found(world, b"1".hex())
    assert held(world, stored) == {"g": "done", "h": "given out", "i": "waits"}
    assert held(world, stored, "h") == {"h": "given out"}


def test_a_retry_is_a_place_of_its_own() -> None:
    world = world_of()
    world.put("t", b"1")
    world.pop("g", "t")
    lapse(world)
    first, second = found(world, b"1".hex())
    assert {first.topic, second.topic} == {"t", names.retry_topic("g", "t")}
    states = {each.topic: held(world, each) for each in (first, second)}
    assert states["t"] == {"g": "done"}
    assert states[names.retry_topic("g", "t")] == {"g": "waits"}
    world.pop("g", "t")
    assert held(world, max(first, second, key=lambda each: each.position)) == {"g": "given out"}


def test_a_dead_letter_is_one_too() -> None:
    world = world_with_a_dead_letter("h")
    topics = sorted(each.topic for each in found(world, "1"))
    assert topics == ["%DLQ%g", *[names.retry_topic("g", "t")] * 2, "t"]
    assert sorted(each.topic for each in found(world, "1", group="h")) == ["t"]


def test_what_is_damaged_hides_nothing_else() -> None:
    world = world_of()
    for number in range(20):
        world.put("t", b"%d" % number)
    (damaged,) = found(world, b"7".hex())
    world.disk.flip_bit(FOLDER / "commitlog" / f"{0:020}.log", 8 * (damaged.position + 80))
    assert found(world, b"7".hex()) == []
    assert len(found(world, b"8".hex())) == 1


def test_many_deliveries_are_gone_through_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the place of a delivery meanwhile is met."""
    monkeypatch.setattr(message_search, "_DELIVERIES_AT_ONCE", 4)
    world = world_of()
    world.add_group("h")
    for number in range(10):
        world.put("t", b"%d" % number)
        world.pop("h", "t", 1)
    shown = [handle for _ in range(10) for handle in handles(world.pop("g", "t", 1))]
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    (stored,) = found(world, b"3".hex())
    met, begin = search.holdings([stored], "", 0)
    assert begin is not None
    world.core.acks.change_invisible("g", "t", shown[3], 60_000)
    steps = 1
    while begin is not None:
        more, begin = search.holdings([stored], "", begin)
        met += more
        steps += 1
    assert [each.group for each in met] == ["h", "g"]
    assert steps >= 5


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.sampled_from(["a", "b", "ab"]), max_size=2), st.integers(0, 3)),
        max_size=40,
    ),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 5),
)
def test_all_with_a_key_are_found_once_within_the_time_and_no_others(
    messages: list[tuple[int, list[str], int]], since_s: int, until_s: int, found_max: int
) -> None:
    world = world_of(queues=3)
    began_ms = world.clock.wall_ms()
    since_ms, until_ms = began_ms + since_s * 1000, began_ms + until_s * 1000
    expected, looked_through = [], 0
    for number, (queue_id, keys, wait_s) in enumerate(messages):
        world.clock.advance(wait_s * 1000)
        world.put("t", b"%d" % number, queue_id=queue_id, keys=keys)
        if since_ms <= world.clock.wall_ms() <= until_ms:
            looked_through += 1
            if "a" in keys:
                expected.append(b"%d" % number)
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    wanted = Wanted("t", "", "", since_ms, until_ms, "a")
    place: SearchPlace | None = SearchPlace()
    bodies: list[bytes] = []
    count = 0
    while place is not None:
        looked = search.step(wanted, place, found_max)
        assert len(looked.found) <= found_max
        assert looked.unreadable == 0
        bodies += [Message.FromString(each.payload).body for each in looked.found]
        count += looked.messages
        place = looked.next
    assert sorted(bodies) == sorted(expected)
    assert count == looked_through, "and it is said how many were looked through"


def test_what_cannot_be_read_is_counted() -> None:
    world = world_of()
    for number in range(20):
        world.put("t", b"%d" % number, keys=["a"])
    (damaged,) = found(world, b"7".hex())
    world.disk.flip_bit(FOLDER / "commitlog" / f"{0:020}.log", 8 * (damaged.position + 80))
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    looked = search.step(Wanted("t", "", "", 0, EVER_MS, "a"), SearchPlace())
    assert (len(looked.found), looked.messages, looked.unreadable) == (19, 20, 1)


def test_copies_with_the_key_are_not_looked_for() -> None:
    world = world_with_a_dead_letter()
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    place: SearchPlace | None = SearchPlace()
    topics = set()
    while place is not None:
        topics.add(place.topic)
        place = search.step(Wanted("t", "", "", 0, EVER_MS, "a"), place).next
    assert topics == {"", "t"}


@pytest.mark.parametrize("damaged_body", [b"0", b"23", b"40"])
def test_more_matches_than_a_step_decodes_are_found_by_the_next(
    monkeypatch: pytest.MonkeyPatch, damaged_body: bytes
) -> None:
    monkeypatch.setattr(message_search, "_MESSAGES_AT_ONCE", 4)
    monkeypatch.setattr(message_search, "_SCANNED_AT_ONCE", 16)
    world = world_of()
    for number in range(50):
        world.put("t", b"%d" % number, keys=["other"] if number % 3 == 2 else ["a"])
    (damaged,) = found(world, damaged_body.hex())
    world.disk.flip_bit(FOLDER / "commitlog" / f"{0:020}.log", 8 * (damaged.position + 80))
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    place: SearchPlace | None = SearchPlace()
    bodies: list[bytes] = []
    messages = unreadable = 0
    while place is not None:
        looked = search.step(Wanted("t", "", "", 0, EVER_MS, "a"), place)
        assert len(looked.found) <= 4, "the work of a step has a bound"
        bodies += [Message.FromString(each.payload).body for each in looked.found]
        messages, unreadable = messages + looked.messages, unreadable + looked.unreadable
        place = looked.next
    assert bodies == [b"%d" % number for number in range(50) if number % 3 != 2 and b"%d" % number != damaged_body]
    assert (messages, unreadable) == (50, 1)


def test_a_damaged_record_does_not_hide_where_a_time_begins() -> None:
    world = world_of()
    for number in range(9):
        world.put("t", b"%d" % number)
        world.clock.advance(1000)
    (damaged,) = found(world, b"4".hex())
    (last,) = found(world, b"8".hex())
    world.disk.flip_bit(FOLDER / "commitlog" / f"{0:020}.log", 8 * (damaged.position + 80))
    assert len(found(world, b"8".hex(), since_ms=last.store_time_ms)) == 1
    assert found(world, b"7".hex(), since_ms=last.store_time_ms) == []
