"""`popwheel admin progress` and `lite`: how far groups have come."""

from urllib.parse import quote

import click

from popwheel_cli.admin.api import AdminApi, Format, moment, output_option, show_all, show_whole
from popwheel_cli.admin.pages import gather, limit_option, say_what_is_missing, silent


@click.command("progress")
@click.argument("group")
@click.option("--topic", default="", help="In this topic and its retries alone.")
@click.option("--broker", default="", help="At this broker alone.")
@limit_option
@output_option
@click.pass_obj
def progress(api: AdminApi, group: str, topic: str, broker: str, limit: int, output: Format) -> None:
    """Show how far a group has come in each queue, its retries among them, and how many dead letters it has."""
    asked = {"topic": topic, "broker": broker}
    found, pages, more = gather(api, f"/groups/{quote(group, safe='')}/progress", asked, "queues", limit)
    found.sort(key=lambda one: (one["topic"], one["broker"], one["queue_id"]))
    dead_letters = {page["broker"]: page["dead_letters"] for page in pages if page["broker"]}
    answer = {
        "group": group,
        "kind": pages[0]["kind"],
        "queues": found,
        "dead_letters": dead_letters,
        "more": more,
        "unanswered": silent(pages),
    }
    if show_whole(answer, output):
        return
    rows = [{**one, "committed_offset": _offset(one["committed_offset"])} for one in found]
    offsets = ("min_offset", "committed_offset", "next_offset", "max_offset")
    show_all(rows, output, ("topic", "broker", "queue_id", *offsets, "in_flight", "lag"))
    lag = sum(one["lag"] for one in found)
    click.echo(f"{group} ({pages[0]['kind']}): lag {lag}, dead letters {sum(dead_letters.values())}", err=True)
    say_what_is_missing(pages, more)


@click.group("lite")
def lite() -> None:
    """Lite topics (docs/use/lite.md)."""


@lite.command("list")
@click.argument("topic")
@click.option("--group", default="", help="Show how many messages this group has yet to take.")
@click.option("--broker", default="", help="At this broker alone.")
@limit_option
@output_option
@click.pass_obj
def list_lite_topics(api: AdminApi, topic: str, group: str, broker: str, limit: int, output: Format) -> None:
    """Show the lite topics of a topic, which of them wait for a group, and by how many clients each is read."""
    asked = {"group": group, "broker": broker}
    found, pages, more = gather(api, f"/topics/{quote(topic, safe='')}/lite-topics", asked, "lite_topics", limit)
    totals = {page["broker"]: page["total"] for page in pages if page["broker"]}
    if show_whole({"lite_topics": found, "total": totals, "more": more, "unanswered": silent(pages)}, output):
        return
    rows = [{**one, "last": moment(one["last_ms"]) if one["last_ms"] else "-"} for one in found]
    waiting = ("waiting",) if group else ()
    show_all(rows, output, ("lite_topic", "broker", "min_offset", "max_offset", *waiting, "readers", "last"))
    click.echo(f"{len(found)} of {sum(totals.values())} lite topics of the brokers that were asked", err=True)
    say_what_is_missing(pages, more)


def _offset(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
