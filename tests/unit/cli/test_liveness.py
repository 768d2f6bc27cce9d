"""Children that hang are found in time, and none that lives is killed, whatever the machine does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_cli.cluster.liveness import POLL_S, Liveness

SILENCE_S = 10.0


def looked_at(liveness: Liveness, begin: float, seconds: float, *alive: str) -> list[str]:
    """All that is found in some seconds of regular looks, while some give signs of life."""
    found = []
    for step in range(round(seconds / POLL_S)):
        for name in alive:
            liveness.sign(name)
        found += liveness.silent(begin + step * POLL_S)
    return found


@pytest.fixture
def liveness() -> Liveness:
    """Two that are ready; the last look was at 100 s."""
    liveness = Liveness(SILENCE_S)
    for name in ("a", "b"):
        liveness.started(name)
        liveness.ready(name)
    assert liveness.silent(100.0) == []
    return liveness


def test_one_that_hangs_is_found_and_its_neighbour_is_not(liveness: Liveness) -> None:
    assert looked_at(liveness, 101.0, SILENCE_S, "b") == []
    assert looked_at(liveness, 111.0, 2.0, "b") == ["a"]
    assert looked_at(liveness, 113.0, SILENCE_S - 2, "b") == [], "once is enough for a while"
    liveness.forget("a")
    assert looked_at(liveness, 130.0, 5 * SILENCE_S, "b") == [], "it is asked to end, or has ended"


def test_a_start_takes_its_time() -> None:
    """However long: a broker that recovers a large log would be killed again and again."""
    liveness = Liveness(SILENCE_S)
    liveness.silent(0.0)
    liveness.started("a")
    liveness.sign("a")
    assert looked_at(liveness, 1.0, 3600.0) == []
    liveness.ready("a")
    assert looked_at(liveness, 3601.0, SILENCE_S) == []
    assert looked_at(liveness, 3601.0 + SILENCE_S, 2.0) == ["a"]
    liveness.forget("a")
    liveness.started("a")
    assert looked_at(liveness, 4000.0, 3600.0) == [], "nor is it ready when it is started again"
    liveness.forget("a")
    liveness.ready("a")
    assert looked_at(liveness, 8000.0, 3600.0) == [], "it became ready when it was asked to end already"


@pytest.mark.parametrize("away_s", [SILENCE_S, 3600.0])
def test_a_machine_that_was_suspended_kills_nobody(liveness: Liveness, away_s: float) -> None:
    assert liveness.silent(100.0 + away_s) == []
    assert looked_at(liveness, 101.0 + away_s, 5 * SILENCE_S, "a", "b") == []


@given(st.lists(st.tuples(st.floats(0.0, 1000.0), st.sets(st.sampled_from(["a", "b", "c"]))), min_size=1, max_size=200))
def test_nobody_dies_who_gave_a_sign_within_the_looks_of_the_limit(steps: list[tuple[float, set[str]]]) -> None:
    """However late the looks come: a parent that is starved sees less time pass, not more."""
    liveness = Liveness(SILENCE_S)
    for name in ("a", "b", "c"):
        liveness.started(name)
        liveness.ready(name)
    silent = dict.fromkeys(("a", "b", "c"), 0)
    now = 0.0
    for wait_s, signs in steps:
        now += wait_s
        for name in silent:
            silent[name] = 0 if name in signs else silent[name] + 1
            if name in signs:
                liveness.sign(name)
        for name in liveness.silent(now):
            assert silent[name] > SILENCE_S / (2 * POLL_S)
