"""Pending timers are counted exactly, whatever comes, goes and is overdue."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.delay.pending import PendingTimers

DAY_MS = 24 * 3600 * 1000
DELAY_MS_MAX = 40_000
"""The ring holds a day and 40 s."""

DUE = st.one_of(st.integers(0, 100_000), st.integers(0, 4 * DAY_MS))
ADDED = st.tuples(st.just("add"), st.sampled_from("ab"), DUE)
MANY = st.tuples(st.just("add_many"), st.sampled_from("ab"), st.lists(DUE, max_size=8))
REMOVED = st.tuples(st.just("remove"), st.just(""), st.integers(0, 1000))


@given(st.lists(st.one_of(ADDED, MANY, REMOVED), max_size=40), DUE, st.integers(0, 2 * DAY_MS))
def test_counts_are_those_of_a_plain_list(
    steps: list[tuple[str, str, int | list[int]]], now_ms: int, horizon_ms: int
) -> None:
    pending = PendingTimers(DELAY_MS_MAX)
    plain: list[tuple[str, int]] = []
    left_behind = 0
    for step, topic, what in steps:
        if step == "remove":
            if plain:
                pending.remove(*plain.pop(int(str(what)) % len(plain)))
            continue
        due = what if isinstance(what, list) else [what]
        if isinstance(what, list):
            pending.add_many(topic, len(due), np.array(due, np.int64))
        else:
            pending.add(topic, what)
        if not plain and due:
            left_behind = 0
        plain += [(topic, each) for each in due]
        left_behind = max([left_behind, *(each // 1000 - DAY_MS // 1000 - 40 + 1 for each in due)])
    assert pending.total == len(plain)
    assert pending.by_topic() == dict(Counter(topic for topic, _ in plain))
    seconds = Counter(due // 1000 for _, due in plain)
    overdue = sum(count for second, count in seconds.items() if second < left_behind)
    for second in [*seconds, now_ms // 1000]:
        assert pending.at(second * 1000 + 999) == (seconds[second] if second >= left_behind else 0)
    end = (now_ms + horizon_ms) // 1000
    later = sum(count for second, count in seconds.items() if left_behind <= second <= end)
    assert pending.histogram(now_ms, [horizon_ms])[0] == overdue + later


def test_horizons_hold_what_is_due_by_their_end() -> None:
    pending = PendingTimers(40 * DAY_MS)
    now_ms = 1_700_000_000_500
    for ahead_s in (-100, 0, 30, 61, 3599, 3601, 86_000, 90_000, 40 * 86_400):
        pending.add("t", now_ms + ahead_s * 1000)
    counts = [pending.histogram(now_ms, [seconds * 1000])[0] for seconds in (0, 60, 3600, 86_400, 40 * 86_400)]
    assert counts == [2, 3, 5, 7, 9]
    assert pending.total == 9


def test_the_longest_delay_fits_beside_what_is_a_day_late() -> None:
    pending = PendingTimers(40 * DAY_MS)
    pending.add("t", 0)
    pending.add("t", DAY_MS + 40 * DAY_MS - 1000)
    assert (pending.at(0), pending.histogram(DAY_MS, [0])[0]) == (1, 1)
    pending.add("t", DAY_MS + 40 * DAY_MS)
    assert (pending.at(0), pending.histogram(DAY_MS, [0])[0], pending.total) == (0, 1, 3)
    pending.remove("t", 0)
    assert (pending.histogram(DAY_MS, [0])[0], pending.total) == (0, 2)


def test_nothing_is_removed_that_is_not_there() -> None:
    pending = PendingTimers(DELAY_MS_MAX)
    pending.add("t", 5000)
    for topic, due_ms in (("u", 5000), ("t", 6000), ("t", 5000 - 2 * DAY_MS), ("t", 5000 + 2 * DAY_MS)):
        with pytest.raises(ValueError, match="no timer of"):
            pending.remove(topic, due_ms)
    assert (pending.total, pending.by_topic(), pending.at(5999)) == (1, {"t": 1}, 1)
    pending.remove("t", 5999)
    assert (pending.total, pending.by_topic(), pending.at(5000)) == (0, {}, 0)


def test_what_is_surely_not_pending_is_reported() -> None:
    pending = PendingTimers(DELAY_MS_MAX)
    pending.add("a", 5_000)
    pending.add("b", 7_000)
    assert pending.may_hold("a", 5_999)
    assert not pending.may_hold("c", 5_000)
    assert not pending.may_hold("a", 6_000)
    pending.is_exact = False
    assert pending.may_hold("c", 6_000)


def test_a_count_that_is_not_theirs_is_refused() -> None:
    with pytest.raises(ValueError, match="2 timers of t, but 1 due times"):
        PendingTimers(DELAY_MS_MAX).add_many("t", 2, np.array([5]))


def test_an_empty_one_follows_the_clock_wherever_it_is_set() -> None:
    """As long as something is pending the ring moves on only; after that it may go back."""
    pending = PendingTimers(DELAY_MS_MAX)
    pending.add("t", 100 * DAY_MS)
    pending.add("t", DAY_MS)
    assert (pending.at(DAY_MS), pending.histogram(0, [0])[0]) == (0, 1)
    pending.remove("t", DAY_MS)
    pending.remove("t", 100 * DAY_MS)
    pending.add("t", DAY_MS)
    assert (pending.at(DAY_MS), pending.histogram(0, [0])[0]) == (1, 0)
