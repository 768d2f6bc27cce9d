"""Reader of header blocks that caches repeated ones."""

from typing import Final

from popwheel_rpc.http2 import hpack
from popwheel_rpc.http2.head_template import CHANGING, HeadTemplate, template_of
from popwheel_rpc.http2.headers import HeaderField, RequestHead, read_field, read_request

_HEADS_CACHED: Final = 64
_LIST_BYTES_MAX: Final = 2048
_BLOCK_BYTES_MAX: Final = 1024
_MISSES_MAX: Final = 64
_TEMPLATES_CACHED: Final = 8


class HeadReader:
    """Reader of the header blocks of one side of a connection.

    A block that does not change HPACK's table means the same until the table changes: it is found again by its bytes,
    at the cost of one dictionary lookup. Our own channels write such blocks. The official clients write an id into
    each that never repeats, and a timeout: their blocks are compared with templates, except for these. Most
    of them enter these into the table, until they are asked to do without one (`table_changes`). Long blocks are not
    looked up, and none any more on a connection on which many in a row were new.

    Args:
        list_bytes_max: the longest header list.
    """

    def __init__(self, list_bytes_max: int) -> None:
        self._decoder = hpack.BlockReader(read_field, list_bytes_max, changing=CHANGING)
        self._list_bytes_max = list_bytes_max
        self._known: dict[bytes, RequestHead] = {}
        self._templates: list[HeadTemplate] = []
        self._generation = 0
        self._misses = 0
        self.table_changes = 0
        """Number of blocks that changed the table."""

    def forbid_table(self) -> None:
        """Forbid new tables: the other side knows that we want none. Its use of the table that it
        has is still understood.
        """
        self._decoder.table_size_max = 0
        self._misses = 0

    def fields(self, block: bytes) -> list[HeaderField]:
        """Decode any block.

        Raises:
            ProtocolError: it is none.
            HeaderListTooLargeError: it is too long; the connection can go on.
        """
        return self._decoder.decode(block)

    def request(self, block: bytes) -> RequestHead:
        """Decode the block of a request; the result is shared and must not be changed.

        Raises:
            ProtocolError: it is no header block.
            HeaderListTooLargeError: it is too long; the connection can go on.
            MalformedHeadersError: it is no request; the connection can go on.
        """
        if self._misses >= _MISSES_MAX or len(block) > _BLOCK_BYTES_MAX:
            return self._read(block)
        generation = self._decoder.generation
        if generation != self._generation:
            self._known.clear()
            self._templates.clear()
            self._generation = generation
        for template in self._templates:
            head = template.head_of(block)
            if head is not None:
                self._misses = 0
                return head
        head = self._known.get(block)
        if head is not None:
            self._misses = 0
            return head
        self._misses += 1
        head = self._read(block)
        if self._misses >= _MISSES_MAX:
            self._known.clear()
            self._templates.clear()
        elif self._decoder.generation == generation and head.list_bytes <= _LIST_BYTES_MAX:
            self._cache(block, head)
        return head

    def _cache(self, block: bytes, head: RequestHead) -> None:
        """Cache a block, or a template for those that are like it."""
        template = template_of(block, self._decoder.literals(block), head, self._list_bytes_max)
        if template is not None:
            self._templates.insert(0, template)
            del self._templates[_TEMPLATES_CACHED:]
            return
        if len(self._known) >= _HEADS_CACHED:
            self._known.clear()
        self._known[block] = head

    def _read(self, block: bytes) -> RequestHead:
        generation = self._decoder.generation
        head = read_request(self._decoder.decode(block))
        self.table_changes += self._decoder.generation != generation
        head.list_bytes = self._decoder.list_bytes
        return head
