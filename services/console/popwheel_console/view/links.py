"""Addresses within the console (pure): every part is quoted, so no name can lead elsewhere."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

from popwheel_common.contract.message_id import CLOCK_SKEW_MS, made_since_ms

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


def message_link(topic: str, message_id: str, born_ms: int | None = None) -> str:
    """The address of a message's page.

    Args:
        topic: that it was sent to.
        message_id: its id. One of an official client says since when it may be stored.
        born_ms: for another id, when its sender made it, so that older messages need not be looked through.
    """
    since_ms = None if born_ms is None or made_since_ms(message_id) is not None else max(0, born_ms - CLOCK_SKEW_MS)
    return link("messages", topic, message_id, since_ms=since_ms)


def asked(query: Mapping[str, Value]) -> str:
    """The query of an address, with its question mark; empty if nothing is asked for."""
    values = {name: value for name, value in query.items() if value not in (None, "")}
    return f"?{urlencode(values)}" if values else ""


def within(address: str) -> str:
    """An address that somebody handed in, if it is one of this console's; else the overview's."""
    is_path = address.startswith("/") and not address.startswith("//") and len(address) <= PATH_LENGTH_MAX
    return address if is_path and address.isprintable() and "\\" not in address else "/"
