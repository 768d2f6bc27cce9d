"""What a simulated machine tells of its processes."""

import asyncio
import random
from typing import Any

import pytest

from tests.sim.cluster.machine import Machine
from tests.sim.cluster.network import Network
from tests.sim.cluster.programs import Place
from tests.sim.history import Disaster
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace


class Idler:
    """A program that does nothing."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""

    async def failed(self) -> Exception:
        """It never does."""
        await asyncio.Event().wait()
        raise AssertionError


def test_a_disaster_counts_only_the_time_for_which_a_process_could_run() -> None:
    loop = SimLoop()
    ages: list[float] = []

    def make(place: Place) -> Any:
        return Idler()

    machine: Machine[Any] = Machine(
        "a", Network(loop, random.Random(1)), Trace(loop), random.Random, make, lambda *_: None, lambda name: None
    )

    def note(since_s: float) -> None:
        ages.append(Disaster(loop.time(), "power", 0, machine.stood_still).ran_s(since_s))

    async def live() -> None:
        await asyncio.sleep(1)
        await machine.boot()
        began_s = loop.time()
        await asyncio.sleep(1)
        note(began_s)
        machine.pause()
        await asyncio.sleep(4)
        note(began_s)
        machine.resume()
        machine.resume()
        await asyncio.sleep(1)
        note(began_s)
        machine.pause()
        await asyncio.sleep(1)
        machine.kill("power")
        await asyncio.sleep(8)
        note(began_s)
        await machine.boot()
        await asyncio.sleep(0.5)
        note(began_s)
        note(began_s + 3)  # in the midst of the pause
        note(loop.time())

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(live())
    finally:
        asyncio.set_event_loop(None)
        machine.kill()
        loop.bury()
    assert ages == pytest.approx([1, 1, 2, 2, 2.5, 1.5, 0], abs=0.001)
