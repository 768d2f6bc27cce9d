"""Memory of recent acknowledgements, for callers whose outcome is unknown (their broker died, or was deposed).

A retried call finds its receipt handle void. Only the log can distinguish whether the ack made it void: acks are folded
in here as they are everywhere else, so the next master knows as well; and whether it was that very call, or an earlier
one. Messages that were released, got a new handle or have expired are not here.
"""

from collections.abc import Sequence
from typing import Final

from popwheel_broker.consume.delivery import Delivery

NOBODY: Final = -1
"""No client's call: the broker ended the messages, as dead letters."""

DELIVERIES_MAX: Final = 8192
"""Limit of deliveries remembered; a retry comes at once, or at the next master, before much else has happened."""


class AckMemory:
    """The latest acknowledgements, by delivery."""

    def __init__(self) -> None:
        self._acked: dict[int, tuple[Sequence[int], tuple[tuple[int, int], ...]]] = {}
        """Offsets of acknowledged messages by delivery, and which of them each call has acknowledged."""
        self._places: dict[int, tuple[str, str, int, int]] = {}
        """Group, topic, origin and queue by delivery."""

    def __len__(self) -> int:
        return len(self._acked)

    def record(self, delivery: Delivery, bits: int, call: int) -> None:
        """Record that open messages of a delivery are acknowledged, or are dead letters: they are never redelivered.

        Args:
            delivery: the delivery.
            bits: the messages.
            call: which call of a client asked for it; 0 if that is not known.
        """
        acked = self._acked
        earlier = acked.pop(delivery.id, None)
        calls = ((call, bits),)
        acked[delivery.id] = delivery.offsets, calls if earlier is None else earlier[1] + calls
        self._places[delivery.id] = delivery.group, delivery.topic, delivery.origin, delivery.queue_id
        if len(acked) > DELIVERIES_MAX:
            oldest = next(iter(acked))
            del acked[oldest], self._places[oldest]

    def of_place(self, topic: str, origin: int, queue_id: int, queue_offset: int) -> list[str]:
        """Return the groups that are known to have finished a message.

        Args:
            topic: the topic that clients ask for.
            origin: as a delivery has it.
            queue_id, queue_offset: where the message stands.
        """
        found: list[str] = []
        for identity, place in self._places.items():
            group = place[0]
            if place == (group, topic, origin, queue_id):
                offsets, calls = self._acked[identity]
                if queue_offset in offsets:
                    index = offsets.index(queue_offset)
                    if any(bits >> index & 1 for _, bits in calls):
                        found.append(group)
        return found

    def name(self, delivery_id: int, bits: int, call: int) -> None:
        """Set the call that asked for an entry recorded without one; `NOBODY` if none did."""
        found = self._acked.get(delivery_id)
        if found is not None:
            offsets, calls = found
            named = tuple((known or (call if some & bits else 0), some) for known, some in calls)
            self._acked[delivery_id] = offsets, named

    def has(self, delivery_id: int, queue_offset: int, call: int) -> bool:
        """Return whether a message is known to be acknowledged, by this call as far as both are known."""
        found = self._acked.get(delivery_id)
        if found is None or queue_offset not in found[0]:
            return False
        index = found[0].index(queue_offset)
        return any(bits >> index & 1 and (known == call or not (known and call)) for known, bits in found[1])
