"""What has changed in the progress of groups since it was last asked for: who saves or tells it need not look at all.

The values are those of the last change, and can't change any more once they are taken: so they are of one moment, and
whoever has taken them may go through them at leisure.
"""

from services.broker.store.consume_queue import ConsumeQueue

Offsets = int | tuple[int, int]
"""Committed and popped offset as they are to be saved; one number if both are the same."""


def pair_of(offsets: Offsets) -> tuple[int, int]:
    """Committed and popped offset."""
    return (offsets, offsets) if isinstance(offsets, int) else offsets


class ProgressChanges:
    """Gathers changes, each pair of group and queue once."""

    def __init__(self) -> None:
        self.gone_groups: set[str] = set()
        """Of these all that there was is gone; what is in `offsets` came after."""
        self.offsets: dict[str, dict[ConsumeQueue, Offsets | None]] = {}
        """By group and queue; None if it is gone."""

    def changed(self, group: str, queue: ConsumeQueue, offsets: Offsets | None) -> None:
        """A pair has other offsets, or is gone."""
        queues = self.offsets.get(group)
        if queues is None:
            queues = self.offsets[group] = {}
        queues[queue] = offsets

    def group_gone(self, group: str) -> None:
        """A group has no progress any more."""
        self.gone_groups.add(group)
        self.offsets.pop(group, None)

    def take(self) -> "ProgressChanges":
        """What has changed up to now; the rest is gathered from here on."""
        taken = ProgressChanges()
        taken.gone_groups, self.gone_groups = self.gone_groups, taken.gone_groups
        taken.offsets, self.offsets = self.offsets, taken.offsets
        return taken
