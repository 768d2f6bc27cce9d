"""Events that a connection returns to its owner after bytes came in (`popwheel_rpc.http2.connection`)."""

from dataclasses import dataclass

from popwheel_rpc.http2.frames import ErrorCode
from popwheel_rpc.http2.headers import RequestHead, ResponseHead


@dataclass(slots=True)
class RequestReceived:
    """Opening of a stream by a client.

    Args:
        stream_id: the stream.
        head: its headers.
        ended: whether no data will follow.
    """

    stream_id: int
    head: RequestHead
    ended: bool


@dataclass(slots=True)
class RequestTooLarge:
    """Opening of a stream with more headers than allowed, which were dropped."""

    stream_id: int


@dataclass(slots=True)
class ResponseReceived:
    """Headers of the answer, or its trailers (`ended`)."""

    stream_id: int
    head: ResponseHead
    ended: bool


@dataclass(slots=True)
class DataReceived:
    """Data of a stream; the owner calls `connection.release` once it has processed it.

    Args:
        stream_id: the stream.
        data: without padding.
        ended: whether it was the last.
    """

    stream_id: int
    data: bytes
    ended: bool


@dataclass(slots=True)
class StreamEnded:
    """End of the other side's direction with trailers; only at a server (gRPC ignores these trailers)."""

    stream_id: int


@dataclass(slots=True)
class StreamReset:
    """Early end of a stream: the other side reset it, or broke a rule on it and was notified.

    Args:
        stream_id: the stream.
        code: why.
        message: why, in words.
    """

    stream_id: int
    code: ErrorCode
    message: str


@dataclass(slots=True)
class StreamRefused:
    """Refusal of a stream because of a limit of ours; its client may retry later."""

    limit: str


@dataclass(slots=True)
class StreamFlushed:
    """End of a wait for a stream's window: all its data has been written."""

    stream_id: int


@dataclass(slots=True)
class GoingAway:
    """GOAWAY of the other side: it takes no more streams, and ignores those above `last_stream_id`."""

    last_stream_id: int
    code: ErrorCode
    message: str


@dataclass(slots=True)
class SettingsChanged:
    """Settings of the other side (the first ones: the connection is established)."""


@dataclass(slots=True)
class PingAcknowledged:
    """Answer to our ping."""

    opaque: bytes


@dataclass(slots=True)
class ConnectionFailed:
    """Violation of a rule by the other side: GOAWAY is queued, after which the connection must be closed.

    Args:
        code: which kind of rule.
        message: which rule.
        limit: name of the limit, if it was one of ours.
    """

    code: ErrorCode
    message: str
    limit: str | None


Event = (
    RequestReceived
    | RequestTooLarge
    | ResponseReceived
    | DataReceived
    | StreamEnded
    | StreamReset
    | StreamRefused
    | StreamFlushed
    | GoingAway
    | SettingsChanged
    | PingAcknowledged
    | ConnectionFailed
)
