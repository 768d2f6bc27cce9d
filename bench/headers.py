"""The header block of each request, as the official clients fill it: the same but for an id and how long it waits."""

import time
import uuid

from popwheel_common.contract.credentials import Credentials, signed_headers
from popwheel_rpc.http2.hpack import FIELD_OVERHEAD, STATIC_TABLE, TABLE_SIZE_DEFAULT, Field

_STATIC_FIELDS = {field: index for index, field in enumerate(STATIC_TABLE, 1) if field[1]}
_STATIC_NAMES = {field[0]: index for index, field in reversed(list(enumerate(STATIC_TABLE, 1)))}
_FIRST_DYNAMIC = len(STATIC_TABLE) + 1
NOBODY = Credentials("", "")
"""Shows nothing."""
_TIMEOUT: Field = (b"grpc-timeout", b"")
_TIMEOUT_US = 29_999_000
_REQUEST_ID: Field = (b"x-mq-request-id", b"")


class RequestHeaders:
    """Writes header blocks for one connection, with HPACK's table (RFC 7541): what repeats is one byte each.

    All official clients give each call an `x-mq-request-id` that never comes again, and say how many microseconds they
    will still wait, so no two blocks are alike. Both are literals that do not enter the table.

    Args:
        authority: `host:port` of the server.
        client_id: who calls.
        credentials: by which it shows that; signed once, as the server keeps no signature.
    """

    def __init__(self, authority: str, client_id: str, credentials: Credentials = NOBODY) -> None:
        signed = {"x-mq-date-time": "20260101T000000Z"} | signed_headers(credentials, int(time.time() * 1000))
        self._fields: list[Field] = [
            (b":authority", authority.encode()),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"popwheel-bench"),
            (b"te", b"trailers"),
            (b"x-mq-client-id", client_id.encode()),
            (b"x-mq-language", b"PYTHON"),
            (b"x-mq-client-version", b"5.1.2"),
            (b"x-mq-protocol", b"v2"),
            *((name.encode(), value.encode()) for name, value in signed.items()),
            (b"x-mq-namespace", b""),
        ]
        self._table: dict[Field, int] = {}
        self._table_bytes = 0
        self._blocks: dict[bytes, bytes] = {}
        self._before_id = b""
        self._id_prefix = str(uuid.uuid4())[:28].encode()
        self._calls = 0

    def block(self, path: bytes) -> bytes:
        """The block of the next request for a path; blocks must be sent in the order they were made."""
        self._calls += 1
        start = self._blocks.get(path)
        if start is None:
            start = self._start(path)
        before_id = self._before_id
        timeout = b"%du" % (_TIMEOUT_US + self._calls % 1000)
        return b"%b%b%b%b%08x" % (start, timeout, before_id, self._id_prefix, self._calls & 0xFFFFFFFF)

    def _start(self, path: bytes) -> bytes:
        """Return everything up to the value of the time-out; kept if it leaves the table as it is."""
        known = len(self._table)
        block = bytearray()
        for field in ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), *self._fields):
            index = _STATIC_FIELDS.get(field)
            if index is None and field in self._table:
                index = self._index(field)
            if index is None:
                self._add(block, field)
            else:
                block.append(0x80 | index)
        for field in (_TIMEOUT, _REQUEST_ID):
            if field not in self._table:
                self._add(block, field)
        # Literals that stay out of the table, their names by index (RFC 7541, 6.2.2), their values plain characters.
        block += bytes((0x0F, self._index(_TIMEOUT) - 0x0F, 9))
        self._before_id = bytes((0x0F, self._index(_REQUEST_ID) - 0x0F, 36))
        if len(self._table) != known:
            self._blocks.clear()
        else:
            self._blocks[path] = bytes(block)
        return bytes(block)

    def _index(self, field: Field) -> int:
        """Return the index of a field of the table: the newest has the lowest index."""
        return _FIRST_DYNAMIC + len(self._table) - 1 - self._table[field]

    def _add(self, block: bytearray, field: Field) -> None:
        name, value = field
        self._table[field] = len(self._table)
        self._table_bytes += len(name) + len(value) + FIELD_OVERHEAD
        if self._table_bytes > TABLE_SIZE_DEFAULT or max(len(name), len(value)) >= 127:
            raise ValueError("too many or too long header fields")
        index = _STATIC_NAMES.get(name, 0)
        block.append(0x40 | index)
        if not index:
            block.append(len(name))
            block += name
        block.append(len(value))
        block += value
