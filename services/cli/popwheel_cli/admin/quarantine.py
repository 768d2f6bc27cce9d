"""`popwheel admin quarantine ...`: poison messages, which fail whenever a broker processes them."""

import json
from collections.abc import Sequence
from urllib.parse import quote, urlencode

import click

from popwheel_cli.admin.api import AdminApi, Format, Row, moment, output_option, show, show_all, show_whole
from popwheel_cli.admin.bodies import whole
from popwheel_cli.admin.consent import Consent, agree, destroys, preview

_LISTED_MAX = 1_000  # of what the controller lists


@click.group()
def quarantine() -> None:
    """Poison messages: those whose own processing fails at a broker."""


@quarantine.command("list")
@click.option("--limit", type=click.IntRange(1, _LISTED_MAX), default=100, show_default=True, help="At most this many.")
@output_option
@click.pass_obj
def list_quarantine(api: AdminApi, limit: int, output: Format) -> None:
    """Show poison messages, the oldest first."""
    found = api.request("GET", f"/quarantine?{urlencode({'limit': limit})}")
    if show_whole(found, output):
        return
    rows = [{**one, "since": moment(one["set_aside_ms"])} for one in found["entries"]]
    show_all(rows, output, ("since", "broker", "id", "step", "topic", "group", "taken", "reason"))
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
        found["body"] = whole(found)
    show(found, output)


def _show_changed(found: Sequence[Row], output: Format) -> None:
    show_all(found, output, ("broker", "id", "changed"))


def _path(broker: str, entry_id: str) -> str:
    return f"/quarantine/{quote(broker, safe='')}/{quote(entry_id, safe='')}"


@quarantine.command("retry")
@click.argument("broker")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@output_option
@click.pass_obj
def retry_quarantined(api: AdminApi, broker: str, ids: Sequence[str], output: Format) -> None:
    """Retry the failed step of poison messages; those that are not in quarantine any more stay as they are."""
    _show_changed([api.request("POST", f"{_path(broker, each)}/retry") for each in ids], output)


@quarantine.command("drop")
@click.argument("broker")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@destroys
@output_option
@click.pass_obj
def drop_quarantined(api: AdminApi, broker: str, ids: Sequence[str], consent: Consent, output: Format) -> None:
    """Drop poison messages; those that are not in quarantine any more stay as they are."""
    consent.check_terminal()
    paths = [f"{_path(broker, each)}/drop" for each in ids]
    if consent.dry_run or not consent.yes:
        found = [preview(api, "POST", path) for path in paths]
        if consent.dry_run:
            _show_changed(found, output)
            return
        there = sum(one["changed"] for one in found)
        agree(f"drop {there} poison messages of {broker}? Their groups never get them")
    _show_changed([api.request("POST", path) for path in paths], output)
