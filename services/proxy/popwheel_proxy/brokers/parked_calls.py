"""Parks calls while their broker group has no master or does not answer, and retries them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from popwheel_common.clock import Clock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.group_gate import ANYWHERE, Gates, Timer, for_sends, group_of
from popwheel_proxy.brokers.metrics import FailoverMetrics
from popwheel_proxy.brokers.retry_policy import Fault
from popwheel_proxy.options import FailoverOptions
from popwheel_proxy.protocol.errors import LimitError

PARKED_CALLS_MAX: Final = 20_000
"""Calls parked at one time. Fixed: as many as may wait for one broker by default (`send.waiting_messages_max`); a
shorter `failover.hold_ms` parks fewer."""
PARKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of messages in parked sends. Fixed for the same reason (`send.waiting_bytes_max`)."""


@dataclass(slots=True)
class ParkedCall:
    """A parked call.

    Args:
        served: whether it was answered in the end, if with a refusal; set by the caller.
    """

    served: bool = False


class ParkedCalls:
    """Parked calls.

    Args:
        view: knows the topics.
        brokers: the broker groups there are.
        options: for how long calls are parked.
        clock: the time.
        metrics: what is counted.

    Attributes:
        calls: parked now.
        bytes: of messages in them.
    """

    def __init__(
        self, view: ClusterView, brokers: Brokers, options: FailoverOptions, clock: Clock, metrics: FailoverMetrics
    ) -> None:
        self.gates = Gates(_later)
        self.hold_s = options.hold_ms / 1000
        self.clock = clock
        self.calls = 0
        self.bytes = 0
        self._metrics = metrics
        self._brokers = brokers
        self._names = frozenset(brokers.names)
        self._topics_changed = asyncio.Event()
        view.subscribe(self._cluster_changed)
        brokers.subscribe(self._routes_changed)

    @contextmanager
    def park(self, size: int = 0) -> Iterator[ParkedCall]:
        """Park a call for as long as the `with` block takes.

        Args:
            size: bytes of its messages.

        Raises:
            LimitError: TOO_MANY_REQUESTS, too much is parked already.
        """
        if self.calls >= PARKED_CALLS_MAX:
            raise _full("parked_calls_max")
        if size and self.bytes and self.bytes + size > PARKED_BYTES_MAX:
            raise _full("parked_bytes_max")
        self.calls += 1
        self.bytes += size
        began = self.clock.monotonic()
        parked = ParkedCall()
        try:
            yield parked
        finally:
            self.calls -= 1
            self.bytes -= size
            self._metrics.parked(self.clock.monotonic() - began, served=parked.served)

    def is_shut(self, key: str) -> bool:
        """Return whether calls other than sends wait for a group, so that new ones must wait with them."""
        return key in self.gates

    def answered(self, key: str) -> None:
        """Record that a group has answered: its parked calls are retried."""
        if self.gates:
            for gate in (key, for_sends(key), ANYWHERE):
                self.gates.open(gate)

    async def wait_to_retry(self, key: str, fault: Fault, give_up: float) -> bool:
        """Wait until a parked call may be tried again.

        Args:
            key: the gate: the group that it waits for, `for_sends` of it, or `ANYWHERE`.
            fault: why.
            give_up: until when it may wait, in seconds of the monotonic clock.

        Returns:
            False if its time is over.
        """
        wait_s = give_up - self.clock.monotonic()
        if wait_s <= 0:
            return False
        self._metrics.retries.labels(fault.value).inc()
        led = self._brokers.led
        may_try = asyncio.Event()
        waiter = may_try.set
        self.gates.wait(key, waiter, led=bool(led) if key == ANYWHERE else group_of(key) in led)
        try:
            async with asyncio.timeout(wait_s):
                await may_try.wait()
        except TimeoutError:
            return False
        finally:
            self.gates.stop_waiting(key, waiter)
        return True

    async def wait_for_topics(self, wait_s: float) -> None:
        """Wait until topics have changed, for `wait_s` seconds at the most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._topics_changed.wait()

    def close(self) -> None:
        """Stop all retries."""
        self.gates.close()

    def _cluster_changed(self, update: ClusterUpdate) -> None:
        if update.snapshot or update.topics or update.deleted_topics:
            self._topics_changed.set()
            self._topics_changed = asyncio.Event()

    def _routes_changed(self) -> None:
        """Retry the calls whose group has another master, and those whose group is gone."""
        brokers, gates = self._brokers, self.gates
        former, self._names = self._names, frozenset(brokers.names)
        if not gates:
            return
        gone = former - self._names
        for name in gone:
            gates.open(name)
            gates.open(for_sends(name))
        for name in brokers.changed:
            for gate in (name, for_sends(name)):
                gates.master_changed(gate, led=name in brokers.led)
        if gone or brokers.changed:
            gates.master_changed(ANYWHERE, led=bool(brokers.led))


def _later(seconds: float, action: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, action)


def _full(limit: str) -> LimitError:
    return LimitError(
        Code.TOO_MANY_REQUESTS, "too many calls wait for a broker group's next master; try again later", limit
    )
