"""The receipt handle: what a consumer shows to acknowledge a message it was given.

Eight fields as in the articles on pop consumption, separated by blanks, and a ninth that nobody else can make: a keyed
BLAKE2b over all but the queue offset and over the group and topic it was given for. So it proves which pop gave it
out, and all messages of one pop go to one consumer. A proxy reads the broker's name from it to know where it belongs;
only the broker checks it.
"""

import hmac
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

FROM_TOPIC: Final = 0
FROM_RETRY_TOPIC: Final = 1

_SIGNATURE_BYTES: Final = 12
_LENGTH_MAX: Final = 512
_FIELDS: Final = 9


class ReceiptHandle(NamedTuple):
    """Name of a message of a pop.

    Args:
        delivery_id: names the delivery within its broker.
        pop_time_ms: when it was popped.
        invisible_ms: for how long it was hidden from the others of the group.
        revive_queue: number of the revive queue that holds the delivery.
        origin: `FROM_TOPIC` or `FROM_RETRY_TOPIC`.
        broker_name: the broker that gave it out.
        queue_id: queue of the message.
        queue_offset: offset of the message in that queue.
    """

    delivery_id: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    origin: int
    broker_name: str
    queue_id: int
    queue_offset: int


class HandleMaker:
    """Makes the handles of one pop from one queue: they differ in the queue offset only.

    Args:
        key: the cluster's, which signs.
        group: for whom.
        topic: the client's topic.
        first: the handle of one of them.
    """

    __slots__ = ("_prefix", "_suffix")

    def __init__(
        self,
        key: bytes,
        group: str,
        topic: str,
        first: ReceiptHandle,
    ) -> None:
        delivery_id, pop_time_ms, invisible_ms, revive_queue, origin, broker_name, queue_id, _ = first
        signed = f"{delivery_id} {pop_time_ms} {invisible_ms} {revive_queue} {origin} {broker_name} {queue_id}"
        self._prefix = signed + " "
        self._suffix = " " + _sign(key, group, topic, signed)

    def handle(self, queue_offset: int) -> str:
        """Return the handle of the message at this offset."""
        return f"{self._prefix}{queue_offset}{self._suffix}"


def broker_name(handle: str) -> str:
    """Return the broker a handle belongs to.

    Raises:
        StatusError: INVALID_RECEIPT_HANDLE, if it has not the shape of a handle.
    """
    fields = handle.split(" ")
    if len(fields) != _FIELDS or len(handle) > _LENGTH_MAX:
        raise _invalid()
    return fields[5]


class BrokerNameReader:
    """Reader of the brokers' names in handles that were shown together.

    The handles of one pop from one queue are alike up to the queue offset, so only the first of them is parted.
    """

    __slots__ = ("_alike", "_name")

    def __init__(self) -> None:
        self._alike = self._name = ""

    def read(self, handle: str) -> str:
        """Return the broker a handle belongs to. Raises as `broker_name` does."""
        alike = self._alike
        if alike and handle.startswith(alike) and handle.count(" ", len(alike)) == 1 and len(handle) <= _LENGTH_MAX:
            return self._name
        self._name = broker_name(handle)
        self._alike = handle.rsplit(" ", 2)[0] + " "
        return self._name


def decode(key: bytes, group: str, topic: str, handle: str) -> ReceiptHandle:
    """Check the signature of a handle that is shown for `group` and `topic`, and read it.

    Raises:
        StatusError: INVALID_RECEIPT_HANDLE, if it was not made with this key for this group and topic.
    """
    signed, offset, signature = _parts(handle)
    fields = _signed_fields(key, group, topic, signed, signature)
    if fields is None:
        raise _invalid()
    return ReceiptHandle(*fields, offset)


class HandleReader:
    """Reads handles that were shown together: those of one pop from one queue differ in the offset only, so what they
    have in common is looked at once.

    Args:
        key: the cluster's, which signs.
        group: for which they are shown.
        topic: and for which topic.
    """

    __slots__ = ("_delivery_id", "_group", "_key", "_prefix", "_suffix", "_topic")

    def __init__(self, key: bytes, group: str, topic: str) -> None:
        self._key = key
        self._group = group
        self._topic = topic
        self._prefix = self._suffix = ""  # of the last handle that was read
        self._delivery_id = 0

    def read(self, handle: str) -> tuple[int, int]:
        """Delivery id and queue offset of a handle whose signature is right.

        Raises:
            StatusError: as `decode` does.
        """
        if self._prefix and handle.startswith(self._prefix) and handle.endswith(self._suffix):
            digits = handle[len(self._prefix) : len(handle) - len(self._suffix)]
            if digits.isdigit() and digits.isascii() and len(handle) <= _LENGTH_MAX:
                return self._delivery_id, int(digits)
        signed, offset, signature = _parts(handle)
        fields = _signed_fields(self._key, self._group, self._topic, signed, signature)
        if fields is None:
            raise _invalid()
        self._prefix, self._suffix, self._delivery_id = signed + " ", " " + signature, fields[0]
        return self._delivery_id, offset


def _parts(handle: str) -> tuple[str, int, str]:
    """Return the signed part, the queue offset, and the signature; the first and the last unchecked."""
    parts = handle.rsplit(" ", 2)
    if len(parts) != 3 or len(handle) > _LENGTH_MAX:
        raise _invalid()
    signed, offset, signature = parts
    if not (offset.isascii() and offset.isdigit()):
        raise _invalid()
    return signed, int(offset), signature


@lru_cache(maxsize=1024)
def _signed_fields(
    key: bytes, group: str, topic: str, signed: str, signature: str
) -> tuple[int, int, int, int, int, str, int] | None:
    """Return the first seven fields, None if the signature is wrong; found out once for all messages of one pop."""
    given = signature.encode("utf-8", "surrogatepass")
    if not hmac.compare_digest(_sign(key, group, topic, signed).encode(), given):
        return None
    delivery_id, pop_time, invisible, revive_queue, origin, name, queue_id = signed.split(" ")
    return int(delivery_id), int(pop_time), int(invisible), int(revive_queue), int(origin), name, int(queue_id)


def _sign(key: bytes, group: str, topic: str, signed: str) -> str:
    text = f"{group}\n{topic}\n{signed}".encode("utf-8", "surrogatepass")
    return blake2b(text, key=key, digest_size=_SIGNATURE_BYTES).hexdigest()


def _invalid() -> StatusError:
    return StatusError(
        Code.INVALID_RECEIPT_HANDLE,
        "this receipt handle was not issued for this group and topic; use the one that came with the message",
    )
