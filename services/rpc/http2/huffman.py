"""The Huffman code of HPACK (RFC 7541, 5.2 and appendix B): reading only, because writing it would not pay here.

The code is canonical: codes of one length count up in the order of their symbols. So the lengths are all there is to
write down. The table that reads a byte at a time is made from them, row by row, each when it is first needed.
"""

from functools import lru_cache

_LENGTHS = (
    "13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 "
    "6 10 10 12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 "
    "13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 8 7 8 13 19 13 14 6 "
    "15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 "
    "20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 "
    "22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 "
    "26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27 "
    "20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26 "
    "30"
)
_END_OF_STRING = 256


class HuffmanError(Exception):
    """Bytes that are no Huffman text: the end-of-string symbol inside, or padding that is too long or not all ones."""


def codes() -> list[tuple[int, int]]:
    """(code, length in bits) of each of the 257 symbols."""
    lengths = [int(length) for length in _LENGTHS.split()]
    table = [(0, 0)] * len(lengths)
    code = 0
    before = 0
    for symbol in sorted(range(len(lengths)), key=lambda symbol: (lengths[symbol], symbol)):
        code <<= lengths[symbol] - before
        before = lengths[symbol]
        table[symbol] = (code, before)
        code += 1
    return table


def _tree() -> list[list[int]]:
    """The inner nodes of the code's tree: for each bit the next node, or a symbol as its complement (below zero)."""
    nodes = [[0, 0]]
    for symbol, (code, length) in enumerate(codes()):
        node = 0
        for bit in range(length - 1, 0, -1):
            branch = code >> bit & 1
            if not nodes[node][branch]:
                nodes[node][branch] = len(nodes)
                nodes.append([0, 0])
            node = nodes[node][branch]
        nodes[node][code & 1] = ~symbol
    return nodes


class _Row:
    """One place in the tree at which a byte can begin.

    Args:
        node: the place.
        fault: why no text may end here; empty if it may.
    """

    __slots__ = ("fault", "node", "steps")

    def __init__(self, node: int, fault: str) -> None:
        self.node = node
        self.fault = fault
        # By byte: the row that follows, and the symbols that become whole on the way. Empty until first needed.
        self.steps: list[tuple[_Row, bytes]] = []


class _Table:
    """All rows, and how they are filled."""

    def __init__(self) -> None:
        self._nodes = _tree()
        padding = [0]
        for _ in range(7):
            padding.append(self._nodes[padding[-1]][1])
        self._rows = [
            _Row(node, "" if node in padding else "a Huffman text ends inside a symbol")
            for node in range(len(self._nodes))
        ]
        # Where the end-of-string symbol leads; there is no way out.
        self._broken = _Row(-1, "end-of-string symbol inside a Huffman text")
        self._broken.steps = [(self._broken, b"")] * 256

    @property
    def start(self) -> _Row:
        """Where a text begins."""
        return self._rows[0]

    def fill(self, row: _Row) -> None:
        """Make the steps of a row."""
        row.steps = [self._walk(row.node, byte) for byte in range(256)]

    def _walk(self, node: int, byte: int) -> tuple[_Row, bytes]:
        symbols = bytearray()
        for bit in range(7, -1, -1):
            node = self._nodes[node][byte >> bit & 1]
            if node < 0:
                if ~node == _END_OF_STRING:
                    return self._broken, b""
                symbols.append(~node)
                node = 0
        return self._rows[node], bytes(symbols)


@lru_cache(maxsize=1)
def _table() -> _Table:
    return _Table()


def decode(data: bytes) -> bytes:
    """Read a Huffman text.

    Raises:
        HuffmanError: it is none.
    """
    table = _table()
    row = table.start
    text = []
    for byte in data:
        try:
            row, symbols = row.steps[byte]
        except IndexError:
            table.fill(row)
            row, symbols = row.steps[byte]
        text.append(symbols)
    if row.fault:
        raise HuffmanError(row.fault)
    return b"".join(text)
