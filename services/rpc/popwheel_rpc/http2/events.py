"""Events that a connection returns to its owner after bytes came in (`popwheel_rpc.http2.connection`)."""

from dataclasses import dataclass

from popwheel_rpc.http2.frames import ErrorCode
from popwheel_rpc.http2.headers import RequestHead, ResponseHead


@dataclass(slots=True)
class RequestReceived:
    """A stream was opened by a client.

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
    """A stream was opened with more headers than allowed; they were not kept."""

    stream_id: int


@dataclass(slots=True)
class ResponseReceived:
    """The headers of the answer, or its trailers (`ended`), came in."""

    stream_id: int
    head: ResponseHead
    ended: bool


@dataclass(slots=True)
class DataReceived:
    """Data came in; the owner says `connection.release` once it no longer holds it.

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
    """The other side ended its direction with trailers; only a server sees this (they mean nothing in gRPC)."""

    stream_id: int


@dataclass(slots=True)
class StreamReset:
    """A stream is over before its time: the other side reset it, or broke a rule on it and was notified.

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
    """A stream was not opened, and its client asked to try again later, because of a limit of ours."""

    limit: str


@dataclass(slots=True)
class StreamFlushed:
    """All that waited for this stream's window has been written out."""

    stream_id: int


@dataclass(slots=True)
class GoingAway:
    """The other side takes no more streams; those above `last_stream_id` were never looked at."""

    last_stream_id: int
    code: ErrorCode
    message: str


@dataclass(slots=True)
class SettingsChanged:
    """The other side's settings came in (the first time: the connection is up)."""


@dataclass(slots=True)
class PingAcknowledged:
    """Answer to our ping."""

    opaque: bytes


@dataclass(slots=True)
class ConnectionFailed:
    """The other side broke a rule; GOAWAY is in what is to be sent, after that the connection is to be closed.

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
