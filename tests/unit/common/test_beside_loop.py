"""Work beside the loop: in another thread, and calls get the interpreter sooner meanwhile."""

import asyncio
import sys
import threading

import pytest

from popwheel_common.beside_loop import run_beside_loop


async def test_it_runs_in_another_thread_that_hands_over_sooner() -> None:
    usual_s = sys.getswitchinterval()

    def work() -> tuple[str, float]:
        return threading.current_thread().name, sys.getswitchinterval()

    name, switch_s = await run_beside_loop(work)
    assert name != threading.current_thread().name
    assert switch_s == pytest.approx(usual_s / 10)
    assert sys.getswitchinterval() == usual_s


async def test_what_two_do_at_once_ends_with_the_usual_interval() -> None:
    usual_s = sys.getswitchinterval()
    goes_on, last = threading.Event(), threading.Event()
    first = asyncio.create_task(run_beside_loop(goes_on.wait))
    second = asyncio.create_task(run_beside_loop(last.wait))
    await asyncio.sleep(0)
    goes_on.set()
    await first
    last.set()
    await second
    assert sys.getswitchinterval() == usual_s


async def test_an_error_comes_through_and_leaves_the_usual_interval() -> None:
    usual_s = sys.getswitchinterval()

    def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await run_beside_loop(fails)
    assert sys.getswitchinterval() == usual_s
