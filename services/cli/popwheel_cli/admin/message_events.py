"""Time line of `popwheel admin message trace`: events of a message, the oldest first."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import click

from popwheel_cli.admin.api import AdminApi, Format, RefusedError, Row, moment, show_all


def time_line(api: AdminApi, message_id: str, topic: str, group: str, places: Sequence[Row]) -> dict[str, Any]:
    """Return a message's events as `events`, `known_since` and `unanswered`; empty from an older release.

    Args:
        api: the admin API.
        message_id, topic, group: which message, and for whom.
        places: where it is and was: only there it is looked for once more.
    """
    asked: dict[str, object] = {
        "topic": topic,
        "group": group,
        "since_ms": min(place["stored_ms"] for place in places),
        "until_ms": max(place["stored_ms"] for place in places),
    }
    try:
        found = api.request("GET", f"/messages/{quote(message_id, safe='')}/events?{urlencode(asked)}")
    except RefusedError as error:
        if error.code != "NOT_FOUND":
            raise
        return {"events": [], "known_since": [], "unanswered": []}
    return {name: found[name] for name in ("events", "known_since", "unanswered")}


def show_time_line(line: Row, output: Format) -> None:
    """Show the time line as a table, and since when it is complete."""
    if line["events"]:
        click.echo()
        rows = [
            {
                **one,
                "time": moment(one["time_ms"]),
                "group": one["group"] or "-",
                "client": one["client_id"] or "-",
                "attempt": one["attempt"] or "-",
                "until": moment(one["until_ms"]) if one["until_ms"] else "-",
            }
            for one in line["events"]
        ]
        show_all(rows, output, ("time", "kind", "group", "client", "attempt", "until", "broker", "topic"))
    for one in line["known_since"]:
        dropped = f", {one['dropped']} older entries were dropped" if one["dropped"] else ""
        click.echo(f"{one['broker']} knows deliveries and acks since {moment(one['since_ms'])}{dropped}", err=True)
    for one in line["unanswered"]:
        click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)
