"""A connection that knows header blocks again reads in each just what one reads that decodes them all."""

import random

from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from popwheel_rpc.http2 import hpack
from popwheel_rpc.http2.frames import ProtocolError
from popwheel_rpc.http2.head_reader import HeadReader
from popwheel_rpc.http2.headers import MalformedHeadersError, RequestHead, read_field, read_request

LIST_BYTES_MAX = 700
INDEXED, ENTERS_TABLE, LITERAL, NEVER_INDEXED = range(4)
FORMS = {INDEXED: (0x00, 4), ENTERS_TABLE: (0x40, 6), LITERAL: (0x00, 4), NEVER_INDEXED: (0x10, 4)}
CHANGING = [b"grpc-timeout", b"x-mq-request-id", b"authorization", b"x-mq-date-time"]
OTHERS = [
    (b":authority", b"h:1"),
    (b"content-type", b"application/grpc"),
    (b"content-length", b"7"),
    (b"grpc-timeout", b"1S"),
    (b"te", b"trailers"),
    (b"x-mq-language", b"JAVA"),
    (b"x-mq-language", b"RUST"),
]
FAULTS = [(b"X-Up", b"1"), (b"connection", b"x"), (b"te", b"gzip"), (b":path", b"/")]
Field = tuple[bytes, bytes | None, int, int]
"""Name, value (None: another one each time), how it is written, and a seed for the choices in that."""


class Client:
    """Writes header blocks in all the ways there are, most of them like one before."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._table = HeaderTable()
        self._shapes: list[list[Field]] = []
        # Some leave the table alone, as a template needs it; some change it now and then, some all the time.
        self._enters = rng.choice([0.0, 0.3, 1.0, 3.0])

    def block(self) -> bytes:
        rng = self._rng
        if not self._shapes or rng.random() < 0.15:
            self._shapes.append(self._shape())
        block = self._resized() if self._enters and rng.random() < 0.2 else b""
        for name, value, form, seed in rng.choice(self._shapes):
            block += self._written(name, self._value() if value is None else value, form, random.Random(seed))
        if rng.random() < 0.03:
            place = rng.randrange(len(block))
            more = block[place:] + hpack.encode([(b"x-more", b"1")])
            block = block[:place] + rng.choice([b"", more, rng.randbytes(1) + block[place + 1 :]])
        return block

    def _shape(self) -> list[Field]:
        rng = self._rng
        if self._shapes and rng.random() < 0.7:
            shape = list(rng.choice(self._shapes))
            at = rng.randrange(len(shape))
            name, value, _, seed = shape[at]
            value = rng.choice([other for key, other in OTHERS if key == name] or [value])
            shape[at] = (name, value, self._form(), seed)
            return shape
        fields: list[tuple[bytes, bytes | None]] = [one for one in OTHERS[1:] if rng.random() < 0.5]
        fields += [(name, None) for name in CHANGING if rng.random() < 0.7]
        fields += [(rng.choice(CHANGING), None)] if rng.random() < 0.1 else []
        fields += [rng.choice(FAULTS)] if rng.random() < 0.05 else []
        rng.shuffle(fields)
        first = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", rng.choice([b"/a/b", b"/"])), OTHERS[0]]
        return [(*field, self._form(), rng.randrange(99)) for field in [*first, *fields]]

    def _form(self) -> int:
        return self._rng.choices(range(4), (8, self._enters, 5, 1))[0]

    def _value(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.05:
            return rng.choice([b" a", b"a\t", b"a\nb", b"\0", b"\xff\xa0", b"\x85", b","])
        return bytes(rng.choices(b"aZ09-=/", k=rng.choice([0, 1, 2, 5, 36, 126, 127, 128, 300])))

    def _resized(self) -> bytes:
        self._table.maxsize = self._rng.choice([0, 15, 100, 4096, *[self._table.maxsize] * 4])
        size = encode_integer(self._table.maxsize, 5)
        return bytes((size[0] | 0x20,)) + size[1:]

    def _written(self, name: bytes, value: bytes, form: int, choices: random.Random) -> bytes:
        found = self._table.search(name, value)
        if form == INDEXED and found is not None and found[2] is not None:
            index = encode_integer(found[0], 7)
            return bytes((index[0] | 0x80,)) + index[1:]
        kind, prefix = FORMS[form]
        index = encode_integer(found[0] if found is not None and choices.random() < 0.7 else 0, prefix)
        written = bytes((index[0] | kind,)) + index[1:]
        if index == b"\0":
            written += self._text(name, choices)
        written += self._text(value, choices if choices.random() < 0.5 else self._rng)
        if form == ENTERS_TABLE:
            self._table.add(name, value)
        return written

    @staticmethod
    def _text(text: bytes, choices: random.Random) -> bytes:
        if choices.random() < 0.6:
            return bytes(encode_integer(len(text), 7)) + text
        coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)
        length = encode_integer(len(coded), 7)
        return bytes((length[0] | 0x80,)) + length[1:] + coded


def known(reader: HeadReader, block: bytes) -> RequestHead | str:
    try:
        return reader.request(block)
    except (ProtocolError, hpack.HeaderListTooLargeError, MalformedHeadersError) as error:
        return repr(error)


def decoded(decoder: hpack.BlockReader, block: bytes) -> RequestHead | str:  # type: ignore[type-arg]
    try:
        head = read_request(decoder.decode(block))
    except (ProtocolError, hpack.HeaderListTooLargeError, MalformedHeadersError) as error:
        return repr(error)
    head.list_bytes = decoder.list_bytes
    return head


def test_blocks_in_all_forms_mean_what_they_mean_without_templates() -> None:
    by_template = 0
    for seed in range(200):
        client = Client(random.Random(seed))
        reader, decoder = HeadReader(LIST_BYTES_MAX), hpack.BlockReader(read_field, LIST_BYTES_MAX)
        for _ in range(30):
            block = client.block()
            if reader._generation == reader._decoder.generation:
                by_template += any(template.head_of(block) is not None for template in reader._templates)
            outcome = known(reader, block)
            assert outcome == decoded(decoder, block), (seed, block)
            if isinstance(outcome, str) and outcome.startswith("ProtocolError"):
                break  # that ends a connection
    assert by_template > 300


def test_long_blocks_are_not_looked_up() -> None:
    reader = HeadReader(16_384)
    start = hpack.encode([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b")])
    reader.request(start + hpack.encode([(b"authorization", b"a")]))
    misses = reader._misses
    for number in range(100):
        value = b"%d" % number * 1100
        head = reader.request(start + hpack.encode([(b"authorization", value)]))
        assert head.metadata == {"authorization": value.decode()}
    assert reader._misses == misses
    assert reader.request(start + hpack.encode([(b"authorization", b"b")])).metadata == {"authorization": "b"}
    assert reader._misses == 0
