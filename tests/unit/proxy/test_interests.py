"""Whom a notification wakes, against a model of brokers whose words are late: nobody sleeps on a message for ever."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.broker_pb2 import Filter
from popwheel_proxy.receive.interest import POPS_AT_ONCE_MAX, Interest, Ticket
from popwheel_proxy.receive.interest_book import FRUITLESS_MAX, InterestBook
from popwheel_proxy.receive.refused_interests import POP_INTERVAL_S, REFUSED_POPS_AT_ONCE_MAX, REGISTER_EVERY_S

ALL = Filter()


@dataclass(eq=False)
class Waiter:
    woken: list[Ticket] = field(default_factory=list)

    def __call__(self, ticket: Ticket) -> None:
        self.woken.append(ticket)


def waiting_book(count: int) -> tuple[InterestBook, Interest, list[Waiter]]:
    book = InterestBook(10, 1 << 20, 5.0)
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


def test_a_notification_during_a_pop_is_not_revoked_by_its_answer() -> None:
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


@pytest.mark.parametrize("is_answered", [False, True])
def test_brokers_at_which_pops_find_nothing_delay_polls_of_no_other(is_answered: bool) -> None:
    """A pop at one of two takes longer than the pause of the other, so one of them may always be tried."""
    book, interest, (waiter,) = waiting_book(1)
    now, tried = 0.0, []
    for broker in ("a", "b", "c"):
        book.notified(interest.id, broker, 50, now)
    (ticket,) = waiter.woken
    for _ in range(3 * FRUITLESS_MAX if is_answered else 3):
        tried.append(ticket.broker)
        now += 0.5
        if is_answered:
            book.finish(ticket, 0, 50, now)
        else:
            book.fail(ticket, now)
        again = book.wait(interest, waiter, now)
        assert again is not None
        ticket = again
    assert set(tried) == {"a", "b", "c"}


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


def test_a_poll_that_has_popped_before_its_wake_returns_counts_as_woken() -> None:
    book = InterestBook(10, 10_000, 5.0)
    interest = book.enter("t", "g", ALL)

    def pop_at_once(ticket: Ticket) -> None:
        book.finish(ticket, 1, 0, 0.0)

    assert book.wait(interest, pop_at_once, 0.0) is None
    assert book.notified(interest.id, "a", 1, 0.0)
    assert not book.notified(interest.id, "a", 1, 0.0), "nobody waits any more"


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


def registered_book(*brokers: str) -> tuple[InterestBook, Interest]:
    book = InterestBook(10, 1 << 20, 5.0)
    interest = book.enter("t", "g", ALL)
    book.register(interest, brokers)
    return book, interest


def test_a_poll_need_not_pop_first_once_all_brokers_have_said_that_nothing_waits() -> None:
    book, interest = registered_book("a", "b")
    assert not interest.is_quiet
    book.notified(interest.id, "a", 0, 0.0)
    assert not interest.is_quiet
    book.notified(interest.id, "b", 0, 0.0)
    assert interest.is_quiet


def test_it_pops_first_while_something_is_there_or_under_way_or_a_broker_is_unsure() -> None:
    book, interest = registered_book("a", "b")
    assert not book.enter("t", "h", ALL).is_quiet, "not registered"
    book.notified(interest.id, "a", 1, 0.0)
    book.notified(interest.id, "b", 0, 0.0)
    assert not interest.is_quiet
    ticket = book.begin(interest, "a")
    assert not interest.is_quiet
    book.finish(ticket, 1, 0, 0.0)
    assert interest.is_quiet
    failing = book.begin(interest, "a")
    assert not interest.is_quiet
    book.fail(failing, 0.0)
    assert interest.is_quiet, "a pop that fails makes no message appear"
    book.stream_ended("a")
    assert not interest.is_quiet
    book.notified(interest.id, "a", 0, 0.0)
    assert interest.is_quiet
    book.stream_ended("c")  # one that has just come
    assert not interest.is_quiet
    late = book.begin(interest, "c")
    book.forget_broker("c")
    assert interest.is_quiet
    book.finish(late, 0, 3, 0.0)
    assert interest.is_quiet


def wait_without_message(book: InterestBook, interest: Interest, now: float = 0.0) -> Waiter:
    """A poll that waits, after a pop that found nothing where it was supposed that something is."""
    waiter = Waiter()
    while (ticket := book.wait(interest, waiter, now)) is not None:
        book.finish(ticket, 0, 0, now)
    return waiter


def test_polls_of_a_refused_interest_pop_in_turn_and_register_again() -> None:
    book, interest = registered_book("a", "b")
    book.notified(interest.id, "a", 0, 0.0)
    book.refuse(interest.id, "b", 0.0)
    assert (book.refused, interest.is_quiet) == (1, False)
    waiter = wait_without_message(book, interest)
    assert book.serve_refused(POP_INTERVAL_S / 2) == []
    assert woken([waiter]) == 0
    again = []
    for turn in range(1, int(REGISTER_EVERY_S) + 1):
        again += book.serve_refused(turn * POP_INTERVAL_S)
        assert [ticket.broker for ticket in waiter.woken] == ["b"] * turn
        book.finish(waiter.woken[-1], 0, 0, turn * POP_INTERVAL_S)
        assert book.wait(interest, waiter, turn * POP_INTERVAL_S) is None
    assert again == [(interest, "b")]
    book.refuse(interest.id, "b", 31.0)
    assert (book.refused, woken([waiter])) == (1, 31)
    book.finish(waiter.woken[-1], 0, 0, 31.0)
    assert book.wait(interest, waiter, 31.0) is None
    book.notified(interest.id, "b", 0, 31.0)
    assert (book.refused, interest.is_quiet) == (0, True)
    book.serve_refused(100.0)
    assert woken([waiter]) == 31


def test_one_poll_pops_at_all_brokers_that_refuse_though_their_turns_come_together() -> None:
    book, interest = registered_book("a", "b", "c")
    for broker in "abc":
        book.refuse(interest.id, broker, 0.0)
    waiter = wait_without_message(book, interest)
    book.serve_refused(1.0)
    ticket: Ticket | None
    (ticket,) = waiter.woken
    asked = []
    while ticket is not None:
        asked.append(ticket.broker)
        book.finish(ticket, 0, 0, 1.0)
        ticket = book.wait(interest, waiter, 1.0)
    assert asked == ["a", "b", "c"]


def test_a_refused_interest_finds_more_than_one_message_with_one_turn() -> None:
    book, interest = registered_book("a")
    waiters = [Waiter(), Waiter(), Waiter()]
    for waiter in waiters:
        book.wait(interest, waiter, 0.0)
    book.refuse(interest.id, "a", 0.0)
    assert woken(waiters) == 1
    book.finish(waiters[0].woken[0], 1, 2, 0.0)
    assert woken(waiters) == 3


def test_nobody_pops_for_a_refused_interest_without_a_poll_and_it_ends_as_any_other() -> None:
    book, interest = registered_book("a")
    book.leave(interest, Waiter(), 0.0)
    book.refuse(interest.id, "a", 0.0)
    assert book.serve_refused(1.0) == []
    assert interest.left_over == {}
    assert book.time_passed(6.0) == [interest]
    assert book.serve_refused(6.0) == []
    assert book.refused == 0
    book.refuse(interest.id, "a", 6.0)  # its last word comes late
    assert book.refused == 0


def test_turns_are_taken_in_order_and_not_all_at_once() -> None:
    book = InterestBook(1000, 1 << 20, 5.0)
    waiters = []
    for number in range(REFUSED_POPS_AT_ONCE_MAX * 2):
        interest = book.enter(f"t{number}", "g", ALL)
        book.register(interest, ("a",))
        book.refuse(interest.id, "a", 0.0)
        waiters.append(wait_without_message(book, interest))
    for turn, looks_at in enumerate((1.0, 1.1, 1.2), 1):
        book.serve_refused(looks_at)
        assert woken(waiters) == min(turn, 2) * REFUSED_POPS_AT_ONCE_MAX
        assert all(waiter.woken for waiter in waiters[: min(turn, 2) * REFUSED_POPS_AT_ONCE_MAX])
    book.stream_ended("a")
    assert book.refused == 0


def test_there_is_a_limit() -> None:
    book = InterestBook(1, 1 << 20, 5.0)
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

    Streams break with all that is on them, and registrations arrive late and are answered or refused. Polls come back
    and wait at once where the book says that they may. At the end everything under way is delivered; then no poll may
    wait while a broker has a message.
    """

    @initialize(refuses_at_the_end=st.booleans())
    def begin(self, refuses_at_the_end: bool) -> None:
        self.refuses_at_the_end = refuses_at_the_end
        self.book = InterestBook(10, 1 << 20, 1e9)
        self.interest = self.book.enter("t", "g", ALL)
        self.now = 0.0
        self.messages = {"a": 0, "b": 0}
        self.events: dict[str, list[int | None]] = {"a": [], "b": []}  # None: refused
        self.asked = {"a": True, "b": True}  # a registration is under way
        self.reports = {"a": False, "b": False}
        self.book.register(self.interest, "ab")
        self.pops: list[ModelPop] = []
        self.polls: list[ModelPoll] = []
        self.arrived = 0
        self.empty = 0

    @rule(broker=st.sampled_from("ab"), count=st.integers(1, 4))
    def messages_arrive(self, broker: str, count: int) -> None:
        self.messages[broker] += count
        if self.reports[broker]:
            self.events[broker].append(count)
        self.arrived += count

    @precondition(lambda self: any(self.asked.values()))
    @rule(broker=st.sampled_from("ab"), refused=st.sampled_from((False, False, True)))
    def a_registration_arrives(self, broker: str, refused: bool) -> None:
        if self.asked[broker]:
            self.asked[broker] = False
            self.reports[broker] = self.reports[broker] or not refused
            self.events[broker].append(self.messages[broker] if self.reports[broker] else None)

    @rule(broker=st.sampled_from("ab"))
    def a_stream_breaks(self, broker: str) -> None:
        self.events[broker].clear()
        self.reports[broker], self.asked[broker] = False, True
        self.book.stream_ended(broker)

    @rule(seconds=st.sampled_from((0.1, 1.0, 30.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.book.time_passed(self.now)
        for interest, broker in self.book.serve_refused(self.now):
            assert interest is self.interest
            self.asked[broker] = True

    @rule(broker=st.sampled_from("ab"), batch=st.integers(1, 3), stays=st.booleans())
    def a_poll_begins(self, broker: str, batch: int, stays: bool) -> None:
        self.book.enter("t", "g", ALL)
        poll = ModelPoll(self, batch, broker if stays else None)
        self.polls.append(poll)
        if self.interest.is_quiet and not stays:
            for name, messages in self.messages.items():
                under_way = sum(reported for reported in self.events[name] if reported is not None)
                assert self.reports[name], "it waits at once, and a broker would not tell"
                assert messages <= under_way, "it waits at once beside a message that nobody will tell of"
            self.wait(poll)
            assert poll.state == "waiting"
            return
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
            reported = self.events[broker].pop(0)
            if reported is None:
                self.book.refuse(self.interest.id, broker, self.now)
            else:
                self.book.notified(self.interest.id, broker, reported, self.now)

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
        rounds, left = 0, dict(self.messages)
        while rounds < 5:
            if any(pop.answer is None for pop in self.pops):
                self.a_pop_reaches_its_broker(0)
            elif self.pops:
                self.an_answer_comes_back(0)
            elif any(self.events.values()):
                self.a_notification_comes("a" if self.events["a"] else "b")
            elif any(self.asked.values()):
                self.a_registration_arrives("a" if self.asked["a"] else "b", self.refuses_at_the_end)
            else:
                self.time_passes(1.0)
                rounds, left = rounds + 1 if left == self.messages else 0, dict(self.messages)
        while self.pops:  # of a refused interest, again and again
            if self.pops[0].answer is None:
                self.a_pop_reaches_its_broker(0)
            else:
                self.an_answer_comes_back(0)
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
