"""The other side of a connection in memory: python-hyper's h2, raw frames, and what our side makes of them."""

from dataclasses import dataclass, field

from popwheel_rpc.http2 import frames, hpack
from popwheel_rpc.http2.connection import Connection
from popwheel_rpc.http2.events import ConnectionFailed, Event, StreamReset
from popwheel_rpc.limits import Limits

REQUEST = hpack.encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/t.T/Echo"),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
)
ANSWER = hpack.encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = hpack.encode([(b"grpc-status", b"0")])
START = frames.PREFACE + frames.settings({})


@dataclass
class Frame:
    """A frame that our side has sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def split(data: bytes) -> list[Frame]:
    """The frames in a run of bytes."""
    found = []
    at = 0
    while at < len(data):
        length, flags, stream_id = frames.FRAME_HEADER.unpack_from(data, at)
        end = at + frames.HEADER_BYTES + (length >> 8)
        found.append(Frame(length & 0xFF, flags, stream_id, data[at + frames.HEADER_BYTES : end]))
        at = end
    return found


def block(**fields: str) -> bytes:
    """A request's header block; `_` in names is `-`, a leading `_` is `:`; values of None leave a field out."""
    usual = {"_method": "POST", "_scheme": "http", "_path": "/t.T/Echo", "te": "trailers"}
    return hpack.encode(
        [
            (name.replace("_", ":", 1).encode() if name[0] == "_" else name.replace("_", "-").encode(), value.encode())
            for name, value in (usual | fields).items()
            if value
        ]
    )


@dataclass
class Served:
    """A server's connection that has shaken hands with raw frames.

    Args:
        limits: of the server.
    """

    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.connection = Connection(self.limits, client=False)
        self.connection.start()
        self.events: list[Event] = []
        self.receive(START)
        self.sent()
        self.events.clear()

    def receive(self, *data: bytes, now: float = 0.0) -> list[Event]:
        """What the server makes of these bytes."""
        events = self.connection.receive(b"".join(data), now)
        self.events += events
        return events

    def sent(self) -> list[Frame]:
        """What the server has sent since the last time."""
        return split(self.connection.outbox.take())

    def open(self, stream_id: int = 1, *, end: bool = False) -> None:
        """Open a stream."""
        self.receive(headers(stream_id, REQUEST, end=end))

    def connection_error(self) -> frames.ErrorCode | None:
        """The code that the connection failed with, and GOAWAY said so."""
        for event in self.events:
            if isinstance(event, ConnectionFailed):
                goaway = [sent for sent in self.sent() if sent.kind == frames.GOAWAY]
                assert goaway[-1].payload[4:8] == event.code.to_bytes(4, "big")
                return event.code
        return None

    def stream_error(self, stream_id: int) -> frames.ErrorCode | None:
        """The code with which the server has reset a stream."""
        for sent in self.sent():
            if sent.kind == frames.RST_STREAM and sent.stream_id == stream_id:
                return frames.ErrorCode(int.from_bytes(sent.payload, "big"))
        return None

    def resets(self) -> list[StreamReset]:
        """The resets that the owner was notified of."""
        return [event for event in self.events if isinstance(event, StreamReset)]


def headers(stream_id: int, header_block: bytes, *, end: bool = False) -> bytes:
    """HEADERS in one frame."""
    return frames.headers(stream_id, header_block, frames.END_STREAM if end else 0, frames.FRAME_BYTES_MAX)


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    """DATA."""
    return frames.frame(frames.DATA, frames.END_STREAM if end else 0, stream_id, payload)
