"""What a message must bear when it is delivered and its sender left out: every official client reads it.

Rust sends no digest; Node's client cannot receive a message without one, and Python's none without an encoding.
"""

from hashlib import md5

from services.common.pb.apache.rocketmq.v2.definition_pb2 import (
    ENCODING_UNSPECIFIED,
    IDENTITY,
    MD5,
    Message,
    SystemProperties,
)
from services.proxy.payload import ClientMessage

_PORT_SEPARATOR = ":"


def missing_properties(message: ClientMessage, peer: str, now_ms: int) -> bytes:
    """System properties to be added behind the sender's own, encoded; empty if he left nothing out.

    Args:
        message: as it was cut out of the request.
        peer: address of the sender, who becomes the born host if he does not say who he is.
        now_ms: wall clock, the born time of a message that has none.
    """
    given = message.properties
    has_digest = given.HasField("body_digest")
    has_encoding = given.body_encoding != ENCODING_UNSPECIFIED
    has_birth = given.HasField("born_timestamp")
    if has_digest and has_encoding and has_birth and given.born_host:
        return b""
    added = SystemProperties()
    if not has_digest:
        added.body_digest.type = MD5
        # Upper-case hexadecimal, as every client spells it (and the only digest on which they all agree).
        body = Message.FromString(message.payload).body
        added.body_digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    if not has_encoding:
        added.body_encoding = IDENTITY
    if not has_birth:
        added.born_timestamp.FromMilliseconds(now_ms)
    if not given.born_host:
        added.born_host = peer.rpartition(_PORT_SEPARATOR)[0] or peer
    return added.SerializeToString()
