"""The machine of one long poll: it always ends by its deadline, and never forgets a notification."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from popwheel_common.transitions import IllegalTransitionError
from popwheel_proxy.receive.long_poll import (
    SLICE_S,
    SLICES_MAX,
    Do,
    Effect,
    LongPoll,
    Mode,
    Pop,
    State,
    WaitAt,
)

GRACE_S = 0.5


def poll(
    *brokers: str,
    waits: bool = True,
    deadline: float = 10.0,
    mode: Mode = Mode.NOTIFY,
    patience_s: float = float("inf"),
    pops_first: bool = True,
) -> LongPoll:
    return LongPoll(brokers or ("a",), waits, deadline, GRACE_S, mode, patience_s, pops_first=pops_first)


def test_a_poll_that_need_not_pop_waits_at_once() -> None:
    machine = poll("a", pops_first=False)
    assert machine.start() is Do.WAIT
    assert (machine.state, machine.wake_at) == (State.WAITING, 10.0)
    assert machine.notified("b") == Pop("b")
    assert machine.popped(0, 1.0) is Do.WAIT
    assert machine.time_passed(10.0) is Do.ANSWER_EMPTY


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


def test_a_plain_poll_stays_at_its_broker_until_its_patience_ends() -> None:
    machine = poll("a", "b", mode=Mode.PLAIN, patience_s=3.0)
    assert machine.start() == Pop("a")
    assert machine.popped(0, 1.0) == WaitAt("a")
    assert machine.wake_at == 4.0
    assert machine.notified("b") is None
    assert machine.notified("a") == Pop("a")
    assert machine.popped(0, 3.0) == WaitAt("a")
    assert machine.wake_at == 4.0  # counted from its first wait
    assert machine.time_passed(4.0) is Do.WAIT
    assert machine.wake_at == 10.0
    assert machine.notified("b") == Pop("b")
    assert machine.popped(0, 5.0) is Do.WAIT


def test_a_plain_poll_does_not_stay_where_its_pop_has_failed() -> None:
    machine = poll("a", "b", mode=Mode.PLAIN)
    machine.start()
    assert machine.pop_failed(0.0) is Do.WAIT
    assert machine.notified("b") == Pop("b")


def test_a_sliced_poll_goes_round_and_stays_at_the_broker_of_its_last_slice() -> None:
    machine = poll("a", "b", "c", mode=Mode.SLICED, deadline=100.0)
    now, asked = 0.0, []
    effect = machine.start()
    while effect not in (WaitAt("a"), WaitAt("b"), WaitAt("c")):
        assert isinstance(effect, Pop)
        asked.append(effect.broker)
        effect = machine.popped(0, now)
        if effect is Do.PAUSE:
            assert machine.notified("a") is None
            assert machine.wake_at == now + SLICE_S
            now = machine.wake_at
            effect = machine.time_passed(now)
    assert asked == (["a", "b", "c"] * SLICES_MAX)[:SLICES_MAX]
    assert effect == WaitAt(asked[-1])
    assert machine.time_passed(100.0) is Do.ANSWER_EMPTY


def test_a_sliced_poll_ends_between_two_slices_if_its_time_does() -> None:
    machine = poll("a", "b", mode=Mode.SLICED, deadline=SLICE_S / 2)
    machine.start()
    assert machine.popped(0, 0.0) is Do.PAUSE
    assert machine.time_passed(SLICE_S / 2) is Do.ANSWER_EMPTY
    drained = poll("a", "b", mode=Mode.SLICED)
    drained.start()
    drained.popped(0, 0.0)
    assert drained.drain() is Do.ANSWER_EMPTY


def test_what_cannot_happen_is_said_so() -> None:
    machine = poll("a", "b")
    with pytest.raises(IllegalTransitionError):
        machine.popped(1, 0.0)
    machine.start()
    with pytest.raises(IllegalTransitionError):
        machine.start()
    machine.popped(0, 0.0)
    with pytest.raises(IllegalTransitionError):
        machine.pop_failed(0.0)
    with pytest.raises(IllegalTransitionError):
        poll().drain()


def test_what_must_hold_is_seen_not_to() -> None:
    machine = poll()
    machine.start()
    machine._notified.append("b")
    machine.state = State.WAITING
    with pytest.raises(AssertionError, match="it waits although it was notified"):
        machine.validate()


class AnyLife(RuleBasedStateMachine):
    """Whatever comes in whatever order: messages are answered or released, exactly once; the deadline holds."""

    @initialize(
        waits=st.booleans(),
        deadline=st.floats(0, 10),
        mode=st.sampled_from(Mode),
        patience_s=st.sampled_from((0.0, 1.0, float("inf"))),
        quiet=st.booleans(),
    )
    def begin(self, waits: bool, deadline: float, mode: Mode, patience_s: float, quiet: bool) -> None:
        self.now = 0.0
        pops_first = not (quiet and waits and mode is Mode.NOTIFY)
        self.machine = poll("a", "b", waits=waits, deadline=deadline, mode=mode, patience_s=patience_s)
        if not pops_first:
            self.machine = poll("a", deadline=deadline, pops_first=False)
        self.mode = mode
        self.waits = waits
        self.patience_s = patience_s
        self.failed = False
        self.at_one_since: float | None = None
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
            if self.waits and self.mode is Mode.PLAIN and self.patience_s == float("inf") and not self.failed:
                assert effect.broker == "a", "plain, and yet it asks another broker"
        elif effect in (Do.ANSWER, Do.ANSWER_EMPTY):
            self.answers += 1
        elif effect is Do.WAIT:
            assert self.mode is Mode.NOTIFY or self.failed or self.patience_s != float("inf")
            assert self.mode is not Mode.NOTIFY or not self.missed, "waits although it was notified"
            self.at_one_since = None
        elif isinstance(effect, WaitAt):
            assert self.mode is not Mode.NOTIFY
            assert effect.broker not in self.missed, "waits although it was notified"
            if self.at_one_since is None:
                self.at_one_since = self.now
        elif effect is Do.PAUSE:
            assert self.mode is Mode.SLICED
            assert self.machine.wake_at <= self.now + SLICE_S

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
        self.failed = True
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
        if self.machine.state is State.WAITING and self.at_one_since is not None:
            assert self.now < self.at_one_since + self.patience_s, "it has stayed at one broker for too long"

    @rule()
    def drain(self) -> None:
        self.take(self.machine.drain())

    @rule()
    def client_goes(self) -> None:
        self.gone = self.gone or self.machine.state is not State.DONE
        self.machine.abandon()

    @invariant()
    def one_answer(self) -> None:
        if hasattr(self, "machine"):
            assert self.answers + self.gone == (self.machine.state is State.DONE)


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
