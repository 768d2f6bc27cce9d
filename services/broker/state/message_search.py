"""Looks for a message by its id: in its topic, in retry topics, among dead letters. Nothing is kept of ids, so what was
stored since some time is read, some at a time.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from services.broker.pop.in_flight import named_place
from services.broker.progress.check_point import CheckPoint
from services.broker.progress.pop_state import PopState, stored_topic
from services.broker.records.fault import RECORD_STEP, RecordFaultError
from services.broker.records.record import StoredRecord
from services.broker.store.consume_queue import ConsumeQueue, Entry
from services.broker.store.message_store import MessageStore
from services.common.contract import names
from services.common.errors import CorruptDataError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties

_MESSAGES_AT_ONCE = 128
_BYTES_AT_ONCE = 1 << 20
_CHECK_POINTS_AT_ONCE = 2_048
_EVER_MS = 1 << 62
_PLACE = re.compile(r"([^/]{1,255})/([0-9]{1,5})/([0-9]{1,20})")


class SearchPlace(NamedTuple):
    """Where a search goes on. Queues come in the order of their topics' names and their numbers.

    Args:
        topic, queue_id: in this queue, or the first behind it.
        offset: of that very queue from this offset on; 0 for where the search begins there.
    """

    topic: str = ""
    queue_id: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}/{self.offset}"

    @classmethod
    def of(cls, text: str) -> "SearchPlace":
        """The place that a text names, as `str` has made it; the first of all for an empty one.

        Raises:
            StatusError: BAD_REQUEST, it names none.
        """
        if not text:
            return cls()
        match = named_place(_PLACE, text)
        return cls(match[1], int(match[2]), int(match[3]))


class Wanted(NamedTuple):
    """What is looked for.

    Args:
        topic: that it was sent to.
        message_id: its id.
        group: in this group's retries and dead letters alone; empty for those of all.
        since_ms: what was stored before is not looked at.
        until_ms: nor is what was stored in the topic itself behind this.
    """

    topic: str
    message_id: str
    group: str
    since_ms: int
    until_ms: int


class Holding(NamedTuple):
    """What a group has of a message at one place that it has read, while it is not done with it.

    Args:
        place: the message: its topic, queue and offset.
        group: the group.
        check_point: in which it is.
        number: its index there.
    """

    place: tuple[str, int, int]
    group: str
    check_point: CheckPoint
    number: int


class MessageSearch:
    """Looks for messages.

    Args:
        store: where they are.
        state: who has what.
    """

    def __init__(self, store: MessageStore, state: PopState) -> None:
        self._store = store
        self._state = state

    def step(self, wanted: Wanted, begin: SearchPlace) -> tuple[list[StoredRecord], SearchPlace | None]:
        """What some places hold of it, and where to go on; None if that were the last ones.

        Raises:
            NotInMemory: they are to be read first; nothing is lost by that.
        """
        for queue in self._queues(wanted, begin):
            is_same = (queue.topic, queue.queue_id) == (begin.topic, begin.queue_id)
            at = begin.offset if is_same else 0
            at = max(at, queue.min_offset) if at else self._store.records.offset_at(queue, wanted.since_ms)
            entries = _within(queue.read(at, _MESSAGES_AT_ONCE))
            records = self._read(queue, at, entries)
            until_ms = wanted.until_ms if queue.topic == wanted.topic else _EVER_MS
            in_time = [each for each in records if each.store_time_ms <= until_ms]
            found = [each for each in in_time if _is(each, wanted.message_id)]
            if not entries or len(in_time) < len(records):
                return found, SearchPlace(queue.topic, queue.queue_id + 1)
            return found, SearchPlace(queue.topic, queue.queue_id, at + len(entries))
        return [], None

    def readers(self, stored: StoredRecord, group: str) -> dict[str, bool]:
        """Groups that have read of a message's queue, or whose retry topic that is, and whether the message still waits
        to be read.

        Args:
            stored: the message, as `step` has found it.
            group: this group alone; empty for all.
        """
        queue = self._store.queue(stored.topic, stored.queue_id)
        owner = names.group_of_retry_topic(stored.topic)
        groups = [group or owner] if group or owner else list(self._state.merge_buffer.groups)
        found: dict[str, bool] = {}
        for each in groups:
            progress = None if queue is None else self._state.merge_buffer.of(each, queue)
            if progress is not None and (each == owner or not progress.is_new):
                found[each] = stored.queue_offset >= progress.next_offset
        return found

    def holdings(self, messages: Sequence[StoredRecord], group: str, begin: int) -> tuple[list[Holding], int | None]:
        """What groups have of messages by some of the check points, and the id to go on from; None if those were all.

        Whatever takes the place of a check point meanwhile has a higher id, so it is met.

        Args:
            messages: as `step` has found them.
            group: of this group alone; empty for all.
            begin: the first id that is looked at.
        """
        wanted = {(each.topic, each.queue_id, each.queue_offset) for each in messages}
        queues = {place[:2] for place in wanted}
        found: list[Holding] = []
        for count, check_point in enumerate(self._state.table.begin_at(begin, group)):
            if count == _CHECK_POINTS_AT_ONCE:
                return found, check_point.id
            stands_in = stored_topic(check_point), check_point.queue_id
            if stands_in in queues and (not group or check_point.group == group):
                for index in check_point.open_indexes():
                    place = *stands_in, check_point.offsets[index]
                    if place in wanted:
                        found.append(Holding(place, check_point.group, check_point, index))
        return found, None

    def _queues(self, wanted: Wanted, begin: SearchPlace) -> Iterator[ConsumeQueue]:
        """Those that may hold it, from a place on."""
        queues = self._store.queues
        if wanted.group:
            stored = {names.stored_retry_topic(wanted.group, wanted.topic), names.dead_letter_topic(wanted.group)}
        else:
            stored = {*queues.retry_topics(wanted.topic)}
            stored |= {each for each in queues.system_topics if each.startswith(names.DEAD_LETTER_PREFIX)}
        for topic in sorted({wanted.topic, *stored}):
            if topic >= begin.topic:
                for queue in sorted(queues.of_topic(topic), key=lambda each: each.queue_id):
                    if topic > begin.topic or queue.queue_id >= begin.queue_id:
                        yield queue

    def _read(self, queue: ConsumeQueue, start: int, entries: list[Entry]) -> list[StoredRecord]:
        """The records; without those that can't be read."""
        try:
            with RECORD_STEP:
                return self._store.records.read_checked(queue, range(start, start + len(entries)), entries)
        except (CorruptDataError, RecordFaultError):
            if len(entries) <= 1:
                return []
            half = len(entries) // 2
            return self._read(queue, start, entries[:half]) + self._read(queue, start + half, entries[half:])


def _within(entries: list[Entry]) -> list[Entry]:
    """The first of them that are not too long together; one at least, if there is one."""
    size = 0
    for count, entry in enumerate(entries):
        size += entry.length
        if count and size > _BYTES_AT_ONCE:
            return entries[:count]
    return entries


def _is(stored: StoredRecord, message_id: str) -> bool:
    """Whether it has that id. Its bytes are looked through first: few records are the one."""
    if message_id.encode() not in stored.system_properties:
        return False
    try:
        return SystemProperties.FromString(stored.system_properties).message_id == message_id
    except DecodeError:
        return False
