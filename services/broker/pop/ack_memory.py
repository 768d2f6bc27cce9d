"""Which messages were acknowledged a moment ago, for those who could not be told (their broker died, or was deposed).

Whoever asks again finds the receipt handle void. Only the log can tell whether that is so because of the ack: it is
folded in here as it is everywhere else, so the next master knows as well. What was given back, given a new handle or
has expired is not here.
"""

from collections.abc import Sequence
from typing import Final

from services.broker.pop.check_point import CheckPoint

CHECK_POINTS_MAX: Final = 8192
"""As many CKs are remembered; who asks again does so at once, or at the next master, before much else has happened."""


class AckMemory:
    """The latest acknowledgements, by CK."""

    def __init__(self) -> None:
        self._acked: dict[int, tuple[Sequence[int], int]] = {}

    def __len__(self) -> int:
        return len(self._acked)

    def note(self, check_point: CheckPoint, bits: int) -> None:
        """Open messages of a CK are acknowledged, or have gone to the dead letter queue: they never come again."""
        acked = self._acked
        earlier = acked.pop(check_point.id, None)
        acked[check_point.id] = check_point.offsets, bits if earlier is None else earlier[1] | bits
        if len(acked) > CHECK_POINTS_MAX:
            del acked[next(iter(acked))]

    def has(self, check_point_id: int, queue_offset: int) -> bool:
        """Whether a message of a CK is known to be done with."""
        found = self._acked.get(check_point_id)
        if found is None:
            return False
        offsets, bits = found
        return any(bits >> index & 1 for index, offset in enumerate(offsets) if offset == queue_offset)
