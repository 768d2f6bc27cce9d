"""The recall handle: what a producer shows to recall a delayed message before its time.

Opaque text (base64url, RFC 4648) of the broker, the position of the message's first TIMER record, the epoch of the
master that gave it out, the topic's id, the delivery time and the message id, and of a keyed BLAKE2b that signs them
and the topic. A proxy reads the broker's name from it to know where it belongs; only the broker checks it.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from hashlib import blake2b
from typing import NamedTuple

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

_SIGNATURE_BYTES = 12
_LENGTH_MAX = 65_536  # past the longest message id that can be allowed
_FIELDS = 4


class RecallHandle(NamedTuple):
    """Name of a delayed message.

    Args:
        broker_name: the broker that holds it.
        position: of its first TIMER record in the commit log; it names the timer for as long as it lives.
        due_ms: when it is to be delivered, wall clock.
        message_id: as its sender gave it.
        epoch: of the master that issued the handle; 0 in handles from before there were epochs. A master of an earlier
            epoch cannot know that there is no such message.
        topic_id: of the message's topic, which another of the same name does not have; 0 if none was known.
    """

    broker_name: str
    position: int
    due_ms: int
    message_id: str
    epoch: int = 0
    topic_id: int = 0


def encode(key: bytes, topic: str, message: RecallHandle) -> str:
    """Make the handle of a message.

    Args:
        key: the cluster's, which signs.
        topic: the client's topic.
        message: what the handle says.
    """
    # The id stands last, as it may hold blanks. The broker's name stands before the signature, whose first bits could
    # make the text begin with `-`, which a command line would take for an option.
    place = f"{message.position}:{message.epoch}:{message.topic_id}"
    fields = f"{message.broker_name} {place} {message.due_ms} {message.message_id}".encode("utf-8", "surrogatepass")
    return urlsafe_b64encode(fields + _sign(key, topic, fields)).rstrip(b"=").decode()


def broker_name(handle: str) -> str:
    """Return the broker a handle belongs to; the signature is not checked.

    Raises:
        StatusError: BAD_REQUEST, if it has not the shape of a handle.
    """
    return _fields(_data(handle)[:-_SIGNATURE_BYTES]).broker_name


def decode(key: bytes, topic: str, handle: str) -> RecallHandle:
    """Check the signature of a handle that is shown for `topic`, and read it.

    Raises:
        StatusError: BAD_REQUEST, if it was not made with this key for this topic.
    """
    data = _data(handle)
    fields = data[:-_SIGNATURE_BYTES]
    if not hmac.compare_digest(_sign(key, topic, fields), data[-_SIGNATURE_BYTES:]):
        raise _invalid()
    return _fields(fields)


def _data(handle: str) -> bytes:
    """Return the data that a handle's text encodes, if it is spelt as `encode` does."""
    if len(handle) > _LENGTH_MAX:
        raise _invalid()
    try:
        data = urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
    except (Error, ValueError):
        raise _invalid() from None
    # One handle has one spelling only: the decoder passes over characters that are not in its alphabet.
    if urlsafe_b64encode(data).rstrip(b"=").decode() != handle:
        raise _invalid()
    return data


def _fields(data: bytes) -> RecallHandle:
    """Decode the signed part."""
    try:
        parts = data.decode("utf-8", "surrogatepass").split(" ", _FIELDS - 1)
        if len(parts) == _FIELDS and parts[0]:
            # An earlier release said no topic id, and no epoch before there were any.
            position, epoch, topic_id = (*parts[1].split(":"), "0", "0")[:3]
            return RecallHandle(parts[0], int(position), int(parts[2]), parts[3], int(epoch), int(topic_id))
    except ValueError:
        pass  # reported below, like any other shape
    raise _invalid()


def _sign(key: bytes, topic: str, fields: bytes) -> bytes:
    signed = topic.encode("utf-8", "surrogatepass") + b"\n" + fields
    return blake2b(signed, key=key, digest_size=_SIGNATURE_BYTES).digest()


def _invalid() -> StatusError:
    return StatusError(
        Code.BAD_REQUEST,
        "this recall handle was not issued for this topic; use the one that came with the answer to the send",
    )
