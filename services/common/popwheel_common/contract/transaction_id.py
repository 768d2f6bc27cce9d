"""The transaction id: what a producer shows to commit a half message, or to roll it back.

Opaque text (base64url, RFC 4648) of the broker, the position and epoch of the half message's record and its message
id, and of a keyed BLAKE2b that signs them and the topic. A proxy reads the broker's name from it to know where it
belongs; only the broker checks it.
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
_FIELDS = 3


class TransactionId(NamedTuple):
    """Name of a half message.

    Args:
        broker_name: the broker that holds it.
        position: of its record in the commit log.
        epoch: of the master that wrote the record.
        message_id: as its sender gave it.
    """

    broker_name: str
    position: int
    epoch: int
    message_id: str


def encode(key: bytes, topic: str, half: TransactionId) -> str:
    """Make the id of a transaction.

    Args:
        key: the cluster's, which signs.
        topic: the client's topic.
        half: what the id says.
    """
    text = f"{half.broker_name} {half.position}:{half.epoch} {half.message_id}"
    fields = text.encode("utf-8", "surrogatepass")
    return urlsafe_b64encode(fields + _sign(key, topic, fields)).rstrip(b"=").decode()


def broker_name(text: str) -> str:
    """Return the broker that an id belongs to; the signature is not checked.

    Raises:
        StatusError: INVALID_TRANSACTION_ID, if it has not the shape of an id.
    """
    return _fields(_data(text)[:-_SIGNATURE_BYTES]).broker_name


def decode(key: bytes, topic: str, text: str) -> TransactionId:
    """Check the signature of an id that is shown for `topic`, and read it.

    Raises:
        StatusError: INVALID_TRANSACTION_ID, if it was not made with this key for this topic.
    """
    data = _data(text)
    fields = data[:-_SIGNATURE_BYTES]
    if not hmac.compare_digest(_sign(key, topic, fields), data[-_SIGNATURE_BYTES:]):
        raise _invalid()
    return _fields(fields)


def _data(text: str) -> bytes:
    """Return the data that an id's text encodes, if it is spelt as `encode` does."""
    if not text or len(text) > _LENGTH_MAX:
        raise _invalid()
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (Error, ValueError):
        raise _invalid() from None
    # One id has one spelling only: the decoder passes over characters that are not in its alphabet.
    if urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise _invalid()
    return data


def _fields(data: bytes) -> TransactionId:
    """Decode the signed part."""
    try:
        parts = data.decode("utf-8", "surrogatepass").split(" ", _FIELDS - 1)
        if len(parts) == _FIELDS and parts[0]:
            position, epoch = parts[1].split(":")
            return TransactionId(parts[0], int(position), int(epoch), parts[2])
    except ValueError:
        pass  # reported below, like any other shape
    raise _invalid()


def _sign(key: bytes, topic: str, fields: bytes) -> bytes:
    # The word keeps what else the key signs, recall handles and receipt handles, from being taken for an id.
    signed = b"transaction\n" + topic.encode("utf-8", "surrogatepass") + b"\n" + fields
    return blake2b(signed, key=key, digest_size=_SIGNATURE_BYTES).digest()


def _invalid() -> StatusError:
    return StatusError(
        Code.INVALID_TRANSACTION_ID,
        "this transaction id was not issued for this topic; use the one that came with the answer to the send",
    )
