"""RFC 9113, 8.2: what a header field may be; and header blocks that come again, or never do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_rpc.http2 import hpack
from popwheel_rpc.http2.frames import ProtocolError
from popwheel_rpc.http2.head_reader import HeadReader
from popwheel_rpc.http2.headers import Kind, MalformedHeadersError, RequestHead, read_field

VALUES = st.binary(max_size=6) | st.text(" \t\r\n\0ab\x7f\x80\xa0\xad\xff", max_size=6).map(
    lambda text: text.encode("latin-1")
)


@given(VALUES)
def test_a_value_is_good_unless_it_breaks_the_line_or_has_blanks_around_it(value: bytes) -> None:
    kind, name, text = read_field(b"x-name", value)
    if set(value) & {0, 10, 13} or value != value.strip(b" \t"):
        assert kind is Kind.FAULT
    else:
        assert (kind, name, text.encode("latin-1")) == (Kind.METADATA, "x-name", value)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        (b":path", b"/", Kind.PSEUDO),
        (b"te", b"trailers", Kind.TRANSPORT),
        (b"te", b"gzip", Kind.FAULT),
        (b"content-type", b"application/grpc", Kind.TRANSPORT),
        (b"grpc-anything", b"", Kind.TRANSPORT),
        (b"connection", b"close", Kind.FAULT),
        (b"", b"x", Kind.FAULT),
        (b"X-Upper", b"x", Kind.FAULT),
        (b"blank name", b"x", Kind.FAULT),
        (b"x\n", b"x", Kind.FAULT),
        (b"\xffx", b"x", Kind.FAULT),
    ],
)
def test_kinds(name: bytes, value: bytes, kind: Kind) -> None:
    assert read_field(name, value)[0] is kind


def block(request_id: int) -> bytes:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b"x-id", b"%d" % request_id)]
    return hpack.encode(fields)


def test_a_block_that_comes_again_is_known_again() -> None:
    reader = HeadReader(16_384)
    assert reader.request(block(1)) is reader.request(block(1))


def test_blocks_that_never_come_again_are_not_kept() -> None:
    reader = HeadReader(16_384)
    for number in range(1000):
        assert reader.request(block(number)).metadata == {"x-id": str(number)}
    assert not reader._known
    assert reader.request(block(1)) is not reader.request(block(1))


def written(request_id: bytes, signature: bytes = b"s", path: bytes = b"/a/b", *more: hpack.Field) -> bytes:
    """A block as official clients write it, none of its fields in the table."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b"x-mq-request-id", request_id),
        (b"x-mq-language", b"JAVA"),
        (b"authorization", signature),
        *more,
    ]
    return hpack.encode(fields)


def read_anew(data: bytes) -> RequestHead:
    """What a reader makes of a block that has seen no other."""
    return HeadReader(16_384).request(data)


@given(st.lists(st.tuples(st.text("0aZ-", max_size=40), st.text("0aZ-=", max_size=200), st.sampled_from("ab"))))
def test_blocks_that_differ_in_id_and_signature_mean_what_each_says(calls: list[tuple[str, str, str]]) -> None:
    reader = HeadReader(16_384)
    for request_id, signature, path in calls:
        data = written(request_id.encode(), signature.encode(), path.encode())
        assert reader.request(data) == read_anew(data)


@given(st.data())
def test_a_damaged_block_is_read_as_if_no_other_had_come(data: st.DataObject) -> None:
    reader = HeadReader(16_384)
    reader.request(written(b"first"))
    changed = bytearray(written(data.draw(st.binary(max_size=8))))
    for _ in range(data.draw(st.integers(0, 2))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    block = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    outcomes: list[RequestHead | str] = []
    for each in (reader, HeadReader(16_384)):
        try:
            outcomes.append(each.request(block))
        except (MalformedHeadersError, ProtocolError) as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_a_template_is_used_where_all_but_the_id_comes_again() -> None:
    reader = HeadReader(16_384)
    for number in range(1000):
        assert reader.request(written(b"%d" % number)).metadata["x-mq-request-id"] == str(number)
    assert len(reader._templates) == 1
    for number in range(1000):
        reader.request(written(b"1", b"s", b"/%d" % number))
    assert len(reader._templates) <= 8


def test_an_id_in_huffman_code_is_decoded() -> None:
    reader = HeadReader(16_384)
    plain = written(b"first")
    reader.request(plain)
    coded = plain.replace(b"\x05first", b"\x85" + bytes.fromhex("94dc66559f"))
    try:
        expected = read_anew(coded)
    except ProtocolError:
        pytest.fail("the test's own code is wrong")
    assert reader.request(coded) == expected


def test_a_template_does_not_outlive_the_table() -> None:
    reader = HeadReader(16_384)
    table = b"\x40\x03x-a\x011"  # enters the table
    start = hpack.encode([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b")])
    own = hpack.encode([(b"x-mq-request-id", b"7")])
    reader.request(start + table + own)
    assert reader.request(start + b"\xbe" + own).metadata == {"x-a": "1", "x-mq-request-id": "7"}
    reader.request(start + b"\x40\x03x-b\x012" + own)
    assert reader.request(start + b"\xbe" + own).metadata == {"x-b": "2", "x-mq-request-id": "7"}


@pytest.mark.parametrize("twice", [b"x-mq-request-id", b"authorization"])
def test_a_field_that_is_there_twice_means_both(twice: bytes) -> None:
    reader = HeadReader(16_384)
    for number in range(3):
        data = written(b"%d" % number, b"s", b"/a/b", (twice, b"again"))
        assert reader.request(data) == read_anew(data)
        assert reader.request(data).metadata[twice.decode()].endswith(",again")


def test_a_longer_value_is_too_long_with_a_template_too() -> None:
    reader = HeadReader(600)
    reader.request(written(b"1"))
    with pytest.raises(hpack.HeaderListTooLargeError):
        reader.request(written(b"1" * 500))
    assert reader.request(written(b"2")).metadata["x-mq-request-id"] == "2"
