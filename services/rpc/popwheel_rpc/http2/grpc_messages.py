"""gRPC's own layer over HTTP/2 (grpc.io, "gRPC over HTTP2"): length-prefixed messages, time-outs, trailers."""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from popwheel_common.errors import InconsistentClusterIdError, NotLeadingError, StatusError, code_name
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.http2 import hpack
from popwheel_rpc.status import GrpcStatus, RpcError

PREFIX_BYTES: Final = 5
CONTENT_TYPE: Final = b"application/grpc"
TIMEOUT_S_MAX: Final = 365.0 * 24 * 3600
"""Longest time-out; longer ones are cut to it: some clients ask for 60 years, which no timer takes."""

CODE_TRAILER: Final = "popwheel-code"
"""Carries the number of a `StatusError` between our own services."""

NOT_LEADING_TRAILER: Final = "popwheel-not-leading"
"""Trailer that is present, with any value, if that error is a `NotLeadingError`."""

OTHER_CLUSTER_TRAILER: Final = "popwheel-other-cluster"
"""Trailer that is present, with any value, if that error is an `InconsistentClusterIdError`."""

RESPONSE_HEADERS: Final = hpack.encode(
    [(b":status", b"200"), (b"content-type", CONTENT_TYPE), (b"grpc-accept-encoding", b"identity")]
)
TRAILERS_OK: Final = hpack.encode([(b"grpc-status", b"0")])

_PREFIX: Final = struct.Struct(">BI")
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_STATUS_MESSAGE_CHARACTERS_MAX: Final = 1024
_PART_BYTES_MIN: Final = 1024

_GRPC_STATUS_OF_CODE: Final = {
    Code.UNAUTHORIZED: GrpcStatus.UNAUTHENTICATED,
    Code.FORBIDDEN: GrpcStatus.PERMISSION_DENIED,
    Code.REQUEST_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Code.PROXY_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Code.MASTER_PERSISTENCE_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Code.SLAVE_PERSISTENCE_TIMEOUT: GrpcStatus.DEADLINE_EXCEEDED,
    Code.TOO_MANY_REQUESTS: GrpcStatus.RESOURCE_EXHAUSTED,
    Code.NOT_IMPLEMENTED: GrpcStatus.UNIMPLEMENTED,
    Code.UNSUPPORTED: GrpcStatus.UNIMPLEMENTED,
    Code.HA_NOT_AVAILABLE: GrpcStatus.UNAVAILABLE,
}

_STATUS_OF_HTTP: Final = {
    400: GrpcStatus.INTERNAL,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.UNIMPLEMENTED,
    429: GrpcStatus.UNAVAILABLE,
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.UNAVAILABLE,
}


class MessageReader:
    """Reader of the messages in the data of one direction of a call.

    Args:
        message_bytes_max: the longest message.
    """

    __slots__ = ("_message_bytes_max", "_missing", "_parts", "_prefix")

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._prefix = b""
        # Of a message whose prefix is known: its parts, and how many bytes it lacks. Joined once, when it is whole.
        self._parts: list[bytes] = []
        self._missing = 0

    @property
    def partial(self) -> bytes:
        """Bytes of an incomplete message."""
        return b"".join((self._prefix, *self._parts))

    @property
    def partial_bytes(self) -> int:
        """Buffered bytes of an incomplete message."""
        return len(self._prefix) + sum(map(len, self._parts))

    def feed(self, data: bytes) -> list[bytes]:
        """Process data; return the messages that are complete now.

        Raises:
            RpcError: RESOURCE_EXHAUSTED if a message is too long, UNIMPLEMENTED if it is compressed.
        """
        messages: list[bytes] = []
        at = 0
        while True:
            if len(self._prefix) < PREFIX_BYTES:
                begun = len(self._prefix)
                self._prefix += data[at : at + PREFIX_BYTES - begun]
                at += len(self._prefix) - begun
                if len(self._prefix) < PREFIX_BYTES:
                    return messages
                compressed, self._missing = _PREFIX.unpack(self._prefix)
                self._check(compressed, self._missing)
            part = data[at : at + self._missing]
            at += len(part)
            self._missing -= len(part)
            if self._missing:
                self._buffer(part)
                return messages
            messages.append(b"".join((*self._parts, part)) if self._parts else part)
            self._prefix = b""
            self._parts.clear()

    def _buffer(self, part: bytes) -> None:
        """Keep a part; small ones together: whoever sends single bytes must not make us keep an object for each."""
        if self._parts and len(self._parts[-1]) < _PART_BYTES_MIN:
            self._parts[-1] += part
        elif part:
            self._parts.append(part)

    def _check(self, compressed: int, length: int) -> None:
        if compressed:
            raise RpcError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported; send them as they are")
        if length > self._message_bytes_max:
            raise RpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"a message of {length} bytes is longer than the {self._message_bytes_max} bytes allowed",
            )


def frame_message(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return _PREFIX.pack(0, len(message)) + message


def frame_messages(messages: Sequence[bytes]) -> bytes:
    """Frame several messages, each with its prefix, in one run of bytes."""
    parts = []
    for message in messages:
        parts.append(_PREFIX.pack(0, len(message)))
        parts.append(message)
    return b"".join(parts)


@lru_cache(maxsize=256)
def parse_timeout(text: str) -> float | None:
    """Return the seconds of a `grpc-timeout`, at most `TIMEOUT_S_MAX`; None if there is none.

    Raises:
        RpcError: INTERNAL if it is no time-out (what grpc's own servers answer too).
    """
    if not text:
        return None
    unit = _UNITS_S.get(text[-1])
    digits = text[:-1]
    if unit is None or not (digits.isascii() and digits.isdigit()) or len(digits) > 8:
        raise RpcError(GrpcStatus.INTERNAL, "grpc-timeout is not one to eight digits and one of the units HMSmun")
    return min(int(digits) * unit, TIMEOUT_S_MAX)


def format_timeout(timeout_s: float) -> bytes:
    """`grpc-timeout` for a number of seconds, rounded up to a unit that it fits in."""
    milliseconds = max(0, -int(-timeout_s * 1000 // 1))
    if milliseconds < 100_000_000:
        return b"%dm" % milliseconds
    return b"%dS" % min(99_999_999, milliseconds // 1000)


def quote_message(text: str) -> bytes:
    """`grpc-message`: percent-encoded UTF-8, cut to a length that no client's header limit minds."""
    encoded = text[:_STATUS_MESSAGE_CHARACTERS_MAX].encode("utf-8", "replace")
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in encoded
    ).strip()


def unquote_message(text: str) -> str:
    """Read a `grpc-message`; what is no percent-encoding stays as it is."""
    parts = text.encode("latin-1", "replace").split(b"%")
    read = bytearray(parts[0])
    for part in parts[1:]:
        try:
            read.append(int(part[:2].decode(), 16))
            read += part[2:]
        except ValueError:
            read += b"%" + part
    return read.decode("utf-8", "replace")


def grpc_status(code: int) -> GrpcStatus:
    """The gRPC status under which a code of `apache.rocketmq.v2.Code` travels."""
    known = _GRPC_STATUS_OF_CODE.get(code)  # type: ignore[call-overload]
    if known is not None:
        return known  # type: ignore[no-any-return]
    if 40400 <= code < 40500:
        return GrpcStatus.NOT_FOUND
    if 40000 <= code < 50000:
        return GrpcStatus.INVALID_ARGUMENT
    return GrpcStatus.INTERNAL


def trailers_of_error(error: StatusError | RpcError) -> list[hpack.Field]:
    """Return the trailers of a failed call."""
    status = grpc_status(error.code) if isinstance(error, StatusError) else error.status
    own = [(name.encode(), value.encode()) for name, value in own_trailers(error)]
    return [(b"grpc-status", b"%d" % status), (b"grpc-message", quote_message(error.message)), *own]


def own_trailers(error: StatusError | RpcError) -> list[tuple[str, str]]:
    """Return the trailers beside gRPC's own, which our own services read."""
    if not isinstance(error, StatusError):
        return []
    code = (CODE_TRAILER, str(int(error.code)))
    if isinstance(error, NotLeadingError):
        return [code, (NOT_LEADING_TRAILER, "1")]
    return [code, (OTHER_CLUSTER_TRAILER, "1")] if isinstance(error, InconsistentClusterIdError) else [code]


def error_of_trailers(fields: Mapping[str, str]) -> StatusError | RpcError | None:
    """Return the error that the trailers of a call report; None if it succeeded."""
    text = fields.get("grpc-status", "")
    if text == "0":
        return None
    message = unquote_message(fields.get("grpc-message", ""))
    number = fields.get(CODE_TRAILER, "")
    if number.isascii() and number.isdigit():
        if NOT_LEADING_TRAILER in fields:
            return NotLeadingError(message)
        if OTHER_CLUSTER_TRAILER in fields:
            return InconsistentClusterIdError(message)
        return status_error(int(number), message)
    try:
        status = GrpcStatus(int(text))
    except ValueError:
        status = GrpcStatus.UNKNOWN
        message = message or f"the call ended without a known grpc-status ({text[:32]!r})"
    return RpcError(status, message)


def status_error(code: int, message: str) -> StatusError:
    """Return the `StatusError` of a number; one that this release does not know becomes INTERNAL_SERVER_ERROR."""
    if code_name(code) == str(code):
        return StatusError(Code.INTERNAL_SERVER_ERROR, f"{message} (code {code})")
    return StatusError(Code.ValueType(code), message)


def error_of_http(status: int) -> RpcError:
    """Return the error for an answer whose HTTP status is not 200 (grpc.io, "HTTP to gRPC status code mapping")."""
    return RpcError(_STATUS_OF_HTTP.get(status, GrpcStatus.UNKNOWN), f"the server answered with HTTP status {status}")
