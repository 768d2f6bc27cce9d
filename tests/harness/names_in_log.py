"""Records of the log about topics and groups, applied to what a broker knows of them."""

from popwheel_broker.log.record import Record, RecordKind, stored
from popwheel_broker.topics.topic_registry import Names, TopicRegistry


def record(known: TopicRegistry, said: Names) -> None:
    """Apply a record NAMES."""
    _apply(known, RecordKind.NAMES, said.encode())


def forget_topic(known: TopicRegistry, topic: str) -> None:
    """Apply a record FORGET_TOPIC."""
    _apply(known, RecordKind.FORGET_TOPIC, topic.encode())


def forget_group(known: TopicRegistry, group: str) -> None:
    """Apply a record FORGET_GROUP."""
    _apply(known, RecordKind.FORGET_GROUP, group.encode())


def _apply(known: TopicRegistry, kind: RecordKind, body: bytes) -> None:
    known.apply(stored(Record(kind, "revive", 0, body), 0, 1, 1, 0, 0))
