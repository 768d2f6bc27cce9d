"""A stored message as a consumer gets it: the sender's own bytes, and what the broker has to add.

Inside one protobuf message the last value of a field wins, so the sender's system properties followed by a few fields
of ours make one `system_properties` field, without anybody decoding either (DESIGN 4, Payload).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.store_time import store_timestamp
from popwheel_broker.log.fault import RecordFaultError
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_common.contract import names
from popwheel_common.contract.receipt import HandleMaker, ReceiptHandle
from popwheel_common.contract.send_id import without_send_id
from popwheel_common.contract.wire_format import varint
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties

_SYSTEM_PROPERTIES_TAG: Final = b"\x1a"
_RECEIPT_HANDLE_TAG: Final = b"\x62"
_QUEUE_ID_TAG: Final = b"\x68"
_QUEUE_OFFSET_TAG: Final = b"\x70"
_DELIVERY_ATTEMPT_TAG: Final = b"\x80\x01"
_SKIPPED: Final = "it was damaged, and an operator had it skipped"


def handle_maker(key: bytes, delivery: Delivery, broker_name: str) -> HandleMaker:
    """Return the function that makes the receipt handles of a delivery's messages.

    Args:
        key: of their signature.
        delivery: the delivery.
        broker_name: the broker that issues them.
    """
    first = ReceiptHandle(
        delivery.id,
        delivery.pop_time_ms,
        delivery.invisible_ms,
        delivery.shown_revive_queue,
        delivery.origin,
        broker_name,
        delivery.queue_id,
        delivery.start_offset,
    )
    topic = names.client_topic(delivery.topic) if delivery.lines else delivery.topic
    return HandleMaker(key, delivery.group, topic, first)


@lru_cache(maxsize=256)
def common_properties(broker_name: str, invisible_ms: int | None) -> bytes:
    """Return the additions that all messages of one answer share: store host and, for popped ones, invisible
    duration.
    """
    properties = SystemProperties(store_host=broker_name)
    if invisible_ms is not None:
        properties.invisible_duration.FromMilliseconds(invisible_ms)
    return properties.SerializeToString()


def popped_messages(records: Sequence[StoredRecord], common: bytes, handles: Sequence[str]) -> list[bytes]:
    """Return a whole `apache.rocketmq.v2.Message` of each record of one queue, for a consumer that pops.

    Raises:
        RecordFaultError: one was skipped by an operator; it is to be left out.
    """
    messages: list[bytes] = []
    alike: tuple[int, int, int] | None = None
    assert len(records) == len(handles), "not every message has its receipt handle"
    for index, stored in enumerate(records):
        if stored.kind == RecordKind.SKIPPED:
            raise RecordFaultError(_SKIPPED)
        if alike != (stored.queue_id, stored.store_time_ms, stored.attempts):
            # Mostly the same for all: they were sent together.
            alike = (stored.queue_id, stored.store_time_ms, stored.attempts)
            shared = b"".join(
                (
                    common,
                    _QUEUE_ID_TAG,
                    varint(stored.queue_id),
                    store_timestamp(stored.store_time_ms),
                    _DELIVERY_ATTEMPT_TAG,
                    varint(stored.attempts + 1),
                    _QUEUE_OFFSET_TAG,
                )
            )
        handle_bytes = handles[index].encode()
        added = b"".join(
            (shared, varint(stored.queue_offset), _RECEIPT_HANDLE_TAG, varint(len(handle_bytes)), handle_bytes)
        )
        inside = without_send_id(stored.system_properties)
        length = varint(len(inside) + len(added))
        messages.append(b"".join((stored.payload, _SYSTEM_PROPERTIES_TAG, length, inside, added)))
    return messages


def pulled_message(stored: StoredRecord, common: bytes) -> bytes:
    """Return a whole `apache.rocketmq.v2.Message` for a consumer that reads by offset. Raises as `popped_messages`."""
    if stored.kind == RecordKind.SKIPPED:
        raise RecordFaultError(_SKIPPED)
    return _join(stored, common + _place(stored))


def _place(stored: StoredRecord) -> bytes:
    return b"".join(
        (
            _QUEUE_ID_TAG,
            varint(stored.queue_id),
            _QUEUE_OFFSET_TAG,
            varint(stored.queue_offset),
            store_timestamp(stored.store_time_ms),
        )
    )


def _join(stored: StoredRecord, added: bytes) -> bytes:
    inside = without_send_id(stored.system_properties)
    length = varint(len(inside) + len(added))
    return b"".join((stored.payload, _SYSTEM_PROPERTIES_TAG, length, inside, added))
