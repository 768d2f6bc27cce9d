"""Sets a group back or forward in a topic, as an operator asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.broker.names.own_topics import OwnTopics
from services.broker.pop.pops import Pops
from services.broker.progress.check_point import RESET, CheckPoint, OffsetCommit, encode_ack
from services.broker.progress.pop_state import PopState
from services.broker.records.record import Record, RecordKind
from services.broker.state.notification import Interests, tell_again
from services.broker.store.consume_queue import ConsumeQueue
from services.broker.store.message_store import MessageStore
from services.common.contract import names


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset changes.

    Args:
        group: whose offsets.
        topic: of which topic.
        queues: where the group is to go on in each of the topic's queues.
        retries: the queue of the group's retry topic; None if there is none.
        given_out: CKs of the group that have messages of the topic, or of its retries; also of those that wait in line.
        in_flight: how many messages are given out.
    """

    group: str
    topic: str
    queues: Mapping[ConsumeQueue, int]
    retries: ConsumeQueue | None
    given_out: list[CheckPoint]
    in_flight: int


class OffsetReset:
    """Resets offsets. A group gets all messages from its new offsets on as if it had never read them.

    So nothing else of the topic is left to it: what is given out is taken back, and what waits to be tried again is
    passed over. Both come anew if they stand behind the new offset. Dead letters stay.

    Args:
        store: where records are put.
        state: who has what.
        topics: where a reset is written down.
        pops: knows whether there is room for more progress, and which queues stand still.
        interests: whose polls are told of what can be read again.
    """

    def __init__(
        self, store: MessageStore, state: PopState, topics: OwnTopics, pops: Pops, interests: Interests
    ) -> None:
        self._store = store
        self._state = state
        self._topics = topics
        self._pops = pops
        self._interests = interests

    def plan(self, group: str, topic: str, queues: Mapping[ConsumeQueue, int]) -> ResetPlan:
        """What would be changed now.

        Args:
            group: the group.
            topic: the topic.
            queues: queues of the topic, and where the group is to go on there. Nothing is to be said of an empty one:
                whoever reads it begins at its end.
        """
        given_out = [each for each in self._state.table.of_group(group) if each.topic == topic]
        return ResetPlan(
            group,
            topic,
            {queue: offset for queue, offset in queues.items() if queue.min_offset < queue.max_offset},
            self._store.queue(names.stored_retry_topic(group, topic), 0),
            given_out,
            sum(each.open_bits.bit_count() for each in given_out if not each.is_held),
        )

    def carry_out(self, plan: ResetPlan) -> None:
        """Change it. To be called at once: nothing may have happened since it was planned.

        Raises:
            StatusError: the disk is full, or there is no room for more progress; nothing has changed.
        """
        buffer = self._state.merge_buffer
        offsets = dict(plan.queues)
        if plan.retries is not None:
            # Those among them that can't be read yet stand before the reset, too.
            offsets[plan.retries] = self._store.next_offset(plan.retries.topic, plan.retries.queue_id)
        if not all(buffer.has_room(buffer.of(plan.group, queue)) for queue in offsets):
            raise self._pops.progress_full()
        revive = self._topics.revive
        commits = (OffsetCommit(plan.group, each.topic, each.queue_id, at) for each, at in offsets.items())
        records = [Record(RecordKind.OFFSET, revive, 0, each.encode(), origin=RESET) for each in commits]
        records += [
            Record(RecordKind.ACK, revive, each.revive_queue, encode_ack(each.id, each.open_bits))
            for each in plan.given_out
        ]
        self._store.put(records)
        for queue, offset in offsets.items():
            buffer.reset(plan.group, queue, offset)
            self._pops.damaged.pop(queue, None)
        for each in plan.given_out:
            self._state.close(each.id, each.open_bits)
        polled = [each for each in self._interests.of_topic(plan.topic) if each.group == plan.group]
        tell_again(polled, lambda each: self._pops.waiting(each.group, each.topic, each.wanted))
