"""The bodies of messages as the admin API shows them: text where they are text, else base64, and said which."""

import unicodedata
from base64 import b64encode
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

BODY_BYTES_MAX: Final = 64 * 1024
BEGINNING_BYTES_MAX: Final = 1024
"""Limit of each message body in a list, in bytes."""
_CUT_BYTES_MAX: Final = 3
"""Most bytes that may be left of a character that was cut off: a character has up to four."""


class ShownBody(BaseModel):
    """A body, or the beginning of a long one."""

    body: str = Field(description="Its first 64 KiB, or in a list of dead letters or timers its first KiB.")
    body_encoding: Literal["text", "base64"] = Field(
        description="`text`: UTF-8 without control characters but tab and newline. `base64`: anything else."
    )
    body_bytes: int = Field(description="How long it is, in bytes.")


def body_fields(body: bytes, bytes_max: int = BODY_BYTES_MAX, length: int | None = None) -> dict[str, Any]:
    """The fields of `ShownBody`.

    Args:
        body: a body, or its beginning.
        bytes_max: as much of it is shown.
        length: of the whole body; None if `body` is all of it.
    """
    whole = len(body) if length is None else length
    shown = body[:bytes_max]
    text = _text(shown, is_cut=len(shown) < whole)
    return {
        "body": b64encode(shown).decode() if text is None else text,
        "body_encoding": "base64" if text is None else "text",
        "body_bytes": whole,
    }


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """The text that bytes are; None if they are none. Of bytes that were cut the last character may be missing."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - _CUT_BYTES_MAX or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    printable = text.replace("\r\n", "\n")
    return text if all(unicodedata.category(each) != "Cc" or each in "\t\n" for each in printable) else None
