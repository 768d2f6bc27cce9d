"""Deadlines by the step: none early, none later than a step, none forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_rpc.deadlines import STEP_S, Deadlines


def test_the_next_one() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next() is None
    late = deadlines.add(5.0, "late")
    early = deadlines.add(1.0, "early")
    assert 1.0 < (deadlines.next() or 0.0) <= 1.0 + STEP_S
    deadlines.remove(early, "early")
    assert 5.0 < (deadlines.next() or 0.0) <= 5.0 + STEP_S
    deadlines.remove(late, "late")
    deadlines.remove(late, "late")
    assert deadlines.next() is None


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=50), st.lists(st.floats(0, 101), max_size=20))
def test_like_a_list(items: list[tuple[float, bool]], times: list[float]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    waiting = {}
    for number, (at, removed) in enumerate(items):
        step = deadlines.add(at, number)
        if removed:
            deadlines.remove(step, number)
        else:
            waiting[number] = at
    for now in [*sorted(times), 102.0]:
        for number in deadlines.expired(now):
            assert waiting.pop(number) <= now
        assert all(at > now - STEP_S - 1e-9 for at in waiting.values())
    assert waiting == {}
    assert deadlines.next() is None


def test_removed_ones_leave_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.remove(deadlines.add(float(number), number), number)
    assert len(deadlines._steps) <= 65
