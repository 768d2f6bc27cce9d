"""The receipt handle: what a consumer shows to acknowledge a message it was given.

Eight fields as in the articles on pop consumption, separated by blanks, and a ninth that nobody else can make: a keyed
BLAKE2b over the eight and over the group and topic it was given for. A proxy reads the broker's name from it to know
where it belongs; only the broker checks it.
"""

import hmac
from dataclasses import dataclass
from hashlib import blake2b

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code

FROM_TOPIC = 0
FROM_RETRY_TOPIC = 1

_SIGNATURE_BYTES = 12
_LENGTH_MAX = 512


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """One message of one pop.

    Args:
        check_point_id: names the CK within its broker.
        pop_time_ms: when it was popped.
        invisible_ms: for how long it was hidden from the others of the group.
        revive_queue: number of the revive queue that holds the CK.
        origin: `FROM_TOPIC` or `FROM_RETRY_TOPIC`.
        broker_name: the broker that gave it out.
        queue_id: queue of the message.
        queue_offset: offset of the message in that queue.
    """

    check_point_id: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    origin: int
    broker_name: str
    queue_id: int
    queue_offset: int


def encode(
    key: bytes,
    group: str,
    topic: str,
    check_point_id: int,
    pop_time_ms: int,
    invisible_ms: int,
    revive_queue: int,
    origin: int,
    broker_name: str,
    queue_id: int,
    queue_offset: int,
) -> str:
    """Make the text of a handle (fields as in `ReceiptHandle`), signed for `group` and the client's `topic`."""
    text = (
        f"{check_point_id} {pop_time_ms} {invisible_ms} {revive_queue} {origin} {broker_name} {queue_id} {queue_offset}"
    )
    return f"{text} {_sign(key, group, topic, text)}"


def broker_name(handle: str) -> str:
    """The broker a handle belongs to.

    Raises:
        StatusError: INVALID_RECEIPT_HANDLE, if it has not the shape of a handle.
    """
    fields = handle.split(" ")
    if len(fields) != 9 or len(handle) > _LENGTH_MAX:
        raise _invalid()
    return fields[5]


def decode(key: bytes, group: str, topic: str, handle: str) -> ReceiptHandle:
    """Check the signature of a handle that is shown for `group` and `topic`, and read it.

    Raises:
        StatusError: INVALID_RECEIPT_HANDLE, if it was not made with this key for this group and topic.
    """
    text, _, signature = handle.rpartition(" ")
    if len(handle) > _LENGTH_MAX or not hmac.compare_digest(
        _sign(key, group, topic, text).encode(), signature.encode()
    ):
        raise _invalid()
    check_point_id, pop_time, invisible, revive_queue, origin, name, queue_id, queue_offset = text.split(" ")
    return ReceiptHandle(
        int(check_point_id),
        int(pop_time),
        int(invisible),
        int(revive_queue),
        int(origin),
        name,
        int(queue_id),
        int(queue_offset),
    )


def _sign(key: bytes, group: str, topic: str, text: str) -> str:
    signed = f"{group}\n{topic}\n{text}".encode("utf-8", "surrogatepass")
    return blake2b(signed, key=key, digest_size=_SIGNATURE_BYTES).hexdigest()


def _invalid() -> StatusError:
    return StatusError(
        Code.INVALID_RECEIPT_HANDLE,
        "this receipt handle was not given out for this group and topic; use the one that came with the message",
    )
