"""Places of messages that wait before they come into their topic: for their time, or for the end of a transaction.

Their records stand in queues of the system. So do the records of a recall or rollback, which name the message by its
position alone.
"""

from typing import Final

from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import TIMER_TOPIC, decode_delay
from popwheel_broker.transactions.half import HALF_TOPIC, Resolution, decode_end, decode_half
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb

WAITING_TOPICS: Final = frozenset((TIMER_TOPIC, HALF_TOPIC))


def place_kind(stored: StoredRecord) -> "pb.PlaceKind.ValueType":
    """Return the kind of a place."""
    if stored.topic not in WAITING_TOPICS:
        return pb.STORED
    if stored.kind == RecordKind.TIMER:
        return pb.DELAYED
    if stored.kind == RecordKind.RECALL:
        return pb.RECALLED
    if stored.kind == RecordKind.HALF:
        return pb.HALF
    _, resolution = decode_end(stored.payload)
    return pb.GIVEN_UP if resolution == Resolution.EXPIRED else pb.ROLLED_BACK


def message_of(store: MessageStore, stored: StoredRecord, topic: str) -> StoredRecord | None:
    """Return the message that such a record is about; None if it is of another topic, or not stored any more.

    Args:
        store: where the message is read.
        stored: the record.
        topic: that the message was sent to.

    Raises:
        NotInMemory: the message is to be read first; nothing is lost by that.
    """
    if stored.kind in (RecordKind.TIMER, RecordKind.RECALL):
        delay = decode_delay(stored.origin)
        if delay.topic != topic:
            return None
        return stored if stored.kind == RecordKind.TIMER else _read(store, delay.root)
    if stored.kind == RecordKind.HALF:
        return stored if decode_half(stored.origin).topic == topic else None
    if stored.kind != RecordKind.HALF_END:
        return None
    half = _read(store, decode_end(stored.payload)[0])
    return half if half is not None and half.origin and decode_half(half.origin).topic == topic else None


def _read(store: MessageStore, position: int) -> StoredRecord | None:
    """Return the record at a position; None if it is not stored any more, or can't be read."""
    if not store.log.start_position <= position < store.log.end_position:
        return None
    try:
        with RECORD_STEP:
            return store.records.record_at(position)
    except (CorruptDataError, RecordFaultError):
        return None
