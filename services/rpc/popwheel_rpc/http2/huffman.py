"""The Huffman code of HPACK (RFC 7541, 5.2 and appendix B): reading only, because writing it would not pay here.

The code is canonical: codes of one length count up in the order of their symbols. So the lengths are all there is to
write down. The table that reads a byte at a time is made from them, place by place, each when it is first needed.
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
    """Error of bytes that are no Huffman text: an end-of-string symbol inside, or padding too long or not all ones."""


def codes() -> list[tuple[int, int]]:
    """Return (code, length in bits) of each of the 257 symbols."""
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
    """Return the inner nodes of the code's tree: for each bit the next node, or the complement of a symbol."""
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


class _Table:
    """Table of the decoder: the result of each byte at each place in the tree where a byte can begin.

    Args:
        nodes: the tree.
    """

    def __init__(self, nodes: list[list[int]]) -> None:
        self._nodes = nodes
        self.broken = len(nodes)
        """Place behind an end-of-string symbol; no transition leaves it."""
        places = len(nodes) + 1
        # By place and byte: the place that follows, below zero until it is first needed; the symbols that become
        # whole on the way.
        self.next = [-1] * (256 * places)
        self.symbols = [b""] * (256 * places)
        self.next[256 * self.broken :] = [self.broken] * 256
        padding = [0]
        for _ in range(7):
            padding.append(nodes[padding[-1]][1])
        self.may_end = [place in padding for place in range(places)]

    def fill(self, place: int) -> None:
        """Compute the transitions of all bytes from a place."""
        for byte in range(256):
            self.next[place << 8 | byte], self.symbols[place << 8 | byte] = self._walk(place, byte)

    def _walk(self, node: int, byte: int) -> tuple[int, bytes]:
        symbols = bytearray()
        for bit in range(7, -1, -1):
            node = self._nodes[node][byte >> bit & 1]
            if node < 0:
                if ~node == _END_OF_STRING:
                    return self.broken, b""
                symbols.append(~node)
                node = 0
        return node, bytes(symbols)


@lru_cache(maxsize=1)
def _table() -> _Table:
    return _Table(_tree())


def decode(data: bytes) -> bytes:
    """Read a Huffman text.

    Raises:
        HuffmanError: it is none.
    """
    table = _table()
    following, symbols = table.next, table.symbols
    text: list[bytes] = []
    place = 0
    for byte in data:
        step = place << 8 | byte
        place = following[step]
        if place < 0:
            table.fill(step >> 8)
            place = following[step]
        text.append(symbols[step])
    if place == table.broken:
        raise HuffmanError("end-of-string symbol inside a Huffman text")
    if not table.may_end[place]:
        raise HuffmanError("a Huffman text ends inside a symbol")
    return b"".join(text)
