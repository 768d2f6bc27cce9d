"""How long a message waits after each failed attempt, by its group's policy."""

import pytest

from popwheel_common.contract.backoff import RETRY_LADDER_MS, wait_ms
from popwheel_common.pb.popwheel.v1.controller_pb2 import ExponentialBackoff, Group


def waits(group: Group | None, attempts: int) -> list[int]:
    return [wait_ms(group, attempt) for attempt in range(1, attempts + 1)]


def test_listed_waits_are_taken_in_turn_and_the_last_holds_for_all_further() -> None:
    assert waits(Group(backoff_ms=[10, 500]), 4) == [10, 500, 500, 500]
    assert wait_ms(Group(backoff_ms=[10, 500]), 0) == 10, "whoever has not counted"


def test_waits_that_grow_do_so_up_to_the_longest() -> None:
    grows = ExponentialBackoff(initial_ms=1_000, max_ms=9_000, multiplier=2)
    assert waits(Group(exponential_backoff=grows), 6) == [1_000, 2_000, 4_000, 8_000, 9_000, 9_000]
    slow = ExponentialBackoff(initial_ms=1_000, max_ms=10**8, multiplier=1.5)
    assert waits(Group(exponential_backoff=slow), 4) == [1_000, 1_500, 2_250, 3_375]


@pytest.mark.parametrize("multiplier", [1, 1.001, 1000])
def test_no_attempt_is_too_late_to_be_reckoned(multiplier: float) -> None:
    group = Group(exponential_backoff=ExponentialBackoff(initial_ms=1, max_ms=604_800_000, multiplier=multiplier))
    assert 1 <= wait_ms(group, 1_000) <= 604_800_000


def test_a_group_that_says_nothing_or_is_not_known_has_the_levels_of_rocketmq() -> None:
    assert waits(None, 18) == waits(Group(), 18) == list(RETRY_LADDER_MS)
