"""RFC 7541: the examples of its appendix C, byte by byte, and what a decoder must refuse."""

import contextlib

import hpack as hyper
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_rpc.http2 import hpack, huffman
from popwheel_rpc.http2.frames import ErrorCode, ProtocolError

REQUEST_1 = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
REQUEST_2 = [*REQUEST_1, (b"cache-control", b"no-cache")]
REQUEST_3 = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]
RESPONSE_1 = [
    (b":status", b"302"),
    (b"cache-control", b"private"),
    (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    (b"location", b"https://www.example.com"),
]
RESPONSE_2 = [(b":status", b"307"), *RESPONSE_1[1:]]
RESPONSE_3 = [
    (b":status", b"200"),
    (b"cache-control", b"private"),
    (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
    (b"location", b"https://www.example.com"),
    (b"content-encoding", b"gzip"),
    (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
]


def decoder(list_bytes_max: int = 65_536) -> hpack.Decoder:
    return hpack.Decoder(list_bytes_max)


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", [(b"custom-key", b"custom-header")]),  # C.2.1
        ("040c2f73616d706c652f70617468", [(b":path", b"/sample/path")]),  # C.2.2
        ("100870617373776f726406736563726574", [(b"password", b"secret")]),  # C.2.3
        ("82", [(b":method", b"GET")]),  # C.2.4
    ],
)
def test_single_fields(block: str, fields: list[hpack.Field]) -> None:
    assert decoder().decode(bytes.fromhex(block)) == fields


@pytest.mark.parametrize(
    "blocks",
    [
        # C.3: literals as they are
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        # C.4: Huffman
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
)
def test_requests_of_one_connection(blocks: tuple[str, ...]) -> None:
    reader = decoder()
    for block, fields in zip(blocks, (REQUEST_1, REQUEST_2, REQUEST_3), strict=True):
        assert reader.decode(bytes.fromhex(block)) == fields


@pytest.mark.parametrize(
    "blocks",
    [
        # C.5: literals as they are, a table of 256 bytes
        (
            (
                "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768747470733a"
                "2f2f7777772e6578616d706c652e636f6d"
            ),
            "4803333037c1c0bf",
            (
                "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b4851"
                "4b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"
            ),
        ),
        # C.6: Huffman, a table of 256 bytes
        (
            (
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43"
                "d3"
            ),
            "4883640effc1c0bf",
            (
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27"
                "087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
            ),
        ),
    ],
)
def test_responses_that_push_others_out_of_the_table(blocks: tuple[str, ...]) -> None:
    reader = decoder()
    reader.decode(bytes.fromhex("3fe101"))  # the table's size becomes 256
    for block, fields in zip(blocks, (RESPONSE_1, RESPONSE_2, RESPONSE_3), strict=True):
        assert reader.decode(bytes.fromhex(block)) == fields


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("80", "index 0"),
        ("be", "an index beyond the table"),
        ("ff8080808001", "an integer that does not end in time"),
        ("ff", "an integer that is cut off"),
        ("400a6375", "a text that is cut off"),
        ("40", "no name at all"),
        ("3fe21f", "a table of 4097 bytes"),
        ("823fe101", "a table size update behind a field"),
        ("4084ffffffff0161", "padding longer than seven bits"),
        ("008121" + "0161", "padding that is not all ones"),
        ("00" + "84" + "fffffffc" + "0161", "the end-of-string symbol"),
    ],
)
def test_broken_blocks(block: str, why: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        decoder().decode(bytes.fromhex(block))
    assert raised.value.code is ErrorCode.COMPRESSION_ERROR, why


def test_a_list_beyond_the_limit_leaves_the_table_as_the_other_side_believes_it() -> None:
    reader = decoder(list_bytes_max=200)
    writer = hyper.Encoder()
    with pytest.raises(hpack.HeaderListTooLargeError):
        reader.decode(writer.encode([(b"name-%d" % number, b"x" * 40) for number in range(9)]))
    assert reader.decode(writer.encode([(b"name-8", b"x" * 40)])) == [(b"name-8", b"x" * 40)]


def test_a_small_block_of_many_references_is_cut_short() -> None:
    reader = decoder()
    big = hyper.Encoder().encode([(b"bomb", b"x" * 4000)])
    with pytest.raises(hpack.HeaderListTooLargeError):
        reader.decode(big + b"\xbe" * 16_000)


def test_the_generation_reports_whether_the_table_changed() -> None:
    reader = decoder()
    reader.decode(hpack.encode(REQUEST_1))
    assert reader.generation == 0
    reader.decode(bytes.fromhex("400a637573746f6d2d6b65790d637573746f6d2d686561646572"))
    assert reader.generation == 1


FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b":path", b"te", b"x-mq-client-id", b"authorization", b"accept", b"a"])
        | st.binary(max_size=40),
        st.sampled_from([b"", b"/", b"trailers", b"gzip, deflate"]) | st.binary(max_size=300),
    ),
    max_size=12,
)


@given(st.lists(FIELDS, max_size=6), st.booleans(), st.lists(st.sampled_from([0, 64, 256, 4096]), max_size=6))
def test_reads_what_hyper_writes(blocks: list[list[hpack.Field]], huffman_coded: bool, sizes: list[int]) -> None:
    writer = hyper.Encoder()
    reader = decoder()
    for number, fields in enumerate(blocks):
        if number < len(sizes):
            writer.header_table_size = sizes[number]
        assert reader.decode(writer.encode(fields, huffman=huffman_coded)) == fields


@given(st.lists(FIELDS, max_size=6))
def test_hyper_reads_what_we_write(blocks: list[list[hpack.Field]]) -> None:
    reader = hyper.Decoder()
    reader.max_header_list_size = 2**20
    for fields in blocks:
        block = hpack.NO_TABLE + hpack.encode(fields)
        assert [(bytes(name), bytes(value)) for name, value in reader.decode(block, raw=True)] == fields


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_else(block: bytes) -> None:
    with contextlib.suppress(ProtocolError, hpack.HeaderListTooLargeError):
        decoder().decode(block)


def test_the_huffman_code_is_that_of_the_rfc() -> None:
    codes = huffman.codes()
    assert codes[ord("0")] == (0x0, 5)
    assert codes[ord(" ")] == (0x14, 6)
    assert codes[ord("~")] == (0x1FFD, 13)
    assert codes[10] == (0x3FFFFFFC, 30)
    assert codes[256] == (0x3FFFFFFF, 30)
    assert sum(2.0**-length for _, length in codes) == 1.0


@given(st.binary(max_size=120))
def test_huffman_texts_of_hyper(text: bytes) -> None:
    block = hyper.Encoder().encode([(b"a", text)], huffman=True)
    assert decoder().decode(block) == [(b"a", text)]


def test_a_literal_that_comes_again_is_not_read_again() -> None:
    read: list[tuple[bytes, bytes]] = []

    def note(name: bytes, value: bytes) -> tuple[bytes, bytes]:
        read.append((name, value))
        return name, value

    reader = hpack.BlockReader(note, 65_536, changing=frozenset((b"id",)))
    static = len(read)
    fields = [(b":path", b"/a"), (b"name", b"value"), (b"long", b"x" * 200), (b"id", b"7")]
    for form in (hpack.encode, lambda given: hyper.Encoder().encode(given)):
        block = form([hyper.NeverIndexedHeaderTuple(*each) for each in fields])
        reader.decode(block)
        before = len(read)
        assert reader.decode(block) == fields
        assert read[before:] == fields[2:], "a long one, and one whose value changes"
    assert len(read) > static


def test_a_literal_whose_name_is_in_the_table_means_what_the_table_says_then() -> None:
    reader = decoder()
    reader.decode(b"\x40\x01a\x01v")  # enters a: v
    named = b"\x0f\x2f\x01w"  # the value w of the name with index 62
    assert reader.decode(named) == [(b"a", b"w")]
    reader.decode(b"\x40\x01b\x01v")
    assert reader.decode(named) == [(b"b", b"w")]


def test_a_table_of_no_bytes_is_left_alone_by_what_wants_to_enter_it() -> None:
    reader = decoder()
    assert reader.decode(b"\x20\x40\x01a\x01v") == [(b"a", b"v")]
    generation = reader.generation
    assert reader.decode(b"\x40\x01a\x01v") == [(b"a", b"v")]
    assert reader.generation == generation
    with pytest.raises(ProtocolError, match="names a field that is not in the table"):
        reader.decode(b"\xbe")


def test_few_literals_are_kept() -> None:
    reader = decoder()
    for number in range(1000):
        reader.decode(hpack.encode([(b"x-%d" % number, b"v")]))
        assert len(reader._literals) <= 32
