"""The latest deliveries and how they ended, for operators who ask what happened to a message.

It is in memory only, and bounded: the oldest events are dropped. Events that the log records by itself are not repeated
here: that a message was stored, revived, fired, redriven, or became a dead letter.
"""

from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Final, NamedTuple

from popwheel_broker.consume.delivery import Delivery
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb

DELIVERED: Final = int(pb.MESSAGE_DELIVERED)
ACKED: Final = int(pb.MESSAGE_ACKED)
NACKED: Final = int(pb.MESSAGE_NACKED)
EXPIRED: Final = int(pb.MESSAGE_EXPIRED)
RELEASED: Final = int(pb.MESSAGE_RELEASED)

ENTRIES_MAX: Final = 50_000
UNKNOWN_ATTEMPTS: Final = -1
_ENTRIES_AT_ONCE = 2_048

Entry = tuple[int, int, int, Delivery, int, int | tuple[int, ...]]
"""Time, position, kind, delivery, bits of its messages, and a number that the kind explains."""


class DeliveryEvent(NamedTuple):
    """Something that happened to one message.

    Args:
        time_ms: when, wall clock.
        position: in the log, of the record that says so.
        kind: of `popwheel.v1.MessageEventKind`.
        delivery: the delivery.
        message_index: of the message there.
        attempts: how many had failed before it was delivered; `UNKNOWN_ATTEMPTS` if it says nothing of that.
        until_ms: until when the message is hidden; 0 if no time ends it.
    """

    time_ms: int
    position: int
    kind: int
    delivery: Delivery
    message_index: int
    attempts: int
    until_ms: int


class DeliveryEvents:
    """A ring of events. One entry stands for all messages of a delivery that ended together in the same way.

    Args:
        entries_max: as many are kept.
    """

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._ring: deque[Entry] = deque(maxlen=entries_max)
        self._added = 0
        self.began_ms = 0
        """Wall-clock time when this master began to lead."""

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def dropped(self) -> int:
        """Number of dropped entries."""
        return self._added - len(self._ring)

    @property
    def known_since_ms(self) -> int:
        """Wall-clock time since which all events are known."""
        return self._ring[0][0] if self.dropped and self._ring else self.began_ms

    def add(
        self,
        time_ms: int,
        position: int,
        kind: int,
        delivery: Delivery,
        bits: int,
        number: int | tuple[int, ...],
    ) -> None:
        """Record that something happened to messages of a delivery.

        Args:
            time_ms: when, wall clock.
            position: in the log, of the record that says so.
            kind: what.
            delivery: their delivery.
            bits: which messages.
            number: of `DELIVERED`: how many attempts had failed before, of all or of each; of `NACKED`: until when they
                are hidden; else 0.
        """
        self._added += 1
        self._ring.append((time_ms, position, kind, delivery, bits, number))

    def step(
        self, queues: Collection[tuple[str, int, int]], offsets: Collection[int], group: str, begin: int
    ) -> tuple[list[DeliveryEvent], int | None]:
        """Return the events of some messages among some entries, the oldest first; and where to go on, None at the end.

        Args:
            queues: topic, `receipt.FROM_...` and queue: in one of these they stand.
            offsets: their offsets there. An offset in one queue may be meant for another one: the caller compares.
            group: of this group alone; empty for all.
            begin: the number of the first entry; 0 for the oldest.
        """
        first = max(begin, self.dropped)
        skipped = first - self.dropped
        found: list[DeliveryEvent] = []
        for entry in islice(self._ring, skipped, skipped + _ENTRIES_AT_ONCE):
            delivery = entry[3]
            if group and delivery.group != group:
                continue
            if (delivery.topic, delivery.origin, delivery.queue_id) not in queues:
                continue
            bits = entry[4]
            for offset in offsets:
                index = delivery.index_of(offset)
                if index >= 0 and bits >> index & 1:
                    found.append(_event(entry, index))
        following = first + _ENTRIES_AT_ONCE
        return found, following if following < self._added else None


def _event(entry: Entry, index: int) -> DeliveryEvent:
    time_ms, position, kind, delivery, _, number = entry
    attempts, until_ms = UNKNOWN_ATTEMPTS, 0
    if kind == DELIVERED:
        attempts = number[index] if isinstance(number, tuple) else number
        until_ms = time_ms + delivery.invisible_ms
    elif kind == NACKED:
        assert isinstance(number, int), "a message is hidden until one time"
        until_ms = number
    if delivery.lines:
        attempts = delivery.attempts[index]
    return DeliveryEvent(time_ms, position, kind, delivery, index, attempts, until_ms)
