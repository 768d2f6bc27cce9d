"""Cuts the bytes of one direction of a connection into frames (RFC 9113, 4), header blocks put together."""

from collections.abc import Callable

from popwheel_rpc.http2 import frames
from popwheel_rpc.http2.frames import ErrorCode, ProtocolError
from popwheel_rpc.limits import Limits

SELF_DEPENDENT = frames.PRIORITY_FLAG
"""Flag of a header block as it is forwarded: its stream was said to depend on itself."""

OnFrame = Callable[[int, int, int, bytes], None]
"""Listener for frames: kind, flags, stream, payload. Header blocks come whole, as HEADERS, without padding and priority
and with no other flags than END_STREAM and `SELF_DEPENDENT`; all else comes as it is."""


class FrameReader:
    """Reader of frames; invalid ones end the connection.

    `rest` is the buffered part of an incomplete frame, `block_bytes` the size of the buffered header block.

    Args:
        limits: of header blocks.
        preface: whether the client's preface comes first.
        on_frame: called with each frame.
    """

    def __init__(self, limits: Limits, on_frame: OnFrame, *, preface: bool) -> None:
        self._limits = limits
        self._on_frame = on_frame
        self.rest = b""
        self._preface_wanted = preface
        self._frame_bytes_max = frames.FRAME_BYTES_DEFAULT if preface else frames.FRAME_BYTES_OF_ANSWERS
        self._settings_wanted = True
        self._block: list[bytes] = []
        self.block_bytes = 0
        self._block_flags = 0
        # The stream whose header block is open; 0 if none is.
        self._block_stream = 0

    def receive(self, data: bytes) -> None:
        """Process bytes; `on_frame` is called before this returns.

        Raises:
            ProtocolError: they break a rule. What `on_frame` raises comes through, too.
        """
        at = 0
        while self.rest and at < len(data):
            # The frame that was begun takes what it lacks: to join it to all of the data would copy all of the data.
            lacking = self._lacking()
            begun, self.rest = self.rest + data[at : at + lacking], b""
            at += lacking
            self._cut(begun, 0)
        if at < len(data):
            self._cut(data, at)

    def _lacking(self) -> int:
        """Return the number of bytes missing for a whole preface, frame header or frame in `rest`."""
        kept = len(self.rest)
        if self._preface_wanted:
            return len(frames.PREFACE) - kept
        if kept < frames.HEADER_BYTES:
            return frames.HEADER_BYTES - kept
        return frames.HEADER_BYTES + int.from_bytes(self.rest[:3], "big") - kept

    def _cut(self, data: bytes, at: int) -> None:
        """Read the frames from `at` on; the remainder becomes the `rest`."""
        if self._preface_wanted:
            self._preface_wanted = self._read_preface(data)
            if self._preface_wanted:
                self.rest = data
                return
            at = len(frames.PREFACE)
        end = len(data)
        unpack = frames.FRAME_HEADER.unpack_from
        length: int
        flags: int
        stream_id: int
        while end - at >= frames.HEADER_BYTES:
            length, flags, stream_id = unpack(data, at)
            kind = length & 0xFF
            length >>= 8
            if length > self._frame_bytes_max:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            stop = at + frames.HEADER_BYTES + length
            if stop > end:
                break
            payload = data[at + frames.HEADER_BYTES : stop]
            at = stop
            stream_id &= frames.STREAM_ID_MAX
            if kind == frames.DATA and not self._block_stream and not self._settings_wanted:
                self._on_frame(kind, flags, stream_id, payload)
            else:
                self._read(kind, flags, stream_id, payload)
        self.rest = data[at:]

    def _read_preface(self, data: bytes) -> bool:
        """Read the preface; return whether more of it must arrive."""
        if data[: len(frames.PREFACE)] != frames.PREFACE[: len(data)]:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2 connection preface")
        return len(data) < len(frames.PREFACE)

    def _read(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block_stream and (kind != frames.CONTINUATION or stream_id != self._block_stream):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "another frame inside a header block")
        if self._settings_wanted:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._settings_wanted = False
        if kind == frames.HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif kind == frames.CONTINUATION:
            self._on_continuation(flags, stream_id, payload)
        else:
            self._on_frame(kind, flags, stream_id, payload)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "headers on stream 0")
        kept = flags & frames.END_STREAM
        if flags & frames.PADDED:
            payload = without_padding(payload)
        if flags & frames.PRIORITY_FLAG:
            if len(payload) < 5:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame too short for its priority")
            if int.from_bytes(payload[:4], "big") & frames.STREAM_ID_MAX == stream_id:
                kept |= SELF_DEPENDENT
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._on_frame(frames.HEADERS, kept, stream_id, payload)
        else:
            self._block = [payload]
            self.block_bytes = len(payload)
            self._block_flags = kept
            self._block_stream = stream_id

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._block_stream:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        self._block.append(payload)
        self.block_bytes += len(payload)
        if len(self._block) - 1 > self._limits.continuations_max:
            raise ProtocolError(
                ErrorCode.ENHANCE_YOUR_CALM, "too many CONTINUATION frames in one header block", "continuations_max"
            )
        if self.block_bytes > self._limits.header_list_bytes_max:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "a header block beyond the limit", "header_list_bytes_max")
        if flags & frames.END_HEADERS:
            self._block_stream = 0
            block = b"".join(self._block)
            self._block = []
            self.block_bytes = 0
            self._on_frame(frames.HEADERS, self._block_flags, stream_id, block)


def without_padding(payload: bytes) -> bytes:
    """Return the payload of a frame with the PADDED flag, without its padding.

    Raises:
        ProtocolError: the padding is longer than the frame.
    """
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
