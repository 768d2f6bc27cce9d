"""The metric of the loop's turns, for busy loops and for machines that have no core for the process."""

import asyncio
import time

import uvloop
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from popwheel_cli.process.loop_turns import TICK_S, LoopTurns, TurnTimes
from popwheel_common.clock import SystemClock
from tests.harness.manual_clock import ManualClock, run_virtually


def test_a_turn_is_as_long_as_its_thread_was_busy() -> None:
    times = TurnTimes()
    times.record(1.0, 0.0, 0.015)
    assert times.quantile(1.0, 1.0) == 0, "short turns, one after the other"
    times.record(2.0, 3.0, 0.001)
    assert times.quantile(2.0, 1.0) == 0.001, "the machine had no core for it"
    times.record(3.0, 0.2, 0.21)
    assert times.quantile(3.0, 1.0) == 0.2


def test_a_turn_is_shown_for_a_minute() -> None:
    times = TurnTimes()
    times.record(0.0, 0.5, 0.5)
    for second in range(1, 61):
        times.record(second, 0.001, 0.001)
    assert times.quantile(60.0, 1.0) == 0.5
    assert times.quantile(60.1, 1.0) == 0.001
    assert times.quantile(1000.0, 1.0) == 0.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300))
def test_the_share_that_is_named_was_no_longer(lengths: list[float]) -> None:
    times = TurnTimes()
    for length in lengths:
        times.record(1.0, length, length)
    p99 = times.quantile(1.0, 0.99)
    assert sum(length <= p99 for length in lengths) >= 0.99 * len(lengths)
    assert times.quantile(1.0, 1.0) == max(lengths)


def test_a_turn_that_takes_long_is_seen_in_the_loop_of_servers() -> None:
    registry = CollectorRegistry()

    async def body() -> None:
        LoopTurns(registry, SystemClock()).start()
        began_s = time.thread_time()
        while time.thread_time() - began_s < 5 * TICK_S:
            pass
        while not registry.get_sample_value("popwheel_loop_turn_max_seconds"):
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())
    longest_s = registry.get_sample_value("popwheel_loop_turn_max_seconds")
    assert longest_s is not None
    assert 4 * TICK_S <= longest_s < 1
    assert registry.get_sample_value("popwheel_loop_turn_p99_seconds") is not None


def test_time_without_work_makes_no_turn_long() -> None:
    registry, clock = CollectorRegistry(), ManualClock()

    async def body() -> None:
        turns = LoopTurns(registry, clock, cpu_s=lambda: 0.0)
        turns.start()
        clock.advance(10_000)
        await asyncio.sleep(2 * TICK_S)

    run_virtually(clock, body())
    assert registry.get_sample_value("popwheel_loop_turn_max_seconds") == 0.0
