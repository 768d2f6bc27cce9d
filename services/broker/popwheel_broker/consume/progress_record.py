"""The PROGRESS record: offsets of groups that have passed messages without a delivery.

A pop whose filter wants nothing of what it reads moves the group on and leaves no record. A master appends where such
groups are, every few seconds, so that a new master and a restart read on from there (S6).

Body, for each topic that a group reads: lengths of group and topic (1 each), number of queues 2, group, topic; then for
each queue its number 2, committed offset 8, popped offset 8.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_TOPIC: Final = struct.Struct(">BBH")
_QUEUE: Final = struct.Struct(">HQQ")


class PassedOffsets(NamedTuple):
    """Progress of a group in a queue.

    Args:
        group: the group.
        topic: the queue's topic; it may be a retry topic.
        queue_id: the queue.
        committed: offset before which everything is done.
        popped: offset where the next pop reads on.
    """

    group: str
    topic: str
    queue_id: int
    committed: int
    popped: int


def encode(passed: Iterable[PassedOffsets]) -> bytes:
    """Return the body of a record; a topic of a group may have 65,535 queues in it."""
    queues: dict[tuple[str, str], list[bytes]] = {}
    for group, topic, queue_id, committed, popped in passed:
        queues.setdefault((group, topic), []).append(_QUEUE.pack(queue_id, committed, popped))
    parts: list[bytes] = []
    for (group, topic), of_topic in queues.items():
        names = group.encode(), topic.encode()
        parts += (_TOPIC.pack(*map(len, names), len(of_topic)), *names, *of_topic)
    return b"".join(parts)


def decode(data: bytes) -> Iterator[PassedOffsets]:
    """Yield what `encode` was given. Raises struct.error: the body is cut off."""
    at = 0
    while at < len(data):
        group_bytes, topic_bytes, count = _TOPIC.unpack_from(data, at)
        at += _TOPIC.size
        group = data[at : at + group_bytes].decode()
        at += group_bytes
        topic = data[at : at + topic_bytes].decode()
        at += topic_bytes
        for _ in range(count):
            yield PassedOffsets(group, topic, *_QUEUE.unpack_from(data, at))
            at += _QUEUE.size
