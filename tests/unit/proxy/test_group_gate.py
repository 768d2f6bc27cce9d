"""Who waits for which broker group and may try when: told the time, nothing else."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.proxy.errors import LimitError
from services.proxy.failover.group_gate import ANYWHERE, PAUSE_FIRST_S, PAUSE_LONGEST_S, Gates

KEYS = ("a", "b", ANYWHERE)


class Caller:
    """A call that waits."""

    def __init__(self) -> None:
        self.turns = 0

    def __call__(self) -> None:
        self.turns += 1


def test_one_tries_at_a_time_ever_more_rarely() -> None:
    gates = Gates(100, 1000)
    callers = [Caller() for _ in range(10)]
    for caller in callers:
        gates.wait("a", caller, 0.0, led=True)
    tried_at: list[float] = []
    now = 0.0
    while len(tried_at) < 6:
        now = gates.next_at()
        before = sum(caller.turns for caller in callers)
        gates.time_passed(now)
        assert sum(caller.turns for caller in callers) == before + 1
        tried_at.append(round(now, 3))
    assert tried_at == [0.02, 0.04, 0.08, 0.16, 0.26, 0.36]
    assert [caller.turns for caller in callers] == [1] * 6 + [0] * 4, "the longest waiting first"
    gates.answered("a")
    assert [caller.turns for caller in callers] == [1] * 10
    assert not gates


def test_nobody_tries_without_a_master_and_one_at_once_when_there_is_one() -> None:
    gates = Gates(100, 1000)
    callers = [Caller(), Caller()]
    for caller in callers:
        gates.wait("a", caller, 0.0, led=False)
    assert gates.next_at() == inf
    gates.time_passed(1e9)
    assert [caller.turns for caller in callers] == [0, 0]
    gates.master_changed("a", 5.0, led=True)
    gates.time_passed(5.0)
    assert [caller.turns for caller in callers] == [1, 0]
    gates.master_changed("a", 5.01, led=False)
    gates.time_passed(60.0)
    assert [caller.turns for caller in callers] == [1, 0]
    gates.left("a")
    assert [caller.turns for caller in callers] == [1, 1]


def test_who_tries_alone_does_not_begin_anew_each_time() -> None:
    gates = Gates(100, 1000)
    caller = Caller()
    now, tried = 0.0, 0
    while now < 1.0:
        gates.wait("a", caller, now, led=True)
        now = gates.next_at()
        gates.time_passed(now)
        tried += 1
    assert tried <= 13
    gates.time_passed(now + 0.9)
    assert "a" in gates
    gates.time_passed(now + 1.2)
    assert not gates, "nobody comes back"


def test_only_so_much_is_held() -> None:
    gates = Gates(2, 100)
    gates.enter(500)  # a single large one
    with pytest.raises(LimitError) as raised:
        gates.enter(1)
    assert raised.value.limit == "held_bytes_max"
    gates.enter(0)
    with pytest.raises(LimitError) as raised:
        gates.enter(0)
    assert raised.value.limit == "held_calls_max"
    gates.leave(500)
    gates.enter(100)
    assert (gates.calls, gates.bytes) == (2, 100)


class GatesMachine(RuleBasedStateMachine):
    """Calls come, wait, give up and try, while masters change: nobody is forgotten, and no group is stormed."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = Gates(1000, 1000)
        self.now = 0.0
        self.led = dict.fromkeys(KEYS, True)
        self.waiting: dict[str, list[Caller]] = {key: [] for key in KEYS}
        self.tried_at: dict[str, list[float]] = {key: [] for key in KEYS}

    def settle(self, key: str, *, opened: bool = False) -> None:
        """Take out those who may try."""
        for caller in [caller for caller in self.waiting[key] if caller.turns]:
            assert caller.turns == 1
            self.waiting[key].remove(caller)
            if not opened:
                self.tried_at[key].append(self.now)

    @rule(key=st.sampled_from(KEYS))
    def comes(self, key: str) -> None:
        caller = Caller()
        self.waiting[key].append(caller)
        self.gates.wait(key, caller, self.now, led=self.led[key])

    @rule(key=st.sampled_from(KEYS))
    def gives_up(self, key: str) -> None:
        if self.waiting[key]:
            self.gates.stop_waiting(key, self.waiting[key].pop(0))

    @rule(key=st.sampled_from(KEYS))
    def is_answered(self, key: str) -> None:
        self.gates.answered(key)
        self.settle(key, opened=True)
        assert not self.waiting[key]
        self.tried_at[key].clear()

    @rule(key=st.sampled_from(KEYS), led=st.booleans())
    def changes_master(self, key: str, led: bool) -> None:
        self.led[key] = led
        self.gates.master_changed(key, self.now, led=led)
        self.tried_at[key].clear()

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self.gates.next_at()) <= until:
            assert at >= self.now or any(self.waiting.values())
            self.now = max(self.now, at)
            self.gates.time_passed(self.now)
            for key in KEYS:
                self.settle(key)
        self.now = until

    @invariant()
    def nobody_is_forgotten(self) -> None:
        for key in KEYS:
            assert self.gates.waiting == sum(map(len, self.waiting.values()))
            if self.waiting[key] and self.led[key]:
                assert self.gates.next_at() <= self.now + PAUSE_LONGEST_S

    @invariant()
    def no_group_is_stormed(self) -> None:
        for key in KEYS:
            times = self.tried_at[key]
            for earlier, later in pairwise(times):
                assert later - earlier >= PAUSE_FIRST_S - 1e-9

    @invariant()
    def nothing_is_left_over(self) -> None:
        if not any(self.waiting.values()):
            assert len([key for key in KEYS if key in self.gates]) <= len(KEYS)


TestGates = GatesMachine.TestCase
TestGates.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
