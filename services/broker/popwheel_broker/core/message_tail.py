"""Tail of a topic: some of the newest messages, and the number of the others.

A client polls it repeatedly, so a poll costs little however many messages came: it is bounded in messages and in bytes,
and the rest is counted and not read.
"""

from collections.abc import Mapping
from typing import NamedTuple

from popwheel_broker.core.message_search import Wanted
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import StoredRecord
from popwheel_common.errors import CorruptDataError

_SCANNED_MAX = 256
"""Messages that one poll reads."""
_BYTES_MAX = 1 << 20


class TailWanted(NamedTuple):
    """Conditions for messages of a tail.

    Args:
        topic: of which, as it is stored.
        key, tag: that they have; empty for any.
    """

    topic: str
    key: str = ""
    tag: str = ""

    def is_met_by(self, stored: StoredRecord) -> bool:
        """Return whether a message is one of those."""
        return Wanted(self.topic, "", "", 0, 0, self.key, self.tag).is_met_by(stored)


class Seen(NamedTuple):
    """Messages since the last poll of a tail.

    Args:
        found: messages, in the order in which they were stored.
        places: by queue, where the next poll goes on.
        passed_over: messages that were not read, or are more than was asked for.
    """

    found: list[StoredRecord]
    places: dict[int, int]
    passed_over: int


class MessageTail:
    """Reads new messages.

    Args:
        store: where it came.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def step(self, wanted: TailWanted, places: Mapping[int, int], limit: int) -> Seen:
        """Read the messages since the last poll.

        Args:
            wanted: the conditions.
            places: where the last poll ended, by queue. A queue that is not among them is new, so all of it came since.
                Empty at the first poll, which finds nothing.
            limit: of messages found, the newest.

        Raises:
            NotInMemory: something is to be read first; nothing is lost by that.
        """
        queues = self._store.queues.of_topic(wanted.topic)
        ends = {queue.queue_id: queue.max_offset for queue in queues}
        if not places:
            # A topic without queues has a place as well, so that the next poll is not taken for the first.
            return Seen([], ends or {0: 0}, 0)
        came = [(queue, _begin(queue, places)) for queue in queues]
        came = [(queue, begin) for queue, begin in came if begin < queue.max_offset]
        total = sum(queue.max_offset - begin for queue, begin in came)
        share = max(1, _SCANNED_MAX // max(1, len(came)))
        looked, left_bytes = 0, _BYTES_MAX
        found: list[StoredRecord] = []
        for queue, begin in came[:_SCANNED_MAX]:
            records, read, size = self._newest(queue, max(begin, queue.max_offset - share), left_bytes)
            looked, left_bytes = looked + read, left_bytes - size
            found += (each for each in records if wanted.is_met_by(each))
        found.sort(key=lambda each: each.position)
        shown = found[-limit:] if limit else []
        return Seen(shown, {**places, **ends}, total - looked + len(found) - len(shown))

    def _newest(self, queue: ConsumeQueue, begin: int, bytes_max: int) -> tuple[list[StoredRecord], int, int]:
        """Return messages from an offset to the end of a queue, as many of the newest as there is room for; the number
        read, unreadable ones among them; and their size.
        """
        entries = queue.read(begin, queue.max_offset - begin)
        size = count = 0
        for entry in reversed(entries):
            if size + entry.length > bytes_max and (count or bytes_max < _BYTES_MAX):
                break  # a longer message is read alone
            size += entry.length
            count += 1
        first = begin + len(entries) - count
        chosen = entries[len(entries) - count :]
        records: list[StoredRecord] = []
        try:
            with RECORD_STEP:
                records = self._store.records.read_checked(queue, range(first, first + count), chosen)
        except (CorruptDataError, RecordFaultError):
            records = []  # a read of the queue finds out which is damaged
        return records, count, size


def _begin(queue: ConsumeQueue, places: Mapping[int, int]) -> int:
    """Return where a poll begins in a queue.

    One that is shorter than it was is of a new master, which never had the rest.
    """
    at = places.get(queue.queue_id, 0)
    return min(max(at, queue.min_offset), queue.max_offset)
