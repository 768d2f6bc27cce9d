"""Messages that filters are still to be asked about: bounded, topics by turns, and nobody sleeps on."""

from collections.abc import Callable, Iterator

import pytest

from popwheel_broker.consume.wanted import wanted_by
from popwheel_broker.core import arrivals, notification
from popwheel_broker.core.arrivals import MESSAGES_MAX, TURN_COST_MAX, Arrivals, Arrived
from popwheel_broker.core.notification import Interest, Interests, Subscriber
from popwheel_broker.log.record import Record, RecordKind
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.test_notification import queue_of
from tests.unit.broker.test_sql_filters import put, sql, wire


class Loop:
    """Runs what is due, a turn at a time."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.turns = 0

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        assert delay_s == 0
        self.due.append(action)

    def turn(self) -> None:
        due, self.due = self.due, []
        self.turns += 1
        assert len(due) <= 1, "one callback a turn, however much has arrived"
        for action in due:
            action()

    def run(self) -> None:
        while self.due:
            self.turn()


def recorded(costs: int, steps: int = 1) -> tuple[Loop, Arrivals, list[tuple[str, int, int, bool]]]:
    """Arrivals whose asking takes some steps, each with a cost; and the messages that were asked about."""
    asked: list[tuple[str, int, int, bool]] = []

    def ask(arrived: Arrived) -> Iterator[int]:
        asked.append((arrived.queue.topic, arrived.start, arrived.count, bool(arrived.tag_hashes)))
        for _ in range(steps):
            yield costs

    loop = Loop()
    return loop, Arrivals(ask, loop.later), asked


def test_nothing_is_asked_in_the_turn_of_an_arrival_and_what_comes_on_is_asked_together() -> None:
    loop, waiting, asked = recorded(1)
    queue = queue_of("t")
    for start in range(3):
        waiting.add(queue, start, [0])
    waiting.add(queue_of("t"), 3, [0])
    assert (asked, waiting.messages) == ([], 4)
    loop.run()
    assert asked == [("t", 0, 3, True), ("t", 3, 1, True)]
    assert (waiting.messages, loop.turns, loop.due) == (0, 1, [])


def test_a_turn_ends_when_it_has_cost_enough_and_topics_take_turns() -> None:
    loop, waiting, asked = recorded(TURN_COST_MAX, steps=3)
    costly, other = queue_of("costly"), queue_of("other")
    waiting.add(costly, 0, [0])
    waiting.add(other, 0, [0])
    loop.turn()
    assert len(asked) == 1
    loop.turn()
    assert len(asked) == 2, "the other's turn, though the first is not done"
    loop.run()
    assert loop.turns == 2 * 3 + 1


def test_of_more_messages_than_wait_all_polls_are_notified() -> None:
    loop, waiting, asked = recorded(1)
    queue = queue_of("t")
    waiting.add(queue, 0, [0] * MESSAGES_MAX)
    for start in range(100):
        waiting.add(queue, MESSAGES_MAX + start, [0])
    waiting.add(queue_of("u"), 0, [0] * MESSAGES_MAX)
    assert (waiting.messages, waiting.unasked) == (2 * MESSAGES_MAX, 100)
    loop.run()
    assert sorted(asked) == [
        ("t", 0, MESSAGES_MAX, True),
        ("t", MESSAGES_MAX, 100, False),
        ("u", 0, MESSAGES_MAX, True),
    ]
    waiting.add(queue, 9_999, [0] * (MESSAGES_MAX + 1))
    loop.run()
    assert asked[-1] == ("t", 9_999, MESSAGES_MAX + 1, False)


def test_one_that_fails_holds_up_no_other() -> None:
    def ask(arrived: Arrived) -> Iterator[int]:
        if arrived.start == 0:
            raise KeyError("broken")
        asked.append(arrived.start)
        yield 1

    asked: list[int] = []
    loop = Loop()
    waiting = Arrivals(ask, loop.later)
    for start in (0, 10, 20):
        waiting.add(queue_of("t"), start, [0])
    with pytest.raises(KeyError):
        loop.turn()
    loop.run()
    assert asked == [10, 20]


class Polls:
    """Polls with filters at a broker's core, and those that were notified."""

    def __init__(self) -> None:
        self.world = world_of()
        self.loop = Loop()
        self.interests: Interests = self.world.core.interests
        self.interests.start_rotation(self.loop.later, lambda interest: 1)
        self.subscriber = Subscriber(lambda: None)

    def add(self, identity: int, expression: str, group: str = "g") -> None:
        self.interests.add(Interest(identity, self.subscriber, "t", group, wanted_by(sql(expression))))

    def notified(self) -> dict[int, int]:
        return dict(self.subscriber.take()[0])


def test_who_comes_or_goes_before_its_filter_is_asked_is_left_out() -> None:
    polls = Polls()
    polls.add(1, "n > 0")
    polls.add(2, "n > 0", group="other")
    put(polls.world, b"1", n="1")
    assert "popwheel_arrivals_waiting 1.0" in metrics(polls.world)
    polls.interests.cancel(polls.subscriber, 2)
    polls.loop.run()
    assert polls.notified() == {1: 1}
    polls.add(2, "n > 5", group="other")
    put(polls.world, b"2", n="2")
    polls.interests.cancel(polls.subscriber, 1)
    polls.add(3, "n > 1")
    polls.loop.run()
    assert polls.notified() == {3: 1}


def test_under_more_than_can_be_asked_all_are_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MESSAGES_MAX", 2)
    polls = Polls()
    polls.add(1, "n > 5")
    for number in range(4):
        put(polls.world, b"%d" % number, n="1")
    polls.loop.run()
    assert polls.notified() == {1: 2}
    assert "popwheel_arrivals_unasked_total 2.0" in metrics(polls.world)


def test_messages_that_were_deleted_before_they_were_asked_about_notify_all() -> None:
    """Retention may pass messages that wait: once this never left the turn."""
    polls = Polls()
    polls.add(1, "n > 5")
    for number in range(20):
        put(polls.world, b"x" * 1000, n=str(number % 2))
    polls.world.add_topic("u")
    for number in range(10):
        polls.world.put("u", b"x" * 1000)
        polls.world.clock.advance(30 * 24 * 3600 * 1000 if number == 5 else 0)
    assert polls.world.retain() > 0
    queue = polls.world.core.store.queues["t", 0]
    assert queue.min_offset == queue.max_offset == 20
    scan = polls.world.core.interests.sql_scan
    assert scan is not None
    assert scan.arrived(queue, 0, 20) is None
    polls.loop.run()
    assert polls.notified() == {1: 20}


def test_what_arrived_in_a_topic_that_is_gone_is_asked_of_nobody() -> None:
    polls = Polls()
    polls.add(1, "n > 0")
    put(polls.world, b"1", n="1")
    polls.world.delete_topic("t")
    assert "popwheel_arrivals_waiting 0.0" in metrics(polls.world)
    polls.world.add_topic("t")
    polls.loop.run()
    polls.notified()
    put(polls.world, b"2", n="2")
    polls.loop.run()
    assert polls.notified() == {1: 1}


def test_a_turn_ends_though_steps_say_that_they_cost_nothing() -> None:
    loop, waiting, _ = recorded(0, steps=10 * TURN_COST_MAX)
    waiting.add(queue_of("t"), 0, [0])
    loop.turn()
    assert loop.due
    loop.run()
    assert loop.turns == 11


def test_polls_without_a_filter_of_sql_wait_for_none_of_it() -> None:
    polls = Polls()
    polls.add(1, "n > 0")
    polls.interests.add(Interest(2, polls.subscriber, "t", "plain", None))
    put(polls.world, b"1", n="1")
    assert polls.notified() == {2: 1}
    polls.loop.run()
    assert polls.notified() == {1: 1}


def test_when_filters_have_cost_enough_the_polls_that_are_left_are_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notification, "_ASKING_COST_MAX", 1)
    polls = Polls()
    for number in range(5):
        polls.add(number, f"n > {5 + number}", group=f"g{number}")
    put(polls.world, b"1", n="1")
    polls.loop.run()
    assert polls.notified() == {2: 1, 3: 1, 4: 1}


def test_a_large_batch_is_read_and_asked_a_part_at_a_time() -> None:
    polls = Polls()
    polls.add(1, "n = 7")
    payload, own = wire(b"x", None, n="7")
    polls.world.core.store.put([Record(RecordKind.MESSAGE, "t", 0, payload, own) for _ in range(500)])
    polls.world.flush()
    polls.loop.run()
    assert polls.notified() == {1: 500}
    assert polls.loop.turns > 2
