"""Which brokers sends avoid: told how Puts went and the time, and nothing else."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from popwheel_proxy.send.broker_health import (
    FORGIVEN_AFTER_S,
    PAUSE_MAX_S,
    PROBE_EVERY_S,
    SLOW_FROM_S,
    BrokerHealth,
    Change,
    Trouble,
)

NAMES = ("a", "b", "c")


def made(*names: str) -> BrokerHealth:
    health = BrokerHealth()
    health.retain(names or NAMES)
    return health


def chosen(health: BrokerHealth, now: float, sends: int = 12, *past: str) -> Counter[str]:
    """Brokers to which a number of sends go."""
    places = [health.choose(turn, past, now) for turn in range(sends)]
    return Counter(place[0] for place in places if place is not None)


def settle(health: BrokerHealth, latencies: dict[str, float], puts: int = 40) -> list[Change]:
    """Many Puts at each broker, all begun at 0."""
    return [health.answered(name, 0.0, latency) for _ in range(puts) for name, latency in latencies.items()]


def test_sound_brokers_have_their_turn() -> None:
    health = made()
    places = [health.choose(turn, (), 0.0) for turn in range(6)]
    assert places == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("c", 1)]
    assert health.choose(0, ("a", "b"), 0.0) == ("c", 0)
    assert made().avoided == 0


def test_without_a_broker_there_is_no_choice() -> None:
    health = BrokerHealth()
    assert health.choose(0, (), 0.0) is None
    assert health.failed("a", 0.0, 1.0) is Change.NONE
    assert health.answered("a", 0.0, 1.0) is Change.NONE
    assert health.state("a") is None


def test_a_broker_that_fails_is_avoided_and_one_good_probe_brings_it_back() -> None:
    health = made()
    assert health.failed("a", 10.0, 10.0) is Change.AVOIDED
    assert chosen(health, 10.9) == {"b": 6, "c": 6}
    assert chosen(health, 11.0) == {"a": 1, "b": 5, "c": 6}, "one send goes there, and no more before its answer"
    assert health.answered("a", 11.0, 11.01) is Change.BACK
    assert chosen(health, 11.0) == {"a": 4, "b": 4, "c": 4}


def test_a_probe_that_goes_badly_doubles_the_pause_up_to_a_limit() -> None:
    health = made()
    now, pauses = 0.0, []
    health.failed("a", now, now)
    for _ in range(10):
        state = health.state("a")
        assert state is not None
        pauses.append(state.probe_at - now)
        now = state.probe_at
        assert health.choose(0, (), now) == ("a", 0)
        assert health.failed("a", now, now) is Change.STILL_BAD
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert pauses[-1] == PAUSE_MAX_S


def test_a_probe_whose_answer_is_never_learned_of_is_followed_by_another() -> None:
    health = made()
    health.failed("a", 0.0, 0.0)
    assert chosen(health, 1.0)["a"] == 1
    assert chosen(health, 1.0 + PROBE_EVERY_S - 0.01)["a"] == 0
    assert chosen(health, 1.0 + PROBE_EVERY_S)["a"] == 1


def test_a_send_that_was_tried_elsewhere_is_no_probe() -> None:
    health = made()
    health.failed("a", 0.0, 0.0)
    assert chosen(health, 5.0, 12, "b") == {"c": 12}


def test_a_broker_that_keeps_coming_back_and_failing_is_left_alone_for_longer_until_it_is_forgiven() -> None:
    health = made()
    now = 0.0
    pauses = []
    for sound_s in (1.0, 1.0, FORGIVEN_AFTER_S + 1, 0.0):
        health.failed("a", now, now)
        state = health.state("a")
        assert state is not None
        pauses.append(state.probe_at - now)
        now = state.probe_at
        assert health.answered("a", now, now + 0.001) is Change.BACK
        now += sound_s
    assert pauses == [1, 2, 4, 1]


def test_a_slow_broker_is_avoided_for_longer_the_slower_it_is() -> None:
    pauses = []
    for latency_s in (0.2, 0.6, 2.0, 4.0, 6.0, 20.0):
        health = made()
        settle(health, {"b": 0.01, "c": 0.02})
        while health.answered("a", 0.0, latency_s) is not Change.AVOIDED:
            pass
        state = health.state("a")
        assert state is not None
        assert state.trouble is Trouble.SLOW
        pauses.append(state.probe_at - state.since)
    assert pauses == sorted(pauses)
    assert pauses[0] == 1.0


@pytest.mark.parametrize("latency_s", [SLOW_FROM_S * 0.99, 0.05])
def test_what_any_broker_may_take_is_not_slow(latency_s: float) -> None:
    health = made()
    assert set(settle(health, {"a": latency_s, "b": 0.0001, "c": 0.0001}, 500)) == {Change.NONE}


def test_one_slow_put_is_forgiven() -> None:
    health = made()
    settle(health, dict.fromkeys(NAMES, 0.001))
    assert health.answered("a", 0.0, 0.79) is Change.NONE
    assert health.answered("a", 0.0, 0.79) is Change.AVOIDED


def test_the_first_slow_put_of_a_broker_is_forgiven() -> None:
    health = made()
    settle(health, {"b": 0.001, "c": 0.001})
    reports = [health.answered("a", 0.0, latency_s) for latency_s in (0.79, *[0.001] * 20)]
    assert set(reports) == {Change.NONE}, "the connection was still to be made"


def test_no_broker_is_slow_where_all_are() -> None:
    health = made()
    assert set(settle(health, {"a": 2.0, "b": 1.5, "c": 0.8}, 3)) == {Change.NONE}
    alone = made("a")
    assert set(settle(alone, {"a": 9.0})) == {Change.NONE}


def test_a_probe_of_a_slow_broker_is_good_if_it_is_no_slower_than_the_others() -> None:
    health = made("a", "b")
    settle(health, {"b": 0.3})
    while health.answered("a", 0.0, 2.0) is not Change.AVOIDED:
        pass
    assert health.answered("a", 10.0, 12.0) is Change.STILL_BAD
    assert health.answered("a", 20.0, 20.4) is Change.BACK
    state = health.state("a")
    assert state is not None
    assert state.latency_s == pytest.approx(0.4), "what it was before is forgotten"


def test_an_answer_to_a_put_of_before_says_nothing() -> None:
    health = made()
    health.failed("a", 1.0, 2.0)
    assert health.answered("a", 1.5, 2.5) is Change.NONE
    assert health.avoided == 1


def test_a_put_that_is_overdue_is_one_reason_however_often_it_is_said() -> None:
    health = made()
    assert health.overdue("a", 0.0, 0.6) is Change.AVOIDED
    for tenth in range(7, 50):
        assert health.overdue("a", 0.0, tenth / 10) is Change.NONE
    state = health.state("a")
    assert state is not None
    assert (state.strikes, state.trouble) == (1, Trouble.HANGING)
    assert state.probe_at == pytest.approx(4.9 + 6.0), "none probes it while it hangs"
    assert health.failed("a", 0.0, 5.0) is Change.NONE
    assert state.probe_at == pytest.approx(15.0)


def test_the_least_bad_is_used_when_all_are_bad() -> None:
    health = made()
    settle(health, {"b": 0.01, "c": 0.01})
    while health.answered("a", 0.0, 2.0) is not Change.AVOIDED:
        pass
    health.failed("b", 2.0, 2.0)
    health.overdue("c", 1.4, 2.0)
    assert chosen(health, 2.0) == {"a": 12}, "the slow one answers"
    assert chosen(health, 2.0, 12, "a") == {"b": 12}
    assert chosen(health, 2.0, 12, "a", "b") == {"c": 12}
    assert chosen(health, 2.0, 12, *NAMES) == {"a": 12}
    assert health.answers_better("c")
    assert not health.answers_better("a"), "only itself"


def test_a_broker_that_left_begins_anew() -> None:
    health = made()
    health.failed("a", 0.0, 0.0)
    health.retain(("b", "c"))
    assert health.avoided == 0
    assert health.failed("a", 0.0, 0.0) is Change.NONE
    assert health.state("a") is None
    health.retain(NAMES)
    assert chosen(health, 0.0) == {"a": 4, "b": 4, "c": 4}


def test_those_that_stay_are_known_when_others_come() -> None:
    health = made("a", "b")
    health.failed("a", 0.0, 0.0)
    health.retain(("a", "b", "c"))
    assert health.sound == ("b", "c")


_PROBES_TO_FORGET = 64
"""Answers without any latency after which the slowest mean is below what counts as slow."""


class HealthMachine(RuleBasedStateMachine):
    """Any reports in any order: a choice is always there, always a broker of the view, and none is lost for good."""

    def __init__(self) -> None:
        super().__init__()
        self.health = BrokerHealth()
        self.names: tuple[str, ...] = ()
        self.now = 0.0
        self.turn = 0
        self.probed: dict[str, float] = {}

    @rule(names=st.sets(st.sampled_from("abcdef")))
    def view_changes(self, names: set[str]) -> None:
        self.names = tuple(sorted(names))
        self.health.retain(self.names)
        self.probed = {name: at for name, at in self.probed.items() if name in names}

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from("abcdef"), took=st.floats(0.0, 20.0))
    def put_is_answered(self, name: str, took: float) -> None:
        before = self.health.state(name)
        was_bad = before is not None and before.trouble is not Trouble.NONE
        change = self.health.answered(name, self.now - took, self.now)
        assert change is not Change.AVOIDED or not was_bad
        assert change not in (Change.BACK, Change.STILL_BAD) or was_bad
        if change is Change.BACK:
            assert name in self.health.sound

    @rule(name=st.sampled_from("abcdef"), took=st.floats(0.0, 20.0), hangs=st.booleans())
    def put_goes_badly(self, name: str, took: float, hangs: bool) -> None:
        report = self.health.overdue if hangs else self.health.failed
        report(name, self.now - took, self.now)
        assert name not in self.health.sound

    @rule(past=st.sets(st.sampled_from("abcdef"), max_size=3))
    def a_send(self, past: set[str]) -> None:
        self.turn += 1
        place = self.health.choose(self.turn, past, self.now)
        if not self.names:
            assert place is None
            return
        assert place is not None
        name = place[0]
        assert name in self.names
        if name in past:
            assert past.issuperset(self.names), "there was another"
        if name not in self.health.sound and not past and self.health.sound:
            assert self.now >= self.probed.get(name, -PROBE_EVERY_S) + PROBE_EVERY_S, "one probe per interval"
            self.probed[name] = self.now

    @precondition(lambda self: self.names)
    @rule()
    def all_become_well(self) -> None:
        """Nothing but good answers, and time: every broker is used again, after as many probes as its mean needs."""
        for _ in range(_PROBES_TO_FORGET * len(self.names)):
            self.now += 4 * PAUSE_MAX_S
            self.turn += 1
            place = self.health.choose(self.turn, (), self.now)
            assert place is not None
            self.health.answered(place[0], self.now, self.now)
        assert self.health.sound == self.names

    @invariant()
    def books_are_right(self) -> None:
        states = [self.health.state(name) for name in self.names]
        assert all(states)
        assert len(self.health.sound) + self.health.avoided == len(self.names)
        for name in self.names:
            state = self.health.state(name)
            assert state is not None
            assert (state.trouble is Trouble.NONE) is (name in self.health.sound)
            if state.trouble:
                assert state.probe_at <= self.now + PAUSE_MAX_S


TestHealthMachine = HealthMachine.TestCase
