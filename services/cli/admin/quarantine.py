"""`popwheel admin quarantine ...`: what brokers have set aside because it failed by itself."""

import json
from collections.abc import Sequence
from urllib.parse import quote, urlencode

import click

from services.cli.admin.api import AdminApi, Format, moment, output_option, show, show_all

_LISTED_MAX = 1_000  # of what the controller lists


@click.group()
def quarantine() -> None:
    """Messages that were set aside because a step failed for them alone."""


@quarantine.command("list")
@click.option("--limit", type=click.IntRange(1, _LISTED_MAX), default=100, show_default=True, help="At most this many.")
@output_option
@click.pass_obj
def list_quarantine(api: AdminApi, limit: int, output: Format) -> None:
    """Show what is set aside, the oldest first."""
    found = api.request("GET", f"/quarantine?{urlencode({'limit': limit})}")
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    rows = [{**one, "set aside": moment(one["set_aside_ms"])} for one in found["entries"]]
    show_all(rows, output, ("set aside", "broker", "id", "step", "topic", "group", "taken", "reason"))
    if found["total"] > len(rows):
        click.echo(f"there are {found['total']}: raise --limit", err=True)
    for one in found["unanswered"]:
        click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)


@quarantine.command("show")
@click.argument("broker")
@click.argument("entry_id", metavar="ID")
@output_option
@click.pass_obj
def show_quarantined(api: AdminApi, broker: str, entry_id: str, output: Format) -> None:
    """Show one of them, with its message."""
    found = api.request("GET", _path(broker, entry_id))
    if output == "table":
        found = {**found, "set_aside_ms": moment(found["set_aside_ms"])}
        found["properties"] = json.dumps(found["properties"])
    show(found, output)


def _change(api: AdminApi, broker: str, ids: Sequence[str], output: Format, verb: str) -> None:
    show_all(
        [api.request("POST", f"{_path(broker, each)}/{verb}") for each in ids], output, ("broker", "id", "changed")
    )


def _path(broker: str, entry_id: str) -> str:
    return f"/quarantine/{quote(broker, safe='')}/{quote(entry_id, safe='')}"


@quarantine.command("retry")
@click.argument("broker")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@output_option
@click.pass_obj
def retry_quarantined(api: AdminApi, broker: str, ids: Sequence[str], output: Format) -> None:
    """Give messages back to where they were on their way; what is not set aside any more stays as it is."""
    _change(api, broker, ids, output, "retry")


@quarantine.command("drop")
@click.argument("broker")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@output_option
@click.pass_obj
def drop_quarantined(api: AdminApi, broker: str, ids: Sequence[str], output: Format) -> None:
    """Have nothing more done about messages; what is not set aside any more stays as it is."""
    _change(api, broker, ids, output, "drop")
