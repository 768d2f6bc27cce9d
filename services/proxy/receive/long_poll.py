"""One long poll as a machine: a poll in, results of pops, notifications and the time in; what is to be done out.

The article on stateless real-time consumption draws it as a long polling task: pop once; if nothing is there and time
remains, wait to be notified; notifications queue up, and the task's only consumption run takes one of them, pops at
its broker, and answers or goes on until the deadline. Where notifications come from is none of its business.

    start ──> POPPING ──found──────────────────────────> DONE (answer the messages)
               │ ^  ^ └─ nothing, and it is a short poll: the next broker; none left ──> DONE (answer empty)
               │ │  └──────notified─────────┐
               │ │ nothing                  │
               │ │ (notify, plain) ──────> WAITING ──deadline or drain──> DONE (answer empty)
               │ │                         plain: at one broker, until its patience ends; then at all
               │ slice over
               │ nothing (sliced) ───────> PAUSING ──deadline or drain──> DONE (answer empty)
    start, all brokers have said that nothing waits (notify) ──> WAITING
    in any state: the client has gone ─────────────────> DONE; what a pop under way still brings is released

The modes differ only in what follows a pop that found nothing. `notify`: be woken for any broker. `plain`: for this
broker only; when its pop fails, or its patience has ended, go on as `notify`. `sliced`: pause, then pop at the next
broker; when the quota of such pops is used up, go on as `plain` at the broker of the last.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Mode(Enum):
    """How a poll waits; its value is the word for it in options and metrics."""

    NOTIFY = "notify"
    """Pop with notify: it is woken for a message at any broker."""
    PLAIN = "plain"
    """Plain long polling: it stays at the broker that its client named."""
    SLICED = "sliced"
    """As MNS does it: short pops round the brokers, a slice of time each; when a quota is used up, it stays at one."""


SLICE_S: Final = 0.25
"""Sliced: how long after a pop that found nothing the next broker is asked."""
SLICES_MAX: Final = 16
"""Sliced: the quota of short pops."""


class State(Enum):
    """Where a poll is."""

    NEW = auto()
    POPPING = auto()
    WAITING = auto()
    PAUSING = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Pop:
    """Pop at this broker, then say `popped` or `pop_failed`."""

    broker: str


@dataclass(frozen=True, slots=True)
class WaitAt:
    """Be there for notifications of this broker, and no other, until `wake_at`."""

    broker: str


class Do(Enum):
    """What else is to be done."""

    WAIT = auto()
    """Be there for notifications of all brokers until `wake_at`; no more for those of one broker only."""
    PAUSE = auto()
    """Do nothing until `wake_at`."""
    ANSWER = auto()
    """Answer with the messages that were just found."""
    ANSWER_EMPTY = auto()
    """Answer that there is no message."""
    RELEASE = auto()
    """Give back the messages that were just found: nobody waits for them any more."""


Effect = Pop | WaitAt | Do | None


class IllegalStepError(Exception):
    """The shell has told the machine something that cannot have happened."""


class LongPoll:
    """One poll.

    Args:
        brokers: where to pop first, and for a short or sliced poll where next, in order; at least one.
        waits: whether it may wait for messages; a short poll pops once at each broker and answers.
        deadline: until when it may wait, in seconds of the monotonic clock.
        grace_s: how long after the deadline a pop under way may still bring messages.
        mode: how it waits.
        patience_s: how long it waits at one broker before it turns to all.
        pops_first: whether it asks a broker before it waits; it need not if all brokers are known to have nothing and
            will say when that changes, and then `mode` is `notify`.
    """

    __slots__ = (
        "_broker",
        "_brokers",
        "_draining",
        "_grace_s",
        "_mode",
        "_notified",
        "_patience_s",
        "_patient_until",
        "_pops_first",
        "_slices_left",
        "_until",
        "_waits",
        "deadline",
        "state",
    )

    def __init__(
        self,
        brokers: Sequence[str],
        waits: bool,
        deadline: float,
        grace_s: float,
        mode: Mode = Mode.NOTIFY,
        patience_s: float = float("inf"),
        *,
        pops_first: bool = True,
    ) -> None:
        self._brokers = deque(brokers)
        self._broker = brokers[0]
        self._waits = waits
        self._grace_s = grace_s
        self._mode = mode
        self._patience_s = patience_s
        self._pops_first = pops_first
        self._patient_until: float | None = None
        self._slices_left = SLICES_MAX
        self._until = deadline
        self._notified: deque[str] = deque()
        self._draining = False
        self.deadline = deadline
        self.state = State.NEW

    @property
    def wake_at(self) -> float:
        """When `time_passed` is to be called at the latest."""
        return self._until if self.state in (State.WAITING, State.PAUSING) else self.deadline + self._grace_s

    def start(self) -> Effect:
        """The poll begins."""
        if self.state is not State.NEW:
            raise self._illegal("start")
        if not self._pops_first:
            self.state = State.WAITING
            return Do.WAIT
        return self._pop(self._brokers.popleft())

    def popped(self, found: int, now: float) -> Effect:
        """A pop has brought `found` messages."""
        if self.state is State.DONE:
            return Do.RELEASE if found else None
        if self.state is not State.POPPING:
            raise self._illegal("popped")
        if found:
            self.state = State.DONE
            return Do.ANSWER
        return self._go_on(now)

    def pop_failed(self, now: float) -> Effect:
        """A pop has failed; the poll goes on as if nothing was there, but does not stay at this broker alone."""
        if self.state is State.DONE:
            return None
        if self.state is not State.POPPING:
            raise self._illegal("pop_failed")
        if self._mode is Mode.PLAIN:
            self._mode = Mode.NOTIFY
        return self._go_on(now)

    def refused(self) -> Effect:
        """A broker will not pop for this client, now or later."""
        return None if self.state is State.DONE else self._empty()

    def notified(self, broker: str) -> Effect:
        """A broker says that messages are there."""
        if self._mode is not Mode.NOTIFY and broker != self._broker:
            return None
        if self.state is State.WAITING:
            return self._pop(broker)
        if self.state is State.POPPING and broker not in self._notified:
            self._notified.append(broker)
        return None

    def time_passed(self, now: float) -> Effect:
        """The time may have come to answer, or to go elsewhere."""
        if self.state is State.DONE or now < self.wake_at:
            return None
        if now >= self.deadline:
            return self._empty()
        if self.state is State.PAUSING:
            return self._pop(self._brokers.popleft())
        self._mode = Mode.NOTIFY
        return self._wait(now)

    def drain(self) -> Effect:
        """The proxy is about to stop: answer as soon as no pop is under way."""
        self._draining = True
        return self._empty() if self.state in (State.WAITING, State.PAUSING) else None

    def gone(self) -> None:
        """The client does not wait any more."""
        self.state = State.DONE

    def _go_on(self, now: float) -> Effect:
        """Nothing was found: pop elsewhere, wait, or answer."""
        if self._draining or (self._waits and now >= self.deadline):
            return self._empty()
        if not self._waits:
            return self._pop(self._brokers.popleft()) if self._brokers else self._empty()
        if self._mode is Mode.SLICED:
            self._slices_left -= 1
            if self._slices_left:
                return self._pause(now)
            self._mode = Mode.PLAIN
        if self._notified:
            return self._pop(self._notified.popleft())
        return self._wait(now)

    def _wait(self, now: float) -> Effect:
        """Be there for notifications."""
        if self._mode is Mode.PLAIN:
            if self._patient_until is None:
                self._patient_until = now + self._patience_s
            if now < self._patient_until:
                self.state = State.WAITING
                self._until = min(self.deadline, self._patient_until)
                return WaitAt(self._broker)
            self._mode = Mode.NOTIFY
        self.state = State.WAITING
        self._until = self.deadline
        return Do.WAIT

    def _pause(self, now: float) -> Effect:
        """Let the rest of a slice pass; this broker's turn comes again after all others'."""
        self._brokers.append(self._broker)
        self.state = State.PAUSING
        self._until = min(self.deadline, now + SLICE_S)
        return Do.PAUSE

    def _pop(self, broker: str) -> Effect:
        self.state = State.POPPING
        self._broker = broker
        return Pop(broker)

    def _empty(self) -> Effect:
        self.state = State.DONE
        return Do.ANSWER_EMPTY

    def _illegal(self, step: str) -> IllegalStepError:
        return IllegalStepError(f"{step} while {self.state.name}, {len(self._notified)} notifications queued")
