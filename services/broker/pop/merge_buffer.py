"""The merge buffer: how far each group has come in each queue.

Each queue of a group has a *popped* offset, where the next pop goes on, and a *committed* offset, below which
everything is done with or left to revive. A CK holds the committed offset up until it is done, until it has stayed
for long enough, or until the buffer is full (PopBufferMergeService of the articles). Whether a message is acknowledged
is not asked here but of `revive.ReviveTable`, which holds every open CK.
"""

from collections import deque
from collections.abc import Iterator, Mapping

from services.broker.pop.check_point import CheckPoint
from services.broker.store.consume_queue import ConsumeQueue

ProgressKey = tuple[str, str, int]


class QueueProgress:
    """One group in one queue.

    Args:
        group: the group.
        queue: the queue; its topic may be a retry topic.
        offset: where the group begins.
    """

    __slots__ = ("committed", "group", "popped", "queue", "set_at", "waiting")

    def __init__(self, group: str, queue: ConsumeQueue, offset: int) -> None:
        self.group = group
        self.queue = queue
        self.committed = offset
        self.popped = offset
        self.waiting: deque[CheckPoint] = deque()
        self.set_at = -1
        """Position in the log of the last record read by which the offset was set by hand; -1 if none was read."""

    @property
    def next_offset(self) -> int:
        """Where the next pop reads on: pops and a commit by hand both move it, and so does retention."""
        return max(self.popped, self.committed, self.queue.min_offset)

    @property
    def available(self) -> int:
        """How many messages (of any tag) are ahead."""
        return max(0, self.queue.max_offset - max(self.popped, self.committed, self.queue.min_offset))


class MergeBuffer:
    """The progress of all groups.

    Args:
        stay_ms: how long a CK holds up the committed offset at the most.
        check_points_max: how many CKs do so at once at the most.
    """

    def __init__(self, stay_ms: int, check_points_max: int) -> None:
        self._stay_ms = stay_ms
        self._check_points_max = check_points_max
        self._progress: dict[ProgressKey, QueueProgress] = {}
        self._of_check_point: dict[int, QueueProgress] = {}
        self._held_up: set[QueueProgress] = set()

    def __len__(self) -> int:
        """How many CKs hold up an offset."""
        return len(self._of_check_point)

    def __iter__(self) -> Iterator[QueueProgress]:
        return iter(self._progress.values())

    @property
    def progress(self) -> Mapping[ProgressKey, QueueProgress]:
        """The progress of each group in each queue."""
        return self._progress

    def get(self, group: str, queue: ConsumeQueue) -> QueueProgress | None:
        """A group's progress in a queue, None if it has none."""
        return self._progress.get((group, queue.topic, queue.queue_id))

    def ensure(self, group: str, queue: ConsumeQueue) -> QueueProgress:
        """A group's progress in a queue; a new group begins at the first message still held."""
        key = (group, queue.topic, queue.queue_id)
        progress = self._progress.get(key)
        if progress is None:
            progress = self._progress[key] = QueueProgress(group, queue, queue.min_offset)
        return progress

    def popped(self, progress: QueueProgress, check_point: CheckPoint) -> None:
        """A pop has read up to the CK's next offset and gave out messages."""
        progress.popped = check_point.next_offset
        progress.waiting.append(check_point)
        self._of_check_point[check_point.id] = progress
        self._held_up.add(progress)
        if len(self._of_check_point) > self._check_points_max:
            self._let_go_first(progress)

    def skipped(self, progress: QueueProgress, next_offset: int) -> None:
        """A pop has read up to `next_offset` and its filter wanted nothing of it."""
        progress.popped = next_offset
        if progress.waiting:
            progress.waiting[-1].next_offset = next_offset
        else:
            progress.committed = max(progress.committed, next_offset)

    def done(self, check_point: CheckPoint) -> None:
        """All messages of a CK are done with."""
        progress = self._of_check_point.get(check_point.id)
        if progress is not None:
            self._advance(progress)

    def let_go(self, now_ms: int) -> None:
        """Let go of the CKs that have stayed for long enough (`PopClock`)."""
        for progress in list(self._held_up):
            while progress.waiting and progress.waiting[0].pop_time_ms + self._stay_ms <= now_ms:
                self._let_go_first(progress)

    def forget(self, group: str | None = None, topics: frozenset[str] = frozenset()) -> None:
        """Drop the progress of a deleted group, or of all groups in the topics of a deleted one."""
        gone = [
            key for key, progress in self._progress.items() if progress.group == group or progress.queue.topic in topics
        ]
        for key in gone:
            progress = self._progress.pop(key)
            self._held_up.discard(progress)
            for check_point in progress.waiting:
                self._of_check_point.pop(check_point.id, None)

    def _let_go_first(self, progress: QueueProgress) -> None:
        check_point = progress.waiting.popleft()
        self._of_check_point.pop(check_point.id, None)
        progress.committed = max(progress.committed, check_point.next_offset)
        self._advance(progress)

    def _advance(self, progress: QueueProgress) -> None:
        while progress.waiting and not progress.waiting[0].open_bits:
            check_point = progress.waiting.popleft()
            self._of_check_point.pop(check_point.id, None)
            progress.committed = max(progress.committed, check_point.next_offset)
        if not progress.waiting:
            self._held_up.discard(progress)
