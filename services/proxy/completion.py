"""What a message must bear when it is delivered and its sender left out: every official client reads it.

Rust sends no digest; Node's client cannot receive a message without one, and Python's none without an encoding.
"""

from hashlib import md5

from services.common.pb.apache.rocketmq.v2.definition_pb2 import (
    ENCODING_UNSPECIFIED,
    IDENTITY,
    MD5,
    Digest,
    SystemProperties,
)
from services.proxy.payload import ClientMessage

_PORT_SEPARATOR = ":"
_NO_MD5 = "0" * 32
# A digest is added to each message of some clients, so its bytes are put together by hand.
_MD5_HEAD = SystemProperties(body_digest=Digest(type=MD5, checksum=_NO_MD5)).SerializeToString()[: -len(_NO_MD5)]
_IDENTITY_ENCODING = SystemProperties(body_encoding=IDENTITY).SerializeToString()


def missing_properties(message: ClientMessage, peer: str, now_ms: int) -> bytes:
    """System properties to be added behind the sender's own, encoded; empty if he left nothing out.

    Args:
        message: as it was cut out of the request.
        peer: address of the sender, who becomes the born host if he does not say who he is.
        now_ms: wall clock, the born time of a message that has none.
    """
    given = message.properties
    added = b""
    if not given.HasField("body_digest"):
        # Upper-case hexadecimal, as every client spells it (and the only digest on which they all agree).
        added = _MD5_HEAD + md5(message.body, usedforsecurity=False).hexdigest().upper().encode()
    if given.body_encoding == ENCODING_UNSPECIFIED:
        added += _IDENTITY_ENCODING
    has_birth = given.HasField("born_timestamp")
    if not has_birth or not given.born_host:
        birth = SystemProperties()
        if not has_birth:
            birth.born_timestamp.FromMilliseconds(now_ms)
        if not given.born_host:
            birth.born_host = peer.rpartition(_PORT_SEPARATOR)[0] or peer
        added += birth.SerializeToString()
    return added
