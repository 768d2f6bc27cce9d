"""`popwheel admin message ...`: one message by its id, or those with a key."""

import json
from typing import Any
from urllib.parse import quote, urlencode

import click

from popwheel_cli.admin.api import (
    AdminApi,
    Format,
    MomentParam,
    moment,
    output_option,
    show,
    show_all,
    show_whole,
)
from popwheel_cli.admin.bodies import beginning, whole
from popwheel_cli.admin.message_events import show_time_line, time_line
from popwheel_cli.admin.pages import gather, limit_option, say_what_is_missing, silent
from popwheel_cli.errors import CommandError
from popwheel_common.contract.message_id import made_since_ms

_OF_TRACES = ("kind", "position", "pending", "due_ms", "checks", "redriven", "set_aside", "fate")
"""Fields of a place that do not belong to the message itself."""
_REPLACEABLE = ("acknowledged", "done", "was dead letter")
"""States of a message that a later place replaces."""

_message_id = click.argument("message_id", metavar="ID")
_topic = click.option("--topic", required=True, help="Topic that it was sent to.")
_since = click.option(
    "--since", type=MomentParam(), help="Earliest time of its arrival.  [default: by its id, or the oldest]"
)
_until = click.option("--until", type=MomentParam(), help="Latest time of its arrival.  [default: now]")


@click.group()
def message() -> None:
    """Send, receive, follow and browse messages, and find them by id or key."""


@message.command("get")
@_message_id
@_topic
@_since
@_until
@output_option
@click.pass_obj
def get(api: AdminApi, message_id: str, topic: str, since: int | None, until: int | None, output: Format) -> None:
    """Show a message as it was sent."""
    places, _ = _places(api, message_id, topic, "", since, until)
    shown = [each for each in places if each["kind"] in ("stored", "delayed", "half")] or places
    found = dict(next((each for each in shown if each["topic"] == topic), shown[0]))
    for name in ("groups", "attempts", *_OF_TRACES):
        found.pop(name, None)
    if output == "table":
        found = {**found, "stored_ms": moment(found["stored_ms"]), "properties": json.dumps(found["properties"])}
        found["body"] = whole(found)
    show({"message_id": message_id, **found}, output)


@message.command("trace")
@_message_id
@_topic
@click.option("--group", default="", help="Only its fate for this group.")
@_since
@_until
@output_option
@click.pass_obj
def trace(
    api: AdminApi, message_id: str, topic: str, group: str, since: int | None, until: int | None, output: Format
) -> None:
    """Show the fate of a message for each group: acknowledged, in flight, failed, dead letter; its places,
    the oldest place first; and what happened to it, as far as that is known.
    """
    places, found = _places(api, message_id, topic, group, since, until)
    places.sort(key=lambda place: (place["stored_ms"], place["broker"], place["position"]))
    line = time_line(api, message_id, topic, group, places)
    if show_whole({"message_id": message_id, "fates": found, "places": places, **line}, output):
        return
    show_all([{**fate, "became": fate["words"]} for fate in found], output, ("group", "broker", "state", "became"))
    click.echo()
    rows = [{**place, "stored": moment(place["stored_ms"])} for place in places]
    show_all(rows, output, ("stored", "broker", "topic", "queue_id", "queue_offset", "attempts", "kind"))
    show_time_line(line, output)


@message.command("list")
@click.option("--topic", required=True, help="Topic that they were sent to.")
@click.option("--key", required=True, help="One of the keys that their sender gave them.")
@click.option("--since", type=MomentParam(), help="Stored then, at the earliest.  [default: the oldest]")
@click.option("--until", type=MomentParam(), help="Latest time of its arrival.  [default: now]")
@click.option("--broker", default="", help="At this broker alone.")
@limit_option
@output_option
@click.pass_obj
def list_messages(
    api: AdminApi,
    topic: str,
    key: str,
    since: int | None,
    until: int | None,
    broker: str,
    limit: int,
    output: Format,
) -> None:
    """Show the messages of a topic with a key, the oldest first. All messages of that time are read for it."""
    asked: dict[str, object] = {"topic": topic, "key": key, "broker": broker, "since_ms": since or 0}
    if until is not None:
        asked["until_ms"] = until
    found, pages, more = gather(api, "/messages", asked, "messages", limit)
    found.sort(key=lambda one: (one["stored_ms"], one["broker"], one["queue_id"], one["queue_offset"]))
    looked_through, unreadable = (sum(page[name] for page in pages) for name in ("looked_through", "unreadable"))
    answer = {
        "messages": found,
        "looked_through": looked_through,
        "unreadable": unreadable,
        "more": more,
        "unanswered": silent(pages),
    }
    if show_whole(answer, output):
        return
    rows = [
        {**one, "stored": moment(one["stored_ms"]), "keys": " ".join(one["keys"]), "body": beginning(one)}
        for one in found
    ]
    columns = ("stored", "broker", "queue_id", "queue_offset", "message_id", "tag", "keys", "body_bytes", "body")
    show_all(rows, output, columns)
    click.echo(f"{len(found)} of {looked_through} messages that were looked through have the key", err=True)
    if unreadable:
        click.echo(f"{unreadable} of them cannot be read, and may have it", err=True)
    say_what_is_missing(pages, more)


def _places(
    api: AdminApi, message_id: str, topic: str, group: str, since_ms: int | None, until_ms: int | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the places of a message, and its fate by group. Without `since_ms` the time in the id is tried first, then
    all stored messages are searched.

    Raises:
        CommandError: the message is nowhere.
    """
    asked: dict[str, object] = {"topic": topic, "group": group}
    if until_ms is not None:
        asked["until_ms"] = until_ms
    made_ms = made_since_ms(message_id)
    if since_ms is None and made_ms is not None:
        found, fates = _found(api, message_id, asked, made_ms)
        if found:
            return found, fates
    found, fates = _found(api, message_id, asked, since_ms or 0)
    if not found:
        since = f"was stored since {moment(since_ms)}" if since_ms else "is stored"
        raise CommandError(f"no message {message_id} of {topic} {since} any more; or it was never sent to this topic")
    return found, fates


def _found(
    api: AdminApi, message_id: str, asked: dict[str, object], since_ms: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the places since then, and the fates of the message; print the brokers that did not answer."""
    found: list[dict[str, Any]] = []
    fates: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        query = urlencode({**asked, "since_ms": since_ms, "after": after})
        page = api.request("GET", f"/messages/{quote(message_id, safe='')}?{query}")
        found += page["places"]
        fates += page.get("fates", ())  # a controller of an older release reports none
        for one in page["unanswered"]:
            click.echo(f"without the broker {one['broker']}: {one['reason']}", err=True)
        after = page["next"]
    return found, _of_last_places(fates, str(asked["topic"]))


def _of_last_places(fates: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    """Return the fates of a message, from those of all pages: each page knows its own places only."""

    def was_replaced(fate: dict[str, Any]) -> bool:
        later = (each for each in fates if each["broker"] == fate["broker"] and each["position"] > fate["position"])
        if not fate["group"]:  # it waited before its topic
            return any(each["group"] for each in later)
        return fate["state"] in _REPLACEABLE and any(
            each["group"] == fate["group"] and each["topic"] != topic for each in later
        )

    return [fate for fate in fates if not was_replaced(fate)]
