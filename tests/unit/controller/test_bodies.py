"""Bodies as the admin API shows them: text where they are text, else base64, and said which."""

from base64 import b64decode

import pytest

from popwheel_cli.admin.bodies import beginning, whole
from popwheel_controller.http.bodies import BEGINNING_BYTES_MAX, BODY_BYTES_MAX, body_fields


@pytest.mark.parametrize("text", ["", "hello", '{"id": 7}\n', "a\tb\r\nc", "gr\u00fc\u00dfe \u4e2d \U0001f600"])
def test_text_comes_as_text(text: str) -> None:
    body = text.encode()
    assert body_fields(body) == {"body": text, "body_encoding": "text", "body_bytes": len(body)}


@pytest.mark.parametrize("body", [b"\x00", b"\xff\xfe", b"a\rb", b"\x1b[31mred", b"\x7f", b"\xc2\x9b", b"ok\xe4\xb8"])
def test_all_else_comes_as_base64(body: bytes) -> None:
    fields = body_fields(body)
    assert (fields["body_encoding"], b64decode(fields["body"])) == ("base64", body)


@pytest.mark.parametrize("more", range(4))
def test_a_character_may_be_cut_off_at_the_end(more: int) -> None:
    body = b"x" * (BODY_BYTES_MAX - more) + "\U0001f600".encode() * 2
    fields = body_fields(body)
    assert fields["body"] == "x" * (BODY_BYTES_MAX - more)
    assert (fields["body_encoding"], fields["body_bytes"]) == ("text", len(body))
    assert body_fields(b"x" * (BODY_BYTES_MAX - 1) + b"\xff" + b"x")["body_encoding"] == "base64"


def test_a_beginning_says_how_long_all_of_it_is() -> None:
    fields = body_fields(b"x" * BEGINNING_BYTES_MAX, BEGINNING_BYTES_MAX, 5_000)
    assert (len(fields["body"]), fields["body_bytes"]) == (BEGINNING_BYTES_MAX, 5_000)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"hello", "hello"),
        (b"two\nlines\tof it", "two lines of it"),
        (b"x" * 40, "x" * 40),
        (b"x" * 41, "x" * 40 + "..."),
        (b"\x00\x01\x02", "base64:AAEC"),
        (b"\x00" * 100, "base64:" + "A" * 40 + "..."),
    ],
)
def test_tables_show_the_beginning_in_one_line(body: bytes, shown: str) -> None:
    assert beginning(body_fields(body)) == shown


def test_the_table_of_one_message_shows_all_of_a_text() -> None:
    assert whole(body_fields(b"x\n" * 100)) == "x\n" * 100
    assert whole(body_fields(b"x" * (BODY_BYTES_MAX + 1))) == "x" * BODY_BYTES_MAX + "..."
    assert whole(body_fields(b"\x00" * 100)).startswith("base64:AAAA")
