"""Header lists: whether they are well formed (RFC 9113, 8.2 and 8.3), and what gRPC reads in them."""

import re
from dataclasses import dataclass

from services.rpc.hpack import Field

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|^[ \t]|[ \t]\Z")
_CONNECTION_FIELDS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))
_TRANSPORT_FIELDS = frozenset((b"te", b"content-type", b"content-length"))


class MalformedHeadersError(Exception):
    """A header list that breaks a rule; it costs the stream."""


@dataclass(slots=True)
class RequestHead:
    """What a client says before its messages. Shared between calls with the same headers: never change it.

    Args:
        method: `POST` for gRPC.
        path: `/service/method`.
        content_type: empty if absent.
        timeout: the text of `grpc-timeout`, empty if absent.
        content_length: None if absent.
        metadata: all headers but HTTP/2's and gRPC's own; values of one name joined by commas.
    """

    method: str
    path: str
    content_type: bytes
    timeout: bytes
    content_length: int | None
    metadata: dict[str, str]


@dataclass(slots=True)
class ResponseHead:
    """What a server says before its messages, or after them (then `status` is 0).

    Args:
        status: of HTTP; 0 in trailers.
        fields: all others by name.
    """

    status: int
    fields: dict[str, str]


def _check(name: bytes, value: bytes) -> None:
    if _NAME.fullmatch(name) is None:
        raise MalformedHeadersError(f"a header name with forbidden characters: {name[:64]!r}")
    if _BAD_VALUE.search(value) is not None:
        raise MalformedHeadersError(f"the value of header {name.decode()} has forbidden characters")
    if name in _CONNECTION_FIELDS:
        raise MalformedHeadersError(f"header {name.decode()} has no place in HTTP/2")
    if name == b"te" and value != b"trailers":
        raise MalformedHeadersError("header te may only say trailers")


def _content_length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise MalformedHeadersError("content-length is no number")
    return int(value)


def read_request(fields: list[Field]) -> RequestHead:
    """Check a request's header list and take from it what gRPC needs.

    Raises:
        MalformedHeadersError: it breaks a rule of RFC 9113, 8.2 or 8.3.
    """
    pseudo: dict[bytes, bytes] = {}
    own: dict[bytes, bytes] = {}
    metadata: dict[str, str] = {}
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if regular or name in pseudo or name not in _REQUEST_PSEUDO:
                raise MalformedHeadersError(f"pseudo-header {name[:64]!r} is unknown, repeated or out of place")
            if _BAD_VALUE.search(value) is not None:
                raise MalformedHeadersError(f"the value of pseudo-header {name.decode()} has forbidden characters")
            pseudo[name] = value
            continue
        regular = True
        _check(name, value)
        if name in _TRANSPORT_FIELDS or name[:5] == b"grpc-":
            if own.setdefault(name, value) != value and name == b"content-length":
                raise MalformedHeadersError("two values of content-length")
            continue
        key = name.decode()
        text = value.decode("latin-1")
        metadata[key] = f"{metadata[key]},{text}" if key in metadata else text
    method = pseudo.get(b":method")
    path = pseudo.get(b":path")
    if not method or not path or not pseudo.get(b":scheme"):
        raise MalformedHeadersError("a request without :method, :scheme or :path")
    length = own.get(b"content-length")
    return RequestHead(
        method.decode("latin-1"),
        path.decode("latin-1"),
        own.get(b"content-type", b""),
        own.get(b"grpc-timeout", b""),
        None if length is None else _content_length(length),
        metadata,
    )


def read_response(fields: list[Field], *, trailers: bool) -> ResponseHead:
    """Check an answer's header list, or its trailers.

    Raises:
        MalformedHeadersError: it breaks a rule of RFC 9113, 8.2 or 8.3.
    """
    status = b""
    read: dict[str, str] = {}
    for name, value in fields:
        if name[:1] == b":":
            if trailers or name != b":status" or status or read or not (value.isdigit() and len(value) == 3):
                raise MalformedHeadersError(f"pseudo-header {name[:64]!r} is unknown, repeated or out of place")
            status = value
            continue
        _check(name, value)
        key = name.decode()
        text = value.decode("latin-1")
        read[key] = f"{read[key]},{text}" if key in read else text
    if not trailers and not status:
        raise MalformedHeadersError("an answer without :status")
    return ResponseHead(int(status or b"0"), read)


def check_trailers(fields: list[Field]) -> None:
    """Check the trailers of a request.

    Raises:
        MalformedHeadersError: they break a rule of RFC 9113, 8.1 or 8.2.
    """
    for name, value in fields:
        if name[:1] == b":":
            raise MalformedHeadersError("a pseudo-header in trailers")
        _check(name, value)
