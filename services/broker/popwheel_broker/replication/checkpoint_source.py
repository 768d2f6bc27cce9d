"""A master's progress for its slaves: whole, or the changes since a version (checkpoint sync)."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableSequence
from typing import TypeVar

from popwheel_broker.consume.merge_buffer import MergeBuffer, pair_of
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.replication.changes import Changes
from popwheel_broker.topics.topic_registry import TopicRegistry
from popwheel_common.pb.popwheel.v1.broker_pb2 import KnownName, ReplicaCheckpoint, TimerProgress

_DELETED_MAX = 100_000
_RESTS_MAX = 64
_GONE = -1
_Pair = tuple[str, ConsumeQueue]

Key = TypeVar("Key")


class CheckpointSource:
    """Tracks the changes of a master's progress, and makes checkpoints of it.

    Args:
        group: name of the broker group.
        epoch: the master's; may be changed.
        entries_max: how many offsets go into one message, and how many names of each kind.
        buffer: how far consumer groups are in queues.
        names: which topics and groups the broker knows.
    """

    def __init__(self, group: str, epoch: int, entries_max: int, buffer: MergeBuffer, names: TopicRegistry) -> None:
        self._group = group
        self.epoch = epoch
        self._entries_max = entries_max
        self._buffer = buffer
        self._names = names
        self.version = 0
        self.scanned_position = 0
        """Position of the log for the offsets: they are at least of the time when the log ended here."""
        self._rests: deque[int] = deque(maxlen=_RESTS_MAX)
        self._offsets: Changes[_Pair] = Changes(entries_max, _DELETED_MAX)
        self._topics: Changes[str] = Changes(entries_max, _DELETED_MAX)
        self._groups: Changes[str] = Changes(entries_max, _DELETED_MAX)
        self._changed_offsets = buffer.watch()
        self._changed_names = names.watch()
        self._has_scanned = False
        self._unfinished: Iterator[None] = iter(())

    def __len__(self) -> int:
        """Return the number of offsets."""
        return len(self._offsets)

    def scan(self) -> Iterator[None]:
        """Collect the changes since the last scan, or everything at first, a small part for each step.

        An unfinished scan of a caller that was cancelled is completed first.
        """
        for _ in self._unfinished:
            yield
        self._unfinished = self._scan()
        for _ in self._unfinished:
            yield

    def _scan(self) -> Iterator[None]:
        names, offsets = self._changed_names.take(), self._changed_offsets.take()
        topics: Iterable[str] = names.topics
        groups: Iterable[str] = names.groups
        if not self._has_scanned:
            topics, groups = list(self._names.topic_ids), list(self._names.group_ids)
        for table, changed, there in (
            (self._topics, topics, self._names.topic_ids),
            (self._groups, groups, self._names.group_ids),
        ):
            for name in changed:
                self._record_change(table, name, is_deleted=name not in there)
                yield
        if not self._has_scanned:
            for group in list(self._buffer.groups):
                for queue in self._buffer.of_group(group):
                    self._scan_offset(group, queue)
                    yield
            self._has_scanned = True
        if offsets.gone_groups:
            for keys in self._offsets.chunks():
                for group, queue in [key for key in keys if key[0] in offsets.gone_groups]:
                    self._scan_offset(group, queue)
                yield
        for group, queues in offsets.offsets.items():
            for queue in queues:
                self._scan_offset(group, queue)
                yield

    def _scan_offset(self, group: str, queue: ConsumeQueue) -> None:
        self._record_change(self._offsets, (group, queue), is_deleted=self._buffer.offsets(group, queue) is None)

    def _record_change(self, table: Changes[Key], key: Key, *, is_deleted: bool) -> None:
        self.version += 1
        table.record(key, self.version, is_deleted=is_deleted)

    def is_rest(self, known_version: int) -> bool:
        """Return whether a rest was promised for this version, a short while ago."""
        return known_version in self._rests

    def checkpoint(
        self,
        known_version: int,
        time_ms: int,
        high_watermark: int,
        timer: TimerProgress,
        revive_offsets: Iterable[int],
    ) -> ReplicaCheckpoint:
        """Return the checkpoint for a replica that knows a version.

        Args:
            known_version: 0 for none; one that this source never gave counts as none.
            time_ms: wall clock.
            high_watermark: of the log: the checkpoint follows from the records before it.
            timer: how far the timer is.
            revive_offsets: of each revive queue, where its oldest open delivery stands.
        """
        knows = self._topics.knows, self._groups.knows, self._offsets.knows
        if known_version > self.version or not all(each(known_version) for each in knows):
            known_version = 0
        # The last changes are sent when all before them were.
        topics, rest_from = self._topics.since(known_version, None)
        groups, rest_from = self._groups.since(known_version, rest_from)
        pairs, rest_from = self._offsets.since(known_version, rest_from)
        self.version += 1
        if rest_from is not None:
            self._rests.append(rest_from)
        answer = ReplicaCheckpoint(
            group=self._group,
            epoch=self.epoch,
            version=self.version,
            base_version=known_version,
            time_ms=time_ms,
            high_watermark=high_watermark,
            timer=timer,
            revive_offsets=revive_offsets,
            rest_from=rest_from or 0,
            scanned_position=self.scanned_position,
        )
        self._add_offsets(answer, pairs)
        _add_names(answer.topics, answer.gone_topics, topics, self._names.topic_ids)
        _add_names(answer.groups, answer.gone_groups, groups, self._names.group_ids)
        return answer

    def _add_offsets(self, answer: ReplicaCheckpoint, pairs: Iterable[_Pair]) -> None:
        """Add offsets as columns, by group and topic. Removed ones are first, as others may have their place since."""
        columns: dict[tuple[str, str], tuple[list[int], list[int], list[int]]] = {}
        values = [(group, queue, self._buffer.offsets(group, queue)) for group, queue in pairs]
        for group, queue, value in sorted(values, key=lambda each: each[2] is not None):
            if value is None and not answer.base_version:
                continue
            queue_ids, committed, popped = columns.setdefault((group, queue.topic), ([], [], []))
            queue_ids.append(queue.queue_id)
            pair = (_GONE, _GONE) if value is None else pair_of(value)
            committed.append(pair[0])
            popped.append(pair[1])
        for (group, topic), (queue_ids, committed, popped) in columns.items():
            answer.offsets.add(group=group, topic=topic, queue_ids=queue_ids, committed=committed, popped=popped)


def _add_names(
    present: MutableSequence[KnownName], gone: MutableSequence[str], changed: Iterable[str], there: Mapping[str, int]
) -> None:
    for name in changed:
        if name in there:
            present.append(KnownName(name=name, id=there[name]))
        else:
            gone.append(name)
