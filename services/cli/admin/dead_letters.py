"""`popwheel admin dlq ...`: the dead letters of a group."""

import json
import threading
from typing import Any
from urllib.parse import quote, urlencode

import click

from services.cli.admin.api import AdminApi, Format, moment, output_option, show, show_all
from services.cli.admin.offset import dry_run_option, fail_if_silent, yes_option

_PAGE_ROWS = 500
_ROWS = 1_000
_AT_ONCE_MAX = 1_000

_broker_option = click.option("--broker", default="", help="At this broker alone.")


@click.group()
def dlq() -> None:
    """Dead letters: messages that a group has failed on as often as it may."""


@dlq.command("list")
@click.argument("group")
@_broker_option
@click.option("--limit", type=click.IntRange(min=1), default=_ROWS, show_default=True, help="At most this many.")
@output_option
@click.pass_obj
def list_dead_letters(api: AdminApi, group: str, broker: str, limit: int, output: Format) -> None:
    """Show them, the oldest of each broker first; not those that were redriven or purged."""
    found: list[dict[str, Any]] = []
    total = 0
    for name in _brokers(api, broker):
        begin: int | None = 0
        while begin is not None and len(found) < limit:
            page = _page(api, group, name, begin, min(_PAGE_ROWS, limit - len(found)))
            found += page["letters"]
            total += page["total"] if not begin else 0
            begin = page["next"]
    if output == "json":
        click.echo(json.dumps({"letters": found, "total": total}, indent=2))
        return
    rows = [{**one, "dead since": moment(one["stored_ms"])} for one in found]
    show_all(rows, output, ("dead since", "broker", "queue_offset", "message_id", "topic", "tag", "keys"))
    if total > len(found):
        click.echo(f"there are {total} or more: raise --limit", err=True)


@dlq.command("show")
@click.argument("group")
@click.argument("broker")
@click.argument("offset", type=click.IntRange(min=0))
@output_option
@click.pass_obj
def show_dead_letter(api: AdminApi, group: str, broker: str, offset: int, output: Format) -> None:
    """Show one of them with its message, by its broker and its offset."""
    found = api.request("GET", f"{_path(group)}/{quote(broker, safe='')}/{offset}")
    if output == "table":
        found = {**found, "stored_ms": moment(found["stored_ms"]), "properties": json.dumps(found["properties"])}
    show(found, output)


@dlq.command("redrive")
@click.argument("group")
@_broker_option
@click.option(
    "--rate", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most this many a second."
)
@click.option("--limit", type=click.IntRange(min=1), help="At most this many.  [default: all that are there now]")
@yes_option
@dry_run_option
@output_option
@click.pass_obj
def redrive(
    api: AdminApi,
    group: str,
    broker: str,
    rate: int,
    limit: int | None,
    yes: bool,
    dry_run: bool,
    output: Format,
) -> None:
    """Give dead letters back to their group, the oldest first: each comes to it as if for the first time.

    Other groups of the topic get nothing. Cut off, this goes on where it was when it is run again.
    """
    waiting = {name: _page(api, group, name, 0, 1) for name in _brokers(api, broker)}
    there = sum(page["total"] for page in waiting.values())
    left = there if limit is None else min(there, limit)
    if dry_run:
        show({"group": group, "would be redriven": left, "of": there}, output)
        return
    if left and not yes:
        click.confirm(f"give {left} of {there} dead letters back to {group}?", abort=True, err=True)
    redriven = kept = 0
    for name, page in waiting.items():
        at_broker = page["total"]
        while left and at_broker:
            asked = min(left, at_broker, max(1, rate // 2), _AT_ONCE_MAX)
            answer = api.request(
                "POST",
                f"{_path(group)}/{quote(name, safe='')}/redrive",
                {"limit": asked, "end_offset": page["max_offset"]},
            )
            done = answer["redriven"] + answer["kept"]
            if not done:
                break  # somebody else has redriven or purged them meanwhile
            redriven, kept = redriven + answer["redriven"], kept + answer["kept"]
            left, at_broker = left - done, at_broker - done
            if left:
                threading.Event().wait(done / rate)
    show({"group": group, "redriven": redriven, "kept": kept}, output)
    if kept:
        click.echo(f"{kept} are kept as dead letters: their topic is gone, or they cannot be read", err=True)


@dlq.command("purge")
@click.argument("group")
@yes_option
@dry_run_option
@output_option
@click.pass_obj
def purge(api: AdminApi, group: str, yes: bool, dry_run: bool, output: Format) -> None:
    """Have nothing more done about a group's dead letters. Their queue can still be read, until retention takes it."""
    found = api.request("POST", f"{_path(group)}/purge", {"dry_run": True})
    if not dry_run:
        if found["purged"] and not yes:
            click.confirm(f"purge {found['purged']} dead letters of {group}?", abort=True, err=True)
        found = api.request("POST", f"{_path(group)}/purge", {})
    show({"group": group, "would be purged" if dry_run else "purged": found["purged"]}, output)
    fail_if_silent(found["unanswered"])


def _brokers(api: AdminApi, only: str) -> list[str]:
    """The brokers there are, or the one that is wanted."""
    if only:
        return [only]
    return sorted(each["name"] for each in api.request("GET", "/cluster")["brokers"])


def _page(api: AdminApi, group: str, broker: str, begin: int, limit: int) -> Any:
    return api.request("GET", f"{_path(group)}/{quote(broker, safe='')}?{urlencode({'begin': begin, 'limit': limit})}")


def _path(group: str) -> str:
    return f"/groups/{quote(group, safe='')}/dead-letters"
