"""Interface of a call, as both of its ends see it, whatever carries its bytes.

A `Method` is declared once and used by the side that calls and the side that serves. A `Service` binds methods to
handlers. A `Channel` calls methods: over a socket (`popwheel_rpc.client.socket_channel`) or straight into a
`Service` of the same process (`popwheel_rpc.local`); neither side sees a difference.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

Request = TypeVar("Request")
Response = TypeVar("Response")
Incoming = TypeVar("Incoming", covariant=True)
Outgoing = TypeVar("Outgoing", contravariant=True)
M = TypeVar("M", bound=Message)


class Codec(Generic[Request]):
    """Codec of one kind of message: to bytes and back."""

    __slots__ = ("decode", "encode")

    def __init__(self, encode: Callable[[Request], bytes], decode: Callable[[bytes], Request]) -> None:
        self.encode = encode
        self.decode = decode


def protobuf(message_type: type[M]) -> Codec[M]:
    """The codec of a protobuf message; decoding raises `google.protobuf.message.DecodeError`."""
    return Codec(encode=message_type.SerializeToString, decode=message_type.FromString)


def _same(data: bytes) -> bytes:
    return data


RAW: Codec[bytes] = Codec(encode=_same, decode=_same)
"""Codec for methods whose handler reads and writes the bytes itself, where decoding them would cost too much."""


class Method(Generic[Request, Response]):
    """A method of a service.

    Args:
        service: full name, `popwheel.v1.Broker`.
        name: `Pop`.
        request: codec of what the caller sends.
        response: codec of what the handler answers.

    Attributes:
        path: the `:path` of its calls; follows from the names.
    """

    __slots__ = ("name", "path", "request", "response", "service")

    def __init__(self, service: str, name: str, request: Codec[Request], response: Codec[Response]) -> None:
        self.service = service
        self.name = name
        self.request = request
        self.response = response
        self.path = f"/{service}/{name}"


@dataclass(slots=True)
class Call:
    """Properties of a call besides its message. Never change it; a frozen one takes longer to make.

    Args:
        path: `/service/method`.
        metadata: the caller's headers by lower-case name, without those of HTTP/2 and gRPC themselves.
        deadline: until when the caller waits, in seconds of the monotonic clock; None if it waits for ever.
        peer: the caller's address, for logs and the born host: `127.0.0.1:40312`, or `local`.
    """

    path: str
    metadata: Mapping[str, str]
    deadline: float | None
    peer: str


class StreamClosedError(Exception):
    """Error of a stream whose other side has cancelled or gone; the last messages may not have reached it."""


class Stream(Protocol[Incoming, Outgoing]):
    """Both directions of a streaming call, as seen by its handler or its caller."""

    async def receive(self) -> Incoming | None:
        """Return the next message of the other side; None when it has ended its direction.

        Raises:
            StreamClosedError: the call is over (a caller sees the `StatusError` or `RpcError` it ended with).
        """

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Send messages, in one write; returns when all of their bytes were handed to the transport.

        Raises:
            StreamClosedError: the other side was gone before that; part of it may have been sent.
        """


class ClientStream(Stream[Incoming, Outgoing], Protocol[Incoming, Outgoing]):
    """Caller's end of a streaming call."""

    async def end(self) -> None:
        """Half-close: no more messages will be sent."""

    def cancel(self) -> None:
        """Cancel the call; safe to call more than once."""


UnaryHandler = Callable[[Call, Request], Awaitable[Response]]
StreamHandler = Callable[[Call, Stream[Request, Response]], Awaitable[None]]


@dataclass(slots=True)
class Service:
    """Handlers by method path. A handler is cancelled when its caller cancels, goes away or its deadline passes."""

    unary_handlers: dict[str, tuple[Method[Any, Any], UnaryHandler[Any, Any]]] = field(default_factory=dict)
    stream_handlers: dict[str, tuple[Method[Any, Any], StreamHandler[Any, Any]]] = field(default_factory=dict)

    def unary(self, method: Method[Request, Response], handler: UnaryHandler[Request, Response]) -> None:
        """Answer calls of a method with one message each."""
        self.unary_handlers[method.path] = (method, handler)

    def stream(self, method: Method[Request, Response], handler: StreamHandler[Request, Response]) -> None:
        """Answer calls of a method with any number of messages; the stream ends well when the handler returns."""
        self.stream_handlers[method.path] = (method, handler)


Route = tuple[Method[Any, Any], Callable[[Call, Any], Awaitable[Any]], bool]
"""A method, its handler, and whether that is a `StreamHandler`."""


def routes_of(services: Service | Sequence[Service]) -> dict[str, Route]:
    """Return the handlers of one or several services, by method path.

    Raises:
        ValueError: a method has two handlers.
    """
    routes: dict[str, Route] = {}
    for service in (services,) if isinstance(services, Service) else services:
        found: list[tuple[str, Route]] = [(path, (*both, False)) for path, both in service.unary_handlers.items()]
        found += [(path, (*both, True)) for path, both in service.stream_handlers.items()]
        for path, route in found:
            if path in routes:
                raise ValueError(f"{path} has two handlers")
            routes[path] = route
    return routes


class Channel(Protocol):
    """Client of a service, wherever it runs. Messages passed must not be changed afterwards."""

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Response:
        """Call a unary method.

        Raises:
            StatusError: the handler refused it.
            RpcError: it did not reach the handler or its answer did not come back (see `popwheel_rpc.status`).
        """

    def open(
        self, method: Method[Request, Response], *, metadata: Mapping[str, str] | None = None
    ) -> ClientStream[Response, Request]:
        """Begin a streaming call."""

    async def close(self) -> None:
        """End the connection and every call on it."""
