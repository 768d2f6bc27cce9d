"""A drill: traffic, a failure, and its costs."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from popwheel_cli.drills.account import Account, longest_gap, median
from popwheel_cli.drills.client import INVISIBLE_S
from popwheel_cli.drills.traffic import Traffic
from popwheel_cli.errors import CommandError
from popwheel_common.clock import Clock

_POLL_S = 0.05
_BEFORE_S = 1.5
_AFTER_S = 1.5
_HEALTHY_S_MAX = 30.0
_ANSWERS_LOST = 2
"""Number of times in a row that a delivery of a message may get lost: at the failure, and at its end."""
_DETECTION_S = 3.0
"""Time after which a controller replaces a master that hangs, unless it was seen to take longer."""
_DRAIN_S = 10.0
"""Time to receive all stored messages, on a busy machine."""
_QUIET_S = 1.0
_LATE_MS = 1000.0

View = Mapping[str, Any]
"""A broker group as `GET /brokers/{group}` shows it."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Costs of a drill.

    Args:
        drill: which.
        group: of which broker group.
        master_before: number of the replica that led before.
        master_after: and after; None if nobody did in time.
        epoch_before, epoch_after: of these.
        new_master_s: from the failure to a new master in the controller's books; None if none came.
        without_send_s: the longest time without a successful send.
        without_receive_s: the longest time without a message that came.
        usual_gap_s: the longest such time of either before the failure, for comparison.
        healthy_again_s: until as many replicas were in sync as before; None if they were not in time.
        sent, received: how many messages.
        lost, repeated: how many messages, delayed ones too.
        timers: how many delayed messages were sent.
        timers_late: how many came more than a second late.
        late_p50_ms, late_max_ms: of delayed messages.
        failed_calls: that clients noticed as errors.
        words: what was wrong, with examples; empty if nothing was.
        failures: of calls, the first ones.
    """

    drill: str
    group: str
    master_before: int
    master_after: int | None
    epoch_before: int
    epoch_after: int
    new_master_s: float | None
    without_send_s: float
    without_receive_s: float
    usual_gap_s: float
    healthy_again_s: float | None
    sent: int
    received: int
    lost: int
    repeated: int
    timers: int
    timers_late: int
    late_p50_ms: float
    late_max_ms: float
    failed_calls: int
    words: str
    failures: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """True if nothing was lost or repeated."""
        return not self.words

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


class Drill:
    """Drill of one failure.

    Args:
        name: of the drill.
        poll: shows the broker group now; may raise CommandError while no controller answers.
        traffic: clients at work.
        account: their record.
        clock: the time.
        say: shows the operator a step.
    """

    def __init__(
        self,
        name: str,
        poll: Callable[[], View],
        traffic: Traffic,
        account: Account,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._name = name
        self._poll = poll
        self._traffic = traffic
        self._account = account
        self._clock = clock
        self._say = say

    async def run(self, strike: Callable[[View], Any], mend: Callable[[], Any], strike_s: float) -> Bill:
        """Run the drill and watch.

        Args:
            strike: causes the failure, in a thread; called with the group as it was before.
            mend: ends the failure, in a thread; also after an error.
            strike_s: duration of the failure; 0 for one that ends by itself.

        Raises:
            CommandError: it cannot be done; nothing was.
        """
        before = await asyncio.to_thread(self._poll)
        _check(before)
        await self._traffic.start()
        try:
            self._say(f"traffic begins; {before['name']} is led by replica {before['master']}, epoch {before['epoch']}")
            began = self._clock.monotonic()
            await self._flowing()
            await asyncio.sleep(_BEFORE_S)
            struck_at = self._clock.monotonic()
            usual = max(
                longest_gap(times, began + _BEFORE_S / 3, struck_at)
                for times in (self._account.sends, self._account.receipts)
            )
            striking = asyncio.ensure_future(self._strike(strike, mend, before, strike_s))
            try:
                new_master_s, view = await self._watch(before, struck_at, striking if strike_s else None)
            finally:
                await striking
            self._say("the failure is over; waiting for all replicas to be in sync")
            healthy_s, view = await self._healthy(before, view, struck_at)
            await asyncio.sleep(_AFTER_S)
            await self._traffic.stop_sending()
            ended = self._clock.monotonic()
            await self._drain(new_master_s)
        finally:
            await self._traffic.stop()
        return self._bill(before, view, new_master_s, healthy_s, usual, (struck_at, ended))

    async def _strike(
        self, strike: Callable[[View], Any], mend: Callable[[], Any], before: View, seconds: float
    ) -> None:
        try:
            await asyncio.to_thread(strike, before)
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(mend)

    async def _flowing(self) -> None:
        """Wait until messages are delivered, delayed ones, too."""
        until = self._clock.monotonic() + _HEALTHY_S_MAX
        while not self._account.late_ms() or self._account.acked_count < 20:
            if self._clock.monotonic() > until:
                raise CommandError(f"no traffic flows, so nothing was done: {_first(self._account.failures)}")
            await asyncio.sleep(_POLL_S)

    async def _watch(
        self, before: View, struck_at: float, lasting: "asyncio.Future[None] | None"
    ) -> tuple[float | None, View]:
        """Wait until another epoch has a master, or a failure that lasts is over.

        Return after how many seconds, and the group.
        """
        view = before
        while self._clock.monotonic() - struck_at < _HEALTHY_S_MAX:
            try:
                view = await asyncio.to_thread(self._poll)
            except CommandError as error:
                self._account.failed(f"controller: {error.format_message()}")
            took = self._clock.monotonic() - struck_at
            if view["epoch"] > before["epoch"] and view["master"] is not None:
                self._say(f"replica {view['master']} leads, epoch {view['epoch']}, after {took:.2f} s")
                return took, view
            if lasting is not None and lasting.done() and _as_healthy(view, before):
                break
            await asyncio.sleep(_POLL_S)
        return None, view

    async def _healthy(self, before: View, view: View, struck_at: float) -> tuple[float | None, View]:
        """Wait until as many are in sync as before. Return after how many seconds, and the group."""
        until = self._clock.monotonic() + _HEALTHY_S_MAX
        while self._clock.monotonic() < until:
            try:
                view = await asyncio.to_thread(self._poll)
            except CommandError as error:
                self._account.failed(f"controller: {error.format_message()}")
            else:
                if _as_healthy(view, before):
                    return self._clock.monotonic() - struck_at, view
            await asyncio.sleep(_POLL_S)
        return None, view

    async def _drain(self, new_master_s: float | None) -> None:
        """Receive until all that was sent has arrived, and a little longer, for redeliveries.

        What is owed counts as lost only when it can't be on its way any more: when it is due, when it is not invisible
        for an answer that got lost, and when even a master that hangs has been replaced.

        Args:
            new_master_s: how long that took in this drill.
        """
        due_s = max(0.0, (self._traffic.last_due_ms - self._clock.wall_ms()) / 1000)
        detection_s = max(_DETECTION_S, new_master_s or 0.0)
        until = self._clock.monotonic() + due_s + _ANSWERS_LOST * INVISIBLE_S + detection_s + _DRAIN_S
        while self._clock.monotonic() < until:
            if not self._account.owed:
                break
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(_QUIET_S)

    def _bill(
        self,
        before: View,
        after: View,
        new_master_s: float | None,
        healthy_s: float | None,
        usual_s: float,
        interval: tuple[float, float],
    ) -> Bill:
        account = self._account
        verdict = account.verdict()
        late = account.late_ms()
        return Bill(
            drill=self._name,
            group=before["name"],
            master_before=before["master"],
            master_after=after["master"],
            epoch_before=before["epoch"],
            epoch_after=after["epoch"],
            new_master_s=new_master_s,
            without_send_s=longest_gap(account.sends, *interval),
            without_receive_s=longest_gap(account.receipts, *interval),
            usual_gap_s=usual_s,
            healthy_again_s=healthy_s,
            sent=account.sent_count,
            received=len(account.receipts),
            lost=len(verdict.lost) + len(verdict.timers_lost),
            repeated=len({*verdict.repeated, *verdict.acked_again, *verdict.timers_twice}),
            timers=account.timers_count,
            timers_late=sum(each > _LATE_MS for each in late),
            late_p50_ms=median(late),
            late_max_ms=max(late, default=0.0),
            failed_calls=len(account.failures),
            words=verdict.explain() if verdict.faults else "",
            failures=tuple(dict.fromkeys(account.failures))[:5],
        )


def _as_healthy(view: View, before: View) -> bool:
    """Return whether there is a master, and as many replicas are in sync as before."""
    return view["master"] is not None and len(view["sync_state_set"]) >= len(before["sync_state_set"])


def _check(view: View) -> None:
    """Check that a replica can take over.

    Raises:
        CommandError: none can.
    """
    if view["master"] is None:
        raise CommandError(f"{view['name']} has no master, so nothing was done: {view['trouble']}")
    if len(view["sync_state_set"]) < 2:
        raise CommandError(
            f"nothing was done: replica {view['master']} of {view['name']} is alone in its sync-state set, so nobody "
            "could take over; start another replica (popwheel cluster --replicas 2), or wait until it has caught up"
        )


def _first(failures: list[str]) -> str:
    return failures[-1] if failures else "nothing is refused, and nothing comes"
