"""`popwheel admin ...`: topics, groups and delayed messages, through the controller's admin API."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import click

from services.cli.admin.api import (
    ACCESS_KEY_VARIABLE,
    SECRET_VARIABLE,
    TOKEN_VARIABLE,
    AdminApi,
    Format,
    Row,
    moment,
    output_option,
    show,
    show_all,
)
from services.cli.admin.audit import in_flight, lite, progress
from services.cli.admin.backoff import BackoffParam
from services.cli.admin.check import check
from services.cli.admin.cluster import broker, cluster
from services.cli.admin.dead_letters import dlq
from services.cli.admin.drill import drill
from services.cli.admin.message import message
from services.cli.admin.offset import offset
from services.cli.admin.quarantine import quarantine
from services.cli.table import print_table
from services.proxy.access.signature import Credentials

_LISTED_MAX = 1_000  # of what the controller lists
_NAMES = 1_000
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,9})([smhd])")

prefix_option = click.option("--prefix", default="", help="Only those whose names begin so.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=_NAMES, show_default=True, help="At most this many."
)


class _Span(click.ParamType[int]):
    """A span of time as an operator writes it, in milliseconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SPAN.fullmatch(value)
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is not a span of time; write 90s, 10m, 2h or 1d", param, ctx)
        return int(match[1]) * _UNITS_MS[match[2]]


@click.group()
@click.option(
    "--server",
    default="http://127.0.0.1:8080",
    show_default=True,
    help="Where the controller answers; several, one after a comma, are asked in turn.",
)
@click.option(
    "--token",
    default="",
    envvar=TOKEN_VARIABLE,
    help=f"Shown to a controller that demands one; better in {TOKEN_VARIABLE}, where others do not see it.",
)
@click.option(
    "--access-key",
    default="",
    envvar=ACCESS_KEY_VARIABLE,
    help=f"User as which `check` and `drill` send and receive, or {ACCESS_KEY_VARIABLE}.",
)
@click.option("--secret", default="", envvar=SECRET_VARIABLE, help=f"That user's secret; better in {SECRET_VARIABLE}.")
@click.pass_context
def admin(context: click.Context, server: str, token: str, access_key: str, secret: str) -> None:
    """Look after the cluster, topics, consumer groups, delayed messages and what was set aside."""
    context.obj = AdminApi(server, token, Credentials(access_key, secret))


@admin.group()
def topic() -> None:
    """Topics."""


@topic.command("create")
@click.argument("name")
@click.option(
    "--type",
    "topic_type",
    metavar="[NORMAL|FIFO|DELAY|TRANSACTION|MIXED|LITE|PRIORITY]",
    default="NORMAL",
    show_default=True,
    help="Which messages it takes; MIXED takes all but those for lite topics or with a priority.",
)
@click.option(
    "--queues", type=int, help="Number of its queues.  [default: the controller's, 8; levels of PRIORITY: 10]"
)
@click.option(
    "--lite-expiration",
    type=_Span(),
    help="Of type LITE: a lite topic into which nothing came for so long ends, with its messages: 90s, 10m, 2h or 1d. "
    " [default: never]",
)
@output_option
@click.pass_obj
def create_topic(
    api: AdminApi, name: str, topic_type: str, queues: int | None, lite_expiration: int | None, output: Format
) -> None:
    """Make a topic."""
    wanted: dict[str, object] = {"name": name, "type": topic_type.upper(), "queues": queues}
    if lite_expiration is not None:
        wanted["lite_expiration_ms"] = lite_expiration
    show(api.request("POST", "/topics", wanted), output)


@topic.command("list")
@prefix_option
@limit_option
@output_option
@click.pass_obj
def list_topics(api: AdminApi, prefix: str, limit: int, output: Format) -> None:
    """Show the topics but the system's own, by name."""
    topics, total = api.pages("/topics", "topics", prefix, limit)
    show_all(topics, output, ("name", "type", "queues", "id"))
    _say_how_many("topics", len(topics), total)


@topic.command("describe")
@click.argument("name")
@output_option
@click.pass_obj
def describe_topic(api: AdminApi, name: str, output: Format) -> None:
    """Show one topic."""
    show(api.request("GET", f"/topics/{quote(name, safe='')}"), output)


@topic.command("delete")
@click.argument("name")
@output_option
@click.pass_obj
def delete_topic(api: AdminApi, name: str, output: Format) -> None:
    """Delete a topic and its messages."""
    api.request("DELETE", f"/topics/{quote(name, safe='')}")
    show({"name": name, "deleted": True}, output)


@admin.group()
def group() -> None:
    """Consumer groups."""


@group.command("create")
@click.argument("name")
@click.option("--max-attempts", type=int, help="Deliveries before a message is dead.  [default: the controller's, 17]")
@click.option("--fifo", is_flag=True, help="Consume in order.")
@click.option(
    "--backoff",
    type=BackoffParam(),
    help="Waits after failed attempts: 1s,5s,1m or exponential:1s,5m,2 (first, longest, multiplier).  "
    "[default: the controller's]",
)
@output_option
@click.pass_obj
def create_group(
    api: AdminApi,
    name: str,
    max_attempts: int | None,
    fifo: bool,
    backoff: Mapping[str, object] | None,
    output: Format,
) -> None:
    """Make a consumer group."""
    body = {"name": name, "max_attempts": max_attempts, "fifo": fifo, **(backoff or {})}
    show(api.request("POST", "/groups", body), output)


@group.command("list")
@prefix_option
@limit_option
@output_option
@click.pass_obj
def list_groups(api: AdminApi, prefix: str, limit: int, output: Format) -> None:
    """Show the consumer groups, by name."""
    groups, total = api.pages("/groups", "groups", prefix, limit)
    show_all(groups, output, ("name", "max_attempts", "fifo", "id"))
    _say_how_many("groups", len(groups), total)


@group.command("describe")
@click.argument("name")
@output_option
@click.pass_obj
def describe_group(api: AdminApi, name: str, output: Format) -> None:
    """Show one consumer group."""
    show(api.request("GET", f"/groups/{quote(name, safe='')}"), output)


@group.command("delete")
@click.argument("name")
@output_option
@click.pass_obj
def delete_group(api: AdminApi, name: str, output: Format) -> None:
    """Delete a consumer group and what it has consumed so far."""
    api.request("DELETE", f"/groups/{quote(name, safe='')}")
    show({"name": name, "deleted": True}, output)


@admin.group()
def timer() -> None:
    """Messages that wait for their delivery time."""


@timer.command("stats")
@output_option
@click.pass_obj
def timer_stats(api: AdminApi, output: Format) -> None:
    """Show how many wait, for when, of which topics, and how far each broker's timer has come."""
    stats = api.request("GET", "/timers/stats")
    if output == "json":
        click.echo(json.dumps(stats, indent=2))
        return
    due = [(_horizon(horizon["within_ms"]), str(horizon["count"])) for horizon in stats["horizons"]]
    print_table(("due", "pending"), [*due, ("all", str(stats["pending"]))])
    if stats["topics"]:
        click.echo()
        print_table(("topic", "pending"), [(one["topic"], str(one["count"])) for one in stats["topics"]])
    if stats["brokers"]:
        click.echo()
        print_table(
            ("broker", "pending", "recalled", "read until", "written until", "behind"),
            [
                (
                    one["broker"],
                    str(one["pending"]),
                    str(one["recalled"]),
                    moment(one["read_time_ms"]),
                    moment(one["write_time_ms"]),
                    f"{one['behind_ms']} ms",
                )
                for one in stats["brokers"]
            ],
        )
    _name_silent(stats["unanswered"])


@timer.command("list")
@click.option("--topic", required=True, help="Whose messages.")
@click.option(
    "--within", type=_Span(), metavar="SPAN", default="10m", show_default=True, help="Due by then: 90s, 10m, 2h, 1d."
)
@click.option("--limit", type=click.IntRange(1, _LISTED_MAX), default=100, show_default=True, help="At most this many.")
@output_option
@click.pass_obj
def list_timers(api: AdminApi, topic: str, within: int, limit: int, output: Format) -> None:
    """Show the messages of a topic that are due soon, the earliest first."""
    found: dict[str, Any] = {"timers": [], "next": "", "unanswered": []}
    while found["next"] is not None and len(found["timers"]) < limit:
        left = limit - len(found["timers"])
        asked = {"topic": topic, "within_ms": within, "limit": left, "after": found["next"]}
        page = api.request("GET", f"/timers?{urlencode(asked)}")
        silent = page["unanswered"] + [one for one in found["unanswered"] if one not in page["unanswered"]]
        found = {**page, "timers": found["timers"] + page["timers"], "unanswered": silent}
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    rows = [{**one, "due": moment(one["due_ms"])} for one in found["timers"]]
    show_all(rows, output, ("due", "message_id", "tag", "keys", "broker", "recall_handle"))
    if found["more"]:
        click.echo("there are more: raise --limit, or ask for a shorter time with --within", err=True)
    _name_silent(found["unanswered"])


@timer.command("recall")
@click.argument("handle")
@click.option("--topic", required=True, help="The topic that the message was sent to.")
@output_option
@click.pass_obj
def recall_timer(api: AdminApi, handle: str, topic: str, output: Format) -> None:
    """Take a message back before its time, by the recall handle that its sender was given."""
    show(api.request("POST", "/timers/recall", {"topic": topic, "recall_handle": handle}), output)


def _say_how_many(kind: str, shown: int, total: int) -> None:
    """Say so if not all were shown."""
    if shown < total:
        click.echo(f"{shown} of {total} {kind}; raise --limit, or say with --prefix how their names begin", err=True)


def _name_silent(unanswered: Sequence[Row]) -> None:
    """Say whose part is missing in what was shown."""
    for one in unanswered:
        click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)


def _horizon(within_ms: int) -> str:
    """A horizon in words."""
    if within_ms == 0:
        return "later"
    unit = max((unit for unit, size in _UNITS_MS.items() if within_ms % size == 0), key=_UNITS_MS.__getitem__)
    return f"within {within_ms // _UNITS_MS[unit]}{unit}"


admin.add_command(check)
admin.add_command(cluster)
admin.add_command(broker)
admin.add_command(drill)
admin.add_command(quarantine)
admin.add_command(offset)
admin.add_command(dlq)
admin.add_command(message)
admin.add_command(in_flight)
admin.add_command(progress)
admin.add_command(lite)
