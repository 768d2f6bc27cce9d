"""RFC 9113, 8.2: what a header field may be; and header blocks that come again, or never do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.http2 import hpack
from services.rpc.http2.head_reader import HeadReader
from services.rpc.http2.headers import Kind, read_field

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
