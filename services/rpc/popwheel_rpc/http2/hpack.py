"""HPACK (RFC 7541): header blocks to header lists and back.

The reader keeps the other side's dynamic table. The encoder keeps none: it announces that to the other side once, and
every block it writes is good at any time, so callers make the blocks they send often only once.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from popwheel_rpc.http2 import huffman
from popwheel_rpc.http2.frames import ErrorCode, ProtocolError

Field = tuple[bytes, bytes]
Read = TypeVar("Read")
Entry = tuple[Read, int, bytes]
"""Entry of a table: the decoded field, its size in the table, and its name."""

TABLE_SIZE_DEFAULT: Final = 4096
FIELD_OVERHEAD: Final = 32
"""Size that a field counts besides its name and value (RFC 7541, 4.1)."""

_STATIC_TEXT: Final = (
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

_STATIC_FIELDS: Final = {field: index for index, field in reversed(list(enumerate(STATIC_TABLE, 1)))}
_STATIC_NAMES: Final = {field[0]: index for index, field in reversed(list(enumerate(STATIC_TABLE, 1)))}
_FIRST_DYNAMIC: Final = len(STATIC_TABLE) + 1
_BEFORE_DYNAMIC: Final = 0x80 | _FIRST_DYNAMIC - 1
"""Offset from the byte that names an entry of the dynamic table to its place there, which counts from the end."""
_LITERALS_CACHED: Final = 32
_LITERAL_BYTES_MAX: Final = 128


class HeaderListTooLargeError(Exception):
    """Error of a header list beyond the limit; the block was read to its end, so the connection can continue."""


@lru_cache(maxsize=4)
def _static_entries(read: Callable[[bytes, bytes], Any]) -> tuple[Entry[Any], ...]:
    """Return the decoded static table; index 0, which means no field, has an entry that is never used."""
    return tuple(_entry(read, *field) for field in ((b"", b""), *STATIC_TABLE))


def _entry(read: Callable[[bytes, bytes], Read], name: bytes, value: bytes) -> Entry[Read]:
    return read(name, value), len(name) + len(value) + FIELD_OVERHEAD, name


class BlockReader(Generic[Read]):
    """Reads the header blocks of one direction of one connection.

    A field is read once. What the table keeps, and a short literal that comes again, is known as what it was read as:
    the rest of the work on it (Huffman code, whether it is well formed, as text) is not done again.

    `generation` changes whenever the dynamic table does: a block that was read without changing it means the same
    until it changes.

    Args:
        read: decodes a name and a value; must not raise.
        list_bytes_max: the longest header list, each field with 32 bytes more than its name and value.
        table_size_max: the largest dynamic table the other side may ask for.
        changing: names of fields whose values do not repeat.
    """

    def __init__(
        self,
        read: Callable[[bytes, bytes], Read],
        list_bytes_max: int,
        table_size_max: int = TABLE_SIZE_DEFAULT,
        changing: frozenset[bytes] = frozenset(),
    ) -> None:
        self.generation = 0
        self.list_bytes = 0
        self._read = read
        self._list_bytes_max = list_bytes_max
        self.table_size_max = table_size_max
        self._table_size = TABLE_SIZE_DEFAULT
        self._static: tuple[Entry[Read], ...] = _static_entries(read)
        # Oldest first: index 62 is the last one. Taking from the front moves at most 128 pointers.
        self._table: list[Entry[Read]] = []
        self._table_bytes = 0
        self._changing = changing
        self._literals: dict[bytes, Entry[Read]] = {}
        """Cached literals that leave the table unchanged, by their bytes."""

    def decode(self, block: bytes) -> list[Read]:
        """Decode a whole block; return its fields in order.

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

    def _decode(self, block: bytes) -> list[Read]:
        fields: list[Read] = []
        static = self._static
        table = self._table
        left = self._list_bytes_max
        at = 0
        end = len(block)
        while at < end:
            first = block[at]
            if first > 0x80:
                at += 1
                if first < 0x80 | _FIRST_DYNAMIC:
                    field, size, _ = static[first & 0x7F]
                elif first < 0xFF:
                    field, size, _ = table[_BEFORE_DYNAMIC - first]
                else:
                    index, at = _integer(block, at, 0x7F)
                    field, size, _ = self._entry(index)
            elif first & 0xE0 == 0x20:
                if fields:
                    raise _broken("a table size update stands behind a field")
                at = self._resize(block, at)
                continue
            elif first == 0x80:
                raise _broken("a field of index 0")
            else:
                entry, at = self._literal(block, at, first)
                field, size, _ = entry
            left -= size
            if left < 0:
                # Reading continues, to update the table, but the fields are dropped.
                fields = [field]
            else:
                fields.append(field)
        if left < 0:
            raise HeaderListTooLargeError(f"a header list of more than {self._list_bytes_max} bytes")
        self.list_bytes = self._list_bytes_max - left
        return fields

    def literals(self, block: bytes) -> list[tuple[bytes, int, int]]:
        """Return the literals' places in the block that was just decoded, which left the table unchanged.

        Returns:
            For each its name, and from where to where its value lies, length included.
        """
        found: list[tuple[bytes, int, int]] = []
        at = 0
        while at < len(block):
            first = block[at]
            mask = 0x7F if first & 0x80 else 0x3F if first & 0x40 else 0x1F if first & 0x20 else 0x0F
            index = first & mask
            at += 1
            if index == mask:
                index, at = _integer(block, at, mask)
            if mask == 0x7F or mask == 0x1F:
                continue  # a field by its index, or a table size update
            if index:
                name = self._entry(index)[2]
            else:
                name, at = text_at(block, at)
            start = at
            at = text_at(block, at)[1]
            found.append((name, start, at))
        return found

    def _entry(self, index: int) -> Entry[Read]:
        """Return an entry of either table; the index is not 0."""
        if index < _FIRST_DYNAMIC:
            return self._static[index]
        return self._table[_FIRST_DYNAMIC - 1 - index]

    def _literal(self, block: bytes, at: int, first: int) -> tuple[Entry[Read], int]:
        """Return a literal field that begins with the byte `first`, and its end; add it to the table if it asks, and
        if there is one.
        """
        enters = first & 0x40 and self._table_size
        mask = 0x3F if first & 0x40 else 0x0F
        index = first & mask
        raw = b""
        if not enters and index < mask:  # so its name, too, is in no table that changes
            raw = _short_literal(block, at, has_name=not index)
            known = self._literals.get(raw)
            if known is not None:
                return known, at + len(raw)
        at += 1
        if index == mask:
            index, at = _integer(block, at, mask)
        if index:
            name = self._entry(index)[2]
        else:
            name, at = text_at(block, at)
        value, at = text_at(block, at)
        entry = self._read(name, value), len(name) + len(value) + FIELD_OVERHEAD, name
        if enters:
            self.generation += 1
            self._table.append(entry)
            self._table_bytes += entry[1]
            if self._table_bytes > self._table_size:
                self._evict()
        elif raw and name not in self._changing:
            if len(self._literals) >= _LITERALS_CACHED:
                self._literals.clear()
            self._literals[raw] = entry
        return entry, at

    def _resize(self, block: bytes, at: int) -> int:
        size = block[at] & 0x1F
        at += 1
        if size == 0x1F:
            size, at = _integer(block, at, 0x1F)
        if size > self.table_size_max:
            raise _broken(f"a table size update to {size}, beyond the {self.table_size_max} allowed")
        if size != self._table_size:
            self.generation += 1
            self._table_size = size
            self._evict()
        return at

    def _evict(self) -> None:
        gone = 0
        while self._table_bytes > self._table_size:
            self._table_bytes -= self._table[gone][1]
            gone += 1
        del self._table[:gone]


def _as_it_is(name: bytes, value: bytes) -> Field:
    return name, value


class Decoder(BlockReader[Field]):
    """Reads header blocks to names and values as they are.

    Args:
        list_bytes_max, table_size_max: as for `BlockReader`.
    """

    def __init__(self, list_bytes_max: int, table_size_max: int = TABLE_SIZE_DEFAULT) -> None:
        super().__init__(_as_it_is, list_bytes_max, table_size_max)


def _short_literal(block: bytes, at: int, *, has_name: bool) -> bytes:
    """Return the bytes of a literal that begins at `at`, if they are few; else nothing."""
    start = at
    at += 1
    for _ in range(1 + has_name):
        if at >= len(block) or block[at] & 0x7F > _LITERAL_BYTES_MAX // 2:
            return b""
        at += 1 + (block[at] & 0x7F)
    return block[start:at] if at <= len(block) else b""


def text_at(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a name or a value, and where it ends.

    Raises:
        IndexError: the block ends in it.
        HuffmanError, ProtocolError: it is no text.
    """
    first = block[at]
    length = first & 0x7F
    at += 1
    if length == 0x7F:
        length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise IndexError
    text = block[at:end]
    return (huffman.decode(text) if first & 0x80 else text), end


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Return the rest of an integer whose prefix was full (RFC 7541, 5.1), and where it ends."""
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
    """Return a header block that does not change the other side's table: static fields by index, others as literals."""
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
