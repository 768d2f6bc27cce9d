"""Header lists: checks of their form (RFC 9113, 8.2 and 8.3), and the values that gRPC needs."""

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]|^[ \t]|[ \t]\Z")
_CONNECTION_FIELDS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_REQUEST_PSEUDO: Final = frozenset((":method", ":scheme", ":authority", ":path"))
_TRANSPORT_FIELDS: Final = frozenset((b"te", b"content-type", b"content-length"))
_NAMES_CACHED: Final = 512


class Kind(IntEnum):
    """Kind of a header field by its name, or that it is malformed."""

    METADATA = 0
    TRANSPORT = 1
    PSEUDO = 2
    FAULT = 3


# To compare with: attributes of an enum are slow to get at.
_METADATA: Final = Kind.METADATA
_TRANSPORT: Final = Kind.TRANSPORT
_PSEUDO: Final = Kind.PSEUDO
_FAULT: Final = Kind.FAULT

HeaderField = tuple[Kind, str, str]
"""Kind, name and value of a field; a fault has instead of its value the sentence that says what is wrong with it."""


class MalformedHeadersError(Exception):
    """Violation of a rule by a header list; it ends the stream."""


@dataclass(slots=True)
class RequestHead:
    """Headers of a request. Shared between calls with the same headers: never change it.

    Args:
        method: `POST` for gRPC.
        path: `/service/method`.
        content_type: empty if absent.
        timeout: of `grpc-timeout`, empty if absent.
        content_length: None if absent.
        metadata: all headers but HTTP/2's and gRPC's own; values of one name joined by commas.
        authority: the server that the client means, `host:port` as a rule; empty if absent.
        list_bytes: all of them, each with 32 bytes more than name and value.
    """

    method: str
    path: str
    content_type: str
    timeout: str
    content_length: int | None
    metadata: dict[str, str]
    authority: str = ""
    list_bytes: int = 0


@dataclass(slots=True)
class ResponseHead:
    """Headers of a response, or its trailers (then `status` is 0).

    Args:
        status: of HTTP; 0 in trailers.
        fields: all others by name.
    """

    status: int
    fields: dict[str, str]


@lru_cache(maxsize=_NAMES_CACHED)
def _read_name(name: bytes) -> tuple[Kind, str]:
    """Return kind and text of a name; for a fault, the error."""
    if name[:1] == b":":
        return _PSEUDO, name.decode("latin-1")
    if _NAME.fullmatch(name) is None:
        return _FAULT, f"a header name with forbidden characters: {name[:64]!r}"
    text = name.decode()
    if name in _CONNECTION_FIELDS:
        return _FAULT, f"header {text} has no place in HTTP/2"
    if name in _TRANSPORT_FIELDS or name[:5] == b"grpc-":
        return _TRANSPORT, text
    return _METADATA, text


def read_field(name: bytes, value: bytes) -> HeaderField:
    """Check a field by itself (RFC 9113, 8.2), and make text of it."""
    kind, key = _read_name(name)
    text = value.decode("latin-1")
    if kind is _FAULT:
        return kind, "", key
    # Printable text without spaces at its ends is always valid; anything else needs a full check.
    if not (text.isprintable() and text.strip() == text) and _BAD_VALUE.search(value) is not None:
        return _FAULT, key, f"the value of header {key[:64]!r} has forbidden characters"
    if key == "te" and text != "trailers":
        return _FAULT, key, "header te may only say trailers"
    return kind, key, text


def _content_length(value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 19:
        raise MalformedHeadersError("content-length is no number")
    return int(value)


def read_request(fields: list[HeaderField]) -> RequestHead:
    """Check a request's header list and take from it what gRPC needs.

    Raises:
        MalformedHeadersError: it breaks a rule of RFC 9113, 8.2 or 8.3.
    """
    pseudo: dict[str, str] = {}
    own: dict[str, str] = {}
    metadata: dict[str, str] = {}
    regular = False
    for kind, key, value in fields:
        if kind is _METADATA:
            regular = True
            metadata[key] = f"{metadata[key]},{value}" if key in metadata else value
        elif kind is _TRANSPORT:
            regular = True
            if own.setdefault(key, value) != value and key == "content-length":
                raise MalformedHeadersError("two values of content-length")
        elif kind is _FAULT:
            raise MalformedHeadersError(value)
        else:
            if regular or key in pseudo or key not in _REQUEST_PSEUDO:
                raise MalformedHeadersError(f"pseudo-header {key[:64]!r} is unknown, repeated or out of place")
            pseudo[key] = value
    method = pseudo.get(":method")
    path = pseudo.get(":path")
    if not method or not path or not pseudo.get(":scheme"):
        raise MalformedHeadersError("a request without :method, :scheme or :path")
    length = own.get("content-length")
    return RequestHead(
        method,
        path,
        own.get("content-type", ""),
        own.get("grpc-timeout", ""),
        None if length is None else _content_length(length),
        metadata,
        pseudo.get(":authority", ""),
    )


def read_response(fields: list[HeaderField], *, trailers: bool) -> ResponseHead:
    """Check an answer's header list, or its trailers.

    Raises:
        MalformedHeadersError: it breaks a rule of RFC 9113, 8.2 or 8.3.
    """
    status = ""
    read: dict[str, str] = {}
    for kind, key, value in fields:
        if kind is _FAULT:
            raise MalformedHeadersError(value)
        if kind is not _PSEUDO:
            read[key] = f"{read[key]},{value}" if key in read else value
            continue
        number = len(value) == 3 and value.isascii() and value.isdigit()
        if trailers or key != ":status" or status or read or not number:
            raise MalformedHeadersError(f"pseudo-header {key[:64]!r} is unknown, repeated or out of place")
        status = value
    if not trailers and not status:
        raise MalformedHeadersError("an answer without :status")
    return ResponseHead(int(status or "0"), read)


def check_trailers(fields: list[HeaderField]) -> None:
    """Check the trailers of a request.

    Raises:
        MalformedHeadersError: they break a rule of RFC 9113, 8.1 or 8.2.
    """
    for kind, _, value in fields:
        if kind is _FAULT:
            raise MalformedHeadersError(value)
        if kind is _PSEUDO:
            raise MalformedHeadersError("a pseudo-header in trailers")
