"""`popwheel admin inflight`, `progress` and `lite`: who has which message, and how far groups have come."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import click

from services.cli.admin.api import AdminApi, Format, Row, moment, output_option, show_all

_PAGE_ROWS = 500
_ROWS = 1_000

_limit = click.option(
    "--limit", type=click.IntRange(min=1), default=_ROWS, show_default=True, help="At most this many."
)


@click.command("inflight")
@click.option("--topic", required=True, help="That groups receive from.")
@click.option("--group", default="", help="Of this group alone.")
@click.option("--broker", default="", help="Of this broker alone.")
@_limit
@output_option
@click.pass_obj
def in_flight(api: AdminApi, topic: str, group: str, broker: str, limit: int, output: Format) -> None:
    """Show the messages that groups were given and have not acknowledged, and until when they are hidden."""
    asked = {"topic": topic, "group": group, "broker": broker}
    found, pages, more = _gather(api, "/inflight", asked, "messages", limit)
    if output == "json":
        click.echo(json.dumps({"messages": found, "more": more, "unanswered": _silent(pages)}, indent=2))
        return
    rows = [{**one, "popped": moment(one["popped_ms"]), "hidden until": moment(one["due_ms"])} for one in found]
    columns = (
        "group",
        "topic",
        "broker",
        "queue_id",
        "queue_offset",
        "message_id",
        "popped",
        "hidden until",
        "attempt",
    )
    show_all(rows, output, columns)
    _say_what_is_missing(pages, more)


@click.command("progress")
@click.argument("group")
@click.option("--topic", default="", help="In this topic and its retries alone.")
@click.option("--broker", default="", help="At this broker alone.")
@_limit
@output_option
@click.pass_obj
def progress(api: AdminApi, group: str, topic: str, broker: str, limit: int, output: Format) -> None:
    """Show how far a group has come in each queue, its retries among them, and how many dead letters it has."""
    asked = {"topic": topic, "broker": broker}
    found, pages, more = _gather(api, f"/groups/{quote(group, safe='')}/progress", asked, "queues", limit)
    found.sort(key=lambda one: (one["topic"], one["broker"], one["queue_id"]))
    dead_letters = {page["broker"]: page["dead_letters"] for page in pages if page["broker"]}
    if output == "json":
        answer = {
            "group": group,
            "kind": pages[0]["kind"],
            "queues": found,
            "dead_letters": dead_letters,
            "more": more,
            "unanswered": _silent(pages),
        }
        click.echo(json.dumps(answer, indent=2))
        return
    rows = [{**one, "committed_offset": _offset(one["committed_offset"])} for one in found]
    offsets = ("min_offset", "committed_offset", "next_offset", "max_offset")
    show_all(rows, output, ("topic", "broker", "queue_id", *offsets, "in_flight", "lag"))
    lag = sum(one["lag"] for one in found)
    click.echo(f"{group} ({pages[0]['kind']}): lag {lag}, dead letters {sum(dead_letters.values())}", err=True)
    _say_what_is_missing(pages, more)


@click.group("lite")
def lite() -> None:
    """Lite topics (docs/lite.md)."""


@lite.command("list")
@click.argument("topic")
@click.option("--group", default="", help="Show how many messages this group has yet to take.")
@click.option("--broker", default="", help="At this broker alone.")
@_limit
@output_option
@click.pass_obj
def list_lite_topics(api: AdminApi, topic: str, group: str, broker: str, limit: int, output: Format) -> None:
    """Show the lite topics of a topic, which of them wait for a group, and by how many clients each is read."""
    asked = {"group": group, "broker": broker}
    found, pages, more = _gather(api, f"/topics/{quote(topic, safe='')}/lite-topics", asked, "lite_topics", limit)
    totals = {page["broker"]: page["total"] for page in pages if page["broker"]}
    if output == "json":
        answer = {"lite_topics": found, "total": totals, "more": more, "unanswered": _silent(pages)}
        click.echo(json.dumps(answer, indent=2))
        return
    rows = [{**one, "last": moment(one["last_ms"]) if one["last_ms"] else "-"} for one in found]
    waiting = ("waiting",) if group else ()
    show_all(rows, output, ("lite_topic", "broker", "min_offset", "max_offset", *waiting, "readers", "last"))
    click.echo(f"{len(found)} of {sum(totals.values())} lite topics of the brokers that were asked", err=True)
    _say_what_is_missing(pages, more)


def _gather(
    api: AdminApi, path: str, asked: dict[str, str], name: str, limit: int
) -> tuple[list[dict[str, Any]], list[Row], bool]:
    """Rows of page after page, the pages, and whether there may be more."""
    found: list[dict[str, Any]] = []
    pages: list[Row] = []
    after: str | None = ""
    while after is not None and len(found) < limit:
        wanted = {**asked, "after": after, "limit": min(_PAGE_ROWS, limit - len(found))}
        page = api.request("GET", f"{path}?{urlencode(wanted)}")
        pages.append(page)
        found += page[name]
        after = page["next"]
    return found, pages, after is not None


def _silent(pages: Sequence[Row]) -> list[Row]:
    return [silence for page in pages for silence in page["unanswered"]]


def _say_what_is_missing(pages: Sequence[Row], more: bool) -> None:
    if more:
        click.echo("there may be more: raise --limit", err=True)
    for one in _silent(pages):
        click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)


def _offset(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
