"""Batchers of all brokers: supervises their Puts, and moves sends away from a failing broker."""

import asyncio
from collections.abc import Callable

import structlog

from popwheel_common.clock import Clock
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.options import SendOptions
from popwheel_proxy.send.batcher import Batcher, Outcome
from popwheel_proxy.send.broker_health import BrokerHealth, Change
from popwheel_proxy.send.metrics import SendMetrics

CHECK_EVERY_S = 0.1
"""Interval between two checks of Puts in flight."""
OVERDUE_CHECKS = 6
"""A Put that was seen in flight this often is overdue, after 0.5 to 0.6 s. Checks are counted instead of seconds, so
that a loop that stood still is not taken for brokers that hang."""

_logger = structlog.get_logger()


class Batchers:
    """Batchers, one for each broker that was sent to, and the health of these brokers.

    Args:
        brokers: the brokers there are.
        options: limits of a batcher.
        clock: for latencies.
        background: where Puts run.
        metrics: what is counted.
        answered: called with the name of a broker that has stored messages.
    """

    def __init__(
        self,
        brokers: Brokers,
        options: SendOptions,
        clock: Clock,
        background: Background,
        metrics: SendMetrics,
        answered: Callable[[str], None],
    ) -> None:
        self._brokers = brokers
        self._options = options
        self._clock = clock
        self._background = background
        self._metrics = metrics
        self._answered = answered
        self._batchers: dict[str, Batcher] = {}
        self._is_checking = False
        self.health = BrokerHealth()
        metrics.brokers_avoided.set_function(lambda: self.health.avoided)
        brokers.subscribe(self._brokers_changed)
        self._brokers_changed()

    @property
    def waiting_messages(self) -> int:
        """Messages that wait for a Put."""
        return sum(batcher.waiting_messages for batcher in self._batchers.values())

    def batcher(self, broker: str) -> Batcher:
        """Return the batcher of a broker of the view."""
        batcher = self._batchers.get(broker)
        if batcher is None:
            batcher = Batcher(broker, self._brokers.channel, self._options, self._background, self)
            self._batchers[broker] = batcher
        return batcher

    def put_began(self, batcher: Batcher) -> None:
        """Record that a batcher begins a Put (`batcher.PutObserver`)."""
        batcher.put_began_at = self._clock.monotonic()
        if not self._is_checking:
            self._is_checking = True
            asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._check_puts)

    def put_ended(self, batcher: Batcher, outcome: Outcome, sends: int) -> None:
        """Record that a batcher's Put has ended (`batcher.PutObserver`)."""
        if self._batchers.get(batcher.name) is not batcher:
            return  # the broker has left, and may even be back
        self._metrics.ended(batcher.name, outcome, sends)
        if outcome == "stored":
            self._answered(batcher.name)
            report = self.health.answered
        else:
            report = self.health.failed
        change = report(batcher.name, batcher.put_began_at, self._clock.monotonic())
        if change is not Change.NONE:
            self._changed(batcher.name, change)

    def _check_puts(self) -> None:
        """Find overdue Puts, and move the sends behind them if another broker answers."""
        busy = [batcher for batcher in self._batchers.values() if batcher.is_putting]
        self._is_checking = bool(busy)
        if busy:
            asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._check_puts)
        now = self._clock.monotonic()
        overdue = []
        for batcher in busy:
            batcher.checks += 1
            if batcher.checks >= OVERDUE_CHECKS:
                overdue.append(batcher)
                change = self.health.overdue(batcher.name, batcher.put_began_at, now)
                if change is not Change.NONE:
                    self._changed(batcher.name, change)
        for batcher in overdue:  # only now, as sends must not move from one hanging broker to the next
            if batcher.waiting_messages and self.health.answers_better(batcher.name):
                self._metrics.moved.inc(batcher.return_waiting())

    def _changed(self, broker: str, change: Change) -> None:
        if change is Change.AVOIDED:
            state = self.health.state(broker)
            if state is not None:
                pause_s = round(state.probe_at - state.since, 3)
                _logger.warning("sends avoid a broker", broker=broker, why=state.trouble.name.lower(), pause_s=pause_s)
            return
        self._metrics.probed(good=change is Change.BACK)
        if change is Change.BACK:
            _logger.info("sends go to a broker again", broker=broker)

    def _brokers_changed(self) -> None:
        """Forget brokers that have left; sends that wait for them, or for those without a master, go elsewhere."""
        names, led = self._brokers.names, self._brokers.led
        self.health.retain(names)
        now = self._clock.monotonic()
        for name in self._brokers.changed:
            self.health.master_changed(name, now, led=name in led)
        for name in [name for name in self._batchers if name not in names]:
            self._metrics.moved.inc(self._batchers.pop(name).return_waiting(left=True))
        for name, batcher in self._batchers.items():
            if name not in led:
                self._metrics.moved.inc(batcher.return_waiting(left=True))
        self._metrics.retain(names)
