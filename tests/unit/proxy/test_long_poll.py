"""The machine of one long poll: it always ends by its deadline, and never forgets a notification."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.proxy.long_poll import Do, Effect, IllegalStepError, LongPoll, Pop, State

GRACE_S = 0.5


def poll(*brokers: str, waits: bool = True, deadline: float = 10.0) -> LongPoll:
    return LongPoll(brokers or ("a",), waits, deadline, GRACE_S)


def test_the_first_pop_finds_a_message() -> None:
    machine = poll("a", "b")
    assert machine.start() == Pop("a")
    assert machine.popped(1, 0.0) is Do.ANSWER
    assert machine.state is State.DONE


def test_a_notification_leads_to_a_pop_at_its_broker() -> None:
    machine = poll("a", "b")
    machine.start()
    assert machine.popped(0, 0.0) is Do.WAIT
    assert machine.notified("b") == Pop("b")
    assert machine.popped(0, 1.0) is Do.WAIT
    assert machine.time_passed(9.9) is None
    assert machine.time_passed(10.0) is Do.ANSWER_EMPTY


def test_notifications_queue_up_while_a_pop_is_under_way() -> None:
    machine = poll("a", "b", "c")
    machine.start()
    for broker in ("b", "c", "b"):
        assert machine.notified(broker) is None
    assert machine.popped(0, 0.0) == Pop("b")
    assert machine.popped(0, 0.0) == Pop("c")
    assert machine.popped(0, 0.0) is Do.WAIT


def test_a_short_poll_asks_every_broker_once() -> None:
    machine = poll("a", "b", waits=False, deadline=0.0)
    assert machine.start() == Pop("a")
    assert machine.popped(0, 0.0) == Pop("b")
    assert machine.pop_failed(0.0) is Do.ANSWER_EMPTY


def test_a_pop_under_way_has_a_moment_beyond_the_deadline() -> None:
    machine = poll()
    machine.start()
    assert machine.time_passed(10.2) is None
    assert machine.time_passed(10.5) is Do.ANSWER_EMPTY
    assert machine.popped(2, 11.0) is Do.RELEASE
    assert machine.popped(0, 11.0) is None


def test_drain_lets_the_pop_under_way_end() -> None:
    machine = poll()
    machine.start()
    assert machine.drain() is None
    assert machine.popped(0, 0.0) is Do.ANSWER_EMPTY
    waiting = poll()
    waiting.start()
    waiting.popped(0, 0.0)
    assert waiting.drain() is Do.ANSWER_EMPTY


def test_what_cannot_happen_is_said_so() -> None:
    machine = poll()
    with pytest.raises(IllegalStepError):
        machine.popped(1, 0.0)
    machine.start()
    with pytest.raises(IllegalStepError):
        machine.start()
    machine.popped(0, 0.0)
    with pytest.raises(IllegalStepError):
        machine.pop_failed(0.0)


class AnyLife(RuleBasedStateMachine):
    """Whatever comes in whatever order: messages are answered or released, exactly once; the deadline holds."""

    @initialize(waits=st.booleans(), deadline=st.floats(0, 10))
    def begin(self, waits: bool, deadline: float) -> None:
        self.now = 0.0
        self.machine = poll("a", "b", waits=waits, deadline=deadline)
        self.popping = 0
        self.answers = 0
        self.missed: set[str] = set()
        self.gone = False
        self.take(self.machine.start())

    def take(self, effect: Effect) -> None:
        if isinstance(effect, Pop):
            assert self.popping == 0, "two pops at one time"
            self.popping = 1
            self.missed.discard(effect.broker)
        elif effect in (Do.ANSWER, Do.ANSWER_EMPTY):
            self.answers += 1
        elif effect is Do.WAIT:
            assert not self.missed, "waits although it was notified"

    @precondition(lambda self: self.popping)
    @rule(found=st.integers(0, 2))
    def pop_ends(self, found: int) -> None:
        self.popping = 0
        was_done = self.machine.state is State.DONE
        effect = self.machine.popped(found, self.now)
        if found:
            assert effect is (Do.RELEASE if was_done else Do.ANSWER)
        self.take(effect)

    @precondition(lambda self: self.popping)
    @rule()
    def pop_fails(self) -> None:
        self.popping = 0
        self.take(self.machine.pop_failed(self.now))

    @rule(broker=st.sampled_from("abc"))
    def notification(self, broker: str) -> None:
        if self.machine.state is State.POPPING:
            self.missed.add(broker)
        self.take(self.machine.notified(broker))

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.machine.time_passed(self.now))
        assert self.machine.state is State.DONE or self.now < self.machine.deadline + GRACE_S

    @rule()
    def drain(self) -> None:
        self.take(self.machine.drain())

    @rule()
    def client_goes(self) -> None:
        self.gone = self.gone or self.machine.state is not State.DONE
        self.machine.gone()

    @invariant()
    def one_answer(self) -> None:
        if hasattr(self, "machine"):
            assert self.answers + self.gone == (self.machine.state is State.DONE)


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
