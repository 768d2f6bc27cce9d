"""Headers of the timer queue's records besides their message: their due time, and their target.

A record of kind TIMER or RECALL stands in queue 0 of `rmq_sys_wheel_timer`; its `origin` is a `Delay`. The record
that a timer becomes when it fires has `fired_origin` as its own: so the log itself shows which timers have fired (T2).

| what | bytes |
| --- | --- |
| delay | version 1, due time 8, root 8, predecessor 8, topic id 8, queue id 2, topic |
| origin of a fired message | position of the timer's record 8 |
"""

import struct
from typing import NamedTuple

from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_common.errors import UnknownFormatError

TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMER_QUEUE = 0
NONE = -1

_DELAY = struct.Struct(">BqqqqH")
_VERSION = 1
_FIRED = struct.Struct(">Q")
FIRED_BYTES = _FIRED.size
"""Length of the origin of a fired message."""


class Delay(NamedTuple):
    """Delay of a message, and its target.

    Args:
        topic: where it goes.
        queue_id: into which of its queues.
        topic_id: which topic of that name: not one that was made after this one was deleted.
        due_ms: when, wall clock.
        root: commit log position of its first record; `NONE` in that record itself. For a RECALL: of the message that
            is recalled.
        predecessor: position of the record that this one continues (roll); `NONE` if it is the first.
    """

    topic: str
    queue_id: int
    topic_id: int
    due_ms: int
    root: int = NONE
    predecessor: int = NONE

    def root_at(self, position: int) -> int:
        """Return the position of the message's first record, which names it.

        The record with this delay stands at a position.
        """
        return position if self.root == NONE else self.root

    def encode(self) -> bytes:
        """Return the origin of its record."""
        return (
            _DELAY.pack(_VERSION, self.due_ms, self.root, self.predecessor, self.topic_id, self.queue_id)
            + self.topic.encode()
        )


def decode_delay(data: bytes) -> Delay:
    """Read what `Delay.encode` made.

    Raises:
        UnknownFormatError: it was written by a newer release.
    """
    version, due_ms, root, predecessor, topic_id, queue_id = _DELAY.unpack_from(data)
    if version != _VERSION:
        raise UnknownFormatError(f"a timer's record has format version {version}, this release knows {_VERSION}")
    return Delay(data[_DELAY.size :].decode(), queue_id, topic_id, due_ms, root, predecessor)


def recall_record(recall: Delay) -> Record:
    """Return the record that recalls a message. It does not contain the message, so no message makes it fail."""
    return Record(RecordKind.RECALL, TIMER_TOPIC, TIMER_QUEUE, b"", origin=recall.encode(), decoded=recall)


def fired_origin(position: int) -> bytes:
    """Return the origin of the message that the timer at a position of the commit log becomes."""
    return _FIRED.pack(position)


def fired_timer(found: StoredRecord) -> int:
    """Position of the timer that a message came from, `NONE` if it came from none."""
    return int(_FIRED.unpack(found.origin)[0]) if len(found.origin) == _FIRED.size else NONE
