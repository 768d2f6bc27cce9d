"""A proxy among fakes on virtual time: twenty seconds of waiting take none, and a step costs 2 microseconds."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.harness.shifted_clock import ShiftedClock
from tests.sim.loop import SimLoop
from tests.unit.proxy.fake_broker import FakeBroker, StoredMessage

Result = TypeVar("Result")


class LoopClock(ShiftedClock):
    """Shows the loop's time."""

    def wall_ms(self) -> int:
        return 1_800_000_000_000 + self.steady_ms()

    def steady_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.shift_s


def run(work: Coroutine[Any, Any, Result], steps_max: int = 5_000_000) -> Result:
    """Run on virtual time."""
    loop = SimLoop(steps_max)
    try:
        result = loop.run_until_complete(work)
        assert loop.failures == []
        return result
    finally:
        loop.close()


def now() -> float:
    """Seconds since the loop began."""
    return asyncio.get_running_loop().time()


async def arrive(broker: FakeBroker, topic: str = "orders", count: int = 1) -> None:
    """Let messages come into being at a broker, which tells those who asked."""
    log = broker.topics.setdefault(topic, [])
    for _ in range(count):
        for (_, ready_topic), ready in broker.ready.items():
            if ready_topic == topic:
                ready.append(len(log))
        log.append(StoredMessage(b"\x22\x01m"))
    await broker.arrived(topic, count)
