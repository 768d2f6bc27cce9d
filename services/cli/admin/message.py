"""`popwheel admin message ...`: one message, by its id."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import click

from services.cli.admin.api import AdminApi, Format, MomentParam, Row, moment, output_option, show, show_all
from services.cli.errors import CommandError

_ID = re.compile(r"01[0-9A-Fa-f]{16}([0-9A-Fa-f]{8})[0-9A-Fa-f]{8}")
"""As official clients make ids: in the middle the second of its making, counted from 2021 on."""
_ID_BEGIN_MS = 1_609_459_200_000
_SKEW_MS = 600_000
"""By so much clients' clocks may be wrong."""

_message_id = click.argument("message_id", metavar="ID")
_topic = click.option("--topic", required=True, help="That it was sent to.")
_since = click.option(
    "--since", type=MomentParam(), help="When it may have come, at the earliest.  [default: by its id, or the oldest]"
)
_until = click.option("--until", type=MomentParam(), help="And at the latest.  [default: now]")


@click.group()
def message() -> None:
    """One message, looked for by its id: what was stored since a time is read for it."""


@message.command("get")
@_message_id
@_topic
@_since
@_until
@output_option
@click.pass_obj
def get(api: AdminApi, message_id: str, topic: str, since: int | None, until: int | None, output: Format) -> None:
    """Show a message as it was sent."""
    places = _places(api, message_id, topic, "", since, until)
    found = dict(next((each for each in places if each["topic"] == topic), places[0]))
    del found["groups"], found["attempts"]
    if output == "table":
        found = {**found, "stored_ms": moment(found["stored_ms"]), "properties": json.dumps(found["properties"])}
    show({"message_id": message_id, **found}, output)


@message.command("trace")
@_message_id
@_topic
@click.option("--group", default="", help="What this group has of it alone.")
@_since
@_until
@output_option
@click.pass_obj
def trace(
    api: AdminApi, message_id: str, topic: str, group: str, since: int | None, until: int | None, output: Format
) -> None:
    """Show where a message is and was, and which groups have it there, the oldest place first."""
    places = _places(api, message_id, topic, group, since, until)
    places.sort(key=lambda place: (place["stored_ms"], place["broker"], place["topic"]))
    if output == "json":
        click.echo(json.dumps({"message_id": message_id, "places": places}, indent=2))
        return
    rows = [row for place in places for row in _rows(place)]
    show_all(rows, output, ("stored", "broker", "topic", "queue_id", "queue_offset", "attempts", "group", "state"))


def _rows(place: Row) -> list[dict[str, Any]]:
    """A line for each group that has read there; one at least."""
    row = {**place, "stored": moment(place["stored_ms"])}
    return [{**row, "group": one["group"], "state": _state(one)} for one in place["groups"]] or [
        {**row, "group": "-", "state": "-"}
    ]


def _state(one: Mapping[str, Any]) -> str:
    if one["due_ms"] is None:
        return str(one["holding"])
    return f"{one['holding']} at {moment(one['popped_ms'])}, hidden until {moment(one['due_ms'])}"


def _places(
    api: AdminApi, message_id: str, topic: str, group: str, since_ms: int | None, until_ms: int | None
) -> list[dict[str, Any]]:
    """All places that hold it. Where nobody says since when, the time in the id is tried first, then all that is held.

    Raises:
        CommandError: none does.
    """
    asked: dict[str, object] = {"topic": topic, "group": group}
    if until_ms is not None:
        asked["until_ms"] = until_ms
    made = _ID.fullmatch(message_id)
    if since_ms is None and made is not None:
        found = _found(api, message_id, asked, max(0, _ID_BEGIN_MS + int(made[1], 16) * 1000 - _SKEW_MS))
        if found:
            return found
    found = _found(api, message_id, asked, since_ms or 0)
    if not found:
        since = f"was stored since {moment(since_ms)}" if since_ms else "is held"
        raise CommandError(
            f"no message {message_id} of {topic} {since}; `popwheel admin timer list` shows those that are delayed"
        )
    return found


def _found(api: AdminApi, message_id: str, asked: dict[str, object], since_ms: int) -> list[dict[str, Any]]:
    """The places of which some were stored since then; who did not answer is said."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        query = urlencode({**asked, "since_ms": since_ms, "after": after})
        page = api.request("GET", f"/messages/{quote(message_id, safe='')}?{query}")
        found += page["places"]
        for one in page["unanswered"]:
            click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)
        after = page["next"]
    return found
