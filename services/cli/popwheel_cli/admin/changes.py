"""`popwheel admin changes`: who changed what."""

import json
from typing import Any
from urllib.parse import urlencode

import click

from popwheel_cli.admin.api import AdminApi, Format, moment, output_option, show_all

_PAGE_ROWS = 100
_SHOWN = 60
"""Limit of a text in a table; JSON has the whole text."""


@click.command("changes")
@click.option("--object", "object_", default="", help="Only changes of this topic, group or broker group.")
@click.option("--who", default="", help="Only changes by this token, resource or address.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most this many.")
@output_option
@click.pass_obj
def changes(api: AdminApi, object_: str, who: str, limit: int, output: Format) -> None:
    """Show who changed what, the latest first: the last few hundred changes and refusals."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None and len(found) < limit:
        asked = {"object": object_, "who": who, "after": after, "limit": min(_PAGE_ROWS, limit - len(found))}
        page = api.request("GET", f"/changes?{urlencode(asked)}")
        found += page["changes"]
        after = page["next"]
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    rows = [
        {
            **one,
            "time": moment(one["time_ms"]),
            "from": one["address"] or "-",
            "what": f"{one['verb']} {one['object']}".strip() + (f" ({one['times']} times)" if one["times"] > 1 else ""),
            "before": _short(one["before"]),
            "after": _short(one["after"]),
        }
        for one in found
    ]
    show_all(rows, output, ("time", "who", "from", "what", "outcome", "before", "after"))
    if after is not None:
        click.echo("there are more: raise --limit", err=True)


def _short(text: str) -> str:
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN else text or "-"
