"""Whom a notification wakes, against a model of brokers whose words are late: nobody sleeps on a message for ever."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from services.common.errors import StatusError
from services.common.pb.popwheel.v1.broker_pb2 import Filter
from services.proxy.interests import FRUITLESS_MAX, POPS_AT_ONCE_MAX, Interest, InterestBook, Ticket

ALL = Filter()


@dataclass(eq=False)
class Waiter:
    woken: list[Ticket] = field(default_factory=list)

    def __call__(self, ticket: Ticket) -> None:
        self.woken.append(ticket)


def waiting_book(count: int) -> tuple[InterestBook, Interest, list[Waiter]]:
    book = InterestBook(10, 5.0)
    waiters = [Waiter() for _ in range(count)]
    interest = book.enter("t", "g", ALL)
    for _ in waiters[1:]:
        book.enter("t", "g", ALL)
    for waiter in waiters:
        assert book.wait(interest, waiter, 0.0) is None
    return book, interest, waiters


def woken(waiters: list[Waiter]) -> int:
    return sum(len(waiter.woken) for waiter in waiters)


def test_as_many_are_woken_as_messages_came_the_longest_waiting_first() -> None:
    book, interest, waiters = waiting_book(3)
    book.notified(interest.id, "a", 2, 0.0)
    assert [len(waiter.woken) for waiter in waiters] == [1, 1, 0]
    assert book.waiting_polls == 1


def test_what_is_left_over_goes_to_the_next_poll() -> None:
    book, interest, waiters = waiting_book(1)
    book.notified(interest.id, "a", 2, 0.0)
    (ticket,) = waiters[0].woken
    book.finish(ticket, 1, 1, 0.0)
    assert book.best_broker(interest, "b") == "a"
    next_ticket = book.wait(interest, Waiter(), 0.0)
    assert next_ticket is not None
    assert next_ticket.broker == "a"


def test_a_pop_that_leaves_messages_wakes_others() -> None:
    book, interest, waiters = waiting_book(3)
    book.notified(interest.id, "a", 1, 0.0)
    book.finish(waiters[0].woken[0], 1, 5, 0.0)
    assert woken(waiters) == 3


def test_a_notification_during_a_pop_is_not_taken_back_by_its_answer() -> None:
    book, interest, waiters = waiting_book(2)
    book.notified(interest.id, "a", 1, 0.0)
    book.notified(interest.id, "a", 1, 0.0)
    assert woken(waiters) == 2
    late = Waiter()
    book.wait(interest, late, 0.0)
    book.finish(waiters[0].woken[0], 2, 0, 0.0)  # was answered before the second message came, or after: who knows
    book.finish(waiters[1].woken[0], 0, 0, 0.0)
    assert woken([late]) == 0  # the second pop began after the last notification: its word holds


def test_a_pop_that_fails_leaves_its_message_to_others_after_a_pause() -> None:
    book, interest, waiters = waiting_book(2)
    book.notified(interest.id, "a", 1, 0.0)
    book.fail(waiters[0].woken[0], 0.0)
    assert woken(waiters) == 1
    book.time_passed(0.1)
    assert woken(waiters) == 1
    book.time_passed(0.3)
    assert woken(waiters) == 2


def test_pops_that_find_nothing_again_and_again_are_slowed_down() -> None:
    book, interest, _ = waiting_book(0)
    ticket = book.begin(interest, "a")
    for _ in range(FRUITLESS_MAX - 1):
        book.finish(ticket, 0, 1, 0.0)
        again = book.wait(interest, Waiter(), 0.0)
        assert again is not None
        ticket = again
    book.finish(ticket, 0, 1, 0.0)
    waiter = Waiter()
    assert book.wait(interest, waiter, 0.0) is None
    book.time_passed(0.2)
    assert woken([waiter]) == 1


def test_a_broker_that_has_left_is_forgotten() -> None:
    book, interest, waiters = waiting_book(1)
    ticket = book.begin(interest, "a")
    book.forget_broker("a")
    book.finish(ticket, 0, 7, 0.0)
    assert woken(waiters) == 0
    assert book.best_broker(interest, "b") == "b"


def test_an_interest_ends_when_nobody_has_polled_for_a_while() -> None:
    book, interest, waiters = waiting_book(1)
    interest.registered = True
    ticket = book.begin(interest, "a")
    book.leave(interest, waiters[0], 1.0)
    assert book.time_passed(6.5) == []  # its pop is still under way
    book.finish(ticket, 0, 0, 6.6)
    assert book.time_passed(11.6) == [interest]
    assert len(book) == 0
    book.notified(interest.id, "a", 1, 12.0)


def test_a_burst_wakes_no_more_than_may_pop_at_once_and_each_pop_wakes_the_next() -> None:
    book, interest, waiters = waiting_book(POPS_AT_ONCE_MAX + 2)
    book.notified(interest.id, "a", 1000, 0.0)
    assert woken(waiters) == POPS_AT_ONCE_MAX
    book.hand_back(waiters[0].woken[0], 0.0)
    assert woken(waiters) == POPS_AT_ONCE_MAX + 1
    book.finish(waiters[1].woken[0], 32, 0, 0.0)  # one pop took all: nobody else is woken for nothing
    assert woken(waiters) == POPS_AT_ONCE_MAX + 1


def test_a_poll_that_stays_at_one_broker_is_woken_for_no_other() -> None:
    book, interest, (anywhere,) = waiting_book(1)
    book.enter("t", "g", ALL)
    staying = Waiter()
    assert book.wait(interest, staying, 0.0, "b") is None
    assert book.waiting_polls == 2
    book.notified(interest.id, "a", 2, 0.0)
    assert (woken([anywhere]), woken([staying])) == (1, 0)
    book.notified(interest.id, "b", 1, 0.0)
    assert [ticket.broker for ticket in staying.woken] == ["b"]


def test_a_poll_that_stays_misses_nothing_that_came_while_it_popped() -> None:
    book, interest, _ = waiting_book(0)
    ticket = book.begin(interest, "a")
    book.notified(interest.id, "a", 1, 0.0)
    book.notified(interest.id, "b", 1, 0.0)
    book.finish(ticket, 0, 0, 0.0)  # answered before the message came
    again = book.wait(interest, Waiter(), 0.0, "a")
    assert again is not None
    assert again.broker == "a"


def test_there_is_a_limit() -> None:
    book = InterestBook(1, 5.0)
    book.enter("t", "g", ALL)
    book.enter("t", "g", ALL)
    with pytest.raises(StatusError):
        book.enter("t", "g2", ALL)


@dataclass(eq=False)
class ModelPop:
    """A pop under way: not yet at the broker, or with its answer under way."""

    ticket: Ticket
    poll: "ModelPoll"
    answer: tuple[int, int] | None = None


@dataclass(eq=False)
class ModelPoll:
    """A poll of the model; takes part until it has got a message."""

    world: "LateWords"
    batch: int
    place: str | None = None
    state: str = "popping"

    def woken(self, ticket: Ticket) -> None:
        assert self.state == "waiting"
        assert self.place in (None, ticket.broker)
        self.state = "popping"
        self.world.pops.append(ModelPop(ticket, self))


class LateWords(RuleBasedStateMachine):
    """Brokers hold messages; notifications and answers reach the book late, each broker's notifications in order.

    At the end everything under way is delivered; then no poll may wait while a broker has a message.
    """

    @initialize()
    def begin(self) -> None:
        self.book = InterestBook(10, 1e9)
        self.interest = self.book.enter("t", "g", ALL)
        self.now = 0.0
        self.messages = {"a": 0, "b": 0}
        self.events: dict[str, list[int]] = {"a": [], "b": []}
        self.pops: list[ModelPop] = []
        self.polls: list[ModelPoll] = []
        self.arrived = 0
        self.empty = 0

    @rule(broker=st.sampled_from("ab"), count=st.integers(1, 4))
    def messages_arrive(self, broker: str, count: int) -> None:
        self.messages[broker] += count
        self.events[broker].append(count)
        self.arrived += count

    @rule(broker=st.sampled_from("ab"), batch=st.integers(1, 3), stays=st.booleans())
    def a_poll_begins(self, broker: str, batch: int, stays: bool) -> None:
        self.book.enter("t", "g", ALL)
        poll = ModelPoll(self, batch, broker if stays else None)
        self.polls.append(poll)
        self.pops.append(ModelPop(self.book.begin(self.interest, broker), poll))

    @precondition(lambda self: any(pop.answer is None for pop in self.pops))
    @rule(index=st.integers(0, 100))
    def a_pop_reaches_its_broker(self, index: int) -> None:
        asked = [pop for pop in self.pops if pop.answer is None]
        pop = asked[index % len(asked)]
        broker = pop.ticket.broker
        taken = min(pop.poll.batch, self.messages[broker])
        self.messages[broker] -= taken
        pop.answer = (taken, self.messages[broker])

    @precondition(lambda self: any(pop.answer is not None for pop in self.pops))
    @rule(index=st.integers(0, 100))
    def an_answer_comes_back(self, index: int) -> None:
        answered = [pop for pop in self.pops if pop.answer is not None]
        pop = answered[index % len(answered)]
        self.pops.remove(pop)
        assert pop.answer is not None
        taken, left = pop.answer
        self.book.finish(pop.ticket, taken, left, self.now)
        if taken:
            pop.poll.state = "done"
            self.book.leave(self.interest, pop.poll.woken, self.now)
        else:
            self.empty += 1
            self.wait(pop.poll)

    @precondition(lambda self: self.pops)
    @rule(index=st.integers(0, 100))
    def a_pop_fails(self, index: int) -> None:
        unasked = [pop for pop in self.pops if pop.answer is None]
        if unasked:
            pop = unasked[index % len(unasked)]
            self.pops.remove(pop)
            self.book.fail(pop.ticket, self.now)
            self.wait(pop.poll)

    @precondition(lambda self: any(self.events.values()))
    @rule(broker=st.sampled_from("ab"))
    def a_notification_comes(self, broker: str) -> None:
        if self.events[broker]:
            self.book.notified(self.interest.id, broker, self.events[broker].pop(0), self.now)

    @precondition(lambda self: any(poll.state == "waiting" for poll in self.polls))
    @rule(index=st.integers(0, 100))
    def a_client_goes(self, index: int) -> None:
        waiting = [poll for poll in self.polls if poll.state == "waiting"]
        poll = waiting[index % len(waiting)]
        poll.state = "done"
        self.book.leave(self.interest, poll.woken, self.now)

    @precondition(lambda self: any(poll.state == "waiting" and poll.place for poll in self.polls))
    @rule(index=st.integers(0, 100))
    def a_poll_loses_its_patience(self, index: int) -> None:
        waiting = [poll for poll in self.polls if poll.state == "waiting" and poll.place]
        poll = waiting[index % len(waiting)]
        poll.place = None
        self.wait(poll)

    def wait(self, poll: ModelPoll) -> None:
        poll.state = "waiting"
        ticket = self.book.wait(self.interest, poll.woken, self.now, poll.place)
        if ticket is not None:
            poll.woken(ticket)

    def teardown(self) -> None:
        if not hasattr(self, "book"):
            return
        for _ in range(10_000):
            if any(pop.answer is None for pop in self.pops):
                self.a_pop_reaches_its_broker(0)
            elif self.pops:
                self.an_answer_comes_back(0)
            elif any(self.events.values()):
                self.a_notification_comes("a" if self.events["a"] else "b")
            else:
                self.now += 1.0
                self.book.time_passed(self.now)
                if not self.pops:
                    break
        assert not self.pops
        waiting = [poll for poll in self.polls if poll.state == "waiting"]
        assert self.book.waiting_polls == len(waiting)
        for broker, messages in self.messages.items():
            sleepers = [poll for poll in waiting if poll.place in (None, broker)]
            assert not (sleepers and messages), "a poll sleeps although a message is there"
        for poll in waiting:
            self.book.leave(self.interest, poll.woken, self.now)
        assert not (self.interest.waiters or self.interest.places or self.interest.at_broker)


TestLateWords = LateWords.TestCase
TestLateWords.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
