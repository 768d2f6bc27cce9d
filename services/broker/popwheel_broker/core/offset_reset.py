"""Sets a group back or forward in a topic, as an operator asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from popwheel_broker.consume.delivery import RESET, REVIVE_QUEUES, Delivery, OffsetCommit, close_records
from popwheel_broker.consume.pop_state import PopState, Revocation, is_read_from
from popwheel_broker.consume.pops import Pops
from popwheel_broker.core.notification import Interests, notify_again
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind
from popwheel_broker.topics.system_topics import SystemTopics
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

_AT_ONCE_MAX = 512
"""Limit of deliveries that are revoked by the write that sets the offsets."""
_STEP = 128
"""Limit of those that each further write revokes: a millisecond."""


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """Plan of a reset.

    Args:
        group: the consumer group.
        topic: the topic.
        queues: where the group is to go on in each of the topic's queues.
        retries: the queues of the group's retry topic, which are skipped.
        retries_kept: those that are not: a retry does not have its queue of origin.
        deliveries: those to the group of messages of the topic, or of its retries; blocked ones as well.
        in_flight: number of messages in flight.
        queue_id: the only queue that is reset; None for all of the topic.
    """

    group: str
    topic: str
    queues: Mapping[ConsumeQueue, int]
    retries: Sequence[ConsumeQueue]
    retries_kept: Sequence[ConsumeQueue]
    deliveries: list[Delivery]
    in_flight: int
    queue_id: int | None


class OffsetReset:
    """Resets offsets. A group gets all messages from its new offsets on as if it had never read them.

    So nothing else of the topic is left to it: its deliveries are revoked, and waiting retries are skipped. Both are
    delivered again if they stand behind the new offset. Dead letters stay.

    A reset of one queue revokes messages of that queue alone. Retries stay as they are, in flight or not: one retry
    queue serves all queues of a topic, and a retry does not have its queue of origin.

    It is one write. Of very many deliveries, that write sets the offsets, and the rest is revoked some at a time: after
    a crash in between, the others are redelivered once more, as always.

    Args:
        store: where records are put.
        state: messages in flight.
        topics: where a reset is recorded.
        pops: knows whether there is room for more progress, and which queues stand still.
        interests: of polls, notified of messages that can be read again.
    """

    def __init__(
        self, store: MessageStore, state: PopState, topics: SystemTopics, pops: Pops, interests: Interests
    ) -> None:
        self._store = store
        self._state = state
        self._topics = topics
        self._pops = pops
        self._interests = interests

    def plan(
        self, group: str, topic: str, queues: Mapping[ConsumeQueue, int], queue_id: int | None = None
    ) -> ResetPlan:
        """Return what a reset would change now.

        Args:
            group: the group.
            topic: the topic.
            queues: queues of the topic, and the new offsets. An empty queue needs none: its readers begin at its end.
            queue_id: the only queue that is reset; None for all of the topic.
        """
        deliveries = [
            each for each in self._state.table.of_group(group) if each.topic == topic and is_read_from(each, queue_id)
        ]
        retries = self._store.queues.of_topic(names.stored_retry_topic(group, topic))
        return ResetPlan(
            group,
            topic,
            {queue: offset for queue, offset in queues.items() if queue.min_offset < queue.max_offset},
            retries if queue_id is None else (),
            () if queue_id is None else retries,
            deliveries,
            sum(each.open_bits.bit_count() for each in deliveries if not each.is_blocked),
            queue_id,
        )

    def begin(self, plan: ResetPlan) -> None:
        """Set the offsets. To be called at once: nothing may have happened since the plan.

        From here on the earlier deliveries are no client's: no handle is valid, and no message of them is redelivered.
        Nothing is delivered to the group either until `end`, so it gets no message before the reset is complete.

        Raises:
            StatusError: the disk is full, there is no room for more progress, or another reset of the group in this
                topic is under way; nothing has changed.
        """
        pair = (plan.group, plan.topic)
        if pair in self._state.revoking:
            raise StatusError(
                Code.TOO_MANY_REQUESTS, f"a reset of {plan.group} in {plan.topic} is under way; wait until it has ended"
            )
        buffer = self._state.merge_buffer
        offsets = dict(plan.queues)
        for queue in plan.retries:
            # Those among them that can't be read yet stand before the reset, too.
            offsets[queue] = self._store.next_offset(queue.topic, queue.queue_id)
        if not all(buffer.has_room(buffer.of(plan.group, queue)) for queue in offsets):
            raise self._pops.progress_full(plan.group)
        revive = self._topics.revive
        commits = (OffsetCommit(plan.group, each.topic, each.queue_id, at) for each, at in offsets.items())
        records = [Record(RecordKind.OFFSET, revive, 0, each.encode(), origin=RESET) for each in commits]
        at_once = plan.deliveries if len(plan.deliveries) <= _AT_ONCE_MAX else []
        self._store.put([*records, *close_records(revive, at_once)])
        for queue in offsets:
            self._pops.damaged.pop(queue, None)
        plan.deliveries[:] = [each for each in plan.deliveries if each.open_bits]
        self._state.revoking[pair] = Revocation(self._state.table.next_number * REVIVE_QUEUES, plan.queue_id)

    def revoke_some(self, plan: ResetPlan) -> bool:
        """Revoke some of the deliveries; return whether there may be more.

        Raises:
            StatusError: the disk is full. The other deliveries stay in flight: the reset is to be repeated.
        """
        some = plan.deliveries[-_STEP:]
        del plan.deliveries[-_STEP:]
        there = [found for each in some if (found := self._state.table.get(each.id)) is not None]
        if there:
            self._store.put(close_records(self._topics.revive, there))
        return bool(plan.deliveries)

    def end(self, plan: ResetPlan) -> None:
        """End a reset: all is revoked, or can't be; notify polls of messages that can be read again."""
        self._state.revoking.pop((plan.group, plan.topic), None)
        polled = [each for each in self._interests.of_topic(plan.topic) if each.group == plan.group]
        notify_again(polled, lambda each: self._pops.waiting(each.group, each.topic, each.wanted))
