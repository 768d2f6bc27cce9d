"""Template of header blocks with gaps: clients repeat all headers but an id for each call, and their signature."""

from typing import Final

from popwheel_rpc.http2 import hpack, huffman
from popwheel_rpc.http2.frames import ProtocolError
from popwheel_rpc.http2.headers import RequestHead

CHANGING: Final = frozenset((b"grpc-timeout", b"x-mq-request-id", b"x-mq-date-time", b"authorization"))
"""Header fields that official clients change for each call."""
_TIMEOUT: Final = "grpc-timeout"


class HeadTemplate:
    """Template of a header block, for blocks that differ only in the values of a few fields.

    It is valid for blocks that do not change HPACK's table, and until the table changes.

    Args:
        parts: the bytes before, between and behind those values.
        names: of those fields.
        head: what is the same for all.
        rest_bytes: of the header list, without those values.
        list_bytes_max: the longest header list.
    """

    __slots__ = ("_head", "_last", "_list_bytes_max", "_names", "_parts", "_rest_bytes")

    def __init__(
        self, parts: list[bytes], names: list[str], head: RequestHead, rest_bytes: int, list_bytes_max: int
    ) -> None:
        assert len(parts) == len(names) + 1, "not every gap has its name"
        self._parts = parts
        self._names = names
        self._last = [(b"", b"", "")] * len(names)
        """Last value of each field: its bytes, its meaning, and that as text. A date is good for a second."""
        self._head = head
        self._rest_bytes = rest_bytes
        self._list_bytes_max = list_bytes_max

    def head_of(self, block: bytes) -> RequestHead | None:
        """Return the head that a block means; None if it does not match this template, or must be decoded in full."""
        parts = self._parts
        if not block.startswith(parts[0]):
            return None
        head = self._head
        metadata = head.metadata.copy()
        timeout = head.timeout
        list_bytes = self._rest_bytes
        at = len(parts[0])
        index = 0
        try:
            for name in self._names:
                raw, value, text = self._last[index]
                end = at + len(raw)
                # By slices, which compiled code makes itself; it calls Python for `startswith` from a position.
                if raw and block[at:end] == raw:
                    at = end
                else:
                    start = at
                    value, at = hpack.text_at(block, at)
                    text = value.decode("latin-1")
                    if not (text.isprintable() and text.strip() == text):
                        return None  # it needs a full check (`headers.read_field`)
                    self._last[index] = block[start:at], value, text
                index += 1
                part = parts[index]
                end = at + len(part)
                if block[at:end] != part:
                    return None
                at = end
                list_bytes += len(value)
                if name == _TIMEOUT:
                    timeout = text
                else:
                    metadata[name] = text
        except (IndexError, huffman.HuffmanError, ProtocolError):
            return None
        if at != len(block) or list_bytes > self._list_bytes_max:
            return None
        return RequestHead(
            head.method,
            head.path,
            head.content_type,
            timeout,
            head.content_length,
            metadata,
            head.authority,
            list_bytes,
        )


def template_of(
    block: bytes, literals: list[tuple[bytes, int, int]], head: RequestHead, list_bytes_max: int
) -> HeadTemplate | None:
    """Return the template of a block that did not change the table; None if none of its fields varies.

    Args:
        block: the block.
        literals: see `hpack.BlockReader.literals`.
        head: what it means.
        list_bytes_max: the longest header list.
    """
    parts: list[bytes] = []
    names: list[str] = []
    rest_bytes = head.list_bytes
    behind = 0
    for name, start, end in literals:
        if name not in CHANGING:
            continue
        value = hpack.text_at(block, start)[0]
        key = name.decode()
        said = head.timeout if key == _TIMEOUT else head.metadata.get(key)
        if key in names or said != value.decode("latin-1"):
            return None  # it is there twice, and means both
        parts.append(block[behind:start])
        names.append(key)
        rest_bytes -= len(value)
        behind = end
    if not names:
        return None
    return HeadTemplate([*parts, block[behind:]], names, head, rest_bytes, list_bytes_max)
