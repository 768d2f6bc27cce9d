"""Shares of a common limit: one that hoards leaves room, also for those who come later."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.shares import Shares

HOLDERS = "abcde"


def test_one_that_hoards_gets_half_and_two_get_a_third_each() -> None:
    shares = Shares()
    shares.take("a", shares.room("a", 90))
    assert (shares.share("a"), shares.room("a", 90)) == (45, 0)
    for _ in range(90):
        for holder in "ab":
            shares.take(holder, min(1, shares.room(holder, 90)))
        if shares.share("a") > 30:
            shares.give("a")
    assert (shares.share("a"), shares.share("b")) == (30, 30)


def test_a_limit_of_one_can_be_used() -> None:
    shares = Shares()
    assert shares.room("a", 1) == 1
    shares.take("a")
    assert (shares.room("a", 1), shares.room("b", 1)) == (0, 0)


def test_what_the_log_says_counts_beyond_the_limit_and_is_forgotten_when_released() -> None:
    shares = Shares()
    shares.take("a", 9)
    assert (shares.room("a", 4), shares.room("b", 4), shares.largest) == (0, 0, 9)
    shares.give("a", 9)
    assert (len(shares), shares.total, shares.largest, shares.room("b", 4)) == (0, 0, 0, 2)


@given(st.lists(st.tuples(st.sampled_from(HOLDERS), st.integers(0, 60), st.booleans())), st.integers(64, 200))
def test_the_limit_holds_and_whoever_has_nothing_finds_room(steps: list[tuple[str, int, bool]], limit: int) -> None:
    """Five that took half of what was free one after another leave one thirty-second."""
    shares = Shares()
    for holder, amount, gives in steps:
        if gives:
            shares.give(holder, min(amount, shares.share(holder)))
        else:
            shares.take(holder, min(amount, shares.room(holder, limit)))
        assert shares.total == sum(map(shares.share, HOLDERS)) <= limit
        assert len(shares) == sum(shares.share(each) > 0 for each in HOLDERS)
        assert shares.room("newcomer", limit) > 0
