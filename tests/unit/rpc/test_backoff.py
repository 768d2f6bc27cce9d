"""Waits between tries grow up to a bound, and are not the same for all."""

import random

from popwheel_rpc.backoff import Backoff


def test_waits_grow_to_a_bound_and_begin_anew() -> None:
    backoff = Backoff(random.Random(1))
    waits = [backoff.next_s() for _ in range(50)]
    for wait_s, middle_s in zip(waits, [0.1, 0.2, 0.4, *[0.5] * 47], strict=True):
        assert middle_s / 2 <= wait_s < middle_s * 1.5
    backoff.reset()
    assert backoff.next_s() < 0.15


def test_processes_that_lost_the_same_one_come_back_apart() -> None:
    waits = {round(Backoff(random.Random(seed)).next_s(), 4) for seed in range(100)}
    assert len(waits) > 90
    assert max(waits) - min(waits) > 0.08
