"""The merge buffer: how far each group has come in each queue.

Each queue of a group has a *popped* offset, where the next pop reads on, and a *committed* offset, below which
everything is done or left to revive. A delivery keeps the committed offset back until it is done, until it has been
there for long enough, or until the buffer is full (PopBufferMergeService of the articles). Whether a message is
acknowledged is not known here but in `revive_table.ReviveTable`, which has every open delivery.

There may be millions of pairs of a group and a queue. One that no delivery keeps back is a number; one whose group has
read nothing of the queue is not there at all, as its beginning follows from the queue.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, KeysView
from itertools import islice
from typing import NamedTuple

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.progress_record import PassedOffsets
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_common.shares import room

_EVICTED_AT_ONCE = 10_000
_NEW_GROUPS_SHARE = 0.9

Offsets = int | tuple[int, int]
"""Committed and popped offset as they are saved; one number if both are the same."""


def pair_of(offsets: Offsets) -> tuple[int, int]:
    """Return committed and popped offset."""
    return (offsets, offsets) if isinstance(offsets, int) else offsets


class ProgressChanges:
    """Gathers changes in the progress of groups, so that saving or replicating it need not scan all of it.

    Each pair of group and queue is there once, with the values of its last change. Once they are taken they do not
    change any more: they are of one moment, and the caller may iterate over them in its own time.
    """

    def __init__(self) -> None:
        self.gone_groups: set[str] = set()
        """Groups whose whole progress is gone; what is in `offsets` came after."""
        self.offsets: dict[str, dict[ConsumeQueue, Offsets | None]] = {}
        """Offsets by group and queue; None if they are gone."""

    def changed(self, group: str, queue: ConsumeQueue, offsets: Offsets | None) -> None:
        """Record that a pair has other offsets, or is gone."""
        queues = self.offsets.get(group)
        if queues is None:
            queues = self.offsets[group] = {}
        queues[queue] = offsets

    def group_deleted(self, group: str) -> None:
        """Record that a group has no progress any more."""
        self.gone_groups.add(group)
        self.offsets.pop(group, None)

    def take(self) -> "ProgressChanges":
        """Return the changes up to now; the rest is gathered from here on."""
        taken = ProgressChanges()
        taken.gone_groups, self.gone_groups = self.gone_groups, taken.gone_groups
        taken.offsets, self.offsets = self.offsets, taken.offsets
        return taken


class QueueProgress:
    """Progress of a group in a queue, as it is now: to be used at once, unless a delivery keeps its offset back.

    Args:
        group: the group.
        queue: the queue; its topic may be a retry topic.
        offsets: its progress; None if it has read nothing: then it begins at the first message stored.
    """

    __slots__ = ("committed", "group", "is_new", "popped", "queue", "waiting")

    def __init__(self, group: str, queue: ConsumeQueue, offsets: Offsets | None) -> None:
        self.group = group
        self.queue = queue
        self.is_new = offsets is None
        """True if nothing is stored of it: the group has read nothing of the queue, nor was its offset set."""
        self.committed, self.popped = pair_of(queue.known_min_offset if offsets is None else offsets)
        self.waiting: deque[Delivery] | None = None

    @property
    def next_offset(self) -> int:
        """Offset where the next pop reads on: pops and a commit by hand both move it, and so does retention."""
        read_to = max(self.popped, self.committed)  # of two at a time: of three it is no compiled code
        return max(read_to, self.queue.min_offset)

    @property
    def available(self) -> int:
        """Number of messages (of any tag) ahead."""
        read_to = max(self.popped, self.committed)
        end = self.queue.max_offset
        return end - max(read_to, self.queue.min_offset) if read_to < end else 0

    @property
    def available_at_most(self) -> int:
        """Number as `available`, but without a read: what retention has taken since the last read is still counted."""
        read_to = max(self.popped, self.committed)
        return max(0, self.queue.max_offset - max(read_to, self.queue.known_min_offset))

    @property
    def offsets(self) -> Offsets:
        """Offsets to be saved.

        After a restart no delivery keeps the committed offset back: open ones are left to revive.
        """
        committed = max(self.committed, self.popped) if self.waiting else self.committed
        return committed if committed == self.popped else (committed, self.popped)


class Popped(NamedTuple):
    """A delivery of a pop that has read on in a queue. It keeps the offset back, unless its messages are blocked.

    Args:
        delivery: the delivery.
        progress: in the queue.
    """

    delivery: Delivery
    progress: QueueProgress


class MergeBuffer:
    """The progress of all groups.

    Args:
        stay_ms: limit of the time for which a delivery keeps the committed offset back.
        deliveries_max: limit of the deliveries that do so at once.
        pairs_max: limit of the pairs of a group and a queue whose progress is kept (see `has_room`).
    """

    def __init__(self, stay_ms: int, deliveries_max: int, pairs_max: int) -> None:
        self._stay_ms = stay_ms
        self._deliveries_max = deliveries_max
        self._pairs_max = pairs_max
        self._offsets: dict[str, dict[ConsumeQueue, Offsets]] = {}
        self._pairs = 0
        self._stalled: dict[str, dict[ConsumeQueue, QueueProgress]] = {}
        self._of_delivery: OrderedDict[int, QueueProgress] = OrderedDict()
        self._passed: dict[tuple[str, ConsumeQueue], None] = {}
        self._watched: list[ProgressChanges] = []

    def __len__(self) -> int:
        """Return the number of deliveries that keep an offset back."""
        return len(self._of_delivery)

    def __iter__(self) -> Iterator[QueueProgress]:
        for group, queues in self._offsets.items():
            for queue in queues:
                yield self.of(group, queue)

    @property
    def pairs(self) -> int:
        """Number of pairs of a group and a queue with progress."""
        return self._pairs

    @property
    def groups(self) -> KeysView[str]:
        """Groups that have any progress."""
        return self._offsets.keys()

    def of_group(self, group: str) -> list[ConsumeQueue]:
        """Return the queues that a group has any progress in."""
        return list(self._offsets.get(group, ()))

    def get(self, group: str, queue: ConsumeQueue) -> QueueProgress | None:
        """Return a group's progress in a queue, None if it has none."""
        progress = self.of(group, queue)
        return None if progress.is_new else progress

    def of(self, group: str, queue: ConsumeQueue) -> QueueProgress:
        """Return a group's progress in a queue; a new group begins at the first message still stored."""
        stalled = self._stalled.get(group)
        progress = None if stalled is None else stalled.get(queue)
        if progress is None:
            queues = self._offsets.get(group)
            progress = QueueProgress(group, queue, None if queues is None else queues.get(queue))
        return progress

    def offsets(self, group: str, queue: ConsumeQueue) -> Offsets | None:
        """Return the offsets to save of a pair; None if there are none."""
        return self._offsets.get(group, {}).get(queue)

    def has_room(self, progress: QueueProgress) -> bool:
        """Return whether a group may read of a queue.

        Groups share the limit, and the last tenth is for those that have read something before.
        """
        if not progress.is_new:
            return True
        read = self.pairs_of(progress.group)
        if not read and self._pairs >= self._pairs_max * _NEW_GROUPS_SHARE:
            return False
        return room(self._pairs_max, self._pairs, read) > 0

    def pairs_of(self, group: str) -> int:
        """Return the number of queues in which a group has any progress."""
        return len(self._offsets.get(group, ()))

    def watch(self) -> ProgressChanges:
        """Return the changes from now on, for a caller that takes them from time to time."""
        changes = ProgressChanges()
        self._watched.append(changes)
        return changes

    # Changes

    def popped(self, progress: QueueProgress, delivery: Delivery) -> None:
        """Record that a pop has read up to the delivery's next offset, and delivered messages or has them blocked."""
        if delivery.is_blocked:
            self.skipped(progress, delivery.next_offset)
            return
        assert delivery.start_offset >= progress.popped, "a pop has read again what one before it has read (C4)"
        progress.popped = delivery.next_offset
        if self._passed:
            self._passed.pop((progress.group, progress.queue), None)
        if progress.waiting is None:
            progress.waiting = deque()
        assert not progress.waiting or progress.waiting[-1].next_offset <= delivery.start_offset, "deliveries overlap"
        progress.waiting.append(delivery)
        self._of_delivery[delivery.id] = progress
        self._stalled.setdefault(progress.group, {})[progress.queue] = progress
        self._store_progress(progress)
        if len(self._of_delivery) > self._deliveries_max:
            self._evict_first(progress)

    def passed(self, progress: QueueProgress, next_offset: int) -> None:
        """Record that a pop has read up to `next_offset` and its filter wanted nothing of it.

        No record of the log says so until `passed_offsets` are appended.
        """
        self.skipped(progress, next_offset)
        self._passed[progress.group, progress.queue] = None

    def skipped(self, progress: QueueProgress, next_offset: int) -> None:
        """Record that a group has no use for what stands before `next_offset`."""
        assert next_offset >= progress.popped, "a pop has gone back (C4)"
        progress.popped = next_offset
        if progress.waiting:
            progress.waiting[-1].next_offset = next_offset
        else:
            progress.committed = max(progress.committed, next_offset)
        self._store_progress(progress)

    def read_to(self, group: str, queue: ConsumeQueue, next_offset: int) -> None:
        """Record that a pop has read up to here, by the log: nothing keeps it back, open messages are left to
        revive.
        """
        progress = self.of(group, queue)
        if next_offset > progress.popped or progress.is_new:
            self.skipped(progress, max(progress.popped, next_offset))

    @property
    def unrecorded(self) -> int:
        """Number of pairs that have passed messages, of which the log does not say so yet."""
        return len(self._passed)

    def passed_offsets(self, pairs_max: int) -> list[PassedOffsets]:
        """Return the offsets of some pairs that have passed messages, to be recorded; `recorded` follows."""
        found: list[PassedOffsets] = []
        for group, queue in list(islice(self._passed, pairs_max)):
            offsets = self.offsets(group, queue)
            if offsets is None:  # the group or the queue is gone
                del self._passed[group, queue]
            else:
                found.append(PassedOffsets(group, queue.topic, queue.queue_id, *pair_of(offsets)))
        return found

    def recorded(self, group: str, queue: ConsumeQueue, committed: int, popped: int) -> None:
        """Apply offsets that a master has recorded as `passed_offsets`; it has them already."""
        self._passed.pop((group, queue), None)
        known = self.offsets(group, queue)
        if known is None or pair_of(known) != (committed, popped):
            progress = self.of(group, queue)
            progress.committed, progress.popped = committed, popped
            self._store_progress(progress)

    def commit(self, group: str, queue: ConsumeQueue, offset: int) -> None:
        """Set the committed offset, as a client or an operator asked; it may be lower."""
        progress = self.of(group, queue)
        progress.committed = offset
        self._store_progress(progress)

    def reset(self, group: str, queue: ConsumeQueue, offset: int) -> None:
        """Set a group's offset, whatever it has read before. No delivery of the queue keeps its offset back any
        more.
        """
        stalled = self._stalled.get(group, {}).get(queue)
        if stalled is not None:
            self._release(stalled)
            self._resume(stalled)
        progress = self.of(group, queue)
        progress.committed = progress.popped = offset
        self._store_progress(progress)

    def restore(self, group: str, queue: ConsumeQueue, committed: int, popped: int) -> None:
        """Take up what was saved of a pair."""
        queues = self._offsets.setdefault(group, {})
        self._pairs += queue not in queues
        queues[queue] = committed if committed == popped else (committed, popped)

    def done(self, delivery: Delivery) -> None:
        """Record that all messages of a delivery are done."""
        progress = self._of_delivery.get(delivery.id)
        if progress is not None:
            self._advance(progress)

    def evict(self, now_ms: int) -> bool:
        """Drop the deliveries that have been here for long enough (`PopClock`), some at a time; return if there are
        more.
        """
        for _ in range(_EVICTED_AT_ONCE):
            progress = next(iter(self._of_delivery.values()), None)
            # The oldest of all is the oldest of its queue.
            if progress is None or not progress.waiting or progress.waiting[0].pop_time_ms + self._stay_ms > now_ms:
                return False
            self._evict_first(progress)
        return True

    def forget_group(self, group: str) -> None:
        """Drop the progress of a deleted group."""
        for progress in self._stalled.pop(group, {}).values():
            self._release(progress)
        self._pairs -= len(self._offsets.pop(group, ()))
        assert self._pairs >= 0, "more pairs are gone than there were"
        for changes in self._watched:
            changes.group_deleted(group)

    def forget_queues(self, queues: Iterable[ConsumeQueue], groups: Iterable[str] | None = None) -> None:
        """Drop the progress of groups in the queues of a deleted topic.

        Args:
            queues: the queues.
            groups: these groups; None for all there are.
        """
        gone = dict.fromkeys(queues).keys()
        # The smaller of two views is scanned. The groups of a queue are stored nowhere else, as pairs are many.
        for group in list(self._offsets if groups is None else groups):
            offsets = self._offsets.get(group, {})
            if offsets.keys().isdisjoint(gone):
                continue
            for queue in gone if len(gone) <= len(offsets) else [each for each in offsets if each in gone]:
                if offsets.pop(queue, None) is not None:
                    self._pairs -= 1
                    progress = self._stalled.get(group, {}).pop(queue, None)
                    if progress is not None:
                        self._release(progress)
                    for changes in self._watched:
                        changes.changed(group, queue, None)
            if not offsets:
                del self._offsets[group]
        assert self._pairs >= 0, "more pairs are gone than there were"

    def _release(self, progress: QueueProgress) -> None:
        for delivery in progress.waiting or ():
            self._of_delivery.pop(delivery.id, None)

    def _evict_first(self, progress: QueueProgress) -> None:
        if progress.waiting:
            delivery = progress.waiting.popleft()
            self._of_delivery.pop(delivery.id, None)
            progress.committed = max(progress.committed, delivery.next_offset)
        self._advance(progress)

    def _advance(self, progress: QueueProgress) -> None:
        """Advance the committed offset to the first delivery that keeps it back; what is to be saved stays the same."""
        waiting = progress.waiting
        while waiting and not waiting[0].open_bits:
            delivery = waiting.popleft()
            self._of_delivery.pop(delivery.id, None)
            progress.committed = max(progress.committed, delivery.next_offset)
        if not waiting:
            self._resume(progress)

    def _resume(self, progress: QueueProgress) -> None:
        stalled = self._stalled.get(progress.group, {})
        stalled.pop(progress.queue, None)
        if not stalled:
            self._stalled.pop(progress.group, None)

    def _store_progress(self, progress: QueueProgress) -> None:
        group, queue, offsets = progress.group, progress.queue, progress.offsets
        queues = self._offsets.get(group)
        if queues is None:
            queues = self._offsets[group] = {}
        if progress.is_new:
            progress.is_new = False
            self._pairs += queue not in queues
        queues[queue] = offsets
        for changes in self._watched:
            changes.changed(group, queue, offsets)
