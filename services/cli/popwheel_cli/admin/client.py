"""`popwheel admin client ...`: connected clients, their topics, and their messages in flight."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import click

from popwheel_cli.admin.api import AdminApi, Format, Row, moment, output_option, show_all, show_whole

_PAGE_ROWS = 100
_ROWS = 1_000
_TOPICS_SHOWN = 3


@click.group()
def client() -> None:
    """Producers and consumers that proxies know."""


@client.command("list")
@click.option("--group", default="", help="Only clients of this group.")
@click.option("--topic", default="", help="Only clients that read this topic or send to it.")
@click.option("--prefix", default="", help="Only clients whose ids have this prefix.")
@click.option("--limit", type=click.IntRange(min=1), default=_ROWS, show_default=True, help="At most this many.")
@output_option
@click.pass_obj
def list_clients(api: AdminApi, group: str, topic: str, prefix: str, limit: int, output: Format) -> None:
    """Show the clients of all proxies: their kinds, topics, and numbers of messages in flight."""
    found: list[dict[str, Any]] = []
    unanswered: list[Row] = []
    after: str | None = ""
    while after is not None and len(found) < limit:
        asked = {"group": group, "topic": topic, "prefix": prefix, "after": after}
        page = api.request("GET", f"/clients?{urlencode({**asked, 'limit': min(_PAGE_ROWS, limit - len(found))})}")
        found += page["clients"]
        unanswered += page["unanswered"]
        after = page["next"]
    if show_whole({"clients": found, "more": after is not None, "unanswered": unanswered}, output):
        return
    columns = ("id", "kind", "library", "proxy", "address", "user", "group", "topics", "polls", "held", "seen")
    show_all([_row(one) for one in found], output, columns)
    if after is not None:
        click.echo("there are more: raise --limit, or ask for some with --group, --topic or --prefix", err=True)
    _say_who_is_silent(unanswered)


@client.command("describe")
@click.argument("client_id", metavar="ID")
@output_option
@click.pass_obj
def describe_client(api: AdminApi, client_id: str, output: Format) -> None:
    """Show one client, at each proxy that knows it, with its filters and messages in flight."""
    found = api.request("GET", f"/clients/{quote(client_id, safe='')}")
    if show_whole(found, output):
        return
    for one in found["at"]:
        facts = {
            **_row(one),
            "platform": one["platform"],
            "hostname": one["hostname"],
            "since": moment(one["since_ms"]),
        }
        del facts["topics"]
        show_all([{"property": name, "value": value} for name, value in facts.items()], output, ("property", "value"))
        click.echo()
        reads = [{**each, "polled": _time(each["polled_ms"])} for each in one["subscriptions"]]
        if reads:
            show_all(reads, output, ("group", "topic", "filter", "polled"))
            click.echo()
        if one["publishes"]:
            show_all([{"sends to": topic} for topic in one["publishes"]], output, ("sends to",))
            click.echo()
    if found["messages"]:
        rows = [{**each, "since": moment(each["since_ms"])} for each in found["messages"]]
        show_all(rows, output, ("group", "topic", "is_retry", "broker", "queue_id", "queue_offset", "since"))
    _say_who_is_silent(found["unanswered"])


def _row(one: Row) -> dict[str, Any]:
    topics = list(dict.fromkeys([*(each["topic"] for each in one["subscriptions"]), *one["publishes"]]))
    left_out = one["subscriptions_total"] - len(one["subscriptions"]) + one["publishes_total"] - len(one["publishes"])
    more = left_out + len(topics[_TOPICS_SHOWN:])
    messages = "?" if one["held"] is None else str(one["held"])
    if one["held_since_ms"]:
        messages += f" since {moment(one['held_since_ms'])}"
    return {
        "id": one["id"],
        "kind": one["kind"] or "?",
        "library": " ".join(filter(None, (one["language"], one["version"]))) or "?",
        "proxy": one["proxy"],
        "address": one["address"],
        "user": one["user"],
        "group": one["group"],
        "topics": " ".join(topics[:_TOPICS_SHOWN]) + (f" and {more} more" if more > 0 else ""),
        "polls": one["polls"],
        "held": messages,
        "seen": moment(one["seen_ms"]),
    }


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else moment(time_ms)


def _say_who_is_silent(unanswered: Sequence[Row]) -> None:
    for one in unanswered:
        click.echo(f"without the proxy {one['proxy']}: {one['reason']}", err=True)
