"""Finds messages that an earlier try of a send has stored already, when its outcome is unknown.

A proxy that lost its answer (its broker died, or was deposed) tries once more at the group's master. The ids of sends
(`send_id.py`) at the end of the queue show which messages are stored: those of the last minute, and of the last 4096
messages at the most. They are remembered while such retries come, up to a limit of their own. Past it those of the
queues unused for the longest time are forgotten, and read again when needed: that costs time and never results in a
wrong answer.

A first try may come after the second one, on a connection that its proxy has dropped: a network may delay bytes and
deliver them when it is whole again. So the ids of retried messages are remembered, too.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from popwheel_broker.log.consume_queue import ConsumeQueue, Entry
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.log.run_batch import RunWriter, Sent
from popwheel_broker.log.timer_record import fired_timer
from popwheel_common.clock import Clock
from popwheel_common.contract.put import MessageRun
from popwheel_common.contract.send_id import send_id_of

_ENTRIES_MAX = 4096
_AGE_MS_MAX = 60_000
_READ_AT_ONCE = 256
_RETENTION_MS = 60_000
"""Time after its last use for which a read is remembered: retries come in the moments after a failover, no later."""
_QUEUES_MAX = 256
MESSAGES_MAX = 65_536
"""Limit of messages remembered, of some 200 bytes each, and of ids of retried messages."""


class Timer(Protocol):
    """Timer of later work."""

    def cancel(self) -> None:
        """Cancel it."""


class Stored(NamedTuple):
    """A stored message.

    Args:
        queue_offset: in its queue, or in the timer queue.
        store_time_ms: wall clock.
        position: names a delayed or half message; of one that has fired, its last TIMER record; else -1.
    """

    queue_offset: int
    store_time_ms: int
    position: int


class _Known:
    """Messages read of one queue so far."""

    def __init__(self, offset: int) -> None:
        self.end_offset = offset
        self.messages: dict[tuple[str, int, int], Stored] = {}
        """Messages by topic, that topic's id where records have it (else 0), and id of the send."""


class Dedup:
    """Searches the ends of queues.

    Args:
        store: the messages.
        clock: for their ages.
        later: calls back after a number of seconds.
        ids_of: returns all ids that records may have for the topic that has a name now.
        writers: of messages that do not go into their queue at once; each has a queue of its own.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], Timer],
        ids_of: Callable[[str], Sequence[int]],
        writers: Sequence[RunWriter],
    ) -> None:
        self._store = store
        self._clock = clock
        self._later = later
        self._ids_of = ids_of
        self._by_kind = {each.kind: each for each in writers}
        self._by_topic = {each.queue[0]: each for each in writers}
        self._queues: dict[tuple[str, int], _Known] = {}
        self._tried: dict[int, None] = {}
        self._scanned_at_ms = 0
        self._timer: Timer | None = None

    @property
    def remembered_messages(self) -> int:
        """Messages that are known from earlier searches, of `MESSAGES_MAX`."""
        return sum(len(known.messages) for known in self._queues.values())

    @property
    def remembered_ids(self) -> int:
        """Ids of retried messages, of `MESSAGES_MAX`."""
        return len(self._tried)

    def end(self) -> None:
        """End all searches."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_late(self, run: MessageRun) -> bool:
        """Return whether a message of a run sent as a first try was retried before."""
        return any(send_id_of(properties) in self._tried for properties in run.system_properties)

    def find(self, run: MessageRun) -> list[Stored | None]:
        """Find the stored messages of a run; None for those that are not stored.

        Raises:
            CorruptDataError: the end of the queue, or what it leads to, is damaged, so it is unknown.
        """
        self._scanned_at_ms = self._clock.steady_ms()
        if self._timer is None:
            self._timer = self._later(_RETENTION_MS / 1000, self._forget)
        ids = [send_id_of(properties) for properties in run.system_properties]
        self._tried.update((each, None) for each in ids if each is not None)
        writer = self._by_kind.get(run.kind)
        found: list[Stored | None] = [None] * len(ids)
        if writer is None or writer.leaves_by_itself:  # before its own queue: they may have left that
            topic = run.stored_topic
            found = [self._in_queue(topic, run.queue_id, topic, (0,), each) for each in ids]
        if writer is not None and None in found:
            topic_ids = self._ids_of(run.topic) or (0,)
            found = [
                stored or self._in_queue(*writer.queue, run.topic, topic_ids, each)
                for stored, each in zip(found, ids, strict=True)
            ]
        self._evict_over_limits()
        return found

    def _forget(self) -> None:
        rest_ms = self._scanned_at_ms + _RETENTION_MS - self._clock.steady_ms()
        if rest_ms > 0:
            self._timer = self._later(rest_ms / 1000, self._forget)
            return
        self._timer = None
        self._queues.clear()
        self._tried.clear()

    def _evict_over_limits(self) -> None:
        kept = self.remembered_messages
        while kept > MESSAGES_MAX or len(self._queues) > _QUEUES_MAX:
            kept -= len(self._queues.pop(next(iter(self._queues))).messages)
        while len(self._tried) > MESSAGES_MAX:
            del self._tried[next(iter(self._tried))]

    def _in_queue(
        self, queue_topic: str, queue_id: int, topic: str, topic_ids: Sequence[int], send_id: int | None
    ) -> Stored | None:
        queue = self._store.queue(queue_topic, queue_id)
        if queue is None or send_id is None:
            return None
        known = self._queues.pop((queue_topic, queue_id), None)
        end = self._store.next_offset(queue_topic, queue_id)
        if known is None or len(known.messages) > 2 * _ENTRIES_MAX:
            known = _Known(0)
        self._queues[queue_topic, queue_id] = known  # behind those that were used before
        if known.end_offset < end:
            known.end_offset = max(known.end_offset, end - _ENTRIES_MAX)
            self._read(queue, known)
            known.end_offset = end
        places = (known.messages.get((topic, topic_id, send_id)) for topic_id in topic_ids)
        stored = next((place for place in places if place is not None), None)
        # Messages stored when the topic was deleted are not in the one that was created again.
        return None if stored is None or stored.queue_offset < queue.min_offset else stored

    def _read(self, queue: ConsumeQueue, known: _Known) -> None:
        """Read from the queue's end back to what is known, or too old."""
        since_ms = self._clock.wall_ms() - _AGE_MS_MAX
        writer = self._by_topic.get(queue.topic)
        sent_of = _sent if writer is None else writer.sent
        for offset, entries in self._entries_backwards(queue, known.end_offset):
            records = self._store.records.read_checked(queue, range(offset, offset + len(entries)), entries)
            for found in records:
                send_id = send_id_of(found.system_properties)
                if send_id is None:
                    continue
                sent = sent_of(found)
                if sent is not None:
                    known.messages[sent.topic, sent.topic_id, send_id] = Stored(
                        found.queue_offset, found.store_time_ms, sent.position
                    )
            if records[0].store_time_ms < since_ms:
                return

    def _entries_backwards(self, queue: ConsumeQueue, from_offset: int) -> Iterator[tuple[int, list[Entry]]]:
        """Yield entries from the end on, also uncommitted ones, in pieces that are each in their order, with the offset
        at which each piece begins.
        """
        uncommitted = self._store.uncommitted_entries(queue)
        if uncommitted:
            yield queue.max_offset, uncommitted
        end = queue.max_offset
        while end > max(from_offset, queue.min_offset):
            begin = max(from_offset, queue.min_offset, end - _READ_AT_ONCE)
            yield begin, queue.read(begin, end - begin)
            end = begin


def _sent(found: StoredRecord) -> Sent:
    """Return the send that a message in its own queue came from."""
    return Sent(found.topic, 0, fired_timer(found))
