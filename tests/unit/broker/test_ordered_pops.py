"""Groups that consume in order: of each message group one message at a time, and nobody else waits for it (P6)."""

import pytest

from popwheel_broker.consume import receives as receives_module
from popwheel_broker.consume.delivery import OffsetCommit, ack_record
from popwheel_broker.consume.in_flight import InFlight, InFlightPlace
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.core.message_search import MessageSearch, SearchPlace, Wanted
from popwheel_broker.core.notification import Interest, Subscriber
from popwheel_broker.options import BrokerOptions, LogOptions, PopOptions
from popwheel_common.contract import receipt
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from tests.harness.memory_disk import CrashKind
from tests.harness.poison import ERRORS, Poison
from tests.unit.broker.world import INVISIBLE_MS, KEY, OPTIONS, World, attempts, handles


def ordered_world(options: BrokerOptions = OPTIONS, *, max_attempts: int = 3, queues: int = 1) -> World:
    world = World(0, options)
    world.add_topic("t", queues)
    world.add_group("g", max_attempts, fifo=True)
    return world


def put(world: World, *messages: str, queue_id: int = 0) -> None:
    """Store messages such as `a1`: the first of message group `a`; `-1` has none."""
    for each in messages:
        world.put("t", each.encode(), queue_id=queue_id, message_group=each[0].replace("-", ""))


def pop(world: World, count: int = 32, attempt_id: str = "", receive: int = 0) -> list[Message]:
    answer = world.answer("g", "t", count, attempt_id=attempt_id, receive=receive)
    return [Message.FromString(each) for each in answer.messages]


def end_receive(world: World, receive: int, *messages: Message) -> None:
    """The connection of a receive has broken before its messages were sent."""
    results = world.core.acks.release("g", "t", handles(list(messages)), attempted=False, receive=receive)
    assert [each.code for each in results] == [Code.OK] * len(messages)
    world.flush()


def names_of(messages: list[Message]) -> list[str]:
    return [each.body.decode() for each in messages]


def ack(world: World, *messages: Message) -> None:
    assert set(world.ack("g", "t", *handles(list(messages)))) == {Code.OK}
    world.flush()


def lapse(world: World) -> None:
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()


def test_a_message_holds_back_its_own_message_group_only() -> None:
    world = ordered_world()
    put(world, "a1", "a2", "b1", "a3", "b2", "c1")
    first = pop(world)
    assert names_of(first) == ["a1", "b1", "c1"]
    assert pop(world) == []
    ack(world, first[1])
    assert names_of(pop(world)) == ["b2"]
    ack(world, first[0])
    (second,) = pop(world)
    assert (names_of([second]), attempts([second])) == (["a2"], [1])
    ack(world, second)
    assert names_of(pop(world)) == ["a3"]


def test_messages_without_a_message_group_wait_for_nothing() -> None:
    world = ordered_world()
    put(world, "-1", "-2", "a1", "a2", "-3")
    assert names_of(pop(world)) == ["-1", "-2", "a1", "-3"]
    assert pop(world) == []
    lapse(world)
    assert sorted(names_of(pop(world))) == ["-1", "-2", "-3", "a1"]


def test_what_is_not_acknowledged_comes_again_before_its_successors_and_dies_at_the_limit() -> None:
    world = ordered_world()
    put(world, "a1", "a2")
    seen = []
    for _ in range(3):
        (message,) = pop(world)
        seen.append((names_of([message])[0], message.system_properties.delivery_attempt))
        lapse(world)
    assert seen == [("a1", 1), ("a1", 2), ("a1", 3)]
    ((_, dead),) = world.held("%DLQ%g")
    assert Message.FromString(dead.payload).body == b"a1"
    assert world.held("%RETRY%g+t") == []
    assert names_of(pop(world)) == ["a2"]


def test_a_delivery_of_a_message_that_cannot_be_read_is_no_attempt() -> None:
    """Nobody is given it, so it comes as its next attempt when it can be read, however late that is."""
    world = ordered_world()
    put(world, "a1", "b1")
    assert attempts(pop(world)) == [1, 1]
    lapse(world)
    (path,) = (each for each in world.disk.files() if each.suffix == ".log")
    (entry,) = world.core.store.queues["t", 0].read(0, 1)
    rotten = 8 * (entry.position + entry.length - 1)
    world.disk.flip_bit(path, rotten)
    for attempt in (2, 3):
        (other,) = pop(world)
        assert (names_of([other]), attempts([other])) == (["b1"], [attempt])
        lapse(world)
    world.disk.flip_bit(path, rotten)
    world.crash("process")
    (message,) = pop(world)
    assert (names_of([message]), attempts([message])) == (["a1"], [2])


@pytest.mark.parametrize("kind", ["process", "power"])
def test_lines_are_the_same_after_a_crash(kind: CrashKind) -> None:
    world = ordered_world()
    put(world, "a1", "a2", "b1", "a3", "b2")
    pop(world)
    world.flush()
    world.save()
    put(world, "b3", "c1", "c2")
    (third,) = pop(world)
    lapse(world)
    lines = sorted(world.core.state.table.message_group_queues.members())
    assert len(lines) == 8
    world.crash(kind)
    assert sorted(world.core.state.table.message_group_queues.members()) == lines
    assert sorted(names_of(pop(world))) == ["a1", "b1", "c1"]
    assert pop(world) == []
    assert names_of([third]) == ["c1"]


def test_a_crash_between_two_records_loses_and_doubles_nothing() -> None:
    """Whatever part of the log is left, of each message group the first that was not acknowledged comes first."""
    count = 1
    number = 0
    while number < count:
        world = ordered_world()
        put(world, "a1", "a2", "b1", "a3", "b2", "a4")
        log = world.core.store.log
        begin = log.end_position
        for message in pop(world):
            world.ack("g", "t", *handles([message]))
        pop(world)
        world.flush()
        ends = [found.position + found.length for found in log.scan(begin, log.end_position)]
        count = len(ends)
        log.cut(ends[number])
        number += 1
        world.start()
        seen: list[str] = []
        for _ in range(10):
            messages = pop(world)
            seen += names_of(messages)
            if messages:
                ack(world, *messages)
            lapse(world)
        for line, last in (("a", 4), ("b", 2)):
            numbers = [int(each[1]) for each in seen if each[0] == line]
            assert numbers == list(range(numbers[0], last + 1)), (number, seen)
            assert numbers[0] <= 2
    assert count > 4


def test_handles_name_the_revive_queue_of_ordered_pops() -> None:
    world = ordered_world()
    put(world, "a1")
    (message,) = pop(world)
    handle = message.system_properties.receipt_handle
    assert receipt.decode(KEY, "g", "t", handle).revive_queue == 999
    changed = world.core.acks.change_invisible("g", "t", handle, 5)
    assert receipt.decode(KEY, "g", "t", changed).revive_queue == 999
    assert world.ack("g", "t", handle, changed) == [Code.INVALID_RECEIPT_HANDLE, Code.OK]


def test_a_changed_duration_and_a_renewal_hold_the_line_back_for_as_long() -> None:
    world = ordered_world()
    put(world, "a1", "a2")
    (message,) = pop(world)
    world.core.acks.change_invisible("g", "t", message.system_properties.receipt_handle, 10)
    world.clock.advance(9)
    world.revive()
    assert pop(world) == []
    world.clock.advance(1)
    world.revive()
    (again,) = pop(world)
    assert (names_of([again]), attempts([again])) == (["a1"], [2])
    world.clock.advance(INVISIBLE_MS - 1)
    world.core.acks.renew(
        [pb.RenewEntry(group="g", topic="t", receipt_handle=again.system_properties.receipt_handle)], INVISIBLE_MS
    )
    world.clock.advance(INVISIBLE_MS - 1)
    world.revive()
    assert pop(world) == []
    ack(world, again)
    assert names_of(pop(world)) == ["a2"]


def test_a_released_message_is_the_first_of_its_line_again_and_that_is_no_attempt() -> None:
    world = ordered_world()
    put(world, "a1", "a2")
    (message,) = pop(world)
    world.core.acks.release("g", "t", handles([message]), attempted=False)
    (again,) = pop(world)
    assert (names_of([again]), attempts([again])) == (["a1"], [1])


def test_a_message_that_a_client_forwards_to_the_dead_letters_lets_its_line_go_on() -> None:
    world = ordered_world()
    put(world, "a1", "a2")
    (message,) = pop(world)
    world.core.acks.dead_letter("g", "t", message.system_properties.receipt_handle)
    assert names_of(pop(world)) == ["a2"]
    assert len(world.held("%DLQ%g")) == 1


def test_the_same_attempt_gets_the_same_messages_while_it_has_them() -> None:
    world = ordered_world()
    put(world, "a1", "b1", "a2", "c1")
    first = pop(world, 2, "try")
    world.clock.advance(INVISIBLE_MS - 1)
    assert pop(world, 2, "try") == first
    world.clock.advance(INVISIBLE_MS - 1)
    world.revive()
    assert names_of(pop(world, 2, "another")) == ["c1"]
    ack(world, first[0])
    assert pop(world, 2, "try") == first[1:]
    ack(world, first[1])
    assert names_of(pop(world, 2, "try")) == ["a2"]


def test_the_same_attempt_of_another_topic_or_group_is_another_one() -> None:
    world = ordered_world()
    world.add_topic("u")
    world.add_group("h", fifo=True)
    put(world, "a1", "a2")
    world.put("u", b"b1", message_group="b")
    first = pop(world, attempt_id="try")
    assert names_of(first) == ["a1"]
    for group, topic, expected in (("g", "u", b"b1"), ("h", "t", b"a1"), ("h", "u", b"b1")):
        (message,) = world.answer(group, topic, attempt_id="try").messages
        assert Message.FromString(message).body == expected
        assert Message.FromString(message).topic.name == topic
        (handle,) = handles([Message.FromString(message)])
        assert world.ack(group, topic, handle) == [Code.OK]
    assert pop(world, attempt_id="try") == first


@pytest.mark.parametrize("error", ERRORS)
def test_the_same_try_goes_on_without_a_message_that_has_begun_to_fail(error: type[Exception]) -> None:
    world = ordered_world()
    put(world, "a1", "b1", "c1")
    first = pop(world, attempt_id="try")
    with Poison(["answer"], lambda: error, lambda payload, _: b"b1" in payload).spread():
        assert names_of(pop(world, attempt_id="try")) == ["a1", "c1"]
    (entry,) = world.core.quarantine.table
    assert (entry.step, entry.queue_offset) == (Step.ANSWER, 1)
    ack(world, first[0], first[2])


def test_a_group_that_tries_much_has_others_forget_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receives_module, "ATTEMPTS_MAX", 8)
    world = ordered_world()
    world.add_group("h", fifo=True)
    put(world, "a1", *(f"{letter}1" for letter in "bcdefghijklmnop"))
    (message,) = world.answer("h", "t", 1, attempt_id="try").messages
    latest = [pop(world, 1, f"try {number}") for number in range(14)]
    assert len(world.core.pops.ordered.receives) == 1 + 4
    assert list(world.answer("h", "t", 1, attempt_id="try").messages) == [message]
    assert [pop(world, 1, f"try {number}") for number in range(10, 14)] == latest[10:]


@pytest.mark.parametrize("ends_first", [1, 2])
def test_the_end_of_one_try_releases_nothing_that_another_has(ends_first: int) -> None:
    world = ordered_world()
    put(world, "a1", "b1", "a2")
    first = pop(world, 2, "try", receive=1)
    assert pop(world, 2, "try", receive=2) == first
    end_receive(world, ends_first, *first)
    assert pop(world) == [], "the other try still has them"
    assert pop(world, 2, "try", receive=3) == first
    end_receive(world, 3 - ends_first, *first)
    assert pop(world) == []
    ack(world, first[0])
    assert names_of(pop(world)) == ["a2"]
    end_receive(world, 3, first[1])
    (again,) = pop(world)
    assert (names_of([again]), attempts([again])) == (["b1"], [1]), "nobody has it any more"


def test_a_try_that_was_not_repeated_releases_what_it_has() -> None:
    world = ordered_world()
    put(world, "a1", "b1")
    messages = pop(world, 2, "try", receive=1)
    end_receive(world, 1, *messages)
    assert names_of(pop(world)) == ["a1", "b1"]


def test_a_goodbye_releases_whatever_tries_have_it() -> None:
    world = ordered_world()
    put(world, "a1")
    first = pop(world, 2, "try", receive=1)
    pop(world, 2, "try", receive=2)
    world.core.acks.release("g", "t", handles(first), attempted=True)
    world.flush()
    assert attempts(pop(world)) == [2]


def test_what_an_earlier_master_gave_out_is_not_released_by_one_try() -> None:
    """Only that master knew of other tries."""
    world = ordered_world()
    put(world, "a1", "b1")
    earlier = pop(world, 1, "try", receive=1)
    world.flush()
    world.crash("process")
    later = pop(world, 1, "another", receive=2)
    end_receive(world, 1, *earlier)
    assert pop(world) == []
    end_receive(world, 2, *later)
    assert names_of(pop(world)) == ["b1"]
    lapse(world)
    assert "a1" in names_of(pop(world))


def test_tries_of_other_groups_take_no_room_from_those_in_order() -> None:
    world = ordered_world()
    world.add_group("h", 3)
    put(world, "a1")
    world.answer("h", "t", attempt_id="other", receive=7)
    assert len(world.core.pops.ordered.receives) == 0
    pop(world, 1, "try", receive=1)
    pop(world, 1, "try", receive=2)
    receives = world.core.pops.ordered.receives
    assert (len(receives), receives.shared) == (1, 1)


def test_what_is_kept_of_tries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receives_module, "ATTEMPTS_MAX", 4)
    world = ordered_world()
    put(world, *(f"{line}1" for line in "abcdef"))
    for number in range(6):
        pop(world, 1, f"try {number}", receive=2 * number + 1)
        pop(world, 1, f"try {number}", receive=2 * number + 2)
    receives = world.core.pops.ordered.receives
    assert (len(receives), receives.shared) == (2, 4)


def test_that_many_receives_of_one_delivery_are_distinguished_and_no_more() -> None:
    world = ordered_world()
    put(world, "a1")
    for receive in range(1, 20):
        messages = pop(world, 1, "try", receive=receive)
    for receive in range(1, 20):
        end_receive(world, receive, *messages)
    assert pop(world) == [], "it comes again when its time is over"
    lapse(world)
    assert names_of(pop(world)) == ["a1"]


def test_a_poll_is_woken_when_a_line_goes_on_and_not_for_what_is_blocked() -> None:
    world = ordered_world()
    reported: list[int] = []
    subscriber = Subscriber(lambda: reported.append(1))
    interest = Interest(7, subscriber, "t", "g", None)
    world.core.interests.add(interest)
    put(world, "a1", "a2")
    subscriber.take()
    (first,) = pop(world)
    assert world.core.waiting(interest) == 0
    assert subscriber.take() == ([], [])
    ack(world, first)
    assert subscriber.take() == ([(7, 1)], [])
    assert world.core.waiting(interest) == 1
    assert names_of(pop(world)) == ["a2"]
    lapse(world)
    assert subscriber.take() == ([(7, 1)], [])


def test_past_the_limit_of_blocked_messages_the_queue_waits_and_goes_on_by_itself() -> None:
    options = BrokerOptions(log=LogOptions(segment_bytes=1 << 20), pop=PopOptions(held_messages_max=64))
    world = ordered_world(options)
    subscriber = Subscriber(lambda: None)
    interest = Interest(7, subscriber, "t", "g", None)
    world.core.interests.add(interest)
    put(world, *(f"a{number}" for number in range(200)), "b1")
    seen = names_of(pop(world))
    lines = world.core.state.table.message_group_queues
    for _ in range(20):
        assert pop(world) == []
    assert (lines.blocked.total, world.core.waiting(interest)) == (32, 0)
    subscriber.take()
    put(world, "c1")
    assert subscriber.take() == ([], [])
    assert seen == ["a0"]
    # Most of what was held has to go before more is read: the poll is notified of each message of the line, not of
    # more.
    held = next(each for each in world.core.state.table if not each.is_blocked)
    for number in range(1, 40):
        world.core.store.put([ack_record(world.core.revive_topic, held.id, 1)])
        assert subscriber.take()[0]
        (message,) = pop(world)
        assert names_of([message]) == [f"a{number}"]
        held = next(each for each in world.core.state.table if not each.is_blocked)


def test_everything_is_delivered_in_order_through_a_small_limit() -> None:
    options = BrokerOptions(log=LogOptions(segment_bytes=1 << 20), pop=PopOptions(held_messages_max=16))
    world = ordered_world(options, queues=2)
    for number in range(60):
        put(world, f"a{number:02}", f"b{number:02}")
        put(world, f"c{number:02}", queue_id=1)
    seen: list[str] = []
    for _ in range(1000):
        messages = pop(world, 5)
        seen += names_of(messages)
        if messages:
            ack(world, *messages)
    for line in "abc":
        assert [each for each in seen if each[0] == line] == [f"{line}{number:02}" for number in range(60)]
    assert len(world.core.state.table.message_group_queues) == 0
    assert len(world.core.state.table) == 0


def test_an_offset_set_by_hand_drops_what_is_blocked_before_it() -> None:
    world = ordered_world()
    put(world, "a1", "a2", "a3", "a4")
    (first,) = pop(world)
    world.core.commit_offset(OffsetCommit("g", "t", 0, 3))
    ack(world, first)
    assert names_of(pop(world)) == ["a4"]


def test_a_deleted_topic_leaves_nothing_blocked() -> None:
    world = ordered_world()
    put(world, "a1", "a2", "b1", "b2")
    first = pop(world, 1)
    assert names_of(first) == ["a1"]
    world.delete_topic("t")
    lines = world.core.state.table.message_group_queues
    assert lines.blocked.total == 0
    world.add_topic("t")
    put(world, "c1", "c2")
    assert names_of(pop(world)) == ["c1"]
    lapse(world)
    world.crash("process")
    assert names_of(pop(world)) == ["c1"]
    assert len(world.core.state.table.message_group_queues) == 1


def test_a_deleted_group_leaves_nothing_blocked() -> None:
    world = ordered_world()
    put(world, "a1", "a2")
    pop(world)
    world.delete_group("g")
    lines = world.core.state.table.message_group_queues
    assert (len(lines), lines.blocked.total, len(world.core.state.table)) == (0, 0, 0)
    world.add_group("g", fifo=True)
    assert names_of(pop(world)) == ["a1"]


def test_what_is_blocked_outlives_its_segment() -> None:
    world = ordered_world()
    put(world, "a1", "a2", "b1")
    first = pop(world)
    world.flush()
    for _ in range(100):
        world.put("t", bytes(100), message_group="z")
    world.clock.advance(73 * 3_600_000)
    world.put("t", b"z", message_group="z")
    world.save()
    world.retain()
    assert world.core.store.log.start_position > 0
    world.crash("process")
    world.revive()
    world.flush()
    again = pop(world, 2)
    assert (names_of(again), attempts(again)) == (["a1", "b1"], [2, 2])
    ack(world, *again)
    (second,) = pop(world, 1)
    assert names_of([second]) == ["a2"]
    assert names_of(first) == ["a1", "b1"]


def test_lists_of_what_is_delivered_do_not_show_what_is_blocked() -> None:
    world = ordered_world()
    put(world, "a1", "a2", "a3")
    pop(world)
    lapse(world)
    pop(world)
    core = world.core
    messages, rest = InFlight(core.state.table, core.acks.messages, core.store).step("t", "g", InFlightPlace(), 10)
    assert [(each.message_id, each.attempt, each.message_group) for each in messages] == [(b"a1".hex(), 2, "a")]
    assert rest is None
    (delivered,) = messages
    assert core.pops.ordered.message_group_queues.behind(delivered.delivery, delivered.number) == 2
    assert core.lag.ready()["g", "t"] == 2


def test_a_group_that_consumes_in_no_order_is_not_delayed() -> None:
    world = ordered_world()
    world.add_group("h")
    put(world, "a1", "a2")
    assert names_of(pop(world)) == ["a1"]
    assert len(world.pop("h", "t")) == 2


@pytest.mark.parametrize("crash", [None, "process"])
def test_a_reset_leaves_nothing_in_line(crash: CrashKind | None) -> None:
    world = ordered_world()
    put(world, "a1", "a2", "a3", "b1")
    assert names_of(pop(world)) == ["a1", "b1"]
    queue = world.core.store.queues["t", 0]
    plan = world.core.offset_reset.plan("g", "t", {queue: 1})
    assert plan.in_flight == 2
    world.carry_out(plan)
    world.flush()
    if crash is not None:
        world.crash(crash)
    for name in ("a2", "a3"):
        first, *rest = sorted(pop(world), key=lambda each: each.body)
        assert first.body.decode() == name
        ack(world, first, *rest)
    assert pop(world) == []
    assert len(world.core.state.table.message_group_queues) == 0


def test_a_message_that_stands_in_line_waits() -> None:
    world = ordered_world()
    put(world, "a1", "a2")
    pop(world)
    search = MessageSearch(world.core.store, world.core.state, world.core.topic_registry.readers)
    found, *_ = search.step(Wanted("t", b"a2".hex(), "", 0, 1 << 62), SearchPlace())
    assert search.readers(found[0], "") == {"g": False}
    (holding,) = search.holdings(found, "", 0)[0]
    assert holding.delivery.is_blocked


def test_a_dead_letter_comes_again_to_its_ordered_group() -> None:
    world = ordered_world(max_attempts=1)
    put(world, "a1", "a2")
    pop(world)
    lapse(world)
    assert names_of(pop(world)) == ["a2"]
    assert world.core.dead_letters.redrive("g", 10, 1 << 40, 1 << 20) == (1, 0, 0)
    world.flush()
    again = [each for _ in range(5) for each in pop(world)]
    assert names_of(again) == ["a1"]
    ack(world, *again)
