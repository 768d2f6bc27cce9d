"""Finds a message by its id: in its topic, in retry topics, among dead letters, and where it waits before it comes into
its topic; or all messages with a key or a tag in a topic, or from some place of it on. Ids and keys have no index, so
messages stored since some time are read, some at a time.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.in_flight import named_place
from popwheel_broker.consume.pop_state import PopState, stored_topic
from popwheel_broker.core.waiting_places import WAITING_TOPICS, message_of
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.record_block import Places, Sought, choose
from popwheel_broker.topics.readers import Readers
from popwheel_common.contract import names
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties

_MESSAGES_AT_ONCE = 128
"""Records that a step decodes at most."""
_SCANNED_AT_ONCE = 1_024
"""Records that a step searches for the bytes of an id, a key or a tag at most."""
_BYTES_AT_ONCE = 1 << 20
_DELIVERIES_AT_ONCE = 2_048
_EVER_MS = 1 << 62
_NAMES_NO_MESSAGE = frozenset[int]((RecordKind.RECALL, RecordKind.HALF_END))
"""Records of waiting messages that name theirs by its position alone."""
_PLACE = re.compile(r"([^/]{1,255})/([0-9]{1,5})/([0-9]{1,20})")


class SearchPlace(NamedTuple):
    """Place where a search continues.

    Queues come in the order in which a message goes through their topics, then by the names of these and their numbers:
    a message that leaves one of them meanwhile is found later.

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
        """Return the place that a text names, as `str` has made it; the first of all for an empty one.

        Raises:
            StatusError: BAD_REQUEST, it names none.
        """
        if not text:
            return cls()
        match = named_place(_PLACE, text)
        return cls(match[1], int(match[2]), int(match[3]))


class Wanted(NamedTuple):
    """Conditions of a search.

    Args:
        topic: that it was sent to.
        message_id: its id; empty for a search by the conditions below. Then only the topic is searched: copies have the
            same keys.
        group: in this group's retries and dead letters alone; empty for those of all.
        since_ms: messages stored before are skipped.
        until_ms: messages stored in the topic itself after this are skipped.
        key: one of its keys; empty for any.
        tag: its tag; empty for any.
        queue_id: of this queue alone; None for all.
        offset: messages before it in their queue are skipped.
        last: number of messages before the end of each queue where the search begins; 0 for all.
    """

    topic: str
    message_id: str
    group: str
    since_ms: int
    until_ms: int
    key: str = ""
    tag: str = ""
    queue_id: int | None = None
    offset: int = 0
    last: int = 0

    def sought(self, topic: str) -> Sought:
        """Describe the records of a topic, as it is stored, that are decoded for it."""
        words = (each.encode() for each in (self.message_id, self.key, self.tag) if each)
        kinds = _NAMES_NO_MESSAGE if topic in WAITING_TOPICS else frozenset[int]()
        return Sought(tuple(words), kinds, self.until_ms if topic == self.topic else _EVER_MS)

    def is_met_by(self, stored: StoredRecord) -> bool:
        """Return whether a message meets them. Its bytes are searched first, as most records fail there."""
        wanted = (self.message_id, self.key, self.tag)
        if any(each and each.encode() not in stored.system_properties for each in wanted):
            return False
        if not any(wanted):
            return True
        try:
            properties = SystemProperties.FromString(stored.system_properties)
        except DecodeError:
            return False
        if self.message_id:
            return properties.message_id == self.message_id
        return (not self.key or self.key in properties.keys) and self.tag in ("", properties.tag)


class SearchStep(NamedTuple):
    """Result of a step of the search.

    Args:
        found: messages that meet the conditions.
        next: where to go on; None if those were the last places.
        messages: number of checked messages, unreadable ones among them.
        unreadable: number of unreadable messages.
    """

    found: list[StoredRecord]
    next: SearchPlace | None
    messages: int = 0
    unreadable: int = 0


class Holding(NamedTuple):
    """State of a message at one place for a group that has read it, and has not finished it.

    Args:
        place: the message: its topic, queue and offset.
        group: the group.
        delivery: its delivery.
        number: its index there.
    """

    place: tuple[str, int, int]
    group: str
    delivery: Delivery
    number: int


class MessageSearch:
    """Finds messages.

    Args:
        store: where they are.
        state: messages in flight, and progress.
        readers: topics by reading group.
    """

    def __init__(self, store: MessageStore, state: PopState, readers: Readers) -> None:
        self._store = store
        self._state = state
        self._readers = readers

    def step(self, wanted: Wanted, begin: SearchPlace, found_max: int = _MESSAGES_AT_ONCE) -> SearchStep:
        """Search some places.

        Args:
            wanted: the conditions.
            begin: the first place.
            found_max: limit of the messages found by a step.

        Raises:
            NotInMemory: they are to be read first; nothing is lost by that.
        """
        for queue in self._queues(wanted, begin):
            is_same = (queue.topic, queue.queue_id) == (begin.topic, begin.queue_id)
            at = begin.offset if is_same else 0
            at = max(at, queue.min_offset) if at else self._first_offset(wanted, queue)
            sought = wanted.sought(queue.topic)
            entries = queue.read_packed(at, _SCANNED_AT_ONCE if sought.parts else _MESSAGES_AT_ONCE)
            if not entries:
                return SearchStep([], SearchPlace(queue.topic, queue.queue_id + 1))
            places, end = choose(entries, at, None, _SCANNED_AT_ONCE, _BYTES_AT_ONCE)
            records, unreadable, count = self._read(queue, places, sought)
            end = min(end, at + count)
            if len(records) > _MESSAGES_AT_ONCE:
                end = records.pop().queue_offset
            later = next((each.queue_offset for each in records if each.store_time_ms > sought.until_ms), None)
            end = end if later is None else later
            if queue.topic in WAITING_TOPICS:
                found, end = self._waiting(wanted, records, end)
            else:
                found = [each for each in records if each.queue_offset < end and wanted.is_met_by(each)]
            found = [each for each in found if each.store_time_ms >= wanted.since_ms]
            if len(found) > found_max:
                later, end, found = None, found[found_max].queue_offset, found[:found_max]
            following = SearchPlace(queue.topic, queue.queue_id, end)
            if later is not None:
                following = SearchPlace(queue.topic, queue.queue_id + 1)
            return SearchStep(found, following, end - at, sum(offset < end for offset in unreadable))
        return SearchStep([], None)

    def _first_offset(self, wanted: Wanted, queue: ConsumeQueue) -> int:
        """Find where to begin in a queue: at its first record, if a damaged one hides where the time begins."""
        try:
            with RECORD_STEP:
                at = self._store.records.offset_at(queue, wanted.since_ms) if wanted.since_ms else queue.min_offset
        except (CorruptDataError, RecordFaultError):
            at = queue.min_offset
        at = max(at, wanted.offset)
        return max(at, queue.max_offset - wanted.last) if wanted.last else at

    def _waiting(self, wanted: Wanted, records: Sequence[StoredRecord], end: int) -> tuple[list[StoredRecord], int]:
        """Return the records of a queue of waiting messages that concern the wanted one, and where the step ends."""
        found: list[StoredRecord] = []
        size = 0
        for each in records:
            if size > _BYTES_AT_ONCE or each.queue_offset >= end:
                return found, min(end, each.queue_offset)
            message = message_of(self._store, each, wanted.topic)
            if message is not None:
                size += 0 if message is each else message.length
                if wanted.is_met_by(message):
                    found.append(each)
        return found, end

    def readers(self, stored: StoredRecord, group: str) -> dict[str, bool]:
        """Return the groups that read a message's topic, or whose retry topic that is, and whether the message still
        waits for them.

        Args:
            stored: the message, as `step` has found it.
            group: this group alone; empty for all.
        """
        if stored.topic in WAITING_TOPICS:
            return {}
        queue = self._store.queue(stored.topic, stored.queue_id)
        owner = names.group_of_retry_topic(stored.topic)
        read = self._readers
        groups = [group or owner] if group or owner else [*{*self._state.merge_buffer.groups, *read.groups}]
        found: dict[str, bool] = {}
        for each in groups:
            progress = None if queue is None else self._state.merge_buffer.of(each, queue)
            if progress is not None and (each == owner or not progress.is_new or read.knows(each, stored.topic)):
                found[each] = stored.queue_offset >= progress.next_offset
        return found

    def holdings(self, messages: Sequence[StoredRecord], group: str, begin: int) -> tuple[list[Holding], int | None]:
        """Return the states of messages by some of the deliveries, and the id to go on from; None if those were all.

        Whatever replaces a delivery meanwhile has a higher id, so the search finds it.

        Args:
            messages: as `step` has found them.
            group: of this group alone; empty for all.
            begin: the first id to search.
        """
        wanted = {(each.topic, each.queue_id, each.queue_offset) for each in messages}
        queues = {place[:2] for place in wanted}
        found: list[Holding] = []
        for count, delivery in enumerate(self._state.table.begin_at(begin, group)):
            if count == _DELIVERIES_AT_ONCE:
                return found, delivery.id
            stands_in = stored_topic(delivery), delivery.queue_id
            if stands_in in queues and (not group or delivery.group == group):
                for index in delivery.open_indexes():
                    place = *stands_in, delivery.offsets[index]
                    if place in wanted:
                        found.append(Holding(place, delivery.group, delivery, index))
        return found, None

    def _queues(self, wanted: Wanted, begin: SearchPlace) -> Iterator[ConsumeQueue]:
        """Yield the queues that may have it, from a place on."""
        queues = self._store.queues
        if not wanted.message_id:
            stored = set()
        elif wanted.group:
            stored = {names.stored_retry_topic(wanted.group, wanted.topic), names.dead_letter_topic(wanted.group)}
        else:
            stored = {*queues.retry_topics(wanted.topic)}
            stored |= {each for each in queues.system_topics if each.startswith(names.DEAD_LETTER_PREFIX)}
        if wanted.message_id:
            stored |= WAITING_TOPICS
        first = (-1, "") if not begin.topic else _order(wanted, begin.topic)
        for at, topic in sorted((_order(wanted, each), each) for each in {wanted.topic, *stored}):
            if at >= first:
                for queue in sorted(queues.of_topic(topic), key=lambda each: each.queue_id):
                    is_wanted = wanted.queue_id in (None, queue.queue_id)
                    if is_wanted and (at > first or queue.queue_id >= begin.queue_id):
                        yield queue

    def _read(self, queue: ConsumeQueue, places: Places, sought: Sought) -> tuple[list[StoredRecord], list[int], int]:
        """Return the sought records, one more at the most than a step checks; the offsets of unreadable ones; and how
        many places were checked: fewer where one can't be read, as those cost more.
        """
        count = len(places.offsets)
        try:
            with RECORD_STEP:
                return self._store.records.read_sought(queue, places, sought, _MESSAGES_AT_ONCE + 1), [], count
        except (CorruptDataError, RecordFaultError):
            if count == 1:
                return [], places.offsets.tolist(), 1
            if count > _MESSAGES_AT_ONCE:
                return self._read(queue, places.part(0, _MESSAGES_AT_ONCE), sought)
            first, first_unreadable, half = self._read(queue, places.part(0, count // 2), sought)
            second, second_unreadable, _ = self._read(queue, places.part(half, count), sought)
            return first + second, first_unreadable + second_unreadable, count


def _order(wanted: Wanted, topic: str) -> tuple[int, str]:
    """Return the order in which a message comes through a topic."""
    if topic in WAITING_TOPICS:
        return 0, topic
    if topic == wanted.topic:
        return 1, topic
    return (2 if names.group_of_retry_topic(topic) else 3), topic
