"""The clock and the loop that tests hand in: time passes when told, or when everybody waits."""

import asyncio

import pytest

from tests.harness.manual_clock import ManualClock, StalledError, run_virtually


def test_all_three_clocks_go_on_together() -> None:
    clock = ManualClock(start_ms=1000)
    clock.advance(1500.5)
    assert (clock.wall_ms(), clock.steady_ms(), clock.monotonic()) == (2500, 2500, 1.5005)


def test_the_wall_clock_jumps_alone() -> None:
    clock = ManualClock(start_ms=1000)
    clock.set_wall_ms(50)
    clock.advance(10)
    assert (clock.wall_ms(), clock.steady_ms(), clock.monotonic()) == (60, 1010, 0.01)


def test_time_does_not_run_back() -> None:
    with pytest.raises(ValueError, match="forward only"):
        ManualClock().advance(-1)


def test_waiting_takes_no_time() -> None:
    clock = ManualClock(start_ms=0)
    woken: list[tuple[str, int]] = []

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, clock.steady_ms()))

    async def work() -> None:
        await asyncio.gather(sleep("hour", 3600), sleep("moment", 0.0015), sleep("second", 1))

    run_virtually(clock, work())
    assert woken == [("moment", 1), ("second", 1000), ("hour", 3_600_000)]


def test_a_wait_for_ever_is_reported() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StalledError):
        run_virtually(ManualClock(), work())


def test_a_failure_that_nobody_asked_for_is_reported() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    async def work() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        del task

    with pytest.raises(AssertionError, match="lost"):
        run_virtually(ManualClock(), work())
