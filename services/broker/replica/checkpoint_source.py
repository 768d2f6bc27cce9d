"""A master's progress as its slaves are to have it: whole, or what has changed since a version (checkpoint sync)."""

import sys
from collections import deque
from collections.abc import Iterable, Mapping

from services.broker.pop.merge_buffer import MergeBuffer, ProgressKey, QueueProgress
from services.broker.replica.changes import Changes
from services.common.pb.popwheel.v1.broker_pb2 import KnownName, ReplicaCheckpoint, TimerProgress

_GONE_MAX = 100_000
_RESTS_MAX = 64
_GONE = -1


class CheckpointSource:
    """Sees what has changed in a master's progress, and tells it.

    Args:
        group: name of the broker group.
        epoch: the master's.
        entries_max: how many offsets go into one message.
    """

    def __init__(self, group: str, epoch: int, entries_max: int) -> None:
        self._group = group
        self.epoch = epoch
        self._entries_max = entries_max
        self.version = 0
        self.looked_position = 0
        """Of the log: the offsets are at least of the time when it ended here."""
        self._rests: deque[int] = deque(maxlen=_RESTS_MAX)
        self._offsets: Changes[ProgressKey, tuple[int, int]] = Changes(_GONE_MAX)
        self._topics: Changes[str, int] = Changes(_GONE_MAX)
        self._groups: Changes[str, int] = Changes(_GONE_MAX)

    def __len__(self) -> int:
        """How many offsets there are."""
        return len(self._offsets)

    def look(self, progress: Iterable[tuple[ProgressKey, QueueProgress]]) -> None:
        """See how far consumer groups are in queues; may be called with some at a time."""
        known = self._offsets.values
        for key, each in progress:
            popped = each.popped
            committed = each.committed
            if popped > committed and each.waiting:
                committed = popped  # what is out is left to revive, as after a restart (`PopState.snapshot`)
            before = known.get(key)
            if before is None or before[1] != popped or before[0] != committed:
                self.version += 1
                self._offsets.set(key, (committed, popped), self.version)

    def forget_gone(self, buffer: MergeBuffer) -> None:
        """See which groups and queues are gone, when all that is there was looked at."""
        if len(self._offsets) != len(buffer.progress):
            for key in [key for key in self._offsets.values if key not in buffer.progress]:
                self.version += 1
                self._offsets.remove(key, self.version)

    def look_at_names(self, topics: Mapping[str, int], groups: Mapping[str, int]) -> None:
        """See which topics and groups the broker knows, by their ids."""
        self._look_at(self._topics, topics)
        self._look_at(self._groups, groups)

    def _look_at(self, known: Changes[str, int], names: Mapping[str, int]) -> None:
        if known.values == names:
            return
        for name, identity in names.items():
            if known.values.get(name) != identity:
                self.version += 1
                known.set(name, identity, self.version)
        for name in [name for name in known.values if name not in names]:
            self.version += 1
            known.remove(name, self.version)

    def is_rest(self, known_version: int) -> bool:
        """Whether a rest was said to follow from this version on, a short while ago."""
        return known_version in self._rests

    def checkpoint(
        self,
        known_version: int,
        time_ms: int,
        confirmed_position: int,
        timer: TimerProgress,
        revive_offsets: Iterable[int],
    ) -> ReplicaCheckpoint:
        """What one who knows a version lacks.

        Args:
            known_version: 0 for none; one that this source never gave counts as none.
            time_ms: wall clock.
            confirmed_position: of the log: all that was looked at is told by what is before it.
            timer: how far the timer is.
            revive_offsets: of each revive queue, where its oldest open CK stands.
        """
        tables = (self._offsets, self._topics, self._groups)
        if known_version > self.version or not all(table.knows(known_version) for table in tables):
            known_version = 0
        offsets, rest_from = self._offsets.since(known_version, self._entries_max)
        self.version += 1
        if rest_from is not None:
            self._rests.append(rest_from)
        answer = ReplicaCheckpoint(
            group=self._group,
            epoch=self.epoch,
            version=self.version,
            base_version=known_version,
            time_ms=time_ms,
            confirmed_position=confirmed_position,
            timer=timer,
            revive_offsets=revive_offsets,
            rest_from=rest_from or 0,
            looked_position=self.looked_position,
        )
        _add_offsets(answer, offsets)
        for table, present, gone in (
            (self._topics, answer.topics, answer.gone_topics),
            (self._groups, answer.groups, answer.gone_groups),
        ):
            for name, identity in table.since(known_version, sys.maxsize)[0]:
                if identity is None:
                    gone.append(name)
                else:
                    present.append(KnownName(name=name, id=identity))
        return answer


def _add_offsets(answer: ReplicaCheckpoint, offsets: Iterable[tuple[ProgressKey, tuple[int, int] | None]]) -> None:
    """Put offsets into columns, those of one group and topic together."""
    columns: dict[tuple[str, str], tuple[list[int], list[int], list[int]]] = {}
    for (group, topic, queue_id), value in offsets:
        queue_ids, committed, popped = columns.setdefault((group, topic), ([], [], []))
        queue_ids.append(queue_id)
        committed.append(_GONE if value is None else value[0])
        popped.append(_GONE if value is None else value[1])
    for (group, topic), (queue_ids, committed, popped) in columns.items():
        answer.offsets.add(group=group, topic=topic, queue_ids=queue_ids, committed=committed, popped=popped)
