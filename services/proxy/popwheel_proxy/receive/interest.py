"""Interest of a proxy: the polls that share it, and its state at each broker (pure).

All polls of the same (topic, group, filter) share one `Interest`; in lite topics each client has its own. For each
broker it keeps how many messages are known to wait there and how many pops are under way; `interest_book.py` says how
both change, and wakes polls.

A poll need not pop before it waits if all brokers that there are have registered the interest, nothing is left over and
no pop is under way (`is_quiet`): then no message waits without a notification under way. A broker has registered an
interest once its first notification has arrived on the current stream: it answers each registration with how many
messages wait.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.broker_pb2 import ALL, Filter

POPS_AT_ONCE_MAX = 32
"""Limit of the pops of one interest in flight at one broker: no poll is woken beyond it."""

Key = tuple[str, str, int, str, str]


@dataclass(slots=True, eq=False)
class Waiting:
    """State of one interest at one broker.

    Args:
        broker: its name.
        messages: number of known waiting messages.
        pops: number of pops in flight.
        notifications: number of notifications of messages.
        answered: whether a pop was answered since its last notification.
        fruitless: pops in a row that found nothing although something waits.
        not_before: until when no poll is woken, in seconds of the monotonic clock.
        failure: why the last pop failed; None if it did not.
    """

    broker: str
    messages: int = 0
    pops: int = 0
    notifications: int = 0
    answered: bool = False
    fruitless: int = 0
    not_before: float = 0.0
    failure: StatusError | None = None

    @property
    def left_over(self) -> bool:
        """True if more messages wait than pops are in flight for them."""
        return self.messages > self.pops

    def may_wake(self, now: float) -> bool:
        """Return whether a poll may pop for the remaining messages."""
        return self.messages > self.pops and self.pops < POPS_AT_ONCE_MAX and self.not_before <= now


@dataclass(slots=True, eq=False)
class Ticket:
    """A pop in flight, from the moment its poll is woken."""

    interest: "Interest"
    waiting: Waiting
    notifications: int

    @property
    def broker(self) -> str:
        """Broker at which it pops."""
        return self.waiting.broker


Waiter = Callable[[Ticket], None]
"""Callback of a waiting poll, called with the ticket of the pop that it is woken for."""


@dataclass(slots=True, eq=False)
class Interest:
    """Interest in one (topic, group, filter), or in one client's lite topics of a topic.

    Args:
        id: the proxy's number for it.
        topic, group, filter: what is polled for, and for whom.
        waiters: polls that wait for any broker, the longest waiting first.
        places: polls that wait at one broker, and where.
        at_broker: the same by broker, the longest waiting first.
        waiting: state of each broker.
        left_over: brokers with more messages than pops that are under way for them; who was paused last comes last.
        busy: brokers with messages or pops under way.
        unconfirmed: if it is registered, brokers that have not said so yet.
        polls: how many there are, waiting or not.
        registered: whether all brokers are to notify.
        registered_at: brokers that are to notify although not all are.
        rotation: how many polls have named no broker; they go round all.
        lite_client_id: whose lite topics they are; empty if it is not for lite topics.
    """

    id: int
    topic: str
    group: str
    filter: Filter
    waiters: dict[Waiter, None] = field(default_factory=dict)
    places: dict[Waiter, str] = field(default_factory=dict)
    at_broker: dict[str, dict[Waiter, None]] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    left_over: dict[str, Waiting] = field(default_factory=dict)
    busy: dict[str, Waiting] = field(default_factory=dict)
    unconfirmed: dict[str, None] = field(default_factory=dict)
    polls: int = 0
    registered: bool = False
    registered_at: frozenset[str] = frozenset()
    rotation: int = 0
    lite_client_id: str = ""

    @property
    def key(self) -> Key:
        """Key that identifies it."""
        return (self.topic, self.group, self.filter.kind, self.filter.expression, self.lite_client_id)

    def at(self, broker: str) -> Waiting:
        """Return the state at a broker; empty for a broker not seen yet."""
        known = self.waiting.get(broker)
        if known is None:
            known = self.waiting[broker] = Waiting(broker)
        return known

    @property
    def failure(self) -> StatusError | None:
        """Error for which messages that are known to wait cannot be received now;

        None if there are none, or none were refused.
        """
        return next((each.failure for each in self.left_over.values() if each.failure is not None), None)

    @property
    def is_quiet(self) -> bool:
        """True if all brokers would notify of new messages, and none are known to wait or to be on their way.

        Never with a filter: brokers do not notify of messages that do not match, and only pops take the group past
        them.
        """
        return self.registered and not (self.unconfirmed or self.busy) and self.filter.kind == ALL
