"""Bodies of messages in tables: their beginning, in one line."""

from popwheel_cli.admin.api import Row

_CHARACTERS_MAX = 40


def beginning(row: Row) -> str:
    """Return the beginning of a message's body from the admin API, with an ellipsis if there is more.

    Line breaks and tabs become spaces. What is no text goes by the name of its encoding.
    """
    body: str = row["body"]
    is_text = row["body_encoding"] == "text"
    # Of a long body the API itself gives the beginning.
    is_cut = len(body) > _CHARACTERS_MAX or (is_text and len(body.encode()) < row["body_bytes"])
    shown = " ".join(body[:_CHARACTERS_MAX].split()) if is_text else f"{row['body_encoding']}:{body[:_CHARACTERS_MAX]}"
    return f"{shown}..." if is_cut else shown


def whole(row: Row) -> str:
    """Return the body for the table of one message: the whole text, or the beginning of other content."""
    if row["body_encoding"] != "text":
        return beginning(row)
    body: str = row["body"]
    return f"{body}..." if len(body.encode()) < row["body_bytes"] else body
