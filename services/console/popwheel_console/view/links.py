"""Addresses within the console (pure): every part is quoted, so no name can lead elsewhere."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

Value = str | int | None

PATH_LENGTH_MAX: Final = 2_000


def link(*parts: str, **query: Value) -> str:
    """The address of a page.

    Args:
        parts: of the path, each quoted as a whole; none for the overview.
        query: what is asked for; empty values are left out.
    """
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    return path + asked(query)


def asked(query: Mapping[str, Value]) -> str:
    """The query of an address, with its question mark; empty if nothing is asked for."""
    values = {name: value for name, value in query.items() if value not in (None, "")}
    return f"?{urlencode(values)}" if values else ""


def within(address: str) -> str:
    """An address that somebody handed in, if it is one of this console's; else the overview's."""
    is_path = address.startswith("/") and not address.startswith("//") and len(address) <= PATH_LENGTH_MAX
    return address if is_path and address.isprintable() and "\\" not in address else "/"
