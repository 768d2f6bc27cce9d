"""Interests of waiting polls, and the polls that a notification wakes.

No more polls are woken than messages wait, and no wake-up is lost.

At each broker as many polls of an interest are woken as messages are known to wait beyond the pops that are under way
(`interest.py`). Notifications add up, the answer to a pop sets the number anew. It may be too low while a pop is under
way, whose answer will set it right; without one it is not 0 while messages wait. A poll that comes to wait while some
are left over pops at once.

Some polls wait at one broker only (plain long polling). What waits elsewhere does not wake them.

A burst wakes no more polls of an interest at one broker than `POPS_AT_ONCE_MAX`; each pop that ends wakes the next. So
it does not stand in the way of other interests, and polls that would come too late, as one pop takes many messages,
sleep on.

A broker that refuses an interest does not notify for it. Its polls pop there in turn (`refused_interests.py`).

The one race: a notification comes while a pop is under way whose answer was made before the message arrived. So after
the answer of a pop that began before the latest notification, at least one message counts as left; the pop that is made
for it brings the truth.
"""

from collections.abc import Iterable

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ALL, Filter
from popwheel_common.shares import Shares
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.receive.interest import Interest, Key, Ticket, Waiter, Waiting
from popwheel_proxy.receive.refused_interests import RefusedInterests

FRUITLESS_MAX = 16
"""Limit of consecutive pops that find nothing although the broker reports messages; then there is a pause."""
FRUITLESS_PAUSE_S = 0.1
FAILURE_PAUSE_S = 0.2
ENDED_AT_ONCE_MAX = 1_000
"""Interests without a poll that are checked in one step of the loop, whether brokers know of them or not."""
FILTER_BYTES_MAX = 32 * 1024 * 1024
"""Characters of the filters of all interests of a proxy. Fixed: far more than sensible filters need."""


class InterestBook:
    """Interests of a proxy; wakes waiting polls.

    Args:
        interests_max: limit of their number; groups share it.
        filter_bytes_max: limit of the characters of all filters; groups share it, too.
        idle_s: how long an interest without a poll stays registered at the brokers.
    """

    def __init__(self, interests_max: int, filter_bytes_max: int, idle_s: float) -> None:
        self._interests_max = interests_max
        self._filter_bytes_max = filter_bytes_max
        self._counts = Shares()
        self._bytes = Shares()
        self._idle_s = idle_s
        self._by_key: dict[Key, Interest] = {}
        self._by_id: dict[int, Interest] = {}
        self._idle_since: dict[Interest, float] = {}
        self._paused: dict[Waiting, Interest] = {}
        self._last_id = 0
        self._refused = RefusedInterests()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def filter_bytes(self) -> int:
        """Characters of all filters."""
        return self._bytes.total

    def all(self) -> list[Interest]:
        """Interests."""
        return list(self._by_id.values())

    @property
    def waiting_polls(self) -> int:
        """Number of waiting polls."""
        return sum(len(interest.waiters) + len(interest.places) for interest in self._by_id.values())

    @property
    def refused(self) -> int:
        """Number of refused interests; one that several brokers refused counts for each."""
        return len(self._refused)

    def registered_at(self, broker: str) -> list[Interest]:
        """Return the interests that a broker must notify for."""
        return [
            interest for interest in self._by_id.values() if interest.registered or broker in interest.registered_at
        ]

    def enter(self, topic: str, group: str, wanted: Filter, lite_client_id: str = "") -> Interest:
        """Add a poll to its interest; it must `leave` in the end.

        Args:
            topic, group, wanted: topic, group and filter of the poll.
            lite_client_id: the client, if it polls for its lite topics.

        Raises:
            LimitError: TOO_MANY_REQUESTS, if it would be one interest too many.
        """
        key = (topic, group, wanted.kind, wanted.expression, lite_client_id)
        interest = self._by_key.get(key)
        if interest is None:
            if not self._counts.room(group, self._interests_max):
                raise _refusal("topics and filters", "receive.interests_max")
            if len(wanted.expression) > self._bytes.room(group, self._filter_bytes_max):
                raise _refusal("long filters", "filter_bytes_max")
            self._counts.take(group)
            self._bytes.take(group, len(wanted.expression))
            self._last_id += 1
            interest = Interest(self._last_id, topic, group, wanted, lite_client_id=lite_client_id)
            self._by_key[key] = self._by_id[interest.id] = interest
        interest.polls += 1
        self._idle_since.pop(interest, None)
        return interest

    def leave(self, interest: Interest, waiter: Waiter, now: float) -> None:
        """Remove a poll that has ended."""
        self.stop_waiting(interest, waiter)
        interest.polls -= 1
        assert interest.polls >= 0, "a poll has left twice"
        if interest.polls == 0:
            self._idle_since[interest] = now

    def best_broker(self, interest: Interest, named: str) -> str:
        """Return where a new poll pops first: at the broker it names, unless only others are known to have messages."""
        if named in interest.left_over or not interest.left_over:
            return named
        return next(iter(interest.left_over))

    def begin(self, interest: Interest, broker: str) -> Ticket:
        """Begin a pop of a poll, woken or not; `finish`, `fail` or `hand_back` must follow."""
        waiting = interest.at(broker)
        waiting.pops += 1
        self._weigh(interest, waiting)
        return Ticket(interest, waiting, waiting.notifications)

    def finish(self, ticket: Ticket, taken: int, messages: int, now: float) -> None:
        """End a pop that was answered: it took `taken` messages, and the broker knows of `messages` more."""
        interest, waiting = ticket.interest, ticket.waiting
        waiting.pops -= 1
        assert waiting.pops >= 0, "a pop has ended twice"
        if waiting.notifications != ticket.notifications:
            messages = max(messages, 1)
        waiting.messages = messages
        waiting.answered = True
        waiting.failure = None
        if taken or not messages:
            waiting.fruitless = 0
        else:
            waiting.fruitless += 1
            if waiting.fruitless >= FRUITLESS_MAX:
                self._pause(interest, waiting, now + FRUITLESS_PAUSE_S)
        self._wake(interest, waiting, now)

    def fail(self, ticket: Ticket, now: float, failure: StatusError | None = None) -> None:
        """End a pop that has failed; its messages are left to other polls, after a pause.

        `failure`: what the broker said, if it did.
        """
        ticket.waiting.pops -= 1
        assert ticket.waiting.pops >= 0, "a pop has ended twice"
        ticket.waiting.failure = failure
        self._pause(ticket.interest, ticket.waiting, now + FAILURE_PAUSE_S)
        self._wake(ticket.interest, ticket.waiting, now)

    def hand_back(self, ticket: Ticket, now: float) -> None:
        """Return the ticket of a woken poll that does not pop, for another poll."""
        ticket.waiting.pops -= 1
        assert ticket.waiting.pops >= 0, "a pop has ended twice"
        self._wake(ticket.interest, ticket.waiting, now)

    def wait(self, interest: Interest, waiter: Waiter, now: float, broker: str | None = None) -> Ticket | None:
        """Let a poll wait; or return the ticket of a pop at once, if messages are left over.

        Args:
            interest: what it waits for.
            waiter: the poll; it waits nowhere else any more.
            now: seconds of the monotonic clock.
            broker: the only one that it waits for; None: any.
        """
        if broker is not None:
            left = interest.left_over.get(broker)
            if left is not None and left.may_wake(now):
                return self.begin(interest, broker)
            interest.places[waiter] = broker
            interest.at_broker.setdefault(broker, {})[waiter] = None
            return None
        if interest.places:
            self.stop_waiting(interest, waiter)
        for waiting in interest.left_over.values():
            if waiting.may_wake(now):
                return self.begin(interest, waiting.broker)
        interest.waiters[waiter] = None
        return None

    def stop_waiting(self, interest: Interest, waiter: Waiter) -> None:
        """Remove a poll that does not wait any more."""
        interest.waiters.pop(waiter, None)
        if interest.places and (broker := interest.places.pop(waiter, None)) is not None:
            there = interest.at_broker[broker]
            del there[waiter]
            if not there:
                del interest.at_broker[broker]

    def notified(self, interest_id: int, broker: str, messages: int, now: float) -> bool:
        """Record a broker's notification of a number of messages; 0 confirms that the interest is registered.

        Returns:
            False if no poll pops for them: another proxy may have one. They are known here all the same, and the next
            poll pops for them.
        """
        interest = self._by_id.get(interest_id)
        if interest is None:
            return True  # ended a moment ago, and the broker is being notified
        if interest.unconfirmed:
            self._confirm(interest, broker)
        if not messages:
            return True
        waiting = interest.at(broker)
        waiting.notifications += 1
        # The answer to a pop may have counted these messages already.
        waiting.messages = max(waiting.messages, messages) if waiting.answered else waiting.messages + messages
        waiting.answered = False
        return self._wake(interest, waiting, now) or waiting.pops > 0

    def register(self, interest: Interest, brokers: Iterable[str]) -> None:
        """Record that an interest is being registered at all brokers."""
        interest.registered = True
        interest.unconfirmed = dict.fromkeys(brokers)

    def refuse(self, interest_id: int, broker: str, now: float) -> None:
        """Record that a broker refuses an interest."""
        interest = self._by_id.get(interest_id)
        if interest is not None:
            self._refused.add(interest_id, broker, now)
            self._assume(interest, broker, now)

    def refuse_unknown(self, interest_id: int, broker: str, now: float) -> Interest | None:
        """Record that a broker does not know the lite subscriptions of an interest's client.

        Returns:
            The interest; None if it has ended.
        """
        interest = self._by_id.get(interest_id)
        if interest is not None:
            self._refused.add(interest_id, broker, now, is_unknown=True)
            interest.unconfirmed[broker] = None
        return interest

    def refused_at(self, topic: str, group: str, lite_client_id: str, broker: str) -> Interest | None:
        """Return the interest in a client's lite topics, if a broker has refused it."""
        interest = self._by_key.get((topic, group, ALL, "", lite_client_id))
        return interest if interest is not None and (interest.id, broker) in self._refused else None

    def serve_refused(self, now: float) -> list[tuple[Interest, str]]:
        """Let polls pop at brokers that refused their interests; called ten times a second.

        Returns:
            Interests to be registered again, and where.
        """
        again: list[tuple[Interest, str]] = []
        for refusal in self._refused.take_due(now):
            interest, broker = self._by_id.get(refusal.interest_id), refusal.broker
            if interest is None:
                self._refused.drop(refusal.interest_id, broker)
                continue
            if refusal.register_at <= now:
                again.append((interest, broker))
            if not refusal.is_unknown:
                self._assume(interest, broker, now)
        return again

    def stream_ended(self, broker: str) -> None:
        """Record that a broker's stream has ended: it notifies again once it has registered all interests anew."""
        self._refused.drop_broker(broker)
        for interest in self._by_id.values():
            if interest.registered:
                interest.unconfirmed[broker] = None

    def forget_broker(self, broker: str) -> None:
        """Forget a broker that has left. Polls that wait there pop, which fails, and go elsewhere."""
        for interest in self._by_id.values():
            interest.registered_at -= {broker}
            interest.left_over.pop(broker, None)
            interest.busy.pop(broker, None)
            interest.unconfirmed.pop(broker, None)
            waiting = interest.waiting.pop(broker, None)
            if waiting is not None:
                waiting.messages = 0
                self._paused.pop(waiting, None)
            for waiter in list(interest.at_broker.get(broker, ())):
                self.stop_waiting(interest, waiter)
                waiter(self.begin(interest, broker))

    def time_passed(self, now: float) -> list[Interest]:
        """Wake polls whose pause is over.

        Returns:
            Interests that were registered and are over now; brokers are to be notified.
        """
        for waiting, interest in [item for item in self._paused.items() if item[0].not_before <= now]:
            del self._paused[waiting]
            self._wake(interest, waiting, now)
        ended: list[Interest] = []
        busy: list[Interest] = []
        for _ in range(min(len(self._idle_since), ENDED_AT_ONCE_MAX)):
            interest, since = next(iter(self._idle_since.items()))
            if since + self._idle_s > now:
                break
            del self._idle_since[interest]
            if any(waiting.pops for waiting in interest.waiting.values()):
                busy.append(interest)  # a pop for a client that has gone is still under way
                continue
            assert not (interest.polls or interest.waiters or interest.places), "a poll waits for what is over"
            del self._by_id[interest.id], self._by_key[interest.key]
            self._counts.give(interest.group)
            self._bytes.give(interest.group, len(interest.filter.expression))
            if interest.registered or interest.registered_at:
                ended.append(interest)
        self._idle_since.update(dict.fromkeys(busy, now))
        return ended

    def _confirm(self, interest: Interest, broker: str) -> None:
        interest.unconfirmed.pop(broker, None)
        if not interest.unconfirmed:
            interest.unconfirmed = {}  # an emptied one keeps its size, and this is one for each interest
        if len(self._refused):
            self._refused.drop(interest.id, broker)

    def _assume(self, interest: Interest, broker: str, now: float) -> None:
        """Wake a poll, if there is one, to pop at a broker that does not notify of its messages.

        One that pops elsewhere will do: it pops there before it waits, so that no turn is wasted because of others.
        """
        if interest.polls:
            waiting = interest.at(broker)
            waiting.messages = max(waiting.messages, 1)
            self._wake(interest, waiting, now)

    def _pause(self, interest: Interest, waiting: Waiting, until: float) -> None:
        """Wake no poll for a broker for a while, and prefer others after that: `_wake` or `_weigh` follows.

        Else two that fail by turns, each for longer than the other's pause, would keep polls from all others.
        """
        waiting.not_before = until
        self._paused[waiting] = interest
        if interest.left_over.get(waiting.broker) is waiting:
            del interest.left_over[waiting.broker]

    def _wake(self, interest: Interest, waiting: Waiting, now: float) -> bool:
        """Wake as many polls as messages are left over and pops are allowed; return if any was. Their pops may have
        ended already.
        """
        has_woken = False
        if interest.waiting.get(waiting.broker) is not waiting:
            return False  # the broker has left, and may even be back
        while waiting.may_wake(now):
            waiters = interest.at_broker.get(waiting.broker) or interest.waiters
            if not waiters:
                break
            waiter = next(iter(waiters))
            self.stop_waiting(interest, waiter)
            waiter(self.begin(interest, waiting.broker))
            has_woken = True
        self._weigh(interest, waiting)
        return has_woken

    def _weigh(self, interest: Interest, waiting: Waiting) -> None:
        if waiting.messages or waiting.pops:
            interest.busy[waiting.broker] = waiting
        else:
            interest.busy.pop(waiting.broker, None)
        if waiting.left_over:
            interest.left_over[waiting.broker] = waiting
        else:
            interest.left_over.pop(waiting.broker, None)


def _refusal(what: str, limit: str) -> LimitError:
    return LimitError(
        Code.TOO_MANY_REQUESTS, f"this group polls for more different {what} than its share; receive again later", limit
    )
