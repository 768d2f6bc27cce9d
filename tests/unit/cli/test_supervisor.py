"""What a supervisor has done about its children: started, started again, stopped in order, killed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_cli.cluster.supervisor import Effect, GiveUp, Kill, Phase, Restart, Start, Supervisor, Terminate

TIERS = (("controller",), ("broker-0", "broker-1"), ("proxy-0",))
NAMES = [name for tier in TIERS for name in tier]
STOP_S = 10.0


@pytest.fixture
def supervisor() -> Supervisor:
    """One whose children are all ready at 0 s."""
    supervisor = Supervisor(TIERS, STOP_S)
    supervisor.start(0.0)
    for name in NAMES:
        supervisor.ready(name, 0.0)
    return supervisor


def test_all_are_started_at_once_in_the_order_of_their_tiers() -> None:
    supervisor = Supervisor(TIERS, STOP_S)
    assert supervisor.start(0.0) == [Start(name) for name in NAMES]
    assert not supervisor.complete
    for name in NAMES:
        supervisor.ready(name, 1.0)
    assert supervisor.complete
    assert supervisor.wake_at is None


def test_nothing_comes_of_it_if_one_cannot_start_the_first_time() -> None:
    supervisor = Supervisor(TIERS, STOP_S)
    supervisor.start(0.0)
    supervisor.ready("controller", 0.5)
    assert supervisor.ended("broker-1", 1.0) == [GiveUp("broker-1")]
    assert supervisor.stop(1.0) == [Terminate("proxy-0")]
    assert supervisor.ended("proxy-0", 1.0) == [Terminate("broker-0")]


def test_one_that_was_ready_and_ends_before_the_others_are_is_started_again() -> None:
    supervisor = Supervisor(TIERS, STOP_S)
    supervisor.start(0.0)
    supervisor.ready("controller", 0.5)
    assert supervisor.ended("controller", 1.0) == [Restart("controller", 0.2)]


def test_one_that_ends_is_started_again_after_a_wait_that_grows(supervisor: Supervisor) -> None:
    now = 100.0
    waits = []
    for _ in range(9):
        (effect,) = supervisor.ended("broker-0", now)
        assert isinstance(effect, Restart)
        waits.append(effect.wait_s)
        assert supervisor.phase("broker-0") is Phase.WAITING
        due = supervisor.wake_at
        assert due == now + effect.wait_s
        assert supervisor.time_passed(due - 0.01) == []
        assert supervisor.time_passed(due) == [Start("broker-0")]
        supervisor.ready("broker-0", due)
        now = due + 1.0
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0])
    assert supervisor.ended("broker-0", now + 30.0) == [Restart("broker-0", 0.2)], "it has run well for a while"


def test_one_that_never_gets_ready_again_waits_longer_each_time(supervisor: Supervisor) -> None:
    assert supervisor.ended("proxy-0", 50.0) == [Restart("proxy-0", 0.2)]
    assert supervisor.time_passed(51.0) == [Start("proxy-0")]
    assert supervisor.ended("proxy-0", 99.0) == [Restart("proxy-0", 0.4)]


def test_tiers_stop_one_after_the_other_the_last_first(supervisor: Supervisor) -> None:
    assert supervisor.stop(1.0) == [Terminate("proxy-0")]
    assert supervisor.stop(1.0) == [], "once is enough"
    assert supervisor.ended("proxy-0", 2.0) == [Terminate("broker-0"), Terminate("broker-1")]
    assert supervisor.ended("broker-1", 3.0) == []
    assert supervisor.ended("broker-0", 4.0) == [Terminate("controller")]
    assert not supervisor.done
    assert supervisor.ended("controller", 5.0) == []
    assert supervisor.done


def test_one_that_ends_by_itself_while_others_stop_is_not_started_again(supervisor: Supervisor) -> None:
    supervisor.stop(1.0)
    assert supervisor.ended("controller", 1.5) == []
    assert supervisor.ended("proxy-0", 2.0) == [Terminate("broker-0"), Terminate("broker-1")]


def test_one_that_takes_too_long_to_stop_is_killed(supervisor: Supervisor) -> None:
    supervisor.stop(1.0)
    assert supervisor.wake_at == 1.0 + STOP_S
    assert supervisor.time_passed(1.0 + STOP_S) == [Kill("proxy-0")]
    assert supervisor.wake_at is None
    assert supervisor.ended("proxy-0", 12.0) == [Terminate("broker-0"), Terminate("broker-1")]


def test_one_that_waits_to_be_started_again_is_not_when_all_stop(supervisor: Supervisor) -> None:
    supervisor.ended("proxy-0", 1.0)
    assert supervisor.stop(1.0) == [Terminate("broker-0"), Terminate("broker-1")]
    assert supervisor.wake_at == 1.0 + STOP_S


def test_one_that_was_never_started_has_nothing_to_stop() -> None:
    supervisor = Supervisor(TIERS, STOP_S)
    assert supervisor.stop(0.0) == []
    assert supervisor.done


@given(steps=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["ready", "ended", "time", "stop"]))))
def test_whatever_happens_nobody_runs_twice_and_all_end(steps: list[tuple[str, str]]) -> None:
    supervisor = Supervisor(TIERS, STOP_S)
    running: set[str] = set()
    asked: set[str] = set()
    now = 0.0

    def perform(effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(name):
                    assert name not in running
                    running.add(name)
                case Terminate(name) | Kill(name):
                    assert name in running
                    asked.add(name)

    def end(name: str) -> None:
        running.discard(name)
        perform(supervisor.ended(name, now))

    perform(supervisor.start(now))
    for name, step in steps:
        now += 0.3
        if step == "ready" and name in running:
            supervisor.ready(name, now)
        elif step == "ended" and name in running:
            end(name)
        elif step == "time":
            perform(supervisor.time_passed(now))
        elif step == "stop":
            perform(supervisor.stop(now))
    perform(supervisor.stop(now))
    for _ in NAMES:
        for name in sorted(running & asked):
            end(name)
    assert running == set()
    assert supervisor.done
