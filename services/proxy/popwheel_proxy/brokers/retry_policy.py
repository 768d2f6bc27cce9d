"""Retry policy after a failed call to a broker group (pure; it is passed the time).

A call that a group's master did not serve is one of three:

- Not done: the master was not reached, or says that it does not lead (any more, or yet). The call is tried again. A
  send that may go to any queue goes to another group at once.
- Outcome unknown: the connection was lost, or no answer came in time. Most calls are idempotent and simply
  retried. Messages would be stored twice, so they are retried at the same group, marked as a retry
  (`PutRun.is_retry`). They go to another group only when this one has left for good.
- Refused on its merits: the caller gets the refusal.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.brokers.group_gate import ANYWHERE, for_sends
from popwheel_proxy.protocol.errors import NoMasterError
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

NOBODY_S = 3.0
"""Time for which a call is parked for a group that was known and is gone."""
LEFT_S = 2.0
"""Time for which a send waits for a group that has left and may have stored it, before it goes to another.

Less than the 3 s that RocketMQ's clients wait for an answer.
"""


class Fault(Enum):
    """Fault for which a call is retried; its value is its name in metrics."""

    NO_MASTER = "no_master"
    """No known master of the group."""
    NOT_REACHED = "not_reached"
    """Fault before any part of the call was sent."""
    NOT_LEADING = "not_leading"
    """Refusal of a master that does not lead any more or yet, or has too few replicas in sync."""
    BUSY = "busy"
    """Refusal of an overloaded master; another may have less load."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """Fault with an unknown outcome."""


_OUTCOME_UNKNOWN = frozenset((GrpcStatus.UNAVAILABLE, GrpcStatus.DEADLINE_EXCEEDED, GrpcStatus.CANCELLED))


def fault_of(error: StatusError | RpcError) -> Fault | None:
    """Return the fault that a failure means; None if the caller gets the failure as it is."""
    if isinstance(error, NotProcessedError):
        return Fault.NOT_REACHED
    if isinstance(error, NoMasterError):
        return Fault.NO_MASTER
    if isinstance(error, RpcError):
        return Fault.OUTCOME_UNKNOWN if error.status in _OUTCOME_UNKNOWN else None
    if error.code == Code.HA_NOT_AVAILABLE:
        return Fault.NOT_LEADING
    if error.code == Code.TOO_MANY_REQUESTS:
        return Fault.BUSY
    # A master that was deposed before its slaves had what it wrote.
    return Fault.OUTCOME_UNKNOWN if error.code == Code.SLAVE_PERSISTENCE_TIMEOUT else None


def give_up_at(began: float, deadline: float | None, reserve_s: float, hold_s: float, *, there: bool) -> float:
    """Return when retries of a failed call end, in seconds of the monotonic clock.

    Args:
        began: when it first failed.
        deadline: until when its caller waits; None if for ever.
        reserve_s: how long before that the caller is to have an answer.
        hold_s: how long it is parked at the most.
        there: whether the group is there, if without a master, or for a send whether any is.
    """
    latest = began + (hold_s if there else min(hold_s, NOBODY_S))
    return latest if deadline is None else min(latest, deadline - reserve_s)


Place = tuple[str, int]
"""A group, and a queue there."""


class Step(Enum):
    """Step after a send."""

    ELSEWHERE = "elsewhere"
    """Send it to another group at once."""
    WAIT = "wait"
    """Wait at the gate `SendTries.gate`."""
    FIND_TOPIC = "check_groups"
    """The group says that the topic was deleted: send to its successor of the same name, if there is one."""
    FAIL = "fail"
    """Return the failure to the client."""


@dataclass(slots=True)
class SendTries:
    """A failed send.

    Args:
        only: the one place that it may go to, where its order would be lost in any other.
        maybe_stored_at: the place where an earlier try may have stored it.
        left: the same, if that group has been gone for too long: it may return with all its messages.
        wait_until: until when it waits for that group while it is gone, in seconds of the monotonic clock.
        outcome_unknown: whether an earlier try may have stored it, there or at a group that has left since.
        past: groups that were tried and certainly did not store it.
    """

    only: Place | None = None
    maybe_stored_at: Place | None = None
    left: Place | None = None
    wait_until: float = inf
    outcome_unknown: bool = False
    past: set[str] = field(default_factory=set)

    @property
    def place(self) -> Place | None:
        """The only place that it may go to now; None: any."""
        return self.maybe_stored_at or self.only

    @property
    def gate(self) -> str:
        """Gate that the send waits at."""
        place = self.place
        return ANYWHERE if place is None else for_sends(place[0])

    def failed(
        self,
        place: Place | None,
        fault: Fault,
        names: Collection[str],
        led: Collection[str],
        sound: Collection[str],
        now: float,
    ) -> Step:
        """Record a failed try, and return the next step.

        Args:
            place: where it was; None if there was nowhere to go.
            fault: what is known of it.
            names: groups that are there.
            led: those of them that have a master.
            sound: those that sends do not avoid.
            now: seconds of the monotonic clock.
        """
        if fault is Fault.OUTCOME_UNKNOWN and place is not None:
            self.outcome_unknown = True
            self.maybe_stored_at = place
        self.check_groups(names, now)
        if self.place is not None:
            return Step.FAIL if fault is Fault.BUSY else Step.WAIT
        if place is None:
            self.past.clear()
            return Step.WAIT
        self.past.add(place[0])
        # A group that refuses for the moment is no worse than an avoided one.
        others = sound if fault in (Fault.NOT_LEADING, Fault.BUSY) else led
        if any(name not in self.past for name in others):
            return Step.ELSEWHERE
        if fault is Fault.BUSY:
            return Step.FAIL
        self.past.clear()
        return Step.WAIT

    def forget_places(self) -> None:
        """Forget where the messages may be stored: the topic of the name is another one now, and does not have them."""
        self.maybe_stored_at = self.left = None
        self.wait_until = inf

    def check_groups(self, names: Collection[str], now: float) -> None:
        """Check whether the group where it may be stored is still there.

        When the group has been gone for a while, others may take the message. When the group returns before another
        may have stored it, the message is retried there.

        Args:
            names: groups that are there.
            now: seconds of the monotonic clock.
        """
        if self.maybe_stored_at is None and self.left is not None and self.left[0] in names:
            self.maybe_stored_at, self.left = self.left, None
        if self.maybe_stored_at is None:
            return
        if self.maybe_stored_at[0] in names:
            self.wait_until = inf
        elif self.wait_until == inf:
            self.wait_until = now + LEFT_S
        elif now >= self.wait_until:
            self.past.add(self.maybe_stored_at[0])
            self.maybe_stored_at, self.left, self.wait_until = None, self.maybe_stored_at, inf
