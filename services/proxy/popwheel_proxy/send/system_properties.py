"""System properties that are added to a message of a send, and those that only the server may set.

Each official client reads what is added here: Rust sends no digest; Node's client cannot receive a message
without one, and Python's none without an encoding.
"""

from collections.abc import Callable
from hashlib import md5
from typing import Any, Final

from popwheel_common.contract.wire_format import read_varint, skip
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import (
    IDENTITY,
    MD5,
    Code,
    Digest,
    SystemProperties,
)
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.payload import ClientMessage

_NO_ENCODING: Final = 0  # ENCODING_UNSPECIFIED; enum wrappers are slow
_PORT_SEPARATOR: Final = ":"
_FIELDS_MAX: Final = 512
"""Limit of a message's system properties that are read one by one."""
_NO_MD5: Final = "0" * 32
# A digest is added to each message of some clients, so its bytes are put together by hand.
_MD5_HEAD: Final = SystemProperties(body_digest=Digest(type=MD5, checksum=_NO_MD5)).SerializeToString()[: -len(_NO_MD5)]
_IDENTITY_ENCODING: Final = SystemProperties(body_encoding=IDENTITY).SerializeToString()


def missing_properties(message: ClientMessage, peer: str, now_ms: int) -> bytes:
    """Return the encoded system properties to be added behind the sender's own; empty if none is missing.

    Args:
        message: as it was cut out of the request.
        peer: address of the sender, which becomes the born host if the message names none.
        now_ms: wall clock, the born time of a message that has none.
    """
    plain = message.plain
    if plain is not None:
        has_digest, encoding, has_birth = plain.has_digest, plain.body_encoding, plain.has_birth
        born_host = plain.born_host
    else:
        given = message.properties
        has_digest, encoding, has_birth = (
            given.HasField("body_digest"),
            int(given.body_encoding),
            given.HasField("born_timestamp"),
        )
        born_host = given.born_host
    added = b""
    if not has_digest:
        # Upper-case hexadecimal, as every client spells it (and the only digest on which they all agree).
        added = _MD5_HEAD + md5(message.body, usedforsecurity=False).hexdigest().upper().encode()
    if encoding == _NO_ENCODING:
        added += _IDENTITY_ENCODING
    if not has_birth or not born_host:
        birth = SystemProperties()
        if not has_birth:
            birth.born_timestamp.FromMilliseconds(now_ms)
        if not born_host:
            birth.born_host = peer.rpartition(_PORT_SEPARATOR)[0] or peer
        added += birth.SerializeToString()
    return added


_OPTIONAL: Final = (
    "receipt_handle",
    "delivery_attempt",
    "invisible_duration",
    "queue_offset",
    "store_timestamp",
    "dead_letter_queue",
)
_NUMBERS: Final = frozenset(
    SystemProperties.DESCRIPTOR.fields_by_name[name].number for name in (*_OPTIONAL, "store_host")
)
"""Numeric fields without `queue_id`: every client sets it, and every delivery overwrites it."""


def has_server_fields(properties: SystemProperties) -> bool:
    """Return whether a sender has set a field that only servers set."""
    has: Callable[[Any], bool] = properties.HasField
    return properties.store_host != "" or any(map(has, _OPTIONAL))


def without_server_fields(system_properties: bytes) -> bytes:
    """Return a sender's encoded system properties without the server's fields; all others stay byte for byte.

    Raises:
        StatusError: BAD_REQUEST, if they are not well-formed, or have too many fields.
    """
    kept: list[bytes] = []
    position, end = 0, len(system_properties)
    fields = 0
    while position < end:
        fields += 1
        if fields > _FIELDS_MAX:
            raise LimitError(
                Code.BAD_REQUEST,
                f"the message has more than {_FIELDS_MAX} system properties, among them some that only the server may "
                "set; leave those out",
                "message_fields_max",
            )
        start = position
        tag, position = read_varint(system_properties, position, end)
        position = skip(system_properties, tag & 7, position, end)
        if tag >> 3 not in _NUMBERS:
            kept.append(system_properties[start:position])
    return b"".join(kept)
