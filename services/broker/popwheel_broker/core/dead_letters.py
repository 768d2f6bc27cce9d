"""The dead letters of a group, as operators see them: those that were neither redriven nor purged.

The group's progress in its own dead letter queue says which they are. A record that redrives a dead letter names the
one that it replaces, so a crash can neither lose nor double it.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from popwheel_broker.consume.delivery import redriven_origin
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.consume.pops import Pops
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_common.contract import names
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.priority import level_of, levels_of
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message, SystemProperties
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType


class Redriven(NamedTuple):
    """Result of a redrive of dead letters.

    Args:
        redriven: number of letters redriven to their group.
        kept: as dead letters, at the end of their queue: their topic is gone, they can't be read, or they are of a lite
            topic.
        moved: to the end of their queue, as they were not chosen and stood before one that was.
    """

    redriven: int
    kept: int
    moved: int = 0


class DeadLetters:
    """Reads dead letters and redrives them.

    Args:
        store: where they are.
        state: how far groups are.
        view: the topics that there are.
        pops: knows whether there is room for more progress.
    """

    def __init__(self, store: MessageStore, state: PopState, view: ClusterView, pops: Pops) -> None:
        self._store = store
        self._state = state
        self._view = view
        self._pops = pops

    def queue(self, group: str) -> ConsumeQueue | None:
        """Return the queue of a group's dead letters; None if it never had one."""
        return self._store.queue(names.dead_letter_topic(group), 0)

    def first_offset(self, group: str, queue: ConsumeQueue) -> int:
        """Return the offset of the oldest one; the queue's end if there is none."""
        return min(self._state.merge_buffer.of(group, queue).next_offset, queue.max_offset)

    def read(self, queue: ConsumeQueue, begin: int, limit: int, bytes_max: int) -> list[StoredRecord]:
        """Return some of them from an offset on; one at least, if there is one.

        Args:
            queue: of a group's.
            begin: the first offset.
            limit: most dead letters that are returned.
            bytes_max: so long, all together.

        Raises:
            CorruptDataError: one is damaged.
        """
        entries = queue.read(begin, limit)
        size = 0
        for count, entry in enumerate(entries):
            size += entry.length
            if count and size > bytes_max:
                entries = entries[:count]
                break
        return self._store.records.read_checked(queue, range(begin, begin + len(entries)), entries)

    def redrive(
        self, group: str, limit: int, end_offset: int, bytes_max: int, chosen: Collection[int] | None = None
    ) -> Redriven:
        """Redrive some, the oldest first: each is delivered to its group again, and to no other, as if for the first
        time.

        Args:
            group: whose.
            limit: most dead letters that are returned.
            end_offset: those that stand behind it are left.
            bytes_max: so long, all together.
            chosen: only those that stand at these offsets; the others go to the end of their queue. None: all.

        Raises:
            StatusError: the disk is full, or there is no room for more progress or another queue; nothing has changed.
            CorruptDataError: one is damaged; nothing has changed.
        """
        queue = self.queue(group)
        if queue is None:
            return Redriven(0, 0)
        progress = self._state.merge_buffer.of(group, queue)
        if not self._state.merge_buffer.has_room(progress):
            raise self._pops.progress_full(group)
        begin = self.first_offset(group, queue)
        found = self.read(queue, begin, max(0, min(limit, end_offset - begin)), bytes_max)
        if not found:
            return Redriven(0, 0)
        there = [stored for stored in found if stored.kind != RecordKind.SKIPPED]
        wanted = [chosen is None or stored.queue_offset in chosen for stored in there]
        records = [
            (self._redriven(group, stored) if is_wanted else None) or _at_end(stored)
            for stored, is_wanted in zip(there, wanted, strict=True)
        ]
        if records:
            self._store.put(records)
        buffer = self._state.merge_buffer
        buffer.passed(buffer.of(group, queue), begin + len(found))  # records of skipped ones say nothing
        stay, moved = sum(each.topic == queue.topic for each in records), wanted.count(False)
        return Redriven(len(records) - stay, stay - moved, moved)

    def would_redrive(self, group: str, queue: ConsumeQueue, offsets: Iterable[int], bytes_max: int) -> Redriven:
        """Return the result of a dry run of a redrive.

        Args:
            group: whose.
            queue: where they are.
            offsets: theirs.
            bytes_max: as for `read`.

        Raises:
            CorruptDataError: one is damaged.
        """
        found = [each for offset in offsets for each in self.read(queue, offset, 1, bytes_max)]
        there = [each for each in found if each.kind != RecordKind.SKIPPED]
        kept = sum(self._redriven(group, each) is None for each in there)
        return Redriven(len(there) - kept, kept)

    def _redriven(self, group: str, stored: StoredRecord) -> Record | None:
        """Return the record that redrives a dead letter; None if its topic is gone."""
        try:
            message = Message.FromString(stored.payload)
            properties = SystemProperties.FromString(stored.system_properties)
        except DecodeError:
            return None
        topic = properties.dead_letter_queue.topic
        known = self._view.topics.get(topic)
        if names.kind_of(topic) is names.Kind.USER and (known is None or known.type == TopicType.LITE):
            return None  # no client receives from a retry topic of lite topics
        try:
            retry_topic = names.retry_topic(group, topic)
        except StatusError:
            return None
        properties.ClearField("dead_letter_queue")
        properties.ClearField("store_timestamp")  # it begins anew
        # It has its first name again, under which it was sent.
        message.topic.name = topic.removeprefix(f"{message.topic.resource_namespace}%")
        return Record(
            kind=RecordKind.MESSAGE,
            topic=retry_topic,
            queue_id=0 if known is None else level_of(properties.priority, levels_of(known)),
            payload=message.SerializeToString(),
            system_properties=properties.SerializeToString(),
            tag_hash=stored.tag_hash,
            origin=redriven_origin(stored.queue_offset),
        )


def _at_end(stored: StoredRecord) -> Record:
    """Return the same dead letter, at the end of its queue."""
    return Record(
        kind=RecordKind.MESSAGE,
        topic=stored.topic,
        queue_id=stored.queue_id,
        payload=stored.payload,
        system_properties=stored.system_properties,
        tag_hash=stored.tag_hash,
        origin=redriven_origin(stored.queue_offset),
    )
