"""Parks calls while their broker group has no master, or does not answer, and lets them try again."""

import asyncio
from contextlib import suppress
from math import inf

from services.common.clock import Clock
from services.common.contract.cluster_view import ClusterView
from services.common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from services.proxy.failover.brokers import Brokers
from services.proxy.failover.group_gate import ANYWHERE, HELD_BYTES_MAX, HELD_CALLS_MAX, Gates, for_sends, group_of
from services.proxy.failover.metrics import FailoverMetrics
from services.proxy.failover.retry_policy import Fault
from services.proxy.options import FailoverOptions


class ParkedCall:
    """A call that is parked; ends with the `with` block that it is used in.

    Args:
        parked_calls: where.
        size: bytes of the messages that it holds.
    """

    __slots__ = ("_began", "_parked_calls", "_size", "served")

    def __init__(self, parked_calls: "ParkedCalls", size: int) -> None:
        self._parked_calls = parked_calls
        self._size = size
        self._began = 0.0
        self.served = False
        """Whether it was answered in the end, if with a refusal; set by the caller."""

    def __enter__(self) -> "ParkedCall":
        self._parked_calls.gates.enter(self._size)
        self._began = self._parked_calls.clock.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        parked_calls = self._parked_calls
        parked_calls.gates.leave(self._size)
        parked_calls.metrics.held(parked_calls.clock.monotonic() - self._began, served=self.served)

    async def turn(self, key: str, fault: Fault, give_up: float) -> bool:
        """Wait until the call may be tried again.

        Args:
            key: the gate: the group that it waits for, `for_sends` of it, or `ANYWHERE`.
            fault: why.
            give_up: until when it may wait, in seconds of the monotonic clock.

        Returns:
            False if its time is over.
        """
        return await self._parked_calls.turn(key, fault, give_up)


class ParkedCalls:
    """All calls that are parked.

    Args:
        view: tells of topics.
        brokers: the broker groups there are.
        options: for how long calls are parked.
        clock: the time.
        metrics: what is counted.
    """

    def __init__(
        self, view: ClusterView, brokers: Brokers, options: FailoverOptions, clock: Clock, metrics: FailoverMetrics
    ) -> None:
        self.gates = Gates(HELD_CALLS_MAX, HELD_BYTES_MAX)
        self.hold_s = options.hold_ms / 1000
        self.clock = clock
        self.metrics = metrics
        self._brokers = brokers
        self._names = frozenset(brokers.names)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._topics_changed = asyncio.Event()
        view.subscribe(self._cluster_changed)
        brokers.subscribe(self._routes_changed)

    def park(self, size: int = 0) -> ParkedCall:
        """Park a call; to be used in a `with`, which raises `LimitError` if too much is parked already.

        Args:
            size: bytes of the messages that it holds.
        """
        return ParkedCall(self, size)

    def is_shut(self, key: str) -> bool:
        """Whether calls other than sends wait for a group, so that others are to wait with them."""
        return key in self.gates

    def answered(self, key: str) -> None:
        """A group has answered, in whatever way."""
        gates = self.gates
        if gates:
            for gate in (key, for_sends(key), ANYWHERE):
                gates.answered(gate)

    async def turn(self, key: str, fault: Fault, give_up: float) -> bool:
        """Wait until a call may be tried again (`ParkedCall.turn`)."""
        now = self.clock.monotonic()
        if now >= give_up:
            return False
        self.metrics.retries.labels(fault.value).inc()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()

        def may_try() -> None:
            if not done.done():
                done.set_result(True)

        def time_is_over() -> None:
            if not done.done():
                done.set_result(False)

        led = self._brokers.led
        self.gates.wait(key, may_try, now, led=bool(led) if key == ANYWHERE else group_of(key) in led)
        self._plan()
        timer = loop.call_later(give_up - now, time_is_over)
        try:
            return await done
        finally:
            timer.cancel()
            self.gates.stop_waiting(key, may_try)

    async def word_of_topics(self, wait_s: float) -> None:
        """Wait for it, for so many seconds at the most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._topics_changed.wait()

    def _cluster_changed(self, update: ClusterUpdate) -> None:
        if update.snapshot or update.topics or update.deleted_topics:
            self._topics_changed.set()
            self._topics_changed = asyncio.Event()

    def close(self) -> None:
        """Let nobody try any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _routes_changed(self) -> None:
        """Let those try whose group has another master, and those whose group is gone find that out."""
        brokers, gates = self._brokers, self.gates
        former, self._names = self._names, frozenset(brokers.names)
        if not gates:
            return
        now = self.clock.monotonic()
        gone = former - self._names
        for name in gone:
            gates.left(name)
            gates.left(for_sends(name))
        for name in brokers.changed:
            for gate in (name, for_sends(name)):
                gates.master_changed(gate, now, led=name in brokers.led)
        if gone or brokers.changed:
            gates.master_changed(ANYWHERE, now, led=bool(brokers.led))
        self._plan()

    def _plan(self) -> None:
        """Look again when the next call may try."""
        at = self.gates.next_at()
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at < inf:
            self._timer_at = at
            delay_s = max(0.0, at - self.clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self.gates.time_passed(self.clock.monotonic())
        self._plan()
