"""Offsets of a group in lite topics, as a client sets them when it subscribes."""

from collections.abc import Callable, Sequence

from popwheel_broker.consume.delivery import RESET, Delivery, OffsetCommit, close_record
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.consume.pops import Pops
from popwheel_broker.lite.lite_pops import LitePops
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind
from popwheel_common.contract import names
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb


class LiteOffsets:
    """Sets groups back or forward in lite topics.

    Args:
        store: the messages.
        state: messages in flight.
        revive_topic: returns the topic in which a reset is recorded.
        pops: limits progress.
        lite_pops: deliveries of lite topics.
    """

    def __init__(
        self, store: MessageStore, state: PopState, revive_topic: Callable[[], str], pops: Pops, lite_pops: LitePops
    ) -> None:
        self._store = store
        self._state = state
        self._revive_topic = revive_topic
        self._pops = pops
        self._lite_pops = lite_pops

    def wanted(
        self, group: str, topic: str, lite_topics: Sequence[str], option: pb.LiteOffset
    ) -> dict[ConsumeQueue, int]:
        """Return the group's wanted offsets in the existing lite topics, where they differ from its present ones.

        Raises:
            CorruptDataError: a message is damaged whose time is needed.
        """
        offset_in = self._rule(option)
        if offset_in is None:
            return {}
        wanted: dict[ConsumeQueue, int] = {}
        for lite_topic in dict.fromkeys(lite_topics):
            queue = self._store.queue(names.lite_topic(topic, lite_topic), 0)
            if queue is not None and queue.min_offset < queue.max_offset:
                offset = min(max(offset_in(queue), queue.min_offset), queue.max_offset)
                progress = self._state.merge_buffer.of(group, queue)
                if offset != progress.next_offset or self._lite_pops.message_group_queues.has(group, queue.topic):
                    wanted[queue] = offset
        return wanted

    def _rule(self, option: pb.LiteOffset) -> Callable[[ConsumeQueue], int] | None:
        kind = option.WhichOneof("kind")
        if kind == "offset":
            return lambda queue: option.offset
        if kind == "tail":
            return lambda queue: queue.max_offset - max(0, option.tail)
        if kind == "timestamp_ms":
            return lambda queue: self._store.records.offset_at(queue, option.timestamp_ms)
        if kind == "policy" and option.policy == pb.LITE_MIN:
            return lambda queue: queue.min_offset
        if kind == "policy" and option.policy == pb.LITE_MAX:
            return lambda queue: queue.max_offset
        return None

    def set(self, group: str, offsets: dict[ConsumeQueue, int]) -> None:
        """Set a group's offsets, as if it had never read the lite topics; its deliveries of them become void.

        Raises:
            StatusError: the disk is full, or there is no room for more progress; nothing has changed.
        """
        if not offsets:
            return
        buffer = self._state.merge_buffer
        if not all(buffer.has_room(buffer.of(group, queue)) for queue in offsets):
            raise self._pops.progress_full(group)
        revive = self._revive_topic()
        commits = [OffsetCommit(group, queue.topic, 0, offset) for queue, offset in offsets.items()]
        in_flight: dict[Delivery, int] = {}
        for queue in offsets:
            for line in self._lite_pops.message_group_queues.of_queue(group, queue.topic, 0).values():
                for delivery, index in line.members.values():
                    in_flight[delivery] = in_flight.get(delivery, 0) | 1 << index
        records = [Record(RecordKind.OFFSET, revive, 0, each.encode(), origin=RESET) for each in commits]
        records += [close_record(revive, each.id, bits) for each, bits in in_flight.items()]
        self._store.put(records)
