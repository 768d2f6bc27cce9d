"""The start of a standalone: a first send does not wait for HTTP, and HTTP not for a master that does not come."""

from types import SimpleNamespace
from typing import cast

from popwheel_cli.process.in_process import InProcessCluster
from popwheel_cli.process.standalone import until_sends_are_answered
from tests.harness.manual_clock import ManualClock


class Starting:
    """A cluster that is asked how it is; its master comes after some looks.

    Args:
        clock: moves on by ten milliseconds with each look.
        looks: how many it takes until it is of service.
    """

    def __init__(self, clock: ManualClock, looks: int) -> None:
        self.looks = 0
        self._clock = clock
        self._needed = looks

    def health(self) -> str | None:
        self.looks += 1
        self._clock.advance(10)
        return None if self.looks >= self._needed else "the broker has not been told yet whether it leads"


async def looks(needed: int, *, proxy_is_ready: bool = True) -> int:
    """How often a cluster is asked until the start goes on."""
    clock = ManualClock()
    broker = Starting(clock, needed)
    cluster = SimpleNamespace(broker=broker, proxy=SimpleNamespace(ready=proxy_is_ready))
    await until_sends_are_answered(cast(InProcessCluster, cluster), clock)
    return broker.looks


async def test_the_start_goes_on_as_soon_as_sends_are_answered() -> None:
    assert await looks(1) == 1
    assert await looks(3) == 3


async def test_a_master_that_does_not_come_holds_nothing_up() -> None:
    assert await looks(1_000) == 10
    assert await looks(1, proxy_is_ready=False) == 10
