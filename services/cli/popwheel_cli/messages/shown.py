"""Messages as text and as JSON (pure)."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from popwheel_cli.table import printable
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message

COLUMNS = ("stored", "queue", "offset", "tag", "keys", "body")
_WIDTHS = (24, 12, 8, 10, 12)


def row_of(message: Message) -> dict[str, Any]:
    """Return a message's properties by name. The body is `body` if it is text, else `body_base64`."""
    system = message.system_properties
    row: dict[str, Any] = {
        "message_id": system.message_id,
        "topic": message.topic.name,
        "broker": system.store_host,
        "queue_id": system.queue_id,
        "queue_offset": system.queue_offset,
        "stored_ms": system.store_timestamp.ToMilliseconds(),
        "born_ms": system.born_timestamp.ToMilliseconds(),
        "tag": system.tag,
        "keys": list(system.keys),
        "properties": dict(sorted(message.user_properties.items())),
    }
    if system.HasField("message_group"):
        row["message_group"] = system.message_group
    if system.HasField("delivery_timestamp"):
        row["delivery_ms"] = system.delivery_timestamp.ToMilliseconds()
    if system.HasField("priority"):
        row["priority"] = system.priority
    if system.HasField("lite_topic"):
        row["lite_topic"] = system.lite_topic
    if system.HasField("receipt_handle"):
        row["delivery_attempt"] = system.delivery_attempt
    text = text_of(message.body)
    if text is None:
        row["body_base64"] = b64encode(message.body).decode()
    else:
        row["body"] = text
    return row


def text_of(body: bytes) -> str | None:
    """Return a body as text; None if it is none."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def title() -> str:
    """Return the line above lines of messages."""
    return _line([column.upper() for column in COLUMNS])


def line_of(message: Message, stored: str, width: int | None) -> str:
    """Return a message on one line.

    Args:
        message: is shown.
        stored: when the broker stored it, in words.
        width: of a terminal, at which the body is cut; None: all of the body.
    """
    system = message.system_properties
    body = text_of(message.body)
    shown = f"({len(message.body)} bytes)" if body is None else printable(body).replace("\n", r"\n")
    cells = [
        stored,
        f"{system.store_host}/{system.queue_id}",
        str(system.queue_offset),
        printable(system.tag) or "-",
        printable(",".join(system.keys)) or "-",
    ]
    line = _line([*cells, shown])
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def _line(cells: Sequence[str]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)]
    return "  ".join([*padded, cells[-1]])
