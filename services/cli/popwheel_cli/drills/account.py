"""The account of a drill: what was sent, what came, what was acknowledged, and what must not have happened (pure).

The verdict is in sets, as Jepsen's checkers give it: lost, repeated, acknowledged and come again, unexpected; and for
delayed messages early, late, lost, twice. An ack that was asked for and never answered has an unknown outcome: its
message may come again and need not.
"""

import bisect
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_HANDLE_WORDS = 9
_ORIGIN, _BROKER, _QUEUE, _OFFSET = 4, 5, 6, 7
_FROM_TOPIC = "0"


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a message: names one message, on every replica, before and after a failover (S3).

    Args:
        topic: its topic.
        queue: broker and number of the queue, as one word.
        offset: in that queue.
    """

    topic: str
    queue: str
    offset: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivery of a message.

    Args:
        at: seconds of the steady clock.
        at_ms: the same moment, wall clock.
        attempt: as the server counts.
        place: its place in a queue; None if unknown, or if it is a retry.
    """

    at: float
    at_ms: float
    attempt: int
    place: Place | None = None


@dataclass(slots=True)
class _Message:
    """Record of one message."""

    sender: str
    number: int
    due_ms: int | None
    sent_at: float | None = None
    offset: int | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    acked: bool = False
    outcome_unknown: bool = False
    excused: int = 0
    after_ack: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Violations by body; all lists are empty if there are none.

    Args:
        lost: sent with OK, and neither delivered nor acknowledged.
        repeated: delivered more than once, though no ack of it had an unknown outcome.
        acked_again: delivered after an ack of it had been answered with OK (P3).
        unexpected: delivered though nobody sent it (S2).
        out_of_order: of one sender and one queue, delivered or stored before an earlier one.
        elsewhere: has the place that another message was reported to have (S3).
        timers_early: delivered before they were due (T1).
        timers_lost: delayed, sent with OK, and never delivered (T2).
        timers_twice: fired more than once (T2).
    """

    lost: list[str]
    repeated: list[str]
    acked_again: list[str]
    unexpected: list[str]
    out_of_order: list[str]
    elsewhere: list[str]
    timers_early: list[str]
    timers_lost: list[str]
    timers_twice: list[str]

    @property
    def faults(self) -> dict[str, list[str]]:
        """Return the violations that are not empty, by name."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: bodies for name, bodies in found.items() if bodies}

    def explain(self) -> str:
        """Return all violations in words, with a few examples of each."""
        return "; ".join(f"{len(bodies)} {name}: {bodies[:8]}" for name, bodies in self.faults.items()) or "all is well"


class Account:
    """Records what clients report; bodies name messages, so no two may be alike. Times are of one steady clock."""

    def __init__(self) -> None:
        self._messages: dict[str, _Message] = {}
        self._unexpected: dict[str, None] = {}
        self._by_place: dict[Place, str] = {}
        self._elsewhere: dict[str, None] = {}
        self.sends: list[float] = []
        """Times when sends were answered with OK."""
        self.receipts: list[float] = []
        """Times when messages arrived."""
        self.failures: list[str] = []
        """Errors of failed calls."""

    def trying(self, body: str, sender: str, number: int, due_ms: int | None = None) -> None:
        """Record that a message is about to be sent.

        Args:
            body: its own.
            sender: who sends one after the other.
            number: which of this sender's, ascending.
            due_ms: when it is to be delivered, if it is delayed.
        """
        self._messages[body] = _Message(sender, number, due_ms)

    def sent(self, body: str, at: float, offset: int | None = None) -> None:
        """Record that a send was answered with OK; with the queue offset if the topic has one queue."""
        message = self._messages[body]
        message.sent_at, message.offset = at, offset
        self.sends.append(at)

    def failed(self, reason: str) -> None:
        """Record a failed call, whose outcome is unknown."""
        self.failures.append(reason)

    def delivered(self, body: str, delivery: Delivery) -> None:
        """Record a delivery of a message."""
        self.receipts.append(delivery.at)
        message = self._messages.get(body)
        if message is None:
            self._unexpected[body] = None
            return
        message.deliveries.append(delivery)
        message.after_ack |= message.acked
        message.excused += message.outcome_unknown
        message.outcome_unknown = False  # it is delivered again, so that ack did not succeed
        if delivery.place is not None and self._by_place.setdefault(delivery.place, body) != body:
            self._elsewhere[body] = None

    def ack_asked(self, body: str) -> None:
        """Record that an ack is about to be sent."""
        if (message := self._messages.get(body)) is not None and not message.acked:
            message.outcome_unknown = True

    def acked(self, body: str) -> None:
        """Record that an ack was answered with OK."""
        if (message := self._messages.get(body)) is not None:
            message.acked, message.outcome_unknown = True, False

    @property
    def sent_count(self) -> int:
        """Messages sent with OK."""
        return len(self.sends)

    @property
    def owed(self) -> set[str]:
        """Return messages sent with OK without any ack, not even of an unknown outcome: they must be delivered."""
        return {
            body
            for body, message in self._messages.items()
            if message.sent_at is not None and not message.acked and not message.outcome_unknown
        }

    @property
    def acked_count(self) -> int:
        """Messages whose ack was answered with OK."""
        return sum(message.acked for message in self._messages.values())

    @property
    def timers_count(self) -> int:
        """Delayed messages sent with OK."""
        return sum(message.due_ms is not None and message.sent_at is not None for message in self._messages.values())

    def late_ms(self) -> list[float]:
        """Return how late each delayed message was when it first arrived."""
        return sorted(
            message.deliveries[0].at_ms - message.due_ms
            for message in self._messages.values()
            if message.due_ms is not None and message.deliveries
        )

    def verdict(self) -> Verdict:
        """Return the violations."""
        messages = self._messages
        owed = self.owed
        timers = {body: message for body, message in messages.items() if message.due_ms is not None}
        return Verdict(
            lost=sorted(owed - timers.keys()),
            repeated=[body for body, message in messages.items() if _repeated(message) and body not in timers],
            acked_again=[body for body, message in messages.items() if message.after_ack],
            unexpected=list(self._unexpected),
            out_of_order=self._out_of_order(),
            elsewhere=[*self._elsewhere, *self._not_where_it_was_said()],
            timers_early=[
                body
                for body, message in timers.items()
                if message.due_ms and any(each.at_ms < message.due_ms for each in message.deliveries)
            ],
            timers_lost=sorted(owed & timers.keys()),
            timers_twice=[body for body, message in timers.items() if _repeated(message)],
        )

    def _not_where_it_was_said(self) -> list[str]:
        """Return the messages whose place is not the offset that their sender got."""
        return [
            body
            for body, message in self._messages.items()
            if message.offset is not None
            and any(each.place is not None and each.place.offset != message.offset for each in message.deliveries)
        ]

    def _out_of_order(self) -> list[str]:
        """First deliveries of what one sender was answered for, in the order of its sends, queue by queue."""
        found: dict[str, None] = {}
        by_queue: dict[tuple[str, str, str], list[tuple[int, float, int, str]]] = {}
        for body, message in self._messages.items():
            first = message.deliveries[0] if message.deliveries else None
            if message.sent_at is None or message.due_ms is not None or first is None or first.place is None:
                continue
            key = (message.sender, first.place.topic, first.place.queue)
            by_queue.setdefault(key, []).append((message.number, first.at, first.place.offset, body))
        for sent in by_queue.values():
            sent.sort()
            for before, after in itertools.pairwise(sent):
                if after[1] < before[1] or after[2] <= before[2]:
                    found[after[3]] = None
        return list(found)


def _repeated(message: _Message) -> bool:
    """Return whether it arrived more than once although no ack had an unknown outcome."""
    return len(message.deliveries) > 1 + message.excused or sum(each.attempt == 1 for each in message.deliveries) > 1


def place_of(topic: str, receipt_handle: str) -> Place | None:
    """Return a message's place from its receipt handle; None if it arrived by a retry, or the handle does not say.

    Args:
        topic: its topic.
        receipt_handle: as `popwheel_common.contract.receipt` makes it.
    """
    words = receipt_handle.split(" ")
    if len(words) != _HANDLE_WORDS or words[_ORIGIN] != _FROM_TOPIC or not words[_OFFSET].isdigit():
        return None
    return Place(topic, f"{words[_BROKER]}:{words[_QUEUE]}", int(words[_OFFSET]))


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """The longest time within an interval in which nothing happened.

    Args:
        times: when something happened, ascending.
        begin, end: the interval; counted as if something had happened at both, where the last event before `begin`
            is the true beginning of the first gap.
    """
    first = bisect.bisect_left(times, begin)
    start = times[first - 1] if first else begin
    inside = times[first : bisect.bisect_right(times, end)]
    return max(after - before for before, after in itertools.pairwise([start, *inside, max(end, start)]))


def median(values: Iterable[float]) -> float:
    """The middle one; 0 of none."""
    found = list(values)
    return statistics.median(found) if found else 0.0
