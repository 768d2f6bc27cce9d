"""Pops from lite topics: one message of each that is ready for the client, in order (P6).

A lite topic is its own message-group queue, so nothing of it is read while a message of it is in flight.
"""

from collections.abc import Sequence

from popwheel_broker.consume.merge_buffer import QueueProgress
from popwheel_broker.consume.message_group_queues import MessageGroupQueues
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.consume.pops import Pops
from popwheel_broker.consume.taken import Budget, Taken
from popwheel_broker.lite.readers import ClientKey, LiteClient
from popwheel_broker.lite.subscriptions import LiteSubscriptions
from popwheel_broker.log.message_store import MessageStore
from popwheel_common.contract import names, receipt
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest

LINE = 1
"""The message-group queue of every message of a lite topic."""

_READS_MAX = 1024
"""Limit of lite topics that one pop reads."""


class LitePops:
    """Takes messages from lite topics.

    Args:
        store: the messages.
        state: messages in flight.
        pops: reads, records and delivers.
        subscriptions: of clients.
        response_bytes_max: of messages in one answer.
    """

    def __init__(
        self,
        store: MessageStore,
        state: PopState,
        pops: Pops,
        subscriptions: LiteSubscriptions,
        response_bytes_max: int,
    ) -> None:
        self._store = store
        self._state = state
        self._pops = pops
        self._subscriptions = subscriptions
        self._response_bytes_max = response_bytes_max

    @property
    def message_group_queues(self) -> MessageGroupQueues:
        """Messages delivered, and those to be redelivered."""
        return self._pops.ordered.message_group_queues

    def pop(self, request: PopRequest, now_ms: int) -> PopAnswer:
        """Deliver messages; never waits. As `Pops.pop`, for a client that reads lite topics.

        Args:
            request: the pop.
            now_ms: when the client is seen.

        Raises:
            StatusError: as `Pops.pop` does.
        """
        client = self._subscriptions.seen(ClientKey(request.group, request.topic, request.client_id), now_ms)
        if client is None:
            return PopAnswer(is_unknown_client=True)
        if self._pops.is_paused(request.group, request.topic):
            return self._pops.again(request)
        room = self._pops.room(request.group)
        answer = self._pops.again(request)
        found = client.group.ready_for(client)
        if not answer.messages:
            budget = Budget(min(request.max_messages, room), _READS_MAX, self._response_bytes_max)
            self._deliver(request, client, found[:_READS_MAX], budget, answer)
        answer.waiting = sum(each in client.group.ready for each in found)
        return answer

    def _deliver(
        self, request: PopRequest, client: LiteClient, found: Sequence[str], budget: Budget, answer: PopAnswer
    ) -> None:
        taken: list[Taken] = []
        looked_at: dict[str, int] = {}
        barred: list[QueueProgress] = []
        try:
            for lite_topic in found:
                if budget.is_spent:
                    break
                looked_at[lite_topic] = self._subscriptions.taken(client.group, lite_topic)
                self._take(client, lite_topic, budget, taken, barred)
            if taken:
                self._pops.deliver(request, taken, answer)
                return
        except BaseException:  # also NotInMemory: these lite topics are to be popped again
            self._subscriptions.put_back(client.group, looked_at)
            raise
        self._pops.check_standstill((), barred)
        if any(not self._pops.stands_still(each.queue) for each in barred):
            raise self._pops.progress_full(request.group)

    def _take(
        self, client: LiteClient, lite_topic: str, budget: Budget, taken: list[Taken], barred: list[QueueProgress]
    ) -> None:
        """Take the next message of a lite topic, if there is one and its group has none in flight.

        Args:
            client, lite_topic: which client, of which lite topic.
            budget: of the pop.
            taken: the message is added to it.
            barred: the lite topic is added to it if it can't be read: it stands still, or there is no room for more
                progress.
        """
        group, topic = client.key.group, names.lite_topic(client.key.topic, lite_topic)
        queue, lines = self._store.queue(topic, 0), self.message_group_queues
        if queue is None:
            return
        messages, before = budget.messages, len(taken)
        budget.messages = 1
        if lines.has(group, topic):
            if lines.ready(group, topic):
                self._pops.ordered.take_ready(group, topic, budget, taken)
        else:
            progress = self._state.merge_buffer.of(group, queue)
            self._pops.take(progress, receipt.FROM_TOPIC, None, budget, taken)
            if len(taken) > before:
                taken[-1].lines, taken[-1].attempts = (LINE,), (0,)
            elif progress.available:
                is_barred = self._pops.stands_still(queue) or not self._state.merge_buffer.has_room(progress)
                if is_barred:
                    barred.append(progress)
                if not self._pops.stands_still(queue):
                    # It is not in memory, or there may be room later.
                    self._subscriptions.again(client.group, lite_topic)
        budget.messages = messages - (len(taken) - before)

    def waits(self, group: str, topic: str, lite_topic: str) -> bool:
        """Return whether a lite topic has a message that a group may have now, without a read."""
        stored, lines = names.lite_topic(topic, lite_topic), self.message_group_queues
        if lines.has(group, stored):
            return lines.ready(group, stored) > 0
        queue = self._store.queue(stored, 0)
        return queue is not None and self._state.merge_buffer.of(group, queue).available_at_most > 0
