"""What comes in bulk leaves the loop to others for as long as it took it."""

import asyncio

from popwheel_common.pace import Pace
from tests.harness.manual_clock import ManualClock, run_virtually


def test_it_rests_where_others_have_little_to_do() -> None:
    clock = ManualClock()

    async def work() -> None:
        began_s = clock.monotonic()
        assert await Pace(clock).let_others(0.005)
        assert 0.005 <= clock.monotonic() - began_s < 0.006

    run_virtually(clock, work())


def test_others_that_are_busy_have_as_long() -> None:
    clock = ManualClock()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            clock.advance(2)
            await asyncio.sleep(0)

    async def work() -> None:
        busy = asyncio.create_task(others())
        assert await Pace(clock).let_others(0.005)
        assert turns == 3
        assert not await Pace(clock).let_others(0.001)  # a single turn was as long: the loop has much to do
        busy.cancel()

    run_virtually(clock, work())


def test_the_rest_may_be_longer_than_the_step() -> None:
    clock = ManualClock()

    async def work() -> None:
        began_s = clock.monotonic()
        assert await Pace(clock, rest=2).let_others(0.005)
        assert 0.010 <= clock.monotonic() - began_s < 0.011

    run_virtually(clock, work())
