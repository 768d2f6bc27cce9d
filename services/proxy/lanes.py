"""The lanes to all brokers: watches over their Puts, and has what waits behind a bad one go elsewhere."""

import asyncio
from collections.abc import Callable

import structlog

from services.common.clock import Clock
from services.proxy.background import Background
from services.proxy.broker_health import BrokerHealth, Change
from services.proxy.brokers import Brokers
from services.proxy.lane import Lane, Outcome
from services.proxy.options import SendOptions
from services.proxy.send_metrics import SendMetrics

LOOK_EVERY_S = 0.1
"""How often Puts in flight are looked at."""
OVERDUE_LOOKS = 6
"""A Put that was seen in flight this often is overdue, after 0.5 to 0.6 s. Looks are counted instead of seconds, so
that a loop that stood still is not taken for brokers that hang."""

_logger = structlog.get_logger()


class Lanes:
    """One lane for each broker that was sent to, and how these brokers do.

    Args:
        brokers: the brokers there are.
        options: how much may join and wait in a lane.
        clock: for latencies.
        background: where Puts run.
        metrics: what is counted.
        answered: told the name of a broker that has stored something.
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
        self._lanes: dict[str, Lane] = {}
        self._looking = False
        self.health = BrokerHealth()
        metrics.brokers_avoided.set_function(lambda: self.health.avoided)
        brokers.subscribe(self._brokers_changed)
        self._brokers_changed()

    @property
    def waiting_messages(self) -> int:
        """Messages that wait for a Put."""
        return sum(lane.waiting_messages for lane in self._lanes.values())

    def lane(self, broker: str) -> Lane:
        """The lane to a broker of the view."""
        lane = self._lanes.get(broker)
        if lane is None:
            lane = Lane(broker, self._brokers.channel, self._options, self._background, self)
            self._lanes[broker] = lane
        return lane

    def put_began(self, lane: Lane) -> None:
        """A lane is about to put (`lane.PutObserver`)."""
        lane.put_began_at = self._clock.monotonic()
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def put_ended(self, lane: Lane, outcome: Outcome, sends: int) -> None:
        """A lane's Put has ended (`lane.PutObserver`)."""
        if self._lanes.get(lane.name) is not lane:
            return  # the broker has left, and may even be back
        self._metrics.ended(lane.name, outcome, sends)
        if outcome == "stored":
            self._answered(lane.name)
            report = self.health.answered
        else:
            report = self.health.failed
        change = report(lane.name, lane.put_began_at, self._clock.monotonic())
        if change is not Change.NONE:
            self._changed(lane.name, change)

    def _look(self) -> None:
        """See which Puts are overdue, and let what waits behind them move on if another broker answers."""
        busy = [lane for lane in self._lanes.values() if lane.is_putting]
        self._looking = bool(busy)
        if busy:
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)
        now = self._clock.monotonic()
        overdue = []
        for lane in busy:
            lane.looks += 1
            if lane.looks >= OVERDUE_LOOKS:
                overdue.append(lane)
                change = self.health.overdue(lane.name, lane.put_began_at, now)
                if change is not Change.NONE:
                    self._changed(lane.name, change)
        for lane in overdue:  # only now, as what waits must not go from one that hangs to the next
            if lane.waiting_messages and self.health.answers_better(lane.name):
                self._metrics.moved.inc(lane.hand_over())

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
        """Forget brokers that have left; what waits for them, or for those without a master, goes elsewhere."""
        names, led = self._brokers.names, self._brokers.led
        self.health.keep(names)
        now = self._clock.monotonic()
        for name in self._brokers.changed:
            self.health.master_changed(name, now, led=name in led)
        for name in [name for name in self._lanes if name not in names]:
            self._metrics.moved.inc(self._lanes.pop(name).hand_over(left=True))
        for name, lane in self._lanes.items():
            if name not in led:
                self._metrics.moved.inc(lane.hand_over(left=True))
        self._metrics.keep(names)
