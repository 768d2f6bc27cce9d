"""HPACK (RFC 7541): header blocks to header lists and back.

The decoder keeps the other side's dynamic table. The encoder keeps none: it tells the other side so once, and every
block it writes is good at any time, so callers make the blocks they send often only once.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from services.rpc import huffman
from services.rpc.frames import ErrorCode, ProtocolError

Field = tuple[bytes, bytes]

TABLE_SIZE_DEFAULT: Final = 4096
FIELD_OVERHEAD: Final = 32
"""What a field counts besides its name and value (RFC 7541, 4.1)."""

_STATIC_TEXT = (
    ":authority\n:method GET\n:method POST\n:path /\n:path /index.html\n:scheme http\n:scheme https\n:status 200\n"
    ":status 204\n:status 206\n:status 304\n:status 400\n:status 404\n:status 500\naccept-charset\n"
    "accept-encoding gzip, deflate\naccept-language\naccept-ranges\naccept\naccess-control-allow-origin\nage\nallow\n"
    "authorization\ncache-control\ncontent-disposition\ncontent-encoding\ncontent-language\ncontent-length\n"
    "content-location\ncontent-range\ncontent-type\ncookie\ndate\netag\nexpect\nexpires\nfrom\nhost\nif-match\n"
    "if-modified-since\nif-none-match\nif-range\nif-unmodified-since\nlast-modified\nlink\nlocation\nmax-forwards\n"
    "proxy-authenticate\nproxy-authorization\nrange\nreferer\nrefresh\nretry-after\nserver\nset-cookie\n"
    "strict-transport-security\ntransfer-encoding\nuser-agent\nvary\nvia\nwww-authenticate"
)


def _static_field(line: str) -> Field:
    name, _, value = line.encode().partition(b" ")
    return name, value


STATIC_TABLE: Final[tuple[Field, ...]] = tuple(_static_field(line) for line in _STATIC_TEXT.split("\n"))
"""RFC 7541, appendix A; the first has index 1."""

_STATIC_FIELDS = {field: index for index, field in reversed(list(enumerate(STATIC_TABLE, 1)))}
_STATIC_NAMES = {field[0]: index for index, field in reversed(list(enumerate(STATIC_TABLE, 1)))}
_FIRST_DYNAMIC = len(STATIC_TABLE) + 1

_KNOWN_TEXTS_MAX = 512
_KNOWN_TEXT_BYTES_MAX = 128


class HeaderListTooLargeError(Exception):
    """A header list beyond the limit; the block was read to its end, so the connection can go on."""


class Decoder:
    """Reads the header blocks of one direction of one connection.

    `generation` changes whenever the dynamic table does: a block that was read without changing it means the same
    until it changes.

    Args:
        list_bytes_max: the longest header list, each field with 32 bytes more than its name and value.
        table_size_max: the largest dynamic table the other side may ask for (our SETTINGS_HEADER_TABLE_SIZE).
    """

    def __init__(self, list_bytes_max: int, table_size_max: int = TABLE_SIZE_DEFAULT) -> None:
        self.generation = 0
        self._list_bytes_max = list_bytes_max
        self._table_size_max = table_size_max
        self._table_size = TABLE_SIZE_DEFAULT
        # Oldest first: index 62 is the last one. Taking from the front moves at most 128 pointers.
        self._table: list[Field] = []
        self._table_bytes = 0
        self._known: dict[bytes, bytes] = {}

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a whole block, in order.

        Raises:
            ProtocolError: COMPRESSION_ERROR, if it is no header block.
            HeaderListTooLargeError: it is longer than the limit; the table is as the other side believes it to be.
        """
        try:
            return self._decode(block)
        except IndexError:
            raise _broken("the header block ends inside a field, or names a field that is not in the table") from None
        except huffman.HuffmanError as error:
            raise _broken(str(error)) from None

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        left = self._list_bytes_max
        at = 0
        end = len(block)
        while at < end:
            first = block[at]
            if first & 0x80:
                index = first & 0x7F
                at += 1
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                field = self._field(index)
            elif first & 0x40:
                field, at = self._literal(block, at, 0x3F)
                self._insert(field)
            elif first & 0x20:
                if fields:
                    raise _broken("a table size update stands behind a field")
                at = self._resize(block, at)
                continue
            else:
                field, at = self._literal(block, at, 0x0F)
            left -= len(field[0]) + len(field[1]) + FIELD_OVERHEAD
            if left < 0:
                # Reading goes on, for the table's sake, but nothing more is kept.
                fields = [field]
            else:
                fields.append(field)
        if left < 0:
            raise HeaderListTooLargeError(f"a header list of more than {self._list_bytes_max} bytes")
        return fields

    def _field(self, index: int) -> Field:
        if index < _FIRST_DYNAMIC:
            if not index:
                raise _broken("a field of index 0")
            return STATIC_TABLE[index - 1]
        return self._table[_FIRST_DYNAMIC - 1 - index]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index = block[at] & mask
        at += 1
        if index == mask:
            index, at = _integer(block, at, mask)
        if index:
            name = self._field(index)[0]
        else:
            name, at = self._text(block, at)
        value, at = self._text(block, at)
        return (name, value), at

    def _text(self, block: bytes, at: int) -> tuple[bytes, int]:
        first = block[at]
        length = first & 0x7F
        at += 1
        if length == 0x7F:
            length, at = _integer(block, at, 0x7F)
        end = at + length
        if end > len(block):
            raise IndexError
        raw = block[at:end]
        if not first & 0x80:
            return raw, end
        text = self._known.get(raw)
        if text is None:
            text = huffman.decode(raw)
            if length <= _KNOWN_TEXT_BYTES_MAX:
                if len(self._known) >= _KNOWN_TEXTS_MAX:
                    self._known.clear()
                self._known[raw] = text
        return text, end

    def _insert(self, field: Field) -> None:
        self.generation += 1
        self._table.append(field)
        self._table_bytes += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        if self._table_bytes > self._table_size:
            self._evict()

    def _resize(self, block: bytes, at: int) -> int:
        size = block[at] & 0x1F
        at += 1
        if size == 0x1F:
            size, at = _integer(block, at, 0x1F)
        if size > self._table_size_max:
            raise _broken(f"a table size update to {size}, beyond the {self._table_size_max} allowed")
        if size != self._table_size:
            self.generation += 1
            self._table_size = size
            self._evict()
        return at

    def _evict(self) -> None:
        gone = 0
        while self._table_bytes > self._table_size:
            name, value = self._table[gone]
            self._table_bytes -= len(name) + len(value) + FIELD_OVERHEAD
            gone += 1
        del self._table[:gone]


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """The rest of an integer whose prefix was full (RFC 7541, 5.1), and where it ends."""
    value = prefix
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _broken("an integer of more than 28 bits")


def _broken(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.COMPRESSION_ERROR, message)


NO_TABLE: Final = b"\x20"
"""Table size 0: stands before the first block of a connection, for an encoder that keeps no table (RFC 7541, 6.3)."""


def encode(fields: Iterable[Field] | Sequence[Field]) -> bytes:
    """A header block that leaves the other side's table alone: static fields by index, all others as literals."""
    block = bytearray()
    for field in fields:
        index = _STATIC_FIELDS.get(field)
        if index is not None:
            block.append(0x80 | index)
            continue
        name, value = field
        index = _STATIC_NAMES.get(name, 0)
        _write_integer(block, index, 0x0F)
        if not index:
            _write_integer(block, len(name), 0x7F)
            block += name
        _write_integer(block, len(value), 0x7F)
        block += value
    return bytes(block)


def _write_integer(block: bytearray, value: int, prefix: int) -> None:
    if value < prefix:
        block.append(value)
        return
    block.append(prefix)
    value -= prefix
    while value > 0x7F:
        block.append(value & 0x7F | 0x80)
        value >>= 7
    block.append(value)
