"""Age of the oldest message that each group has yet to receive, or to acknowledge: lag in time, for metrics.

A round scans waiting messages and messages in flight, some at a time. It compares their positions in the log, which is
in the order of time. At the end it reads the headers of the first ones.
"""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import NamedTuple

from popwheel_broker.consume.delivery import REVIVE_QUEUES, Delivery
from popwheel_broker.consume.group_queues import GroupQueues
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.message_store import MessageStore
from popwheel_common.contract import names
from popwheel_common.errors import CorruptDataError
from popwheel_common.series import SERIES_MAX, Labels

_AT_ONCE = 200


class Ages(NamedTuple):
    """Ages of the oldest messages of a group in a topic; None if there are none, or it is unknown.

    Args:
        waiting_ms: of those that have yet to be delivered.
        unacked_ms: of those that have yet to be acknowledged, whether they wait or are in flight.
    """

    waiting_ms: int | None
    unacked_ms: int | None


class _Round:
    """Round of measurements: what is left to do, and the results so far.

    Args:
        groups: what it goes over.
    """

    def __init__(self, groups: list[str]) -> None:
        self.groups = groups
        self.queues: Iterator[ConsumeQueue | None] | None = None
        """The rest of those of the last of `groups`."""
        self.queue: ConsumeQueue | None = None
        """The group that is scanned."""
        self.revive_queues = list(range(REVIVE_QUEUES))
        self.deliveries: list[Delivery] = []
        """Deliveries of one revive queue: there may be a million in all."""
        self.waiting: dict[Labels, int] = {}
        """Position of the first message by group and topic."""
        self.unacked: dict[Labels, int] = {}
        self.unread: list[int] | None = None
        """Positions whose times are not known."""
        self.times_ms: dict[int, int | None] = {}

    def record(self, labels: Labels, position: int, *, waits: bool) -> None:
        """Record that a message was found."""
        for firsts in (self.waiting, self.unacked) if waits else (self.unacked,):
            firsts[labels] = min(position, firsts.get(labels, position))

    def positions(self) -> set[int]:
        """Return the positions whose times are wanted."""
        self.unacked = dict(nsmallest(SERIES_MAX, self.unacked.items(), key=lambda each: each[1]))
        self.waiting = {labels: position for labels, position in self.waiting.items() if labels in self.unacked}
        return {*self.unacked.values(), *self.waiting.values()}

    def result(self, now_ms: int) -> dict[Labels, Ages]:
        """Return the results, given the current time."""
        return {
            labels: Ages(self._age(self.waiting.get(labels), now_ms), self._age(position, now_ms))
            for labels, position in self.unacked.items()
        }

    def _age(self, position: int | None, now_ms: int) -> int | None:
        stored_ms = None if position is None else self.times_ms[position]
        return None if stored_ms is None else max(0, now_ms - stored_ms)


class OldestMessages:
    """Finds the oldest messages.

    Args:
        store: the messages.
        state: messages that wait for groups, and messages in flight.
        group_queues: which queues they read.
    """

    def __init__(self, store: MessageStore, state: PopState, group_queues: GroupQueues) -> None:
        self._store = store
        self._state = state
        self._group_queues = group_queues
        self._round: _Round | None = None
        self._times_ms: Mapping[int, int | None] = {}
        self.found: Mapping[Labels, Ages] = {}
        """Results of the last round by group and topic; only the oldest ones, if there are too many."""

    def step(self, now_ms: int) -> bool:
        """Scan for a few milliseconds; return whether the round is not over. After NotInMemory the next call goes on.

        Args:
            now_ms: the wall clock.
        """
        if self._round is None:
            self._round = _Round(self._group_queues.groups)
        for _ in range(_AT_ONCE):
            if self._is_over(self._round):
                self._times_ms, self.found = self._round.times_ms, self._round.result(now_ms)
                self._round = None
                return False
        return True

    def end(self) -> None:
        """Stop scanning: another broker leads."""
        self._round, self._times_ms, self.found = None, {}, {}

    def _is_over(self, now: _Round) -> bool:
        """Take the next step of a round, if there is one; what can't be read for now is tried again."""
        if now.queue is not None:
            self._scan_queue(now, now.groups[-1], now.queue)
            now.queue = None
        elif now.queues is not None:
            try:
                now.queue = next(now.queues)
            except StopIteration:
                now.queues = None
                now.groups.pop()
        elif now.groups:
            now.queues = self._group_queues.queues_of(now.groups[-1])
        elif now.deliveries:
            delivery = now.deliveries.pop()
            if delivery.open_bits:
                waits = delivery.is_blocked
                topic = names.client_topic(delivery.topic) if delivery.lines else delivery.topic
                now.record((delivery.group, topic), delivery.first_position, waits=waits)
        elif now.revive_queues:
            now.deliveries = self._state.table.in_queue(now.revive_queues.pop())
        elif now.unread is None:
            wanted = now.positions()
            now.times_ms = {position: self._times_ms[position] for position in wanted if position in self._times_ms}
            now.unread = list(wanted - now.times_ms.keys())
        elif now.unread:
            now.times_ms[now.unread[-1]] = self._store.records.stored_at_ms(now.unread[-1])
            now.unread.pop()
        else:
            return True
        return False

    def _scan_queue(self, now: _Round, group: str, queue: ConsumeQueue) -> None:
        progress = self._state.merge_buffer.of(group, queue)
        was_dropped = progress.is_new and self._store.queue(queue.topic, queue.queue_id) is not queue
        if was_dropped or not progress.available_at_most:
            return
        try:
            entries = queue.read(progress.next_offset, 1)
        except CorruptDataError:
            return  # the queue stands still, which the metrics show
        if entries:
            topic = names.lite_parent(queue.topic) if queue.is_lite else queue.topic
            now.record((group, topic), entries[0].position, waits=True)
