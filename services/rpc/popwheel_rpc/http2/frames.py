"""Frames of HTTP/2 as bytes (RFC 9113, 4 and 6): their numbers, encoding, and errors with a code."""

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
FRAME_BYTES_DEFAULT: Final = 2**14
FRAME_BYTES_OF_ANSWERS: Final = 2**16
"""Size of the longest frame that a client here accepts, and that is sent to anybody.

A large answer takes fewer such frames, and other streams still do not wait long for one.
"""
FRAME_BYTES_MAX: Final = 2**24 - 1
STREAM_ID_MAX: Final = 2**31 - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

SETTING_HEADER_TABLE_SIZE: Final = 1
SETTING_ENABLE_PUSH: Final = 2
SETTING_MAX_CONCURRENT_STREAMS: Final = 3
SETTING_INITIAL_WINDOW_SIZE: Final = 4
SETTING_MAX_FRAME_SIZE: Final = 5
SETTING_MAX_HEADER_LIST_SIZE: Final = 6

FRAME_HEADER: Final = struct.Struct(">IBI")
"""Length and type in one number (length << 8 | type), flags, stream: nine bytes in one go."""

_SETTING = struct.Struct(">HI")


class ErrorCode(IntEnum):
    """Error code of a stream's or connection's end (RFC 9113, 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ProtocolError(Exception):
    """Violation of a rule that ends the connection (RFC 9113, 5.4.1).

    Args:
        code: the code in GOAWAY.
        message: which rule, for logs and GOAWAY's debug data.
        limit: name of the exceeded limit, if it was one (see `popwheel_rpc.limits`).
    """

    def __init__(self, code: ErrorCode, message: str, limit: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.limit = limit


class StreamError(Exception):
    """Violation of a rule that ends one stream (RFC 9113, 5.4.2).

    Args:
        stream_id: the stream.
        code: the code in RST_STREAM.
        message: which rule.
    """

    def __init__(self, stream_id: int, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.code = code
        self.message = message


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return the bytes of a frame."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def headers(stream_id: int, block: bytes, flags: int, frame_bytes_max: int) -> bytes:
    """HEADERS, and CONTINUATION where the block is longer than one frame may be.

    Args:
        stream_id: the stream.
        block: the whole header block.
        flags: END_STREAM or 0.
        frame_bytes_max: the longest payload the other side takes.
    """
    if len(block) <= frame_bytes_max:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[at : at + frame_bytes_max] for at in range(0, len(block), frame_bytes_max)]
    frames = [frame(HEADERS, flags, stream_id, parts[0])]
    frames += [frame(CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    frames.append(frame(CONTINUATION, END_HEADERS, stream_id, parts[-1]))
    return b"".join(frames)


def settings(values: dict[int, int]) -> bytes:
    """SETTINGS with these values by identifier."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """(identifier, value) in the order they stand in; the payload's length must be a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream 0 is the connection's own window."""
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def ping(opaque: bytes, *, ack: bool) -> bytes:
    """PING with eight bytes of the sender's choice, or the answer to it."""
    return frame(PING, ACK if ack else 0, 0, opaque)


def goaway(last_stream_id: int, code: ErrorCode, debug: str) -> bytes:
    """GOAWAY: streams above `last_stream_id` were not and will not be processed."""
    return frame(GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + debug.encode())


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0, b"")
