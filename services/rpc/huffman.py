"""The Huffman code of HPACK (RFC 7541, 5.2 and appendix B): reading only, because writing it would not pay here.

The code is canonical: codes of one length count up in the order of their symbols. So the lengths are all there is to
write down, and the table that reads four bits at a time is made from them when it is first needed.
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

Step = tuple[int, bytes]
"""Where reading stands after a byte or half of it, and the symbol that became whole on the way."""


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


@lru_cache(maxsize=1)
def _table() -> tuple[list[Step | None], frozenset[int]]:
    """Steps by node * 16 + four bits (None: end-of-string), and the nodes at which a text may end."""
    nodes = _tree()
    steps = [_walk(nodes, node, nibble) for node in range(len(nodes)) for nibble in range(16)]
    endings = [0]
    for _ in range(7):
        endings.append(nodes[endings[-1]][1])
    return steps, frozenset(endings)


def _walk(nodes: list[list[int]], node: int, nibble: int) -> Step | None:
    symbol = b""
    for bit in (8, 4, 2, 1):
        node = nodes[node][1 if nibble & bit else 0]
        if node < 0:
            if ~node == _END_OF_STRING:
                return None
            # No code is shorter than five bits, so four bits end at most one.
            symbol = bytes((~node,))
            node = 0
    return node, symbol


def decode(data: bytes) -> bytes:
    """Read a Huffman text.

    Raises:
        HuffmanError: it is none.
    """
    steps, endings = _table()
    node = 0
    text = []
    for byte in data:
        first = steps[node << 4 | byte >> 4]
        if first is None:
            raise HuffmanError("end-of-string symbol inside a Huffman text")
        second = steps[first[0] << 4 | byte & 15]
        if second is None:
            raise HuffmanError("end-of-string symbol inside a Huffman text")
        node = second[0]
        text.append(first[1])
        text.append(second[1])
    if node not in endings:
        raise HuffmanError("a Huffman text ends inside a symbol")
    return b"".join(text)
