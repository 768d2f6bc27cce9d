"""Long poll as a state machine: results of pops, notifications and the time in; actions out.

The article on stateless real-time consumption draws it as a long polling task: pop once; if nothing is there and time
remains, wait to be notified; notifications queue up, and the task's only consumption run takes one of them, pops at
its broker, and answers or continues until the deadline. Where notifications come from does not matter here.

`TRANSITIONS` is the table of states and events, which the README prints. The modes differ only in what follows a pop
that found nothing. `notify`: be woken for any broker. `plain`: for this broker only; when its pop fails, or its
patience has ended, go on as `notify`. `sliced`: pause, then pop at the next broker; when the quota of such pops is used
up, go on as `plain` at the broker of the last.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from popwheel_common.transitions import Row, Transitions


class Mode(Enum):
    """Mode of a poll's wait; its value is its name in options and metrics."""

    NOTIFY = "notify"
    """Pop with notify: it is woken for a message at any broker."""
    PLAIN = "plain"
    """Plain long polling: it waits at the broker that its client named."""
    SLICED = "sliced"
    """Short pops round the brokers, as MNS does it, a slice of time each.

    When a quota is used up, the poll stays at one.
    """


SLICE_S: Final = 0.25
"""Time after an empty pop until a sliced poll asks the next broker."""
SLICES_MAX: Final = 16
"""Quota of a sliced poll's short pops."""


class State(Enum):
    """State of a poll."""

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
    """Wait for notifications of this broker, and no other, until `wake_at`."""

    broker: str


class Do(Enum):
    """Action for the poll's owner."""

    WAIT = auto()
    """Wait for notifications of all brokers until `wake_at`; no more for those of one broker only."""
    PAUSE = auto()
    """Pause until `wake_at`."""
    ANSWER = auto()
    """Answer with the messages that were just found."""
    ANSWER_EMPTY = auto()
    """Answer that there is no message."""
    RELEASE = auto()
    """Release the messages that were just found: the client has gone."""


Effect = Pop | WaitAt | Do | None


_NEXT_STATES: Final = {
    Do.WAIT: State.WAITING,
    Do.PAUSE: State.PAUSING,
    Do.ANSWER: State.DONE,
    Do.ANSWER_EMPTY: State.DONE,
    Do.RELEASE: State.DONE,
}

_POP_ENDS: Final = ("popped", "pop_failed")

TRANSITIONS: Final = Transitions(
    "long poll",
    Row((State.NEW,), ("start",), State.POPPING, "it asks a broker first"),
    Row((State.NEW,), ("start",), State.WAITING, "all brokers have nothing, and will say when that changes"),
    Row((State.POPPING,), ("popped",), State.DONE, "messages were found: it answers"),
    Row(
        (State.POPPING,),
        _POP_ENDS,
        State.POPPING,
        "nothing, but a broker has notified; or it is short, and asks the next",
    ),
    Row((State.POPPING,), _POP_ENDS, State.WAITING, "nothing, and it waits: at all brokers, or at this one"),
    Row((State.POPPING,), _POP_ENDS, State.PAUSING, "nothing, and it is sliced"),
    Row((State.POPPING,), _POP_ENDS, State.DONE, "nothing, and its time is over, all were asked, or it drains"),
    Row((State.POPPING,), ("refused",), State.DONE, "the broker will never pop for this client"),
    Row((State.POPPING,), ("notified",), None, "it is remembered until the pop has ended"),
    Row((State.WAITING,), ("notified",), State.POPPING, "there is something where it waits"),
    Row((State.WAITING, State.PAUSING), ("notified",), None, "not where it waits"),
    Row((State.PAUSING,), ("time_passed",), State.POPPING, "the slice is over: it asks the next broker"),
    Row((State.WAITING,), ("time_passed",), State.WAITING, "its patience with one broker ends: it waits at all"),
    Row((State.POPPING, State.WAITING, State.PAUSING), ("time_passed",), State.DONE, "its time is over"),
    Row((State.POPPING, State.WAITING, State.PAUSING), ("time_passed",), None, "it is too early"),
    Row((State.WAITING, State.PAUSING), ("drain",), State.DONE, "the proxy stops: it answers that nothing is there"),
    Row((State.POPPING,), ("drain",), None, "the pop may end"),
    Row(tuple(State), ("gone",), State.DONE, "the call is over"),
    Row((State.DONE,), ("popped",), None, "what a pop under way still brings is released"),
    Row((State.DONE,), ("pop_failed", "refused", "notified", "time_passed", "drain"), None, "nobody waits any more"),
)


class LongPoll:
    """A poll.

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
        """Latest time for the next call of `time_passed`."""
        return self._until if self.state in (State.WAITING, State.PAUSING) else self.deadline + self._grace_s

    def start(self) -> Effect:
        """Start the poll."""
        return self._step("start", self._pop(self._brokers.popleft()) if self._pops_first else Do.WAIT)

    def popped(self, found: int, now: float) -> Effect:
        """Record a pop that found `found` messages."""
        if self.state is State.DONE:
            return self._step("popped", Do.RELEASE if found else None)
        return self._step("popped", Do.ANSWER if found else self._continue(now))

    def pop_failed(self, now: float) -> Effect:
        """Record a failed pop: the poll continues as after an empty one, but does not wait at this broker alone."""
        if self.state is State.DONE:
            return self._step("pop_failed", None)
        if self._mode is Mode.PLAIN:
            self._mode = Mode.NOTIFY
        return self._step("pop_failed", self._continue(now))

    def refused(self) -> Effect:
        """Record that a broker will not pop for this client, now or later."""
        return self._step("refused", None if self.state is State.DONE else Do.ANSWER_EMPTY)

    def notified(self, broker: str) -> Effect:
        """Record a broker's notification of messages."""
        effect = None
        if self._mode is Mode.NOTIFY or broker == self._broker:
            if self.state is State.WAITING:
                effect = self._pop(broker)
            elif self.state is State.POPPING and broker not in self._notified:
                self._notified.append(broker)
        return self._step("notified", effect)

    def time_passed(self, now: float) -> Effect:
        """Check whether it is time to answer, or to pop elsewhere."""
        effect: Effect
        if self.state is State.DONE or now < self.wake_at:
            effect = None
        elif now >= self.deadline:
            effect = Do.ANSWER_EMPTY
        elif self.state is State.PAUSING:
            effect = self._pop(self._brokers.popleft())
        else:
            self._mode = Mode.NOTIFY
            effect = self._wait(now)
        return self._step("time_passed", effect)

    def drain(self) -> Effect:
        """Answer as soon as no pop is in flight: the proxy is about to stop."""
        self._draining = True
        return self._step("drain", Do.ANSWER_EMPTY if self.state in (State.WAITING, State.PAUSING) else None)

    def abandon(self) -> None:
        """End the poll: its client does not wait any more."""
        self.state = TRANSITIONS.step(self.state, "gone", State.DONE)

    def validate(self) -> None:
        """Check the invariant that holds after each event (L1)."""
        assert self._slices_left >= 0, "more slices than the quota"
        if self.state is State.WAITING or self.state is State.PAUSING:
            assert self._waits and not self._draining, "it waits and must not"
            assert self._until <= self.deadline, "it would wait beyond its deadline"
        if self.state is State.WAITING:
            assert not self._notified, "it waits although it was notified"
            assert self._mode is not Mode.SLICED, "a sliced poll pauses"
        if self.state is State.PAUSING:
            assert self._mode is Mode.SLICED and self._brokers, "it pauses and has no broker to go on to"

    def _step(self, event: str, effect: Effect) -> Effect:
        """Apply the effect, if the table allows it."""
        if effect is None:
            state = self.state
        elif isinstance(effect, Pop):
            state = State.POPPING
        elif isinstance(effect, WaitAt):
            state = State.WAITING
        else:
            state = _NEXT_STATES[effect]
        self.state = TRANSITIONS.step(self.state, event, state)
        self.validate()
        return effect

    def _continue(self, now: float) -> Effect:
        """Continue after an empty pop: pop elsewhere, wait, or answer."""
        if self._draining or (self._waits and now >= self.deadline):
            return Do.ANSWER_EMPTY
        if not self._waits:
            return self._pop(self._brokers.popleft()) if self._brokers else Do.ANSWER_EMPTY
        if self._mode is Mode.SLICED:
            self._slices_left -= 1
            if self._slices_left:
                return self._pause(now)
            self._mode = Mode.PLAIN
        if self._notified:
            return self._pop(self._notified.popleft())
        return self._wait(now)

    def _wait(self, now: float) -> Effect:
        """Wait for notifications."""
        if self._mode is Mode.PLAIN:
            if self._patient_until is None:
                self._patient_until = now + self._patience_s
            if now < self._patient_until:
                self._until = min(self.deadline, self._patient_until)
                return WaitAt(self._broker)
            self._mode = Mode.NOTIFY
        self._until = self.deadline
        return Do.WAIT

    def _pause(self, now: float) -> Effect:
        """Wait for the end of a slice; this broker's turn comes again after all others'."""
        self._brokers.append(self._broker)
        self._until = min(self.deadline, now + SLICE_S)
        return Do.PAUSE

    def _pop(self, broker: str) -> Pop:
        self._broker = broker
        return Pop(broker)
