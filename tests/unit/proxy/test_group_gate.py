"""Who waits for which broker group and may try when: no loop, no clock but the one that is turned here."""

from collections.abc import Callable
from itertools import pairwise
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from popwheel_proxy.brokers.group_gate import ANYWHERE, PAUSE_FIRST_S, PAUSE_LONGEST_S, Gates

KEYS = ("a", "b", ANYWHERE)


class Alarm:
    """One time at which something is called back."""

    def __init__(self, at: float, action: Callable[[], None]) -> None:
        self.at = at
        self.action = action

    def cancel(self) -> None:
        self.at = inf


class Time:
    """What is called back when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alarms: list[Alarm] = []

    def later(self, seconds: float, action: Callable[[], None]) -> Alarm:
        alarm = Alarm(self.now + seconds, action)
        self.alarms.append(alarm)
        return alarm

    def next_at(self) -> float:
        return min((alarm.at for alarm in self.alarms), default=inf)

    def pass_to(self, until: float) -> None:
        """Call back all that is due until then."""
        while (at := self.next_at()) <= until:
            self.now = at
            alarm = next(alarm for alarm in self.alarms if alarm.at == at)
            self.alarms = [other for other in self.alarms if other is not alarm and other.at < inf]
            alarm.action()
        self.now = until


class Caller:
    """A call that waits."""

    def __init__(self) -> None:
        self.turns = 0

    def __call__(self) -> None:
        self.turns += 1


def test_one_tries_at_a_time_ever_more_rarely() -> None:
    time = Time()
    gates = Gates(time.later)
    callers = [Caller() for _ in range(10)]
    for caller in callers:
        gates.wait("a", caller, led=True)
    tried_at: list[float] = []
    while len(tried_at) < 6:
        before = sum(caller.turns for caller in callers)
        time.pass_to(time.next_at())
        assert sum(caller.turns for caller in callers) == before + 1
        tried_at.append(round(time.now, 3))
    assert tried_at == [0.02, 0.04, 0.08, 0.16, 0.26, 0.36]
    assert [caller.turns for caller in callers] == [1] * 6 + [0] * 4, "the longest waiting first"
    gates.open("a")
    assert [caller.turns for caller in callers] == [1] * 10
    assert (bool(gates), time.next_at()) == (False, inf)


def test_nobody_tries_without_a_master_and_one_at_once_when_there_is_one() -> None:
    time = Time()
    gates = Gates(time.later)
    callers = [Caller(), Caller()]
    for caller in callers:
        gates.wait("a", caller, led=False)
    assert time.next_at() == inf
    gates.master_changed("a", led=True)
    assert [caller.turns for caller in callers] == [1, 0]
    gates.master_changed("a", led=False)
    assert time.next_at() == inf
    gates.open("a")
    assert [caller.turns for caller in callers] == [1, 1]


def test_who_tries_alone_does_not_begin_anew_each_time() -> None:
    time = Time()
    gates = Gates(time.later)
    caller = Caller()
    while time.now < 1.0:
        gates.wait("a", caller, led=True)
        time.pass_to(time.next_at())
    assert caller.turns <= 13
    assert "a" in gates, "it may come back"
    time.pass_to(time.now + PAUSE_LONGEST_S)
    assert not gates, "nobody comes back"


def test_nobody_tries_after_the_end() -> None:
    time = Time()
    gates = Gates(time.later)
    gates.wait("a", Caller(), led=True)
    gates.wait("b", Caller(), led=False)
    gates.close()
    assert time.next_at() == inf


class GatesMachine(RuleBasedStateMachine):
    """Calls come, wait, give up and try, while masters change: nobody is forgotten, and no group is stormed."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.gates = Gates(self.time.later)
        self.led = dict.fromkeys(KEYS, True)
        self.waiting: dict[str, list[Caller]] = {key: [] for key in KEYS}
        self.tried_at: dict[str, list[float]] = {key: [] for key in KEYS}

    def settle(self, key: str, *, opened: bool = False) -> None:
        """Take out those who may try."""
        for caller in [caller for caller in self.waiting[key] if caller.turns]:
            assert caller.turns == 1
            self.waiting[key].remove(caller)
            if not opened:
                self.tried_at[key].append(self.time.now)

    @rule(key=st.sampled_from(KEYS))
    def comes(self, key: str) -> None:
        caller = Caller()
        self.waiting[key].append(caller)
        self.gates.wait(key, caller, led=self.led[key])

    @rule(key=st.sampled_from(KEYS))
    def gives_up(self, key: str) -> None:
        if self.waiting[key]:
            self.gates.stop_waiting(key, self.waiting[key].pop(0))

    @rule(key=st.sampled_from(KEYS))
    def is_answered(self, key: str) -> None:
        self.gates.open(key)
        self.settle(key, opened=True)
        assert not self.waiting[key]
        self.tried_at[key].clear()

    @rule(key=st.sampled_from(KEYS), led=st.booleans())
    def changes_master(self, key: str, led: bool) -> None:
        self.led[key] = led
        self.tried_at[key].clear()
        self.gates.master_changed(key, led=led)
        self.settle(key)
        assert len(self.tried_at[key]) <= led

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        until = self.time.now + seconds
        while (at := self.time.next_at()) <= until:
            self.time.pass_to(at)
            for key in KEYS:
                self.settle(key)
        self.time.pass_to(until)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert self.gates.waiting == sum(map(len, self.waiting.values()))
        for key in KEYS:
            if self.waiting[key] and self.led[key]:
                assert self.time.next_at() <= self.time.now + PAUSE_LONGEST_S

    @invariant()
    def no_group_is_stormed(self) -> None:
        for key in KEYS:
            for earlier, later in pairwise(self.tried_at[key]):
                assert later - earlier >= PAUSE_FIRST_S - 1e-9

    def teardown(self) -> None:
        for key in KEYS:
            while self.waiting[key]:
                self.gives_up(key)
        self.time.pass_to(self.time.now + PAUSE_LONGEST_S)
        assert (bool(self.gates), self.time.next_at()) == (False, inf), "nothing is left over"


TestGates = GatesMachine.TestCase
TestGates.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
