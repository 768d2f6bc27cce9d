"""Records of a broker's log, as bytes that a block holds."""

from collections.abc import Iterable

import numpy as np

from popwheel_broker.log.record import Record, RecordKind, encode
from popwheel_common.contract.record_block import NOTHING, RecordBlock, decode_block, encode_block
from popwheel_common.contract.send_id import encode_send_id
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message

_POSITION = 4096
_SEND_ID = encode_send_id(2**64 - 1)


def record_of(message: Message, queue_id: int = 0, *, origin: bytes = b"", times: int = 1) -> bytes:
    """The record of a message, with offset, store time and attempts that its system properties say; its fields are
    written `times` times.
    """
    payload = Message()
    payload.CopyFrom(message)
    payload.ClearField("system_properties")
    properties = Message().system_properties
    properties.CopyFrom(message.system_properties)
    stored_ms, offset = properties.store_timestamp.ToMilliseconds(), properties.queue_offset
    attempts = properties.delivery_attempt
    for name in ("store_timestamp", "queue_offset", "delivery_attempt"):
        properties.ClearField(name)
    record = Record(
        RecordKind.MESSAGE,
        message.topic.name,
        queue_id,
        payload.SerializeToString() * times,
        properties.SerializeToString() * times + _SEND_ID,
        attempts=attempts,
        origin=origin,
    )
    _, buffers = encode(record, _POSITION, 1, stored_ms, offset)
    return b"".join(buffers)


def block_of(records: Iterable[bytes], next_offset: int = 0) -> RecordBlock:
    """Records as a reader gets them."""
    stretches = list(records)
    lengths = np.array([len(each) for each in stretches], np.int64) if stretches else NOTHING
    return decode_block(encode_block(next_offset, lengths, stretches))
