"""What the clients asked for and what they were told: all that the checker knows."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message

Outcome = Literal["ok", "refused", "unknown"]

_IDS_OF_A_LIFE = 10**6
_IDS_OF_AN_EPOCH = 10**11


class Handle(NamedTuple):
    """What a receipt handle says (`popwheel_common.contract.receipt`), read without its key.

    Args:
        delivery: id of the CK, divided so that later pops have higher numbers.
        pop_ms: steady time of the pop.
        invisible_ms: for how long.
        from_retry: whether the message came from the group's retry topic.
        queue_id: its queue there.
        offset: its offset there.
        broker: which gave it out; each has numbers of its own.
    """

    delivery: int
    pop_ms: int
    invisible_ms: int
    from_retry: bool
    queue_id: int
    offset: int
    broker: str = ""

    @property
    def life(self) -> tuple[str, int]:
        """Of a broker, or its term: each has a range of numbers of its own."""
        return self.broker, self.delivery // _IDS_OF_A_LIFE

    @property
    def epoch(self) -> int:
        """Of the master that gave it out; 0 of a broker without replicas."""
        return self.delivery // _IDS_OF_AN_EPOCH

    @classmethod
    def read(cls, text: str) -> "Handle":
        """Read a handle."""
        delivery, pop, invisible, _, origin, broker, queue_id, offset, _ = text.split(" ")
        return cls(int(delivery) // 8, int(pop), int(invisible), origin == "1", int(queue_id), int(offset), broker)


@dataclass(slots=True)
class Sent:
    """One message that somebody tried to send, once.

    Args:
        message: as it was sent.
        began_s: when the call was made.
        ended_s: when its outcome was known.
        position: where the log ended then.
        outcome: `unknown` if the answer leaves open whether it was stored.
        said: code and sentence of a refusal.
        offset: where it was stored, unless it is delayed.
        due_ms: when it is to be delivered; 0 if it is not delayed.
    """

    message: Message
    began_s: float
    ended_s: float = -1.0
    position: int = 0
    outcome: Outcome = "unknown"
    said: str = ""
    offset: int = -1
    due_ms: int = 0


@dataclass(slots=True)
class Recalled:
    """One try to take a delayed message back.

    Args:
        kind: `forged` with a handle that nobody gave out, `foreign` with one of another topic.
        message_id: of which message.
        began_s, ended_s, position: as in `Sent`.
        outcome: `ok`: it is not delivered; `late`: it is, or was; `missing`: there is none; `refused`: for another
            reason, nothing was done.
        said: code and sentence.
    """

    kind: Literal["recall", "forged", "foreign"]
    message_id: str
    began_s: float
    ended_s: float = -1.0
    position: int = 0
    outcome: Literal["ok", "late", "missing", "refused", "unknown"] = "unknown"
    said: str = ""


@dataclass(slots=True, eq=False)
class Delivery:
    """One message as a consumer got it.

    Args:
        group, topic: who asked for what.
        message_id: the sender's.
        receipt: its handle.
        handle: the same, read.
        attempt: as it says.
        asked_s: when the poll began.
        got_s: when it came.
        position: where the log ended then.
        vanished: the consumer was gone before the answer was complete; it does not hold the message.
        renewed: the proxy keeps it invisible.
        client: who got it.
    """

    group: str
    topic: str
    message_id: str
    receipt: str
    handle: Handle
    attempt: int
    asked_s: float
    got_s: float
    position: int
    vanished: bool = False
    renewed: bool = False
    client: str = ""


@dataclass(slots=True, eq=False)
class Ending:
    """A consumer's word on a message it holds.

    Args:
        kind: what it asked for; `forged` is an ack with a handle that nobody gave out.
        delivery: of which message.
        receipt: the handle that it showed.
        began_s: when the call was made.
        ended_s: when its outcome was known.
        position: where the log ended then.
        outcome: `refused` with INVALID_RECEIPT_HANDLE or otherwise without effect.
        said: code of the answer.
        new_receipt: of a changed invisible duration.
        invisible_ms: what was asked for then.
    """

    kind: Literal["ack", "change", "forward", "forged"]
    delivery: Delivery
    receipt: str
    began_s: float
    ended_s: float = -1.0
    position: int = 0
    outcome: Outcome = "unknown"
    said: str = ""
    new_receipt: str = ""
    invisible_ms: int = 0


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a delivery's message was kept hidden for longer, under the same handle.

    Args:
        delivery: of which message.
        began_s: when it was asked for.
        invisible_ms: for how long from then on.
    """

    delivery: Delivery
    began_s: float
    invisible_ms: int


EXPIRY_S = 3.0
"""After this a proxy takes a silent client for gone (`client.expiry_ms`)."""
_LATENCY_S = 1.0


@dataclass(slots=True)
class Polled:
    """One ReceiveMessage.

    Args:
        client: who.
        group, topic, tags: what was asked for; no tags for all.
        began_s: when.
        wait_s: how long it was to wait for a message at the most.
        deadline_s: until when the client waited.
        ended_s: when it was answered.
        code: of the answer; 0 if there was none.
        messages: how many came.
        condition: the SQL92 filter that was asked for, in place of tags.
    """

    client: str
    group: str
    topic: str
    tags: tuple[str, ...]
    began_s: float
    wait_s: float
    deadline_s: float
    ended_s: float = -1.0
    code: int = 0
    messages: int = 0
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Disaster:
    """The loss of what the log had not synced.

    Args:
        time_s: when.
        kind: power loss or a refused sync.
        synced_position: up to here the log was on the device for certain.
        stood_still: from when to when there was no process at that machine that ran: it was dead, or stopped.
        replica: whose device it was, of several that have the same.
    """

    time_s: float
    kind: Literal["power", "sync"]
    synced_position: int
    stood_still: tuple[tuple[float, float], ...] = ()
    replica: int = -1

    def ran_s(self, since_s: float) -> float:
        """For how long the process could have synced what was there at a time."""
        still_s = sum(max(0.0, min(end_s, self.time_s) - max(begin_s, since_s)) for begin_s, end_s in self.stood_still)
        return self.time_s - since_s - still_s


@dataclass(slots=True)
class History:
    """All of it, in the order in which it was known."""

    sent: dict[str, Sent] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    settlings: list[Ending] = field(default_factory=list)
    recalls: list[Recalled] = field(default_factory=list)
    renewals: list[Renewed] = field(default_factory=list)
    polls: list[Polled] = field(default_factory=list)
    goodbyes: dict[str, float] = field(default_factory=dict)
    """The time when a client began to say that it stops."""
    taken: dict[str, list[str]] = field(default_factory=dict)
    """By a proxy's life, ids of messages with message groups in the order in which they came there."""
    disasters: list[Disaster] = field(default_factory=list)
    troubles: list[tuple[float, float]] = field(default_factory=list)
    """From when to when something was wrong that excuses slowness."""
    unexpected: list[str] = field(default_factory=list)
    """What was delivered and nobody had sent."""
    let_in: list[str] = field(default_factory=list)
    """Calls with names that can't be, or that may not be used so, and were not refused by name."""
    set_aside: set[tuple[str, str]] = field(default_factory=set)
    """Group and message id of what is quarantined in the end; of a delayed message the group is empty."""

    def gone_s(self, client: str, since_s: float, *, is_one_proxy: bool) -> float:
        """The first time when a client may have gone, for a proxy that saw it at `since_s`: by a goodbye or silence.

        Of several proxies one may have seen nothing more of it.
        """
        silent_s = EXPIRY_S - _LATENCY_S
        for poll in self.polls if is_one_proxy else ():
            if poll.client == client and poll.began_s > since_s:
                if poll.began_s - since_s > silent_s:
                    break
                since_s = poll.began_s
        return min(since_s + silent_s, self.goodbyes.get(client, float("inf")))

    def lost_by(self, time_s: float, position: int) -> Disaster | None:
        """The first disaster that may have taken what was in the log before `position` at `time_s`."""
        for disaster in self.disasters:
            if disaster.time_s >= time_s and position > disaster.synced_position:
                return disaster
        return None

    def is_calm(self, begin_s: float, end_s: float) -> bool:
        """Return whether nothing was wrong then that excuses slowness, and nothing was lost."""
        is_trouble = any(begin <= end_s and end >= begin_s for begin, end in self.troubles)
        return not is_trouble and not self.disaster_between(begin_s, end_s)

    def disaster_between(self, begin_s: float, end_s: float) -> bool:
        """Whether one happened then."""
        return any(begin_s <= disaster.time_s <= end_s for disaster in self.disasters)
