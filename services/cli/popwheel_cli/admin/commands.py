"""`popwheel admin ...`: topics, groups and delayed messages, through the controller's admin API."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import click

from popwheel_cli.admin.activity import activity, trouble
from popwheel_cli.admin.api import (
    AdminApi,
    Format,
    Row,
    moment,
    output_option,
    show,
    show_all,
    show_names,
    show_whole,
)
from popwheel_cli.admin.audit import lite, progress
from popwheel_cli.admin.backoff import BackoffParam
from popwheel_cli.admin.bodies import beginning
from popwheel_cli.admin.changes import changes
from popwheel_cli.admin.check import check
from popwheel_cli.admin.client import client
from popwheel_cli.admin.cluster import broker, cluster
from popwheel_cli.admin.connection import api_of, connection_options
from popwheel_cli.admin.consent import Consent, destroys
from popwheel_cli.admin.context import context
from popwheel_cli.admin.dead_letters import dlq
from popwheel_cli.admin.debug import debug
from popwheel_cli.admin.definitions import apply_definitions, export_definitions, import_definitions
from popwheel_cli.admin.drill import drill
from popwheel_cli.admin.health import health
from popwheel_cli.admin.in_flight import in_flight
from popwheel_cli.admin.message import message
from popwheel_cli.admin.message_read import browse, receive, tail
from popwheel_cli.admin.message_send import send
from popwheel_cli.admin.offset import offset
from popwheel_cli.admin.quarantine import quarantine
from popwheel_cli.admin.setting_options import setting_options
from popwheel_cli.admin.spans import UNITS_MS, Span
from popwheel_cli.admin.update import (
    pause_group,
    pause_topic,
    resume_group,
    resume_topic,
    update_group,
    update_topic,
)
from popwheel_cli.table import print_table
from popwheel_common.contract.topic_settings import Value

_LISTED_MAX = 1_000  # of what the controller lists
_NAMES = 1_000

prefix_option = click.option("--prefix", default="", help="Only names with this prefix.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=_NAMES, show_default=True, help="At most this many."
)


@click.group()
@connection_options
@click.pass_context
def admin(context: click.Context) -> None:
    """Administer the cluster, topics, consumer groups, delayed messages and poison messages."""
    context.obj = api_of(context)


@admin.group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@topic.command("create")
@click.argument("name")
@click.option(
    "--type",
    "topic_type",
    metavar="[NORMAL|FIFO|DELAY|TRANSACTION|MIXED|LITE|PRIORITY]",
    default="NORMAL",
    show_default=True,
    help="Type of its messages; MIXED takes all but those for lite topics or with a priority.",
)
@click.option(
    "--queues", type=int, help="Number of its queues.  [default: the controller's, 8; levels of PRIORITY: 10]"
)
@setting_options
@output_option
@click.pass_obj
def create_topic(
    api: AdminApi, /, name: str, topic_type: str, queues: int | None, output: Format, **settings: Value | None
) -> None:
    """Create a topic."""
    wanted: dict[str, object] = {"name": name, "type": topic_type.upper(), "queues": queues}
    wanted |= {key: value for key, value in settings.items() if value is not None}
    show(api.request("POST", "/topics", wanted), output)


@topic.command("list")
@prefix_option
@limit_option
@output_option
@click.pass_obj
def list_topics(api: AdminApi, prefix: str, limit: int, output: Format) -> None:
    """Show the topics, without system topics, by name."""
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
@destroys
@output_option
@click.pass_obj
def delete_topic(api: AdminApi, name: str, consent: Consent, output: Format) -> None:
    """Delete a topic and its messages, after showing what is deleted with it."""
    path, question = f"/topics/{quote(name, safe='')}", f"delete the topic {name} with all its messages?"
    _show_deleted(name, consent.carry_out(api, "DELETE", path, question, _deleted_names), output)


@admin.group()
def group() -> None:
    """Create, list, describe, change and delete consumer groups."""


@group.command("create")
@click.argument("name")
@click.option(
    "--max-attempts", type=int, help="Attempts before a message becomes a dead letter.  [default: the controller's, 17]"
)
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
    """Create a consumer group."""
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
@destroys
@output_option
@click.pass_obj
def delete_group(api: AdminApi, name: str, consent: Consent, output: Format) -> None:
    """Delete a consumer group and its progress, after showing what is deleted with it."""
    path, question = f"/groups/{quote(name, safe='')}", f"delete the group {name} with its progress?"
    _show_deleted(name, consent.carry_out(api, "DELETE", path, question, _deleted_names), output)


@admin.group()
def timer() -> None:
    """Show and recall messages that wait for their delivery time."""


@timer.command("stats")
@output_option
@click.pass_obj
def timer_stats(api: AdminApi, output: Format) -> None:
    """Show the numbers of delayed messages by time and topic, and the progress of each broker's timer."""
    stats = api.request("GET", "/timers/stats")
    if show_whole(stats, output):
        return
    if output == "name":
        show_names(one["topic"] for one in stats["topics"])
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
    "--within", type=Span(), metavar="SPAN", default="10m", show_default=True, help="Due by then: 90s, 10m, 2h, 1d."
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
    if show_whole(found, output):
        return
    rows = [{**one, "due": moment(one["due_ms"]), "body": beginning(one)} for one in found["timers"]]
    show_all(rows, output, ("due", "message_id", "tag", "keys", "body", "broker", "recall_handle"))
    if found["more"]:
        click.echo("there are more: raise --limit, or ask for a shorter time with --within", err=True)
    _name_silent(found["unanswered"])


@timer.command("recall")
@click.argument("handle")
@click.option("--topic", required=True, help="Topic that the message was sent to.")
@output_option
@click.pass_obj
def recall_timer(api: AdminApi, handle: str, topic: str, output: Format) -> None:
    """Recall a delayed message before its time, by the recall handle that its sender got."""
    show(api.request("POST", "/timers/recall", {"topic": topic, "recall_handle": handle}), output)


def _show_deleted(name: str, deleted: Row | None, output: Format) -> None:
    """Show what was deleted with a topic or group, and warn of clients that still use it."""
    if deleted is None:  # an older controller says no more
        show({"name": name, "deleted": True}, output)
        return
    if show_whole(deleted, output):
        return
    rests_until = moment(deleted["rests_until_ms"])
    show({key: value for key, value in deleted.items() if key not in ("rests_until_ms", "unanswered")}, output)
    if not deleted["deleted"]:
        click.echo("nothing was deleted: this was a dry run", err=True)
    elif deleted["polling_proxies"]:
        click.echo(
            f"clients still poll for {deleted['name']}, at {deleted['polling_proxies']} proxies: stop them, or their "
            f"polls make it again after {rests_until}",
            err=True,
        )
    _name_silent(deleted["unanswered"])


def _deleted_names(found: Row) -> str:
    """Return what is deleted with a topic or group, by the answer to a dry run."""
    counted = {
        "unread": "unread",
        "in_flight": "in flight",
        "delayed": "delayed",
        "half_messages": "of open transactions",
        "dead_letters": "dead letters",
    }
    goes = [f"{found[field]} {words}" for field, words in counted.items() if found[field]]
    others = ", ".join(found["used_with"])
    more = found["used_with_total"] - len(found["used_with"])
    return "; ".join(
        (
            f"with {found['name']} go: {', '.join(goes) or 'no messages'}",
            f"used with {others}{f' and {more} more' if more > 0 else ''}" if others else "used with nothing",
            f"clients of {found['polling_proxies']} proxies poll" if found["polling_proxies"] else "nobody polls",
            *(f"the broker {one['broker']} did not answer: {one['reason']}" for one in found["unanswered"]),
        )
    )


def _say_how_many(kind: str, shown: int, total: int) -> None:
    """Print a hint if not all rows were shown."""
    if shown < total:
        click.echo(f"{shown} of {total} {kind}; raise --limit, or say with --prefix how their names begin", err=True)


def _name_silent(unanswered: Sequence[Row]) -> None:
    """Print the brokers whose part is missing."""
    for one in unanswered:
        click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)


def _horizon(within_ms: int) -> str:
    """Return a horizon in words."""
    if within_ms == 0:
        return "later"
    unit = max((unit for unit, size in UNITS_MS.items() if within_ms % size == 0), key=UNITS_MS.__getitem__)
    return f"within {within_ms // UNITS_MS[unit]}{unit}"


for _command in (update_topic, pause_topic, resume_topic):
    topic.add_command(_command)
for _command in (update_group, pause_group, resume_group):
    group.add_command(_command)
admin.add_command(export_definitions)
admin.add_command(apply_definitions)
admin.add_command(import_definitions)
admin.add_command(activity)
admin.add_command(trouble)
admin.add_command(changes)
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
admin.add_command(client)
admin.add_command(debug)
admin.add_command(health)
admin.add_command(context)
for _verb in (send, receive, tail, browse):
    message.add_command(_verb)
