"""Proxies that wait for the same: told in turn, and all of them if that did not help; none sleeps beside a message."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from popwheel_broker.core.notification import WHILE_S, Interest, Interests, Subscriber
from popwheel_common.pb.popwheel.v1.broker_pb2 import Filter
from popwheel_proxy.receive.interest import Interest as ProxyInterest
from popwheel_proxy.receive.interest import Ticket
from popwheel_proxy.receive.interest_book import InterestBook
from tests.unit.broker.test_notification import queue_of


class Timers:
    """What is to be called back."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        assert delay_s == WHILE_S
        self.waiting.append(action)

    def fire(self) -> None:
        """A while passes."""
        due, self.waiting = self.waiting, []
        for action in due:
            action()


class Broker:
    """Interests with a number of messages that wait, and what subscribers have been told."""

    def __init__(self, proxies: int) -> None:
        self.timers = Timers()
        self.messages = 0
        self.interests = Interests(100, 1 << 20)
        self.interests.start_rotation(self.timers.later, lambda interest: self.messages)
        self.subscribers = [Subscriber(lambda: None) for _ in range(proxies)]
        for subscriber in self.subscribers:
            self.interests.add(Interest(1, subscriber, "t", "g", None))

    def arrive(self, count: int) -> None:
        self.messages += count
        self.interests.arrived(queue_of("t"), [0] * count)

    def reported(self) -> list[int]:
        """What each was told since the last call."""
        return [sum(count for _, count in subscriber.take()[0]) for subscriber in self.subscribers]


def test_as_many_are_reported_as_messages_come_and_in_turn() -> None:
    broker = Broker(3)
    reported = []
    for count in (1, 1, 2, 1, 7):
        broker.arrive(count)
        broker.messages = 0
        reported.append(broker.reported())
    assert reported == [[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 1, 0], [2, 2, 3]]
    broker.timers.fire()
    assert (broker.reported(), broker.timers.waiting) == ([0, 0, 0], [])


def test_what_still_waits_after_a_while_is_notified_to_all() -> None:
    broker = Broker(3)
    broker.arrive(2)
    assert broker.reported() == [1, 1, 0]
    broker.messages = 1  # one of them is dead, or hangs
    broker.timers.fire()
    assert broker.reported() == [0, 0, 0], "it may have come a moment ago"
    broker.timers.fire()
    assert (broker.reported(), broker.timers.waiting) == ([1, 1, 1], [])


def test_messages_that_come_in_between_do_not_put_off_for_ever_what_is_notified_to_all() -> None:
    broker = Broker(3)
    broker.arrive(3)
    broker.reported()
    for _ in range(3):  # each is taken at once; those before are not
        broker.timers.fire()
        broker.arrive(1)
        broker.messages -= 1
    broker.reported()
    broker.timers.fire()
    assert broker.reported() == [3, 3, 3]


def test_who_has_no_poll_hands_the_word_on_and_it_goes_round_once() -> None:
    broker = Broker(3)
    broker.arrive(1)
    reported = []
    for _ in range(5):
        reported.append(broker.reported())
        for subscriber, count in zip(broker.subscribers, reported[-1], strict=True):
            if count:
                broker.interests.forward(subscriber, 1)
    assert reported == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    broker.interests.forward(broker.subscribers[0], 7)
    broker.messages = 0
    broker.timers.fire()
    broker.arrive(1)
    broker.messages = 0  # taken before the word comes back
    broker.reported()
    broker.interests.forward(broker.subscribers[0], 1)
    assert broker.reported() == [0, 0, 0]


def test_many_words_in_one_while_are_forwarded_no_more_often_than_one() -> None:
    broker = Broker(3)
    shared = 0
    for _ in range(10):
        broker.arrive(1)
        while any(reported := broker.reported()):
            interest = broker.interests.of_topic("t")[0]
            shared += broker.interests.is_shared(interest)
            for subscriber, count in zip(broker.subscribers, reported, strict=True):
                if count:
                    broker.interests.forward(subscriber, 1)
    assert shared == 2, "then nobody is asked to hand on any more"
    broker.timers.fire()
    assert broker.reported() == [0, 0, 0]
    broker.timers.fire()
    assert broker.reported() == [10, 10, 10]
    assert not broker.interests.is_shared(broker.interests.of_topic("t")[0]), "all know"
    broker.messages = 0
    broker.arrive(1)
    assert broker.interests.is_shared(broker.interests.of_topic("t")[0])


def test_one_alone_is_notified_of_all_and_nobody_looks_later() -> None:
    broker = Broker(2)
    broker.arrive(1)
    assert all(broker.interests.is_shared(each) for each in broker.interests.of_topic("t"))
    broker.interests.cancel_all(broker.subscribers[0])
    assert not broker.interests.is_shared(broker.interests.of_topic("t")[0])
    broker.timers.fire()
    broker.timers.fire()
    broker.reported()
    broker.arrive(3)
    assert (broker.reported(), broker.timers.waiting) == ([0, 3], [])
    broker.arrive(1)
    broker.interests.cancel_all(broker.subscribers[1])
    broker.timers.fire()
    assert len(broker.interests) == 0


@dataclass(eq=False)
class Poll:
    """A poll of one proxy."""

    proxy: "Proxy"
    tickets: list[Ticket] = field(default_factory=list)
    waits: bool = False

    def woken(self, ticket: Ticket) -> None:
        assert self.waits
        self.waits = False
        self.proxy.pops.append([self, ticket, None])


class Proxy:
    """A proxy's book, and what is on the way to and from it."""

    def __init__(self, broker: Broker, number: int) -> None:
        self.broker = broker
        self.number = number
        self.book = InterestBook(10, 1 << 20, 1e9)
        self.interest: ProxyInterest = self.book.enter("t", "g", Filter())
        self.book.register(self.interest, "b")
        self.book.notified(self.interest.id, "b", 0, 0.0)
        self.handed: int = 0
        self.pops: list[list[object]] = []
        self.polls: list[Poll] = []
        self.hangs = False

    def begin(self) -> None:
        poll = Poll(self)
        self.book.enter("t", "g", Filter())
        self.polls.append(poll)
        if self.interest.is_quiet:
            self.wait(poll)
        else:
            self.pops.append([poll, self.book.begin(self.interest, "b"), None])

    def wait(self, poll: Poll) -> None:
        poll.waits = True
        ticket = self.book.wait(self.interest, poll.woken, 0.0)
        if ticket is not None:
            poll.woken(ticket)

    def step(self) -> bool:
        """One thing happens here; False if there was nothing."""
        subscriber = self.broker.subscribers[self.number]
        reported, _ = subscriber.take()
        for _, count in reported:
            shared = self.broker.interests.is_shared(subscriber.interests[1])
            if not self.book.notified(self.interest.id, "b", count, 0.0) and shared:
                self.handed += 1
        if reported:
            return True
        if self.handed:
            self.handed -= 1
            self.broker.interests.forward(subscriber, 1)
            return True
        if self.pops:
            poll, ticket, answer = self.pops[0]
            assert isinstance(poll, Poll)
            assert isinstance(ticket, Ticket)
            if answer is None:
                taken = min(1, self.broker.messages)
                self.broker.messages -= taken
                self.pops[0][2] = (taken, self.broker.messages)
                return True
            del self.pops[0]
            assert isinstance(answer, tuple)
            taken, left = answer
            self.book.finish(ticket, taken, left, 0.0)
            if taken:
                self.book.leave(self.interest, poll.woken, 0.0)
                self.polls.remove(poll)
            else:
                self.wait(poll)
            return True
        return False


class Turns(RuleBasedStateMachine):
    """Proxies of one broker: words and pops are late, proxies hang, clients go; no message stays beside a poll."""

    @initialize()
    def begin(self) -> None:
        self.broker = Broker(3)
        self.proxies = [Proxy(self.broker, number) for number in range(3)]

    @rule(count=st.integers(1, 4))
    def messages_arrive(self, count: int) -> None:
        self.broker.arrive(count)

    @rule(number=st.integers(0, 2))
    def a_poll_begins(self, number: int) -> None:
        if not self.proxies[number].hangs:
            self.proxies[number].begin()

    @rule(number=st.integers(0, 2))
    def something_happens(self, number: int) -> None:
        if not self.proxies[number].hangs:
            self.proxies[number].step()

    @rule(number=st.integers(0, 2))
    def a_client_goes(self, number: int) -> None:
        proxy = self.proxies[number]
        waiting = [poll for poll in proxy.polls if poll.waits]
        if waiting and not proxy.hangs:
            proxy.book.leave(proxy.interest, waiting[0].woken, 0.0)
            proxy.polls.remove(waiting[0])

    @rule(number=st.integers(0, 2), hangs=st.booleans())
    def a_proxy_hangs_or_goes_on(self, number: int, hangs: bool) -> None:
        self.proxies[number].hangs = hangs

    @precondition(lambda self: self.broker.timers.waiting)
    @rule()
    def a_while_passes(self) -> None:
        self.broker.timers.fire()

    def teardown(self) -> None:
        if not hasattr(self, "proxies"):
            return
        living = [proxy for proxy in self.proxies if not proxy.hangs]
        for _ in range(4):
            while any(proxy.step() for proxy in living):
                pass
            self.broker.timers.fire()
        assert not any(proxy.step() for proxy in living)
        waiting = [poll for proxy in living for poll in proxy.polls if poll.waits]
        assert not (waiting and self.broker.messages), "a poll sleeps beside a message"
        if not any(proxy.hangs for proxy in self.proxies):
            assert not self.broker.timers.waiting


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=500, stateful_step_count=12, deadline=None)


def test_a_message_costs_one_pop_however_many_proxies_have_polls() -> None:
    broker = Broker(5)
    proxies = [Proxy(broker, number) for number in range(5)]
    pops = 0
    for proxy in proxies:
        proxy.begin()
    for _ in range(20):
        broker.arrive(1)
        for proxy in proxies:
            begun = len(proxy.polls)
            while proxy.step():
                pass
            if len(proxy.polls) < begun:
                pops += 1
                proxy.begin()
            assert not proxy.pops
        broker.timers.fire()
    assert (pops, broker.messages) == (20, 0)


def test_proxies_without_polls_hand_every_message_on_to_the_one_that_has_a_poll() -> None:
    broker = Broker(3)
    proxies = [Proxy(broker, number) for number in range(3)]
    for _ in range(6):  # so proxies 0 and 1 know of messages that are gone
        proxies[2].begin()
        broker.arrive(1)
        while any(proxy.step() for proxy in proxies):
            pass
        assert broker.messages == 0, "it would wait for the while to pass"
        broker.timers.fire()
