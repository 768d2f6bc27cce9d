"""The id of a message of one send, by which a broker distinguishes a retry from another message.

Applications choose message ids, and two messages may have the same. So each proxy numbers the messages that it takes
and writes the number behind their stored system properties, as a last field that no client knows of. Whatever a
message becomes (delayed, fired, redelivered) carries it along; whoever gets the message does not see it.
"""

import struct
from typing import Final

from popwheel_common.contract.wire_format import FIXED64, varint

_FIELD: Final = 7_000_008
_TAG: Final = varint(_FIELD << 3 | FIXED64)
"""Its first byte, 0xC1, occurs in no UTF-8 text: properties stored without an id don't end like this by chance."""
_NUMBER: Final = struct.Struct("<Q")
SEND_ID_BYTES: Final = len(_TAG) + _NUMBER.size


def encode_send_id(send_id: int) -> bytes:
    """Return the field to be written behind the system properties of a message.

    Args:
        send_id: below 2**64; no other message has it.
    """
    return _TAG + _NUMBER.pack(send_id)


def send_id_of(system_properties: bytes) -> int | None:
    """Return the id that a proxy gave a message; None if none did."""
    if system_properties[-SEND_ID_BYTES : -_NUMBER.size] != _TAG:
        return None
    return int(_NUMBER.unpack_from(system_properties, len(system_properties) - _NUMBER.size)[0])


def without_send_id(system_properties: bytes) -> bytes:
    """Return the system properties as clients may see them."""
    if system_properties[-SEND_ID_BYTES : -_NUMBER.size] != _TAG:
        return system_properties
    return system_properties[:-SEND_ID_BYTES]
